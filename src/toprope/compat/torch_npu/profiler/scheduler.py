"""Facade module: `Schedule`, the steps at which the profiler waits, warms up, records and saves; as in torch_npu.

Arguments, their defaults and the action of each step are torch_npu's; a wrong argument is replaced with a warning,
whose words are free. Tests: tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

from enum import Enum

from ._messages import warn

__all__ = ["ProfilerAction", "Schedule"]


class ProfilerAction(Enum):
    """Actions of the profiler in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


class Schedule:
    """Schedule of cycles: `wait` steps without profiler, `warmup` steps, `active` steps that are recorded.

    A wrong argument is replaced by its default, with a warning.

    Args:
        wait: steps at the begin of a cycle in which nothing happens.
        active: steps of a cycle that are recorded; at least 1.
        warmup: steps before them.
        repeat: number of cycles; 0 for no end.
        skip_first: steps before the first cycle.
        skip_first_wait: whether the first cycle begins without its `wait` steps.
    """

    def __init__(
        self, wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
    ) -> None:
        self.wait = _checked("wait", wait)
        self.active = _checked("active", active, least=1)
        self.warmup = _checked("warmup", warmup)
        self.repeat = _checked("repeat", repeat)
        self.skip_first = _checked("skip_first", skip_first)
        self.skip_first_wait = _checked("skip_first_wait", skip_first_wait, least=None)
        if self.warmup == 0:
            warn("the schedule has no warmup step, so the first recorded step may be slower than the others.")

    def __call__(self, step: int) -> ProfilerAction:
        """The action in a step.

        Raises:
            ValueError: the step is negative.
        """
        if step < 0:
            raise ValueError(f"the number of a step is at least 0, not {step}")
        if step < self.skip_first:
            return ProfilerAction.NONE
        step -= self.skip_first
        if self.skip_first_wait:
            step += self.wait
        length = self.wait + self.warmup + self.active
        cycle, place = divmod(step, length)
        if place < self.wait or 0 < self.repeat <= cycle:
            return ProfilerAction.NONE
        if place < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if place == length - 1 else ProfilerAction.RECORD


def _checked(name: str, value: object, least: int | None = 0) -> int:
    if isinstance(value, int) and (least is None or value >= least):
        return value
    default = least or 0
    warn(f"{name} of the schedule is {value!r}; {default} is taken.")
    return default


def record_always(step: int) -> ProfilerAction:
    """Record from the first step to the end, where there is no schedule."""
    return ProfilerAction.RECORD
