"""Limits for streams: the search for the fastest ones that are safe, and the times that it rests on.

Behind `toprope cores plan` and the planners that `toprope.cores` exports. Three planners: `program` by sums, `safe` by
the checker, `exact` by CP-SAT. Tests: tests/cores/test_cores_plan.py, tests/cores/test_cores_plan_safe.py,
tests/cores/test_cores_plan_exact.py.
"""

__all__: list[str] = []
