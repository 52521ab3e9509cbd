"""Schedules from files: profiles, traces, graphs, and toprope's own JSON.

Internal: `cores.record` chooses the format, and makes the public calls. One module for each format, and `queues` for
two of them. Tests: tests/cores/test_cores_record_csv.py, tests/cores/test_cores_record_trace.py,
tests/cores/test_cores_record_graph.py, tests/cores/test_cores_record.py (JSON).
"""

__all__: list[str] = []
