"""Schedules from files: profiles, traces, graphs, and toprope's own JSON."""

__all__: list[str] = []
