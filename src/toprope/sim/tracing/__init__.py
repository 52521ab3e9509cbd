"""Traces of the simulated cards: writing, records, shapes, times. One trace serves all tools (docs/trace.md).

Tests: tests/sim/test_records.py, and tests/sim/simulated/test_trace.py on a card.
"""

__all__: list[str] = []
