"""Metrics, traces and drawings of a running graph.

Behind `FlowGraph.metrics`, `trace` and `picture`, and the service's /metrics.
"""

__all__: list[str] = []
