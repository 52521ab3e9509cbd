"""Limits for streams: the search for the fastest ones that are safe, and the times that it rests on.

Behind `toprope cores plan` and the planners that `toprope.cores` exports. Tests: tests/cores/test_cores_plan.py.
"""

__all__: list[str] = []
