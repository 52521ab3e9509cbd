"""The session of a machine that `toprope start` begins: its options, its state file, and the cards of the machine.

Shared by the commands `start`, `status`, `stop` and `run` and by both backends. Tests: tests/cli/test_cli_start.py,
tests/functions/test_functions_collect.py, tests/functions/test_functions_claims.py.
"""

__all__: list[str] = []
