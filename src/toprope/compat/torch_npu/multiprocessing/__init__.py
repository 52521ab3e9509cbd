"""Facade package `torch_npu.multiprocessing`: see `reductions`, its one module.

Tests: tests/sim/simulated/test_sharing.py.
"""

from toprope.compat.missing import missing_from

__all__: list[str] = []

__getattr__ = missing_from(__name__)
