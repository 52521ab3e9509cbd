"""One instance: what was asked for, and where it is in its life."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from toprope.functions.backend import Code
from toprope.functions.exceptions import CODES, YRequestError
from toprope.functions.ledger import Grant
from toprope.functions.local.process import Call, Process
from toprope.functions.objects import Entry, Value
from toprope.functions.options import InvokeOptions
from toprope.functions.resources import Request
from toprope.functions.timers import Timer

__all__ = ["LONGEST_ID", "Instance", "State", "exited", "grace_of"]

LONGEST_ID = 64
GRACE = 30.0
"""Seconds that an instance's hook may take at its end, where the options say nothing."""


class State(StrEnum):
    """Where an instance is in its life."""

    WAITING = "waits for resources"
    STARTING = "its constructor runs"
    READY = "runs"
    ENDING = "ends"
    DEAD = "has ended"


@dataclass(eq=False)
class Instance:
    """An instance.

    Attributes:
        id: names it.
        code: its class.
        value, refs: the arguments of its constructor.
        options: what was asked for.
        state: where it is in its life.
        queue: calls that have not been sent.
        error: what calls of it raise; None while it lives.
        lives: how often it may still be brought back.
        saved: its newest checkpoint.
        grant: what it holds.
        group: what it lives together with; None for nothing.
        ledger, asked: where its resources come from, and the number of its request there.
        blocked: whether its queue waits for an object.
        calls: who is told how its calls went.
        request: its resources.
        gone: set when its process is gone.
        late: ends its waiting for resources; None where it waits without limit.
    """

    id: str
    code: Code
    value: Value
    refs: list[Entry]
    options: InvokeOptions
    state: State = State.WAITING
    queue: deque[Call] = field(default_factory=deque)
    error: BaseException | None = None
    lives: int = 0
    saved: bytes | None = None
    grant: Grant | None = None
    process: Process | None = None
    group: Any = None
    ledger: str = ""
    asked: int = 0
    blocked: bool = False
    calls: Any = None
    request: Request = field(default_factory=Request)
    gone: threading.Event = field(default_factory=threading.Event)
    late: Timer | None = None

    @property
    def is_up(self) -> bool:
        """True if calls can be sent to it: its process has not said that it ends."""
        return self.state is State.READY and self.process is not None and not self.process.stopping


def grace_of(options: InvokeOptions) -> float:
    """Seconds that an instance may take to end."""
    text = options.custom_extensions.get("GRACEFUL_SHUTDOWN_TIME", "")
    try:
        seconds = float(text)
    except ValueError:
        return GRACE
    return GRACE if seconds < 0 else seconds


def exited(instance: Instance, process: Process) -> YRequestError:
    """The error of calls whose instance is gone."""
    return YRequestError(f"instance {instance.id} exited: {process.how_it_ended}", CODES["instance exited"], 22)
