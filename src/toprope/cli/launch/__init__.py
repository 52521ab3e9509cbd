"""Start of a program by `toprope run`: choice of the card, build, child process.

Called by `cli.run`, in this order: `program` (is there one?), `select_target` with `detect`, `card_build`,
`child_process`. Tests: tests/cli/test_run.py for the order, and one file for each module.
"""

__all__: list[str] = []
