"""The driver's view of a worker process, and of the calls that are on their way to it."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from toprope.functions.exceptions import CancelError
from toprope.functions.objects import Entry, Value
from toprope.functions.serial import BlockKey
from toprope.functions.wire import Channel, Kind

if TYPE_CHECKING:
    from toprope.functions.backend import Code
    from toprope.functions.options import InvokeOptions
    from toprope.functions.timers import Timer

__all__ = ["SEVERAL", "Call", "Process", "Stream", "locked"]

P = ParamSpec("P")
R = TypeVar("R")

_WINDOW = 192
"""Calls that may be on their way to a worker: their messages fit into the socket, so that sending never blocks."""

_BURST = 64
"""Calls on their way from which on more are sent several at a time: the worker has enough to do meanwhile."""

SEVERAL = 32
"""Calls that are sent at a time then."""


def locked(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Have a method of a part of a session hold the session's lock."""

    @functools.wraps(method)
    def hold(self: Any, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        with self._session.lock:
            return method(self, *arguments, **keywords)

    return hold


class Stream:
    """The items of a generator, as they come.

    Attributes:
        entries: an entry for each item; the last one is an error where the generator raised.
        ended: whether no more will come.
        closed: whether nobody wants more.
        call: that makes them; None once it has ended.
    """

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call
        self.closed = False
        self.entries: list[Entry] = []
        self.taken = 0
        self.ended = False
        self.changed = Entry()  # done when there is news

    def add(self, entry: Entry | None) -> None:
        """Another item, or None for the end."""
        if entry is None:
            self.ended, self.call = True, None
        elif not self.closed:
            self.entries.append(entry)
        changed, self.changed = self.changed, Entry()
        changed.finish(None)

    def close(self) -> None:
        """Nobody wants more items, and those that are there are free."""
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
        """The objects that have to be there before it begins: those of slots, and of references in the arguments."""
        return [*self.refs, *self.value.refs] if self.value.refs else self.refs

    @property
    def is_begun(self) -> bool:
        """True if the first items of a generator have been handed on, or nobody wants them: it does not run again."""
        return self.stream is not None and (self.stream.closed or bool(self.stream.entries))

    def cancel_error(self) -> CancelError:
        """What it raises once it was cancelled."""
        number = self.entries[0].number if self.entries else 0
        text = "invalid get obj, the obj has been cancelled. stateless request has been cancelled"
        return CancelError(f"{text}: {number:016x}")

    def fail(self, error: BaseException) -> None:
        """It has no result but this error."""
        for entry in self.entries:
            entry.finish(None, error)
        if self.stream is not None:
            entry = Entry()
            entry.finish(None, error)
            self.stream.add(entry)
            self.stream.add(None)
        self.value.refs = self.refs = []


class Process:
    """A worker process.

    Attributes:
        number: names it in the session.
        channel: the socket to it.
        pid: its process; 0 until the forkserver has told it.
        pending: calls sent to it that have no result yet, by number.
        backlog: calls that wait until fewer are on their way; none of them has begun.
        lent: how often each block was sent to it and not let go of.
        held: objects that it has references to, with their number of times.
        streams: the items of generators that it has called, by number.
        codes: functions and classes that it has.
        on_lost: told once when it is gone.
        exit: how it ended; None while it runs, or while that is not known.
        refused: why the system could not start it; "" where it could.
        closed: whether its socket has ended.
        buried: whether what it held has been freed.
        window: calls that may be on their way to it.
        burst: calls on their way from which on more are sent several at a time.
        stopping: whether it was asked to end, or ends by itself: it gets no more calls.
        deadline: ends it by force; None while there is none.
        burial: frees what it held where the forkserver does not tell how it ended; None while its socket is open.
        idle_since: when it last had nothing to do.
        recycling: ends it if it has had nothing to do for long; None while there is none.
        waits: requests of it whose answers it waits for, which others have to bring about.
        owner: what it works for.
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
        self.buried = False
        self.stopping = False
        self.deadline: Timer | None = None
        self.burial: Timer | None = None
        self.idle_since = 0.0
        self.recycling: Timer | None = None
        self.waits = 0
        self.owner: Any = None
        self.window = _WINDOW
        self.burst = _BURST

    def works_on(self, at_once: int) -> None:
        """It works on `at_once` calls, which may wait for each other: none of them is kept back here."""
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
