"""Counters and errors of a run: read from the files of the C++ core, and summed."""

__all__: list[str] = []
