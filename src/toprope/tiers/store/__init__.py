"""Stores of bytes (memory of devices and host, files, spill files), and the threads that move bytes between them.

The lowest part of `toprope.tiers`: engine, stack, modes and training are built on it. It imports none of them. Tests:
tests/tiers/test_tiers_stores.py, tests/tiers/test_tiers_ring.py (threads).
"""

__all__: list[str] = []
