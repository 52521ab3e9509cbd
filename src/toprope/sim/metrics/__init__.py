"""Counters and errors of a run: read from the files of the C++ core, and summed for the reports of cli.

Tests: tests/sim/test_counters.py, tests/sim/test_cards_file.py, tests/cli/test_report.py.
"""

__all__: list[str] = []
