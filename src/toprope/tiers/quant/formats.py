"""Formats of quantised tensors: blocks, scales, and the values of the codes.

Read by all of `tiers.quant`; the names are public (`tiers.pages.FORMATS`). The formats are others': OCP's MX, NVIDIA's
NVFP4, QLoRA's NF4. csrc/pages.h and csrc/api.cpp have the numbers of the formats, their block sizes and the values of
the codes a second time, for C++: change both. Stored tensors name their format, so a name keeps its meaning for ever.
Tests: tests/tiers/test_pages_formats.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from toprope.errors import PageError

__all__ = ["E2M1_MAX", "FORMATS", "Format", "format_named"]

E2M1_MAX = 6.0
"""The largest value of an E2M1 code."""

_E2M1_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Quantiles of a normal distribution; QLoRA (arXiv 2305.14314), appendix E.
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@dataclass(frozen=True)
class Format:
    """Format of a quantised tensor.

    Attributes:
        name: its name for `encode`.
        number: its number in the kernels.
        block: number of values along the last dimension that share a scale; 0 for a whole row.
        scale_dtype: dtype of the scales.
        values: values of the 16 codes; empty for int8, whose codes are the values.
        has_global: True if all scales are multiplied by one fp32 number.
    """

    name: str
    number: int
    block: int
    scale_dtype: torch.dtype
    values: tuple[float, ...] = ()
    has_global: bool = False

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if self.values else 8

    def blocks(self, columns: int) -> int:
        """Number of scales of a row with `columns` values."""
        if columns == 0:
            return 0
        return -(-columns // self.block) if self.block else 1


_E2M1 = (*_E2M1_SIZES, *(-each for each in _E2M1_SIZES))

FORMATS = {
    each.name: each
    for each in (
        Format("nvfp4", 0, 16, torch.float8_e4m3fn, _E2M1, has_global=True),
        Format("mxfp4", 1, 32, torch.float8_e8m0fnu, _E2M1),
        Format("nf4", 2, 64, torch.float32, _NF4),
        Format("int8", 3, 0, torch.float32),
    )
}
"""Every format, by its name."""


def format_named(name: str) -> Format:
    """Find a format by its name, in upper or lower case.

    Raises:
        PageError: the name is unknown.
    """
    found = FORMATS.get(name.lower())
    if found is None:
        raise PageError(f"there is no format {name!r} of pages.", do=f"use one of {', '.join(FORMATS)}")
    return found
