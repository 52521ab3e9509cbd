"""Metrics, traces and drawings of a running graph.

Behind `FlowGraph.metrics`, `trace` and `picture`, and the service's /metrics. Tests:
tests/flow/test_serve_parts.py, tests/flow/test_flow_graph.py.
"""

__all__: list[str] = []
