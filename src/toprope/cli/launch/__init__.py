"""Start of a program by `toprope run`: choice of the card, build, child process.

Called by `cli.run`, in this order: `select_target`, `detect`, `card_build`, `program`, `child_process`.
"""

__all__: list[str] = []
