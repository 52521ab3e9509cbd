"""Where in memory a weight may begin so that operators give the bits that they give where torch would put it.

torch begins tensors at multiples of 64 bytes; in a safetensors file they begin anywhere. Libraries of linear algebra
take another path through a matrix that begins elsewhere, and then sums come in another order: oneMKL's documentation of
conditional numerical reproducibility asks for 64 bytes, and on one CPU fp32 with one row was seen to need 16 and bf16
none. So it is measured, once in a process and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
from torch.nn import functional

__all__ = ["TORCHS", "needed"]

TORCHS = 64
"""Bytes whose multiples torch's own tensors begin at."""

_LEAST = 8
_SHAPES = ((64, 64), (100, 37), (33, 1024))
_ROWS = (1, 2, 7, 33)

_Product = tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], torch.Tensor, torch.Tensor]
"""How activations and a matrix are multiplied, the activations, and the product."""


@cache
def needed(dtype: torch.dtype) -> int:
    """Bytes whose multiples weights of a dtype may begin at: 8, 16, 32 or 64, measured on this CPU.

    Whole numbers are summed without rounding, so that 8 do. A dtype whose products torch does not have here needs 64.
    """
    if not dtype.is_floating_point and not dtype.is_complex:
        return _LEAST
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            cases = list(_cases(dtype))
            wrong = [offset for offset in range(_LEAST, TORCHS, _LEAST) if not _same(cases, offset)]
    except (RuntimeError, NotImplementedError):
        return TORCHS
    return next(each for each in (8, 16, 32, TORCHS) if not any(offset % each == 0 for offset in wrong))


def _cases(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, list[_Product]]]:
    """Matrices, each with products and what they are where torch would put it."""
    generator = torch.Generator().manual_seed(0)

    def random(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, dtype=torch.float32, generator=generator, device="cpu").to(dtype)

    for rows, columns in _SHAPES:
        here = _placed(random(rows, columns), 0)
        products: list[_Product] = []
        for count in _ROWS:
            x, gradient = random(count, columns), random(count, rows)
            products += [(functional.linear, x, functional.linear(x, here)), (torch.matmul, gradient, gradient @ here)]
        yield here, products


def _same(cases: Sequence[tuple[torch.Tensor, list[_Product]]], offset: int) -> bool:
    """Whether products with matrices at this offset have the bits of those at 0."""
    for here, products in cases:
        there = _placed(here, offset)
        if not all(torch.equal(multiply(x, there), wanted) for multiply, x, wanted in products):
            return False
    return True


def _placed(values: torch.Tensor, offset: int) -> torch.Tensor:
    raw = torch.empty(values.nbytes + 2 * TORCHS, dtype=torch.uint8, device="cpu")
    start = -raw.data_ptr() % TORCHS + offset
    placed = raw[start : start + values.nbytes].view(values.dtype).view(values.shape)
    return placed.copy_(values)
