"""Start of a program by `toprope run`: choice of the card, build, child process.

Called by `cli.run`, in this order: `select_target`, `detect`, `card_build`, `program`, `child_process`. Tests:
tests/cli/test_card_build.py.
"""

__all__: list[str] = []
