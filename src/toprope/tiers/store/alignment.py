"""Alignment of weights in memory with which operators give the same bits as with torch's own alignment.

`store.backing` asks `needed` before it lets a weight lie where it is in a file. torch aligns tensors to 64 bytes; in
a safetensors file they begin anywhere. Libraries of linear algebra may take another code path for a matrix with
another alignment, which adds numbers in another order: oneMKL's documentation of conditional numerical
reproducibility asks for 64 bytes; on one CPU, fp32 with one row needed 16, and bf16 none. So it is measured once per
process and dtype. Tests: tests/tiers/test_tiers_alignment.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch
from torch.nn import functional

__all__ = ["TORCHS", "needed"]

TORCHS = 64
"""Alignment of torch's own tensors in bytes."""

_LEAST = 8
_SHAPES = ((64, 64), (100, 37), (33, 1024))
_ROWS = (1, 2, 7, 33)

_Product = tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], torch.Tensor, torch.Tensor]
"""A function that multiplies activations and a matrix, the activations, and the expected product."""


@cache
def needed(dtype: torch.dtype) -> int:
    """Alignment in bytes that weights of a dtype need: 8, 16, 32 or 64, measured on this CPU.

    Integers are added without rounding, so 8 suffice. A dtype for which torch has no products here needs 64.
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
    """Matrices, each with its products at torch's own alignment."""
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
    """True if products with matrices at this offset have the same bits as those at offset 0."""
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
