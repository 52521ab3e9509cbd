"""Runs of a program on a virtual clock, the time-outs that a card reports, and their picture."""

__all__: list[str] = []
