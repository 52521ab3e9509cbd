"""Ratio of two sides that were measured in turns: the median, with a confidence interval.

Used by `parts.turns`, benchmarks/flow_machines.py and benchmarks/serve.py. The interval is that of the sign test: it
assumes no distribution, and below six rounds it has less than 95 %. Tests: tests/flow/test_serve_benchmark.py holds the
interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Ratio", "ratio"]


class Ratio(NamedTuple):
    """Median of ratios with a confidence interval that assumes nothing of their distribution.

    Attributes:
        median, low, high: ratios; 1 is equal.
        coverage: probability that the interval holds the true median: 0.95 or more, less for fewer than 6 rounds.
    """

    median: float
    low: float
    high: float
    coverage: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}, {100 * self.coverage:.0f} %)"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Compare figures of the same rounds.

    Args:
        ours, theirs: one figure for each round.
    """
    found = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
    cut = 0  # ratios that are left out at each end
    while _outside(len(found), cut + 1) <= 0.05:
        cut += 1
    return Ratio(statistics.median(found), found[cut], found[-1 - cut], max(0.0, 1 - _outside(len(found), cut)))


def _outside(count: int, cut: int) -> float:
    """Probability that the true median lies outside an interval that leaves out ratios at each end."""
    return 2 * sum(math.comb(count, each) for each in range(cut + 1)) / 2**count
