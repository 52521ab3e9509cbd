"""Scheduling on top of Ray: queues of requests, instance groups and resource groups.

Internal to `functions.ray`, in drivers and workers; the counterpart of `functions.local.scheduling`.
"""

__all__: list[str] = []
