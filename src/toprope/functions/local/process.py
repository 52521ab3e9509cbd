"""The driver's view of a worker process, and of the calls that are on their way to it.

Plain records that the parts of a local session share: the reactor makes a `Process`, instances and pools make
`Call`s. They change under the session's lock. The messages of `_WINDOW` calls must fit into a socket. Tests:
tests/functions/test_functions_assertions.py, tests/functions/test_functions_generators.py (streams).
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from toprope.functions.exceptions import CancelError
from toprope.functions.objects import Entry, Value
from toprope.functions.transport.serialization import BlockKey
from toprope.functions.transport.wire import Channel, Kind

if TYPE_CHECKING:
    from toprope.functions.backend import Code
    from toprope.functions.options import InvokeOptions
    from toprope.functions.timers import Timer

__all__ = ["SEVERAL", "Call", "Process", "Stream", "locked"]

P = ParamSpec("P")
R = TypeVar("R")

_WINDOW = 192
"""Largest number of calls in flight to a worker: their messages fit into the socket, so sending never blocks."""

_BURST = 64
"""Number of calls in flight from which further calls are sent in batches: the worker is busy meanwhile."""

SEVERAL = 32
"""Size of such a batch."""


def locked(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorate a method of a part of a session: hold the session's lock during the call."""

    @functools.wraps(method)
    def hold(self: Any, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        with self._session.lock:
            return method(self, *arguments, **keywords)

    return hold


class Stream:
    """Items of a generator, in order of arrival.

    Attributes:
        entries: an entry for each item; the last one is an error where the generator raised.
        ended: whether no more will come.
        closed: whether the consumer wants no more items.
        call: the generator's call; None once it has ended.
    """

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call
        self.closed = False
        self.entries: list[Entry] = []
        self.taken = 0
        self.ended = False
        self.changed = Entry()  # done when there is news

    def add(self, entry: Entry | None) -> None:
        """Add an item, or None for the end."""
        if entry is None:
            self.ended, self.call = True, None
        elif not self.closed:
            self.entries.append(entry)
        changed, self.changed = self.changed, Entry()
        changed.finish(None)

    def close(self) -> None:
        """Stop the stream and free its items: the consumer wants no more."""
        self.closed, self.taken = True, 0
        self.entries.clear()
        self.add(None)


class Call:
    """A call, from the moment it is made until it has a result.

    Attributes:
        kind: CALL of an instance's method, FUNCTION, or CREATE.
        target: the method's name, the function's key, or what an instance is made of.
        code: the function or class; None for a method.
        value: the arguments, with slots for those that are references.
        refs: the objects that belong into the slots.
        entries: what it makes.
        returns: how many values; None for a generator, whose items go to `stream`.
        owner: the instance or pool that it belongs to.
        tries: runs left after a failure.
    """

    __slots__ = (
        "cancelled", "code", "entries", "kind", "number", "options", "owner", "process", "refs", "returns", "stream",
        "target", "tries", "value",
    )  # fmt: skip

    def __init__(
        self,
        kind: int,
        target: Any,
        value: Value,
        refs: list[Entry],
        returns: int | None,
        code: Code | None = None,
        options: InvokeOptions | None = None,
    ) -> None:
        self.kind = kind
        self.target = target
        self.value = value
        self.refs = refs
        self.returns = returns
        self.code = code
        self.options = options
        self.entries = [Entry()] if returns == 1 else [Entry() for _ in range(returns or 0)]
        self.stream = Stream(self) if returns is None else None
        self.tries = options.retry_times if options is not None and kind == Kind.FUNCTION else 0
        self.cancelled = False
        self.number = 0
        self.owner: Any = None
        self.process: Process | None = None
        for entry in self.entries:
            entry.call = self

    @property
    def needed(self) -> list[Entry]:
        """The objects that must be available before it starts: those of slots, and of references in the arguments."""
        return [*self.refs, *self.value.refs] if self.value.refs else self.refs

    @property
    def is_begun(self) -> bool:
        """True if items of a generator have been delivered, or the consumer wants none: it is not retried."""
        return self.stream is not None and (self.stream.closed or bool(self.stream.entries))

    def cancel_error(self) -> CancelError:
        """Return the error of a cancelled call."""
        number = self.entries[0].number if self.entries else 0
        text = "invalid get obj, the obj has been cancelled. stateless request has been cancelled"
        return CancelError(f"{text}: {number:016x}")

    def fail(self, error: BaseException) -> None:
        """Set this error as its result."""
        for entry in self.entries:
            entry.finish(None, error)
        if self.stream is not None:
            entry = Entry()
            entry.finish(None, error)
            self.stream.add(entry)
            self.stream.add(None)
        self.value.refs = self.refs = []


class Process:
    """A worker process as the driver knows it: socket, calls in flight, and what it holds.

    Attributes:
        number: names it in the session.
        channel: the socket to it.
        pid: its process; 0 until the forkserver has reported it.
        pending: calls sent to it that have no result yet, by number.
        backlog: calls that wait until fewer are in flight; none of them has started.
        lent: number of times that each block was sent to it and not released.
        held: objects that it has references to, with their number of times.
        streams: the items of generators that it has called, by number.
        codes: functions and classes that it has.
        on_lost: called once when it is lost.
        exit: its exit status, or minus the signal; None while it runs, or while it is unknown.
        refused: why the system could not start it; "" if it could.
        closed: whether its socket has ended.
        cleaned_up: whether its resources were released.
        window: largest number of calls in flight to it.
        burst: number of calls in flight from which further calls are sent in batches.
        stopping: whether it was asked to end, or ends by itself: it gets no more calls.
        deadline: ends it by force; None while there is none.
        cleanup_timer: releases its resources if the forkserver does not report its end; None while its socket is open.
        idle_since: time at which it became idle.
        recycling: ends it after a long idle time; None while it is busy.
        waits: number of its requests that wait for other calls.
        owner: the instance or pool that it works for.
    """

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.pid = 0
        self.pending: dict[int, Call] = {}
        self.backlog: deque[Call] = deque()
        self.lent: Counter[BlockKey] = Counter()
        self.held: dict[int, list[Any]] = {}
        self.streams: dict[int, Stream] = {}
        self.codes: set[str] = set()
        self.on_lost: Callable[[Process], None] | None = None
        self.exit: int | None = None
        self.refused = ""
        self.closed = False
        self.cleaned_up = False
        self.stopping = False
        self.deadline: Timer | None = None
        self.cleanup_timer: Timer | None = None
        self.idle_since = 0.0
        self.recycling: Timer | None = None
        self.waits = 0
        self.owner: Any = None
        self.window = _WINDOW
        self.burst = _BURST

    def works_on(self, at_once: int) -> None:
        """Allow `at_once` calls in flight: they run concurrently and may wait for each other, so all must be sent."""
        self.window = max(_WINDOW, at_once)
        self.burst = max(_BURST, at_once)

    @property
    def is_open(self) -> bool:
        """True while it takes calls."""
        return not self.closed and not self.stopping

    @property
    def load(self) -> int:
        """Number of calls that it works on."""
        return len(self.pending)

    @property
    def how_it_ended(self) -> str:
        """Its end in words."""
        import signal

        if self.refused:
            return f"its process could not be started: {self.refused}"
        if self.exit is None:
            return "its process is gone"
        if self.exit < 0:
            try:
                name = signal.Signals(-self.exit).name
            except ValueError:
                name = f"signal {-self.exit}"
            return f"its process was killed by {name}"
        return f"its process ended with exit status {self.exit}"
