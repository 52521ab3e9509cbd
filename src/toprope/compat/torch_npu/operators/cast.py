"""Casts between dtypes: npu_dtype_cast, its forms and its gradients."""

from __future__ import annotations

import torch

from .checks import refuse
from .registry import operator

__all__ = [
    "npu_dtype_cast",
    "npu_dtype_cast_",
    "npu_dtype_cast_backward",
    "plain_dtype_cast",
    "plain_dtype_cast_backward",
]

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


@operator("_npu_dtype_cast")
def plain_dtype_cast(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy of the tensor in another dtype, or in its own."""
    return self.to(dtype, copy=True)


@operator("_npu_dtype_cast_backward")
def plain_dtype_cast_backward(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Gradient of _npu_dtype_cast: a copy of the gradient in the dtype of the input."""
    return grad.to(dtype, copy=True)


@operator("npu_dtype_cast_backward")
def npu_dtype_cast_backward(
    grad: torch.Tensor, dtype: torch.dtype, grad_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """Gradient of npu_dtype_cast: a copy of the gradient in the dtype of the input.

    Args:
        grad: gradient of the result.
        dtype: of the input.
        grad_dtype: reads `grad` as another dtype; only its own is taken here.
        input_dtype: the dtype that the input was read as; the result has it.

    Raises:
        RuntimeError: a dtype that torch does not have (the card's own, such as hifloat8).
    """
    name = "npu_dtype_cast_backward"
    if grad_dtype is not None and _DTYPES.get(grad_dtype) != grad.dtype:
        refuse(name, f"toprope's facade does not read {grad.dtype} as dtype number {grad_dtype}")
    if input_dtype is not None and input_dtype not in _DTYPES:
        refuse(name, f"toprope's facade does not have dtype number {input_dtype}")
    return grad.to(dtype if input_dtype is None else _DTYPES[input_dtype], copy=True)


@operator("npu_dtype_cast_")
def npu_dtype_cast_(self: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Cast a tensor into another one of another dtype; of the same dtype, nothing is copied, as on the card.

    Source: CastKernelNpu.cpp of op-plugin.
    """
    return self if self.dtype == src.dtype else self.copy_(src)
