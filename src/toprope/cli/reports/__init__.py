"""Reports of `toprope run`: text, page, trace, core check, failure.

Called by `cli.run` when the program has ended, with what its processes left in the folder of the run. Tests:
tests/cli/test_wrong_use.py, tests/cli/test_cli_cores.py.
"""

__all__: list[str] = []
