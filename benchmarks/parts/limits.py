"""Measured times as multiples of the shortest time that the machine allows, and their summary over several runs.

Used by benchmarks/tiers.py and benchmarks/tiers_training.py, whose JSON are the fields of `Row`; benchmarks/run.py
reads them. A row without a run that counts has no figure and meets no target.

Tests: tests/tiers/test_tiers_benchmark.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Row", "line", "row"]


@dataclass
class Row:
    """One figure, as a multiple of the limit.

    T is the measured time and T* the shortest that disk, link and computation allow. `ratio` and `others` (other
    libraries) are medians of T/T* over the runs that count; `target` is for `ratio`.
    """

    name: str
    ratio: float
    target: float | None
    runs: int
    discarded: int
    spread: tuple[float, float]
    others: dict[str, float] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """True if it is within its target, or has none."""
        return self.target is None or self.ratio <= self.target


def row(
    name: str, ratios: Sequence[float], target: float | None, discarded: int, measured: Sequence[Mapping[str, float]],
    others: Mapping[str, Sequence[float]] | None = None,
) -> Row:  # fmt: skip
    """The row of these runs; without any that counts, its figure is no number, which meets no target.

    Args:
        name: what is measured.
        ratios: T/T* of each run that counts.
        target: the most that the median may be.
        discarded: how many runs do not count.
        measured: further figures of each run, by name.
        others: the same ratios of other libraries.
    """
    if not ratios:
        return Row(name, float("nan"), target, 0, discarded, (float("nan"), float("nan")))
    middle = statistics.median
    notes = {key: middle(each[key] for each in measured) for key in measured[0]}
    theirs = {key: middle(each) for key, each in (others or {}).items() if each}
    return Row(name, middle(ratios), target, len(ratios), discarded, (min(ratios), max(ratios)), theirs, notes)


def line(row: Row) -> str:
    """A row as text."""
    low, high = row.spread
    mark = "" if row.target is None else f"   target {row.target:.2f} {'met' if row.met else 'MISSED'}"
    further = ", ".join(f"{name} {value:.2f}" for name, value in (row.others | row.notes).items())
    return (
        f"{row.name:22} T/T* {row.ratio:.2f} ({low:.2f}-{high:.2f}, {row.runs} runs, {row.discarded} discarded)"
        f"{mark}   {further}"
    )
