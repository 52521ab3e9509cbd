"""A Ray cluster: joined or started for a session, and kept by `toprope start`, `status` and `stop`.

Internal to `functions.ray`; everything that runs or asks Ray's own commands and servers is here.
"""

__all__: list[str] = []
