"""Nodes of a Ray cluster: their resources and labels, and their view as a ledger.

Internal to `functions.ray`; the only code that knows how toprope's requests are written in Ray's resources. Tests:
tests/functions/test_functions_ray_mapping.py, tests/functions/test_functions_ray_auth.py.
"""

__all__: list[str] = []
