"""Scheduler of a local session, with its instance groups and resource groups.

Internal to `functions.local`; the arithmetic is in `functions.scheduling`.
"""

__all__: list[str] = []
