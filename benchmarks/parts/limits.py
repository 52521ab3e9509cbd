"""A time beside the limit that the machine sets, and what the runs of it say."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Row", "line", "row"]


@dataclass
class Row:
    """One figure. `ratio` and `others` are medians of T/T* over the runs that count; `target` is for `ratio`."""

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
        """Whether it is within its target, where it has one."""
        return self.target is None or self.ratio <= self.target


def row(
    name: str, ratios: Sequence[float], target: float | None, discarded: int, told: Sequence[Mapping[str, float]],
    others: Mapping[str, Sequence[float]] | None = None,
) -> Row:  # fmt: skip
    """The row of these runs; without any that counts, its figure is no number, which meets no target.

    Args:
        name: what is measured.
        ratios: T/T* of each run that counts.
        target: the most that the median may be.
        discarded: how many runs do not count.
        told: what else was measured in each of them, by name.
        others: the same ratios of other libraries.
    """
    if not ratios:
        return Row(name, float("nan"), target, 0, discarded, (float("nan"), float("nan")))
    middle = statistics.median
    notes = {key: middle(each[key] for each in told) for key in told[0]}
    theirs = {key: middle(each) for key, each in (others or {}).items() if each}
    return Row(name, middle(ratios), target, len(ratios), discarded, (min(ratios), max(ratios)), theirs, notes)


def line(row: Row) -> str:
    """A row as text."""
    low, high = row.spread
    mark = "" if row.target is None else f"   target {row.target:.2f} {'met' if row.met else 'MISSED'}"
    told = ", ".join(f"{name} {value:.2f}" for name, value in (row.others | row.notes).items())
    return (
        f"{row.name:22} T/T* {row.ratio:.2f} ({low:.2f}-{high:.2f}, {row.runs} runs, {row.discarded} discarded)"
        f"{mark}   {told}"
    )
