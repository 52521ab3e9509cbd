"""Weights in 4 or 8 bits: formats, codec, matrix products and layers.

Internal: users import `toprope.tiers.pages`, which has the public names; the modes use it as well. The C++ half is in
tiers/csrc. Tests: tests/tiers/test_tiers_modes.py, tests/tiers/test_pages_kernels.py.
"""

__all__: list[str] = []
