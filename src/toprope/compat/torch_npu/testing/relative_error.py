"""Comparison for `TestCase.assertRtolEqual`: relative and absolute difference, with a share of exceptions.

Used by testcase.py; the limits are torch_npu's, held by tests/compat/test_torch_npu_testing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch

__all__ = ["relative_difference"]

_DTYPES = (
    np.bool_, np.uint16, np.int16, np.int32, np.float16, np.float32, np.int8, np.uint8, np.int64, np.float64,
)  # fmt: skip


def relative_difference(x: Any, y: Any, prec: float, prec16: float, auto_trans_dtype: bool) -> str:
    """Compare two numbers, arrays or tensors.

    Args:
        x: the one; a sequence is read as a tensor like the other one.
        y: the other.
        prec: precision of float32, float64 and integers.
        prec16: precision of float16 and bfloat16.
        auto_trans_dtype: compare in the dtype of `y`.

    Returns:
        The difference as text, "nan" for nan in different places, an empty text where there is none.
    """
    if isinstance(x, torch.Tensor) and isinstance(y, Sequence):
        y = torch.as_tensor(y, dtype=x.dtype, device=x.device)
    elif isinstance(x, Sequence) and isinstance(y, torch.Tensor):
        x = torch.as_tensor(x, dtype=y.dtype, device=y.device)
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        if auto_trans_dtype:
            x = x.to(y.dtype)
        if x.dtype == y.dtype == torch.bfloat16:
            if x.shape != y.shape:
                return f"shape error: {tuple(x.shape)} and {tuple(y.shape)}"
            return "" if torch.allclose(x.cpu(), y.cpu(), rtol=prec16, atol=prec16) else "result error"
        x, y = x.detach().cpu().numpy(), y.detach().cpu().numpy()
    elif isinstance(x, Number) and isinstance(y, Number):
        x, y = np.array(x), np.array(y)
    return _of_arrays(x, y, prec, prec16)


def _of_arrays(x: Any, y: Any, prec: float, prec16: float) -> str:
    if x.shape != y.shape:
        return f"shape error: {x.shape} and {y.shape}"
    if x.dtype != y.dtype:
        return f"dtype error: {x.dtype} and {y.dtype}"
    if x.dtype not in _DTYPES:
        return f"{x.dtype} is not compared: only bool, integers of up to 64 bits and floats of 16 to 64 bits"
    if x.dtype == np.bool_:
        return "" if np.array_equal(x, y) else "result error"
    if np.array_equal(x, y) and np.isfinite(x).all():  # caches of some gigabytes
        return ""
    precision, least = (prec16, 6e-8) if x.dtype == np.float16 else (prec, 10e-10)
    apart = y - x
    nan = np.isnan(x)
    if not np.array_equal(nan, np.isnan(y)):
        return "nan"
    if nan.any():
        apart[nan] = 0
    apart = np.abs(apart)
    larger = np.maximum(np.abs(x), np.abs(y))
    near = np.less_equal(apart, precision)
    near_relative = np.less_equal(apart / np.add(larger, least), precision)
    if near.all() or near_relative.all():
        return ""
    most = x.size * precision
    if np.sum(~near) > most and np.sum(~near_relative) > most:
        return f"result error: {np.sum(~near)} of {x.size} elements differ by more than {precision}"
    return ""
