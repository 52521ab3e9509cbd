"""State of one instance in the driver: its life cycle, its resources, its process and its queue of calls.

A record: `local.instance_manager` makes and changes it under the session's lock; the scheduler, the groups and requests
of workers read it. The states are `lifecycle.Life`'s; what is added here is free. Tests:
tests/functions/test_functions_instances.py.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from toprope.functions.backend import Code
from toprope.functions.lifecycle import Life, State
from toprope.functions.local.process import Call, Process
from toprope.functions.objects import Entry, Value
from toprope.functions.options import InvokeOptions
from toprope.functions.scheduling.ledger import Grant
from toprope.functions.scheduling.requests import Request
from toprope.functions.timers import Timer

__all__ = ["Instance"]


@dataclass(eq=False, kw_only=True)
class Instance(Life[Call]):
    """An instance as the driver knows it, with its life cycle as the base class.

    Attributes:
        id: names it.
        code: its class.
        value, refs: the arguments of its constructor.
        options: its options.
        grant: its resources.
        process: where it runs; None while it has none.
        group: its instance group; None for none.
        ledger, asked: where its resources come from, and the number of its request there.
        blocked: whether its queue waits for an object.
        calls: the `Call.owner` of its calls.
        request: its resources.
        gone: set when its process is gone.
        timeout: ends its waiting for resources; None where it waits without limit.
    """

    id: str
    code: Code
    value: Value
    refs: list[Entry]
    options: InvokeOptions
    grant: Grant | None = None
    process: Process | None = None
    group: Any = None
    ledger: str = ""
    asked: int = 0
    blocked: bool = False
    calls: Any = None
    request: Request = field(default_factory=Request)
    gone: threading.Event = field(default_factory=threading.Event)
    timeout: Timer | None = None

    @property
    def is_up(self) -> bool:
        """True if calls can be sent to it: its process has not said that it ends."""
        return self.state is State.READY and self.process is not None and not self.process.stopping
