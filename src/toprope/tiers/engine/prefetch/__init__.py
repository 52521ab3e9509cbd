"""Prefetch of weight groups into device memory, in the order of their use.

Internal to `tiers.engine`; `engine.runtime` calls it around each module. Tests: tests/tiers/test_tiers_ring.py.
"""

__all__: list[str] = []
