"""Times of work by number of cores: measured tables, profiles of others, estimates; pure.

`Times`, `Work` and `Demand` are the input of every planner, and public. Each time has its source, which every plan
shows: measured, profile or estimate. Figures are in profiles.toml, each with where it was measured. Tests:
tests/cores/test_cores_plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from toprope.cores.model import Cores
from toprope.errors import PlanError

__all__ = ["Demand", "Times", "Work", "profile_times", "weakest"]

_STRENGTH = ("measured", "profile", "estimate")


def weakest(timings: Iterable[str]) -> str:
    """The weakest of these words: "measured", "profile", "estimate"; "measured" where there is none."""
    return max(timings, key=_STRENGTH.index, default="measured")


@dataclass(frozen=True)
class Times:
    """Times of something on 1, 2, ... blocks. More blocks than there are values: as on the last.

    A block is one cube core, one vector core, or for a MIX operator the cores of its ratio.

    Attributes:
        microseconds: the times; the first is that on one block.
        timing: where they come from: "measured", "profile" or "estimate".
        known_from: the smallest number of blocks for which that holds; the values below it are an estimate.

    Raises:
        PlanError: there is no value, or one is negative or not finite.
    """

    microseconds: tuple[float, ...]
    timing: str = "measured"
    known_from: int = 1

    def __post_init__(self) -> None:
        bad = [value for value in self.microseconds if not 0 <= value < math.inf]
        if bad or not self.microseconds:
            raise PlanError(
                "a table of times must have at least one value, and none that is negative or not finite.",
                looked_at=", ".join(map(str, self.microseconds)) or "an empty table",
            )
        if self.timing not in _STRENGTH:
            raise PlanError(f"times cannot be {self.timing!r}.", looked_at=f"known: {', '.join(_STRENGTH)}")

    @classmethod
    def measured(cls, table: Mapping[int, float], timing: str = "measured") -> Times:
        """Times that were measured on some numbers of blocks.

        Between two of them the smaller one's time is taken: more blocks than measured are not trusted to be faster.
        Below the smallest the time is taken to grow as 1/n, and marked an estimate.

        Raises:
            PlanError: the table is empty, or has a number of blocks below 1.
        """
        if not table or min(table) < 1:
            raise PlanError(
                "a table of times goes from numbers of blocks, 1 or more, to microseconds.",
                looked_at=", ".join(f"{blocks}: {time}" for blocks, time in table.items()) or "an empty table",
            )
        counts = sorted(table)
        values = [table[counts[0]] * counts[0] / blocks for blocks in range(1, counts[0])]
        for count, following in zip(counts, [*counts[1:], counts[-1] + 1], strict=True):
            values += [table[count]] * (following - count)
        return cls(tuple(values), timing, counts[0])

    @classmethod
    def estimate(cls, fixed: float, divided: float, blocks: int) -> Times:
        """The rule of thumb `fixed + divided / n` microseconds for n = 1 to `blocks`."""
        return cls(tuple(fixed + divided / count for count in range(1, max(blocks, 1) + 1)), "estimate")

    def on(self, blocks: int) -> float:
        """The time on a number of blocks, at least one, in microseconds."""
        return self.microseconds[min(blocks, len(self.microseconds)) - 1]

    def timing_on(self, blocks: int) -> str:
        """Source of the time on a number of blocks."""
        return self.timing if blocks >= self.known_from else "estimate"

    def up_to(self, blocks: int) -> Times:
        """The same for work that is launched on at most this number of blocks."""
        return Times(self.microseconds[: max(blocks, 1)], self.timing, self.known_from)


@dataclass(frozen=True)
class Work:
    """Something that a stream runs.

    Attributes:
        times: how long it runs.
        block: cube and vector cores of one block: (1, 0), (0, 1), for MIX 1:2 (1, 2); (0, 0) for none.
        count: how often it is run.
        name: as a person knows it.
    """

    times: Times
    block: Cores = (0, 1)
    count: int = 1
    name: str = ""

    def blocks(self, cores: Cores) -> int:
        """Number of blocks that a limit allows; 0 where it allows none."""
        allowed = (cores[kind] // self.block[kind] for kind in (0, 1) if self.block[kind])
        return min(min(allowed, default=1), len(self.times.microseconds))


@dataclass(frozen=True)
class Demand:
    """The demand of a stream on a plan.

    Attributes:
        stream: its name.
        work: what it runs, one after the other.
        minimum: cube and vector cores that it must have, such as the minimum of HCCL.
        maximum: cores that it must not exceed; None: as many as there are.
        cards: names of the cards on which there is a stream of this name; they get the same limit. Empty: all cards.
        also: its work on its other cards, where that is not the same; the longest counts.
    """

    stream: str
    work: tuple[Work, ...] = ()
    minimum: Cores = (0, 0)
    maximum: Cores | None = None
    cards: tuple[str, ...] = ()
    also: tuple[tuple[Work, ...], ...] = ()

    @classmethod
    def fixed(cls, stream: str, cores: Cores, work: tuple[Work, ...] = (), cards: tuple[str, ...] = ()) -> Demand:
        """A stream whose cores are not to be changed."""
        return cls(stream, work, cores, cores, cards)

    @property
    def everything(self) -> tuple[tuple[Work, ...], ...]:
        """Its work, card by card where it differs."""
        return (self.work, *self.also)

    @property
    def least(self) -> Cores:
        """The fewest cores that it can do with: its minimum, and one block of whatever it runs."""
        blocks = [work.block for works in self.everything for work in works]
        cube, vector = (max([self.minimum[kind], *(block[kind] for block in blocks)]) for kind in (0, 1))
        return cube, vector


def profile_times(name: str, microseconds: float, cores: int) -> Times:
    """The times of an operator, from the measured profile of a similar one.

    Args:
        name: "gemm" or "elementwise"; the table is profiles.toml.
        microseconds: how long the operator runs on `cores`.
        cores: cores that it was launched on.

    Raises:
        PlanError: there is no such profile.
    """
    profiles = _profiles()
    if name not in profiles:
        raise PlanError(f"there is no profile {name}.", looked_at=f"profiles {', '.join(profiles)}")
    slowdown = {int(count): float(value) for count, value in profiles[name]["slowdown"].items()}
    curve = Times.measured(slowdown, "profile")
    scale = microseconds / curve.on(cores)
    values = tuple(scale * curve.on(count) for count in range(1, max(cores, 1) + 1))
    return Times(values, "profile", curve.known_from)


@cache
def _profiles() -> dict[str, Any]:
    import tomllib
    from importlib import resources

    text = resources.files("toprope.cores.planning").joinpath("profiles.toml").read_text(encoding="utf-8")
    profiles: dict[str, Any] = tomllib.loads(text)["profile"]
    return profiles
