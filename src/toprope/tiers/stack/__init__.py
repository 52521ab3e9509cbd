"""A stack of levels: tensors by key, moved between devices, the host and a disk by a caching policy.

The implementation of `toprope.tiers.TierStack` and `TierLinear`; independent of attached models (`tiers.engine`).
Tests: tests/tiers/test_tiers_stack.py, tests/tiers/test_tiers_stack_disk.py, tests/tiers/test_tiers_levels.py.
"""

__all__: list[str] = []
