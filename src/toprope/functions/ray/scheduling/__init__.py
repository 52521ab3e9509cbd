"""Scheduling on top of Ray: queues of requests, instance groups and resource groups.

Internal to `functions.ray`, in drivers and workers; the counterpart of `functions.local.scheduling`. Tests:
tests/functions/test_functions_ray.py (slow).
"""

__all__: list[str] = []
