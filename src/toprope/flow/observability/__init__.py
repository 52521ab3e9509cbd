"""Metrics, traces and drawings of a running graph."""

__all__: list[str] = []
