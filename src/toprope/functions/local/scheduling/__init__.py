"""Scheduler of a local session, with its instance groups and resource groups.

Internal to `functions.local`; the arithmetic is in `functions.scheduling`. Tests:
tests/functions/test_functions_affinity.py, tests/functions/test_functions_fcc.py,
tests/functions/test_functions_resource_groups.py.
"""

__all__: list[str] = []
