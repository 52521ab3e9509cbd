"""Edges between the processes of a graph: ring buffer with wake-up, connections, codec, and the two ends of an edge."""

__all__: list[str] = []
