"""A Ray cluster: joined or started for a session, and kept by `toprope start`, `status` and `stop`.

Internal to `functions.ray`; everything that runs or asks Ray's own commands and servers is here. Tests:
tests/functions/test_functions_addresses.py, tests/functions/test_functions_ray_auth.py, and (slow)
tests/functions/test_functions_ray_start.py.
"""

__all__: list[str] = []
