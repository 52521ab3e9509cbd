"""Casts between dtypes: npu_dtype_cast."""

from __future__ import annotations

import torch

from .checks import refuse
from .registry import operator

__all__ = ["npu_dtype_cast"]

# torch numbers its dtypes in this order (c10/core/ScalarType.h); the operator's schema hands the number on.
_DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
}


@operator("npu_dtype_cast")
def npu_dtype_cast(self: torch.Tensor, dtype: int, input_dtype: int | None = None) -> torch.Tensor:
    """The tensor in another dtype.

    Args:
        self: any tensor.
        dtype: a torch dtype; torch hands it on as its number.
        input_dtype: reads `self` as another dtype; only its own is taken here.

    Raises:
        RuntimeError: a dtype that torch does not have (the card's own, such as hifloat8).
    """
    if dtype not in _DTYPES:
        refuse("npu_dtype_cast", f"toprope's facade does not have dtype number {dtype}")
    if input_dtype is not None and _DTYPES.get(input_dtype) != self.dtype:
        refuse("npu_dtype_cast", f"toprope's facade does not read {self.dtype} as dtype number {input_dtype}")
    return self.to(_DTYPES[dtype])
