"""A stage as data: its specification, its plan for a process, and its status cells.

The types that building a graph (`flow.graph`, `flow.points`) and running it (`flow.executor`, `flow.worker`) share.
Tests: tests/flow/test_flow_run.py.
"""

__all__: list[str] = []
