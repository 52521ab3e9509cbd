"""Rounds in which pipelines of ours, of Ray and of older code are measured in turns, and their rows of results.

Used by benchmarks/flow.py, whose JSON are the keys of `Row.as_dict`. The order of the sides changes from round to
round, and who does not measure is stopped.

Tests: tests/flow/test_flow_benchmark.py.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from parts.processes import processor_time, stopped
from parts.ratios import Ratio, ratio

__all__ = ["SLOWER", "Measure", "Row", "Side", "Work", "one_by_one", "several"]

SLOWER = 1.05
"""Times the old code's time that ours may be."""


class Side(Protocol):
    """A chain of stages, of ours or of Ray."""

    def once(self, value: Any) -> Any:
        """One input, there and back."""

    def pipelined(self, value: Any, count: int) -> None:
        """Process `count` inputs, of which several are under way at a time."""

    def value(self, is_large: bool) -> Any:
        """The input: a large array, or a small one."""

    def pids(self) -> list[int]:
        """The processes of driver and stages."""


@dataclass
class Row:
    """One comparison; microseconds for each input.

    Attributes:
        name: what is done.
        limit: the most that our time may be, as a multiple of Ray's; None for no target.
        ours, ray: a time for each round.
        our_processor, rays_processor: of driver and stages, for each input and round.
        old: a time of the old code for each round.
    """

    name: str
    limit: float | None = None
    ours: list[float] = field(default_factory=list)
    ray: list[float] = field(default_factory=list)
    our_processor: list[float] = field(default_factory=list)
    rays_processor: list[float] = field(default_factory=list)
    old: list[float] = field(default_factory=list)

    @property
    def met(self) -> bool | None:
        """True if the target is met; None where there is none, or nothing to measure it against."""
        if self.limit is None or not self.ray:
            return None
        return statistics.median(self.ours) <= self.limit * statistics.median(self.ray)

    @property
    def to_ray(self) -> Ratio | None:
        """Our time by Ray's; None if that was not measured."""
        return ratio(self.ours, self.ray) if self.ray else None

    @property
    def to_old(self) -> Ratio | None:
        """Our time by the old code's; None if that was not measured."""
        return ratio(self.ours, self.old) if self.old else None

    @property
    def is_slower(self) -> bool:
        """True if the median ratio to the old code is more than a row may be slower."""
        return self.to_old is not None and self.to_old.median > SLOWER

    def as_dict(self) -> dict[str, Any]:
        names = ("ours", "ray", "our_processor", "rays_processor")
        times = {name: statistics.median(found) if (found := getattr(self, name)) else None for name in names}
        found = {"name": self.name, "limit": self.limit, **times, "met": self.met}
        return found if self.to_old is None else found | {"old": statistics.median(self.old), "to_old": self.to_old}


Measure = Callable[[Side], tuple[float, int]]
"""Gives the time of an input, and how many there were."""


@dataclass
class Work:
    """Measurement of a row: our side, Ray's where it takes part, and the same done by the old code."""

    row: Row
    ours: Side
    rays: Side | None
    measure: Measure
    old: Callable[[], float] | None = None

    def once(self, side: Side) -> tuple[float, float]:
        """Microseconds of an input, and of processors for it."""
        before = processor_time(side.pids())
        found, inputs = self.measure(side)
        return found, (processor_time(side.pids()) - before) / inputs * 1e6

    def turn(self, number: int, everybody: Sequence[Side], others: Sequence[int] = ()) -> None:
        """Measure each side once, in an order that changes from round to round; round 0 does not count.

        All others are stopped meanwhile: an actor of Ray uses a processor while it waits.

        Args:
            number: of the round.
            everybody: all sides.
            others: processes of the old code.
        """
        row, pids = self.row, {pid for each in everybody for pid in each.pids()} | set(others)
        turns: list[tuple[Callable[[], tuple[float, float]], Iterable[int], list[float], list[float]]] = [
            (lambda: self.once(self.ours), self.ours.pids(), row.ours, row.our_processor)
        ]
        if self.rays is not None:
            rays = self.rays
            turns.append((lambda: self.once(rays), rays.pids(), row.ray, row.rays_processor))
        if self.old is not None:
            old = self.old
            turns.append((lambda: (old(), 0.0), others, row.old, []))
        for measure, its_own, times, processor in turns[:: 1 if number % 2 else -1]:
            with stopped(pids - {*its_own, os.getpid()}):
                found, used = measure()
            if number:
                times.append(found)
                processor.append(used)


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
