"""Casts between dtypes, those of torch and those that only the card has: npu_dtype_cast.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_cast.py and
tests/compat/operators/test_quant_dtypes.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype, card_dtype, dtype_text, kept_dtype
from .checks import refuse
from .low_precision import FP4, fp4_values, hifloat8_values, only_950, pack_bytes, quantised_to
from .registry import operator

__all__ = [
    "npu_dtype_cast",
    "npu_dtype_cast_",
    "npu_dtype_cast_backward",
    "npu_dtype_cast_of_torch",
    "npu_dtype_cast_of_torch_backward",
]

_PACKED = (CardDtype.int4, *FP4)
_OWN = (*_PACKED, CardDtype.hifloat8)
"""Dtypes that torch lacks, kept in uint8."""


@operator("npu_dtype_cast")
def npu_dtype_cast(self: torch.Tensor, dtype: int, input_dtype: int | None = None) -> torch.Tensor:
    """The tensor in another dtype, always a new one.

    Args:
        self: any tensor.
        dtype: a torch dtype, which torch hands on as its number; on the Ascend 950 also torch_npu.hifloat8, the two of
            FP4 and torch_npu.int4, which come in uint8, those of 4 bits with half of the last axis. HiFloat8 rounds
            ties away from zero.
        input_dtype: dtype of the values in `self`, if that is torch_npu.hifloat8 or one of FP4 in uint8.

    Raises:
        RuntimeError: a cast that the card or the simulation does not have.

    Source: CastKernelNpuOpApi.cpp of op-plugin.
    """
    name, wanted = "npu_dtype_cast", card_dtype(dtype)
    if wanted is None:
        refuse(name, f"the card has no {dtype_text(dtype)}")
    source = None if input_dtype is None else card_dtype(input_dtype)
    if input_dtype is not None and (source is None or (source not in _OWN and kept_dtype(source) != self.dtype)):
        refuse(name, f"the values of {self.dtype} cannot be read as {dtype_text(input_dtype)}")
    values = self if source is None or source not in _OWN else _read(self, source)
    if wanted not in _OWN:
        if wanted.name.startswith("float6") or wanted in (CardDtype.string, CardDtype.uint1):
            refuse(name, f"a cast to {dtype_text(dtype)} is not simulated")
        return values.to(kept_dtype(wanted), copy=True)
    only_950(name, self, f"a cast to {wanted.name}")
    if wanted in _PACKED and (not values.dim() or values.shape[-1] % 2):
        text = (
            "The last dim input shape must be divisible by 2 if "
            "output dtype is torch_npu.float4_e2m1fn_x2, torch_npu.float4_e1m2fn_x2 or torch_npu.int4"
        )
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if wanted == CardDtype.int4:
        if values.is_floating_point():
            refuse(name, f"a cast of {self.dtype} to int4 is not simulated")
        return pack_bytes(values.to(torch.int32) & 15)
    return quantised_to(values.detach().to(torch.float32), wanted)


@operator("npu_dtype_cast_")
def npu_dtype_cast_(self: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Cast a tensor into another one of another dtype; of the same dtype, nothing is copied, as on the card.

    Source: CastKernelNpu.cpp of op-plugin.
    """
    return self if self.dtype == src.dtype else self.copy_(src)


@operator("npu_dtype_cast_backward")
def npu_dtype_cast_backward(
    grad: torch.Tensor, dtype: torch.dtype, grad_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """The gradient of npu_dtype_cast: `grad` cast to the dtype of its input.

    Args:
        grad: gradient of the result.
        dtype: of the input.
        grad_dtype: dtype of the values in `grad`, as input_dtype of npu_dtype_cast.
        input_dtype: as it was given to npu_dtype_cast; it comes before `dtype`.
    """
    if input_dtype is None and grad_dtype is None:
        return grad.to(dtype, copy=True)
    numbers = {torch.float32: 6, torch.float16: 5, torch.bfloat16: 15, torch.float64: 7}
    if input_dtype is None and dtype not in numbers:
        refuse("npu_dtype_cast_backward", f"a gradient of {dtype} is not simulated")
    return npu_dtype_cast(grad, numbers[dtype] if input_dtype is None else input_dtype, grad_dtype)


@operator("_npu_dtype_cast")
def npu_dtype_cast_of_torch(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another dtype of torch, always a new one."""
    return self.to(dtype, copy=True)


@operator("_npu_dtype_cast_backward")
def npu_dtype_cast_of_torch_backward(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The gradient of _npu_dtype_cast: `grad` in the dtype of its input."""
    return grad.to(dtype, copy=True)


def _read(codes: torch.Tensor, source: CardDtype) -> torch.Tensor:
    """float32 values of a dtype that torch lacks."""
    if codes.element_size() != 1 or source == CardDtype.int4:
        refuse("npu_dtype_cast", f"reading {codes.dtype} as {source.name} is not simulated")
    only_950("npu_dtype_cast", codes, f"a cast from {source.name}")
    whole = codes.view(torch.uint8)
    return hifloat8_values(whole) if source == CardDtype.hifloat8 else fp4_values(whole, source)
