"""Whether quantised products are faster here: measured, once a process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn import functional

from toprope.tiers.pages.encode import encode
from toprope.tiers.pages.native import kernels, why_none
from toprope.tiers.pages.product import product

__all__ = ["Measurement", "measure"]

_ROUNDS = 7


@dataclass(frozen=True)
class Measurement:
    """One layer's product, ours beside torch's on the plain weight.

    Attributes:
        format: of the page.
        batch: rows of activations.
        size: inputs and outputs of the layer.
        dtype: of the activations of ours.
        plain_dtype: of torch's weight and activations.
        path: the instructions that our kernels use; empty without kernels.
        seconds: ours, the median of rounds in which both take turns; 0 without kernels.
        plain_seconds: torch's.
        reason: why there are no kernels; empty where there are.
    """

    format: str
    batch: int
    size: int
    dtype: torch.dtype
    plain_dtype: torch.dtype
    path: str
    seconds: float
    plain_seconds: float
    reason: str = ""

    @property
    def speedup(self) -> float:
        """How many times faster ours is; 0 without kernels."""
        return self.plain_seconds / self.seconds if self.seconds else 0.0

    @property
    def faster(self) -> bool:
        """Whether ours is faster."""
        return self.speedup > 1.0


@cache
def measure(
    format: str = "nvfp4",
    batch: int = 1,
    size: int = 4096,
    dtype: torch.dtype = torch.bfloat16,
    plain_dtype: torch.dtype | None = None,
) -> Measurement:
    """Time a product of `batch` x `size` activations with a `size` x `size` page on this CPU.

    It takes about half a second the first time and is remembered for the process. A simulated card computes on the same
    CPU.

    Args:
        format: of the page.
        batch, size: of the product.
        dtype: of the activations of ours.
        plain_dtype: of torch's product beside it; `dtype` by default.
    """
    plain_dtype = plain_dtype or dtype
    native = kernels()
    if native is None:
        return Measurement(format, batch, size, dtype, plain_dtype, "", 0.0, 0.0, why_none())
    with torch.no_grad():
        weight = torch.randn(64, size, dtype=plain_dtype).repeat(-(-size // 64), 1)[:size]
        page = encode(weight, format, "reference")
        x, plain_x = torch.randn(batch, size, dtype=dtype), torch.randn(batch, size, dtype=plain_dtype)
        ours, plain = _in_turns(lambda: product(x, page), lambda: functional.linear(plain_x, weight))
    return Measurement(format, batch, size, dtype, plain_dtype, native.paths[-1], ours, plain)


def _in_turns(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Seconds of each: the medians of rounds in which both take turns, the first round left out."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS + 1):
        for kept, work in zip(seconds, (first, second), strict=True):
            begin = time.perf_counter()
            work()
            kept.append(time.perf_counter() - begin)
    return statistics.median(seconds[0][1:]), statistics.median(seconds[1][1:])
