"""A Ray cluster: joined or started for a session, and kept by `toprope start`, `status` and `stop`.

Internal to `functions.ray`; everything that runs or asks Ray's own commands and servers is here. Tests:
tests/functions/test_functions_ray_manager.py.
"""

__all__: list[str] = []
