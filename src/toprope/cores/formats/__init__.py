"""Schedules from files: profiles, traces, graphs, and toprope's own JSON.

Internal: `cores.record` chooses the format, and makes the public calls. Tests: tests/cores/test_cores_record_csv.py.
"""

__all__: list[str] = []
