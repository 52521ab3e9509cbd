"""Runs an attached model: weights are prefetched before their modules run, and released after them.

Internal, behind `toprope.tiers.attach`: `attach` builds, `handle` is what users hold, `runtime` is called by the
hooks. Tests: tests/tiers/test_tiers_attach.py, tests/tiers/test_tiers_faults.py.
"""

__all__: list[str] = []
