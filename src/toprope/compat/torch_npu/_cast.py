"""Casts: npu_dtype_cast, and npu_format_cast, which changes nothing that a program can see."""

from __future__ import annotations

import torch

from ._check import refuse

__all__ = ["npu_dtype_cast", "npu_format_cast"]

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

# Storage formats of the card (acl_base.h), the private ones among them.
_FORMATS = frozenset({-1, 0, 1, 2, 3, 4, 12, 27, 29, 30, 32, 33})


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


def npu_format_cast(
    self: torch.Tensor, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """The tensor itself: a storage format of the card changes where values lie, not which they are.

    Args:
        self: any tensor.
        acl_format: number of the format, such as 29 for FRACTAL_NZ.
        customize_dtype: not in this facade.
        input_dtype: not in this facade.

    Raises:
        RuntimeError: a format that the card does not have, or one of the arguments that are not here.
    """
    if acl_format not in _FORMATS:
        refuse("npu_format_cast", f"there is no storage format {acl_format}")
    if customize_dtype is not None or input_dtype is not None:
        refuse("npu_format_cast", "toprope's facade does not have customize_dtype and input_dtype yet")
    return self
