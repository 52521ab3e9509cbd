"""Rounding of float32 values to the card's narrow dtypes, and back: integers, FP8, HiFloat8 and FP4.

Used by the modules that quantise (cast.py, dynamic_quant.py, static_quant.py, mx_quant.py and others). A dtype that
torch lacks is kept in uint8, as on the card: HiFloat8 one value a byte, FP4 two values a byte, the first in the low
half. Values out of range become the largest finite value; NaN becomes 0, as in the card's casts. No bit of a result is
free; how it is found is. Tests: tests/compat/operators/test_quant_dtypes.py, tests/compat/operators/test_mx_quant.py,
tests/compat/operators/test_static_quant.py.

Source: the golden code of quant/dynamic_mx_quant and quant/quantize of ops-nn; HiFloat8: "Ascend HiFloat8 Format for
Deep Learning" (arXiv 2409.16626), whose ties round away from zero.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype, card_dtype, dtype_text, kept_dtype
from .checks import refuse
from .evaluation import on_950
from .int4 import FP4_E2M1, pack_int4

__all__ = [
    "FP4",
    "FP8",
    "LARGEST",
    "fp4_values",
    "group_rows",
    "hifloat8_values",
    "only_950",
    "pack_bytes",
    "power_of_two",
    "quantised_shape",
    "quantised_to",
    "unpack_bytes",
    "wanted_dtype",
]

FP8 = (CardDtype.float8_e4m3fn, CardDtype.float8_e5m2)
FP4 = (CardDtype.float4_e2m1fn_x2, CardDtype.float4_e1m2fn_x2)

LARGEST = {
    CardDtype.int8: 127.0,
    CardDtype.int4: 7.0,
    CardDtype.hifloat8: 32768.0,
    CardDtype.float8_e5m2: 57344.0,
    CardDtype.float8_e4m3fn: 448.0,
    CardDtype.float4_e2m1fn_x2: 6.0,
    CardDtype.float4_e1m2fn_x2: 1.75,
}
"""Largest finite value of each dtype."""

_RANGES = {CardDtype.int8: (-128, 127), CardDtype.uint8: (0, 255), CardDtype.int4: (-8, 7)}

_E1M2 = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)


def only_950(operator: str, tensor: torch.Tensor, what: str = "") -> None:
    """Refuse what only the Ascend 950 has, where the simulated card is another chip.

    Args:
        operator: its name.
        tensor: one of its inputs; only those on a card are refused.
        what: the part that the others lack ("dst_type float8_e5m2"); the whole operator if empty.
    """
    if tensor.device.type == "npu" and not on_950(tensor):
        subject = f"{what} is" if what else "the operator is"
        refuse(operator, f"{subject} for the Ascend 950 (documents of ops-nn of CANN), not for the simulated chip")


def wanted_dtype(operator: str, number: int, allowed: tuple[CardDtype, ...], name: str = "dst_type") -> CardDtype:
    """Dtype of a number, which must be one of those allowed.

    Raises:
        RuntimeError: the kernel does not give this dtype.
    """
    found = card_dtype(number)
    if found is None or found not in allowed:
        names = ", ".join(dtype.name for dtype in allowed)
        refuse(operator, f"{name} is {dtype_text(number)}; the kernel takes {names}")
    return found


def quantised_shape(shape: torch.Size, dtype: CardDtype) -> torch.Size:
    """Shape of the tensor that keeps quantised values: half the last axis for FP4.

    Raises:
        RuntimeError: the last axis is odd.
    """
    if dtype not in FP4:
        return shape
    if not shape or shape[-1] % 2:
        text = "The last dim input shape must be divisible by 2 if output dtype is float4_e2m1fn_x2 or float4_e1m2fn_x2"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    return torch.Size((*shape[:-1], shape[-1] // 2))


def quantised_to(values: torch.Tensor, dtype: CardDtype, round_mode: str = "rint") -> torch.Tensor:
    """Values rounded to a dtype and laid as the card keeps them.

    Args:
        values: float32.
        dtype: int8, uint8, int32, int4 (packed, eight in an int32), HiFloat8, FP8 or FP4.
        round_mode: "rint" (ties to even), "round" (ties away from zero), "floor", "ceil" or "trunc". HiFloat8 always
            rounds ties away from zero, FP8 to even.

    Returns:
        a new tensor; int4 has an eighth and FP4 half of the last axis.
    """
    values = torch.where(torch.isnan(values), 0.0, values)
    if dtype == CardDtype.int32:
        whole = _rounded(values, round_mode)
        inside = whole.clamp(-(2.0**31), 2.0**31 - 128).to(torch.int32)  # the largest float32 below 2^31
        return torch.where(whole >= 2.0**31, 2**31 - 1, inside)
    if dtype in _RANGES:
        low, high = _RANGES[dtype]
        whole = _rounded(values, round_mode).clamp(low, high)
        return pack_int4(whole) if dtype == CardDtype.int4 else whole.to(kept_dtype(dtype))
    largest = LARGEST[dtype]
    if dtype in FP8:
        return values.clamp(-largest, largest).to(kept_dtype(dtype))
    if dtype == CardDtype.hifloat8:
        return _hifloat8_codes(values.clamp(-largest, largest))
    return pack_bytes(_fp4_codes(values.clamp(-2 * largest, 2 * largest), dtype, round_mode))


def fp4_values(packed: torch.Tensor, dtype: CardDtype) -> torch.Tensor:
    """float32 values of packed FP4, with twice the last axis."""
    table = torch.tensor(
        FP4_E2M1 if dtype == CardDtype.float4_e2m1fn_x2 else _E1M2, dtype=torch.float32, device=packed.device
    )
    codes = unpack_bytes(packed)
    size = table[(codes & 7).to(torch.int64)]
    return torch.where(codes >= 8, -size, size)


def hifloat8_values(codes: torch.Tensor) -> torch.Tensor:
    """float32 values of HiFloat8 codes (uint8)."""
    table = torch.tensor([_hifloat8_value(code) for code in range(256)], dtype=torch.float32, device=codes.device)
    return table[codes.to(torch.int64)]


def pack_bytes(codes: torch.Tensor) -> torch.Tensor:
    """Two codes of 4 bits in each byte, the first in the low half; the last axis is halved."""
    pairs = torch.unflatten(codes.to(torch.uint8), -1, (-1, 2))
    return pairs[..., 0] | pairs[..., 1] << 4


def unpack_bytes(packed: torch.Tensor) -> torch.Tensor:
    """The codes of `pack_bytes` (uint8 from 0 to 15), with twice the last axis."""
    whole = packed.view(torch.uint8) if packed.dtype != torch.uint8 else packed
    return torch.stack((whole & 15, whole >> 4), dim=-1).flatten(-2)


def group_rows(ends: torch.Tensor, rows: int) -> torch.Tensor:
    """Group of each row (int64), where group i ends before row `ends[i]`; rows after the last group belong to it."""
    group = torch.bucketize(torch.arange(rows, device=ends.device), ends.to(torch.int64), right=True)
    return group.clamp(max=ends.shape[0] - 1)


def _rounded(values: torch.Tensor, round_mode: str) -> torch.Tensor:
    if round_mode == "round":
        away = torch.floor(values.abs() + 0.5)
        return torch.where(torch.signbit(values), -away, away)
    modes = {"rint": torch.round, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc}
    return modes[round_mode](values)


def _fp4_codes(values: torch.Tensor, dtype: CardDtype, round_mode: str) -> torch.Tensor:
    wide = dtype == CardDtype.float4_e2m1fn_x2
    bits = 1 if wide else 2  # of the mantissa
    # exponent of each value; the smallest one, 0, is also the subnormal values'
    exponent = torch.frexp(values).exponent.to(torch.int32).sub(1).clamp(min=0)
    unit = power_of_two(exponent - bits)
    rounded = _rounded(values / unit, round_mode) * unit
    size = rounded.abs().clamp(max=LARGEST[dtype])
    table = torch.tensor(FP4_E2M1 if wide else _E1M2, dtype=torch.float32, device=values.device)
    code = torch.bucketize(size, table).to(torch.uint8)
    return code | torch.signbit(rounded).to(torch.uint8) << 3


def _hifloat8_codes(values: torch.Tensor) -> torch.Tensor:
    # By the exponent: bits of the "dot" field, of the exponent and of the mantissa
    size = values.abs()
    exponent = torch.frexp(size).exponent.to(torch.int32).sub(1)
    size, exponent = _hifloat8_rounded(size, exponent)
    magnitude = exponent.abs()
    fraction = size * power_of_two((-exponent).clamp(-126, 126)) - 1  # 0 to 1, exact
    code = torch.zeros_like(exponent)
    for low, high, dot, width, mantissa in _HIFLOAT8:
        inside = (magnitude >= low) & (magnitude <= high)
        hidden = 1 << (width - 1) if width else 0  # the leading 1 of the exponent is not kept
        negative = (exponent < 0).to(torch.int32) << max(width - 1, 0) if width else torch.zeros_like(exponent)
        part = dot | (negative | (magnitude - hidden)) << mantissa | (fraction * (1 << mantissa)).to(torch.int32)
        code = torch.where(inside, part, code)
    code = torch.where(exponent <= -16, exponent + 23, code)  # 2^-22 to 2^-16 have no mantissa
    code = torch.where(size == 0, 0, code)
    sign = (torch.signbit(values) & (size != 0)).to(torch.int32) << 7
    return (code | sign).to(torch.uint8)


_HIFLOAT8 = (
    (8, 15, 0b1100000, 4, 1),
    (4, 7, 0b1000000, 3, 2),
    (2, 3, 0b0100000, 2, 3),
    (1, 1, 0b0010000, 1, 3),
    (0, 0, 0b0001000, 0, 3),
)
"""Of HiFloat8, by the size of the exponent: lowest, highest, dot field, bits of the exponent, bits of the mantissa."""


def _hifloat8_rounded(size: torch.Tensor, exponent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sizes rounded to those that HiFloat8 has, ties away from zero, with their exponents."""
    magnitude = exponent.abs()
    bits = torch.full_like(exponent, 3)
    bits = torch.where(magnitude >= 4, 2, bits)
    bits = torch.where(magnitude >= 8, 1, bits)
    bits = torch.where(exponent <= -16, 0, bits)
    bits = torch.where(exponent >= 15, 0, bits)  # the code of 1.5 * 2^15 is infinity
    unit = power_of_two((exponent - bits).clamp(-23, 15))
    unit = torch.where(exponent < -22, 2.0**-22, unit)  # the smallest value
    rounded = torch.floor(size / unit + 0.5) * unit
    return rounded, torch.frexp(rounded).exponent.to(torch.int32).sub(1)


def _hifloat8_value(code: int) -> float:
    if code in (0x80, 0x6F, 0xEF):
        return {0x80: float("nan"), 0x6F: float("inf"), 0xEF: float("-inf")}[code]
    sign, rest = (-1.0 if code & 0x80 else 1.0), code & 0x7F
    if rest < 8:
        return sign * 2.0 ** (rest - 23) if rest else 0.0
    for _low, _high, dot, width, mantissa in _HIFLOAT8:
        if rest >= dot:
            field = (rest - dot) >> mantissa
            fraction = 1 + (rest & (1 << mantissa) - 1) / (1 << mantissa)
            hidden = 1 << (width - 1) if width else 0
            size = hidden | field & (hidden - 1) if width else 0
            return sign * fraction * 2.0 ** (-size if field & hidden else size)
    raise AssertionError(code)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent in float32, exact from 2^-126 to 2^127."""
    return (exponent.to(torch.int32) + 127 << 23).view(torch.float32)
