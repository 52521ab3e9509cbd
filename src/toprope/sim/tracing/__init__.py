"""Traces of the simulated cards: writing, records, shapes, times. One trace serves all tools (docs/trace.md)."""

__all__: list[str] = []
