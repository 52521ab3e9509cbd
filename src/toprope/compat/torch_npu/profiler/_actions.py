"""Table of a profiler's transitions: the calls between one action of the schedule and the next.

Used by `torch_npu.profiler.profile.step` and at its end. The transitions and their warnings are torch_npu's. Tests:
tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._messages import warn
from .scheduler import ProfilerAction

__all__ = ["change_action"]

_NONE, _WARMUP, _RECORD, _SAVE = ProfilerAction
_BEGIN = ("init_trace", "start_trace")
_WARM = ("init_trace", "warmup_trace")
_DROP = ("stop_trace", "finalize_trace")
_KEEP = (*_DROP, "ready")

_CALLS: dict[tuple[ProfilerAction, ProfilerAction | None], tuple[str, ...]] = {
    (_NONE, _WARMUP): _WARM,
    (_NONE, _RECORD): _BEGIN,
    (_NONE, _SAVE): _BEGIN,
    (_WARMUP, _NONE): ("start_trace", *_DROP),
    (_WARMUP, _RECORD): ("start_trace",),
    (_WARMUP, _SAVE): ("start_trace",),
    (_WARMUP, None): ("finalize_trace", "delete_prof_dir"),
    (_RECORD, _NONE): _DROP,
    (_RECORD, _WARMUP): _DROP,
    (_RECORD, None): _KEEP,
    (_SAVE, _NONE): _KEEP,
    (_SAVE, _WARMUP): (*_KEEP, *_WARM),
    (_SAVE, _RECORD): (*_KEEP, *_BEGIN),
    (_SAVE, _SAVE): (*_KEEP, *_BEGIN),
    (_SAVE, None): _KEEP,
}
"""Calls between two actions; None is the end of the profiler."""

_WARNINGS = {
    (_WARMUP, _NONE): "the schedule goes from WARMUP to NONE: nothing is recorded.",
    (_RECORD, _NONE): "the schedule goes from RECORD to NONE: what was recorded is not analysed.",
    (_RECORD, _WARMUP): "the schedule goes from RECORD to WARMUP: what was recorded is not analysed.",
    (_WARMUP, None): "the profiler was stopped in a WARMUP step: nothing is recorded.",
    (_RECORD, None): "the profiler was stopped in a RECORD step: the record may be incomplete.",
    (_SAVE, None): "the profiler was stopped in a RECORD_AND_SAVE step: the cycle may be incomplete.",
}


def change_action(
    interface: Any, ready: Callable[[], object], before: ProfilerAction, now: ProfilerAction | None
) -> None:
    """Make the calls between two actions.

    Args:
        interface: the profiler's interface, whose methods are called.
        ready: called when a record is complete.
        before: the action that ends.
        now: the action that begins; None for the end of the profiler.
    """
    if (before, now) in _WARNINGS:
        warn(_WARNINGS[before, now])
    for name in _CALLS.get((before, now), ()):
        (ready if name == "ready" else getattr(interface, name))()
