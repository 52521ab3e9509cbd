"""Edges between the processes of a graph: ring buffer with wake-up, connections, codec, and the two ends of an edge.

Internal to `toprope.flow`: the driver (`flow.executor`) and the processes of stages (`flow.worker`) send and receive
by it. Tests: tests/flow/test_flow_edge.py.
"""

__all__: list[str] = []
