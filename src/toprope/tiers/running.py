"""Which modules run right now, thread by thread; and which do not any more, though nobody said so."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from toprope.tiers.groups import Weight
from toprope.tiers.ring import Holder, Unit

__all__ = ["Local", "Needs", "Run", "caller", "ended"]


@dataclass(eq=False)
class Needs:
    """What a module needs while it runs.

    Attributes:
        name: of the module.
        weights: that it uses itself.
        group: the block's group; "" for other modules.
        root: it is the model itself: its runs are steps.
        units: that bring the weights, as the plan has it now.
    """

    name: str
    weights: list[Weight]
    group: str = ""
    root: bool = False
    units: list[Unit] = field(default_factory=list)


@dataclass(eq=False)
class Run:
    """A module that runs, or whose weights are visited.

    Attributes:
        needs: what it needs.
        held: units that were brought for it.
        frame: that called it; None for a visit, which ends when it says so.
        packs: autograd's hooks for saved tensors were put on for it.
    """

    needs: Needs
    held: list[Unit]
    frame: Any
    packs: bool


class Local(threading.local):
    """What one thread does."""

    def __init__(self) -> None:
        self.stack: list[Run] = []
        """Modules that run."""
        self.holding: dict[Unit, int] = {}
        self.fetching: Unit | None = None
        """What a hook of autograd is bringing."""
        self.me, self.fetcher = Holder(), Holder()
        """Who holds units: this thread's modules, and its hooks of autograd."""


_BETWEEN = (
    "toprope.tiers.engine",
    "toprope.tiers.running",
    "toprope.tiers.hooks",
    "toprope.tiers.uncompiled",
    "toprope.tiers.handle",
    "toprope.tiers.visit",
    "toprope.tiers.modes.switch",
    "torch._dynamo.eval_frame",
)
"""Modules whose functions stand between torch's call of a module and `Engine.enter`."""


def caller() -> Any:
    """The frame that lasts as long as a module runs, whose hook calls this."""
    frame: Any = sys._getframe(1)
    while frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame


def ended(local: Local, frame: Any) -> int:
    """How many of the last modules do not run any more, seen from a frame: what called them has ended.

    After Ctrl-C torch does not say so: its hooks are called after errors, and this is none.
    """
    calls = set()
    while frame is not None:
        calls.add(id(frame))
        frame = frame.f_back
    count = 0
    for each in reversed(local.stack):
        if each.frame is None or id(each.frame) in calls:
            break
        count += 1
    return count
