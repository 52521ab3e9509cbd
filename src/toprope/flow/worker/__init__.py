"""A process of a graph: the loops of its functions, how they take their inputs, and how they are called."""

__all__: list[str] = []
