"""Facade module: former place of the layers of `_batchnorm_with_int32_count`, kept importable as torch_npu does.

Tests: tests/compat/test_torch_npu_contrib.py.
"""

from ._batchnorm_with_int32_count import FastBatchNorm1d, FastBatchNorm2d, FastBatchNorm3d, FastSyncBatchNorm

__all__ = ["FastBatchNorm1d", "FastBatchNorm2d", "FastBatchNorm3d", "FastSyncBatchNorm"]
