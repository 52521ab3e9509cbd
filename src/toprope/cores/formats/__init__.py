"""Schedules from files: profiles, traces, graphs, and toprope's own JSON.

Internal: `cores.record` chooses the format, and makes the public calls.
"""

__all__: list[str] = []
