"""Traces of the simulated cards: writing, records, shapes, times."""

__all__: list[str] = []
