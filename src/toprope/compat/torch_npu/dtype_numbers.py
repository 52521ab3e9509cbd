"""Numbers of dtypes in torch_npu's operators: those of torch's own dtypes, and the card's, which begin at 256.

Used by the operator modules that cast or quantise, and exported as `torch_npu.hifloat8` and others: plain numbers, 256
plus the number that acl_base.h gives the dtype. A torch dtype where an operator takes an int arrives as torch's number
of it (c10/core/ScalarType.h). Values of dtypes that torch lacks are kept in uint8: one value a byte, or two values of 4
bits, the first in the low half. No number is free. Tests: tests/compat/operators/test_quant_dtypes.py.

Source: custom_dtype/Init.h, Init.cpp and framework/utils/CalcuOpUtil.cpp of Ascend/pytorch.
"""

from __future__ import annotations

from enum import IntEnum

import torch

__all__ = ["EXPORTED", "CardDtype", "card_dtype", "dtype_text", "kept_dtype"]

_OFFSET = 256


class CardDtype(IntEnum):
    """Dtypes of the card, with the numbers of acl_base.h and the names of torch_npu."""

    float32 = 0
    float16 = 1
    int8 = 2
    int32 = 3
    uint8 = 4
    int16 = 6
    uint16 = 7
    uint32 = 8
    int64 = 9
    uint64 = 10
    float64 = 11
    bool = 12
    string = 13
    complex64 = 16
    complex128 = 17
    bfloat16 = 27
    int4 = 29
    uint1 = 30
    complex32 = 33
    hifloat8 = 34
    float8_e5m2 = 35
    float8_e4m3fn = 36
    float8_e8m0fnu = 37
    float6_e3m2 = 38
    float6_e2m3 = 39
    float4_e2m1fn_x2 = 40
    float4_e1m2fn_x2 = 41


EXPORTED = {dtype.name: _OFFSET + dtype.value for dtype in CardDtype}
"""Names that `torch_npu` exports, with their numbers: "hifloat8" is 290."""

_TORCH = {
    0: CardDtype.uint8,
    1: CardDtype.int8,
    2: CardDtype.int16,
    3: CardDtype.int32,
    4: CardDtype.int64,
    5: CardDtype.float16,
    6: CardDtype.float32,
    7: CardDtype.float64,
    8: CardDtype.complex32,
    9: CardDtype.complex64,
    10: CardDtype.complex128,
    11: CardDtype.bool,
    15: CardDtype.bfloat16,
    23: CardDtype.float8_e5m2,
    24: CardDtype.float8_e4m3fn,
    27: CardDtype.uint16,
    28: CardDtype.uint32,
    29: CardDtype.uint64,
    44: CardDtype.float8_e8m0fnu,
    45: CardDtype.float4_e2m1fn_x2,
}
"""The card's dtype of each number of torch's; the others (quantised dtypes, bits) have none."""

_UINT8 = ("int4", "hifloat8", "float6_e3m2", "float6_e2m3", "float4_e2m1fn_x2", "float4_e1m2fn_x2")


def card_dtype(number: int) -> CardDtype | None:
    """Dtype of a number as operators take it; None where the card has no such dtype."""
    if number < _OFFSET:
        return _TORCH.get(number)
    try:
        return CardDtype(number - _OFFSET)
    except ValueError:
        return None


def kept_dtype(dtype: CardDtype) -> torch.dtype:
    """Torch dtype of the tensors that hold values of a dtype.

    Raises:
        KeyError: tensors of torch_npu cannot hold it ("string", "uint1").
    """
    if dtype.name in _UINT8:
        return torch.uint8
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype) or dtype.name == "uint1":
        raise KeyError(dtype.name)
    return found


def dtype_text(number: int) -> str:
    """Name of a dtype number, for messages: "torch_npu.hifloat8", or the number itself."""
    found = card_dtype(number)
    return f"dtype number {number}" if found is None else f"torch_npu.{found.name}"
