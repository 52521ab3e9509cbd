"""Progress of long work: its stage in words, steps done of a total, an estimate of the time left.

The work reports to a `Progress`; callbacks show it on a terminal (`toprope.terminal.Display`), on a page, or nowhere.

Reported to by `images`, `tiers`, `native_build` and `toprope port`; the fields of `Step` are also what the page of
`toprope ui` reads. How often a step is reported, and its wording, are free. Tests: tests/cli/test_terminal.py,
tests/images/test_images_web.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from toprope.sizes import decimal

__all__ = ["Progress", "Step"]


@dataclass(frozen=True)
class Step:
    """A point that long work has reached.

    Attributes:
        number: units that are done.
        of: units in all.
        seconds: since the work began.
        stage: the part of the work, where it has several, such as "refine".
        unit: such as "step" or "file"; "B" for bytes.
    """

    number: int
    of: int
    seconds: float
    stage: str = ""
    unit: str = "step"

    @property
    def seconds_each(self) -> float:
        """Mean time of a unit."""
        return self.seconds / max(1, self.number)

    @property
    def left(self) -> float:
        """Estimate of the seconds left, at the mean speed so far."""
        return self.seconds_each * (self.of - self.number)

    @property
    def amount(self) -> str:
        """ "14/28", "1.2 GB of 8.0 GB"."""
        if self.unit == "B":
            return f"{decimal(self.number)} of {decimal(self.of)}"
        return f"{self.number:>{len(str(self.of))}}/{self.of}"

    @property
    def rate(self) -> str:
        """ "1.8 s/step", "12 ms/file", "1.1 GB/s"."""
        each = self.seconds_each
        if self.unit == "B":
            return f"{decimal(int(1 / each))}/s" if each else ""
        return f"{each:.1f} s/{self.unit}" if each >= 0.1 else f"{each * 1000:.0f} ms/{self.unit}"


class Progress:
    """Reports the stages and the steps of one job.

    Args:
        on_step: called with each step.
        on_stage: called with each stage, a sentence without a full stop.
        total: units in all.
        unit: see `Step`.
        after: seconds before the first step is reported.
        every: least seconds between two reported steps; the last step is always reported.

    Attributes:
        done: units that are done.
    """

    def __init__(
        self,
        on_step: Callable[[Step], None] | None = None,
        on_stage: Callable[[str], None] | None = None,
        *,
        total: int = 0,
        unit: str = "step",
        after: float = 0.0,
        every: float = 0.0,
    ) -> None:
        self.done = 0
        self._on_step, self._on_stage = on_step, on_stage
        self._total, self._unit, self._after, self._every = total, unit, after, every
        self._begin = time.perf_counter()
        self._reported = -math.inf

    @property
    def seconds(self) -> float:
        """Time since the work began."""
        return time.perf_counter() - self._begin

    def stage(self, text: str) -> None:
        """Report what is done from now on."""
        if self._on_stage is not None:
            self._on_stage(text)

    def step(self, done: int, total: int | None = None, stage: str = "") -> None:
        """Report how many units are done."""
        self.done = done
        self._total = self._total if total is None else total
        now = self.seconds
        if now < self._after or (now - self._reported < self._every and done < self._total):
            return
        self._reported = now
        if self._on_step is not None:
            self._on_step(Step(done, self._total, now, stage, self._unit))

    def advance(self, units: int = 1) -> None:
        """Report that some more units are done."""
        self.step(self.done + units)
