"""A running graph in the program: placement of its processes, feeding, fetching, faults, and its end."""

__all__: list[str] = []
