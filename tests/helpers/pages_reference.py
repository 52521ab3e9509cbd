"""Pages in plain Python, one value at a time: what tests hold the real ones against. fp32 is kept by rounding to it."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

BLOCKS = {"nvfp4": 16, "mxfp4": 32, "nf4": 64}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 += [-each for each in E2M1]
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def fp32(value: float) -> float:
    """The nearest fp32."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def e4m3_value(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    if (exponent, mantissa) == (15, 7):
        return math.nan
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 128 else size


def e4m3_code(value: float) -> int:
    """Of a number from 0 to 448: the nearest, of two the even code."""
    return min(range(127), key=lambda code: (abs(e4m3_value(code) - value), code % 2))


def e8m0_value(code: int) -> float:
    return math.nan if code == 255 else 2.0 ** (code - 127)


def nearest_e2m1(value: float) -> int:
    size = min(range(8), key=lambda code: (abs(E2M1[code] - abs(value)), code % 2))
    return size + (8 if math.copysign(1.0, value) < 0 else 0)


def nearest_nf4(value: float) -> int:
    return sum(value > fp32((low + high) / 2) for low, high in pairwise(NF4))


def global_scale(rows: list[list[float]]) -> float:
    """Of nvfp4: from the blocks without NaN and infinity."""
    largest = 0.0
    for row in rows:
        for start in range(0, len(row), 16):
            sizes = [abs(each) for each in row[start : start + 16]]
            if all(map(math.isfinite, sizes)):
                largest = max([largest, *sizes])
    return max(fp32(largest / 2688), 2.0**-126) if largest > 0 else 1.0


def reference_block(block: list[float], form: str, whole: float) -> tuple[list[int], int | float]:
    """Codes and the stored scale of a block by the rule alone."""
    sizes = [abs(each) for each in block]
    if not all(map(math.isfinite, sizes)):
        return [7 if form == "nf4" else 0] * len(block), {"nvfp4": 127, "mxfp4": 255, "nf4": math.nan}[form]
    amax = max(sizes)
    if form == "nvfp4":
        scale = min(max(fp32(fp32(amax / 6) / whole), 2.0**-6), 448.0)
        code = e4m3_code(scale)
        factor = fp32(fp32(1 / whole) / e4m3_value(code))
        return [nearest_e2m1(max(min(fp32(each * factor), 6.0), -6.0) if each else each) for each in block], code
    if form == "mxfp4":
        exponent = math.frexp(amax)[1] - 1 - 2 if amax >= 2.0**-126 else -127
        code = max(exponent + 127, 0)
        divisor = max(2.0 ** (code - 127), 2.0**-126)
        return [nearest_e2m1(fp32(each / divisor) if each else each) for each in block], code
    factor = fp32(1 / amax) if amax > 2.0**-126 else 0.0
    return [nearest_nf4(fp32(each * factor)) for each in block], amax


def decode_value(code: int, scale: int | float, form: str, whole: float) -> float:
    """fp32 of a code."""
    if form == "nvfp4":
        return fp32(E2M1[code] * fp32(whole * e4m3_value(int(scale))))
    if form == "mxfp4":
        return fp32(E2M1[code] * e8m0_value(int(scale)))
    return fp32(NF4[code] * scale)


def pack(codes: list[int]) -> bytes:
    """Two to a byte, the first in the low half."""
    codes = [*codes, 0] if len(codes) % 2 else codes
    return bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True))
