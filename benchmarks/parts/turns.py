"""Two sides that take turns in rounds: what they measure, and what the rounds say."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parts.processes import processor_time, stopped

__all__ = ["Measure", "Row", "Side", "Work", "one_by_one", "several"]


class Side(Protocol):
    """A chain of stages, of ours or of Ray."""

    def once(self, value: Any) -> Any:
        """One input, there and back."""

    def pipelined(self, value: Any, count: int) -> None:
        """So many inputs, of which several are under way."""

    def value(self, is_large: bool) -> Any:
        """What is fed."""

    def pids(self) -> list[int]:
        """The processes of driver and stages."""


@dataclass
class Row:
    """One comparison; microseconds for each input.

    Attributes:
        name: what is done.
        limit: our time must be at most so many times Ray's; None for no target.
        ours, ray: a time for each round.
        our_processor, rays_processor: of driver and stages, for each input and round.
    """

    name: str
    limit: float | None = None
    ours: list[float] = field(default_factory=list)
    ray: list[float] = field(default_factory=list)
    our_processor: list[float] = field(default_factory=list)
    rays_processor: list[float] = field(default_factory=list)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing to measure it against."""
        if self.limit is None or not self.ray:
            return None
        return statistics.median(self.ours) <= self.limit * statistics.median(self.ray)

    def as_dict(self) -> dict[str, Any]:
        names = ("ours", "ray", "our_processor", "rays_processor")
        times = {name: statistics.median(found) if (found := getattr(self, name)) else None for name in names}
        return {"name": self.name, "limit": self.limit, **times, "met": self.met}


Measure = Callable[[Side], tuple[float, int]]
"""Gives the time of an input, and how many there were."""


@dataclass
class Work:
    """What a row measures: our side, Ray's where it takes part, and what both do."""

    row: Row
    ours: Side
    rays: Side | None
    measure: Measure

    def turn(self, counts: bool, everybody: Sequence[Side]) -> None:
        """Measure each side once. All others are stopped meanwhile: an actor of Ray uses a processor while it waits."""
        row = self.row
        sides = [(self.ours, row.ours, row.our_processor), (self.rays, row.ray, row.rays_processor)]
        for side, times, processor in sides:
            if side is None:
                continue
            with stopped({pid for each in everybody for pid in each.pids()} - set(side.pids())):
                before = processor_time(side.pids())
                found, inputs = self.measure(side)
                used = processor_time(side.pids()) - before
            if counts:
                times.append(found)
                processor.append(used / inputs * 1e6)


def one_by_one(is_large: bool, count: int) -> Measure:
    """The median time of an input that has the pipeline for itself."""

    def measure(side: Side) -> tuple[float, int]:
        value = side.value(is_large)
        times = []
        for _ in range(count):
            begin = time.perf_counter_ns()
            side.once(value)
            times.append((time.perf_counter_ns() - begin) / 1000)
        return statistics.median(times), count

    return measure


def several(is_large: bool, count: int) -> Measure:
    """The time of an input where several are under way."""

    def measure(side: Side) -> tuple[float, int]:
        value = side.value(is_large)
        begin = time.perf_counter_ns()
        side.pipelined(value, count)
        return (time.perf_counter_ns() - begin) / 1000 / count, count

    return measure
