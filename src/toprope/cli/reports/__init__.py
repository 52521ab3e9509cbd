"""Reports of `toprope run`: text, page, trace, core check, failure.

Called by `cli.run` when the program has ended, with what its processes left in the folder of the run. Tests:
tests/cli/test_report.py, tests/cli/test_rehearsal_file.py, tests/cli/test_run_failed.py, tests/cli/test_run_trace.py.
"""

__all__: list[str] = []
