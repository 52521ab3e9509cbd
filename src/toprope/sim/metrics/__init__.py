"""Counters and errors of a run: read from the files of the C++ core, and summed for the reports of cli."""

__all__: list[str] = []
