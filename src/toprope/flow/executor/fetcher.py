"""Fetching: assembles the results that have arrived at the driver, and returns them.

A part of `executor.runner`. Results are put together like inputs of a stage, by `worker.input_matching`. The codes are
those of CANN's dataflow API, the times at the head are free. A thread that takes results holds `lock`. Tests:
tests/flow/test_flow_run.py, tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from toprope.flow.edge.connections import Connections
from toprope.flow.edge.links import InQueue
from toprope.flow.exceptions import (
    DATA_NOT_ALIGNED,
    FAILED,
    MODEL_EXECUTE_TIMEOUT,
    QUEUE_EMPTY,
    SUCCESS,
    USER_RAISE_EXCEPTION,
)
from toprope.flow.stage.spec import FAILURE, Failure, Head, Message, RunOptions
from toprope.flow.worker.input_matching import Align, Gather, Order, Source

__all__ = ["Fetched", "Fetcher"]

_QUIET = 1.0
"""Time without a message after which a broken graph has no more results, in seconds."""

_LONG = 60.0
"""Seconds of waiting after which the log says what is waited for."""

_ANY = 1024
"""Number of waiting groups if several instances deliver results out of order."""

_log = logging.getLogger("toprope")


class Fetched(NamedTuple):
    """A result of `Runner.fetch`: messages, or a code.

    Attributes:
        messages: one for each place that was asked for; none where there is no result.
        head: their head.
        code: 0, or what is wrong.
        errors: why messages have failed.
    """

    messages: list[Message]
    head: Head
    code: int
    errors: list[Failure]


class Fetcher:
    """Takes the results of a graph out of its queues, in the user's order.

    Args:
        connections: of the driver.
        queues: what has come, for each output.
        options: how the graph runs.
        is_scattered: whether results may come out of order.
        explain: says what the stages are at.
    """

    def __init__(
        self,
        connections: Connections,
        queues: Sequence[InQueue],
        options: RunOptions,
        is_scattered: bool,
        explain: Callable[[], str],
    ) -> None:
        self._connections = connections
        self.queues = queues
        self._options = options
        self._is_scattered = is_scattered
        self._explain = explain
        self.lock = threading.Lock()
        self._events: deque[Head] = deque()
        self._given_up: set[int] = set()
        self._gathers: dict[tuple[tuple[int, ...], bool], Gather] = {}
        self._gone: Failure | None = None
        self._news = 0.0
        self._taken = [time.monotonic()] * len(queues)  # when a result of each output was last taken
        self.closed = False

    def fetch(self, places: Sequence[int] | None, timeout_ms: int, *, aligned: bool) -> Fetched:
        """Return the next results.

        Args:
            places: of which outputs, as places in `Plan.fetched`; None for all.
            timeout_ms: how long to wait; -1 for ever, 0 not at all.
            aligned: whether results are put together by their transactions, as the options say.

        Returns:
            Messages with code 0, or with the code of those that failed. Without messages: 545601 where the time is
            over, 207013 where it was 0, 345103 where a function gave the transaction up, 4294967295 where the graph
            has ended or cannot go on. 345104 with what there is of an incomplete group.
        """
        if timeout_ms < -1 or self.closed:
            return Fetched([], Head(), FAILED, [])
        until = time.monotonic() + (timeout_ms / 1000 or 0.002) if timeout_ms >= 0 else None
        late = MODEL_EXECUTE_TIMEOUT if timeout_ms else QUEUE_EMPTY
        if not self._acquire(until):
            return Fetched([], Head(), late, [])
        try:
            gather = self._gather(tuple(range(len(self.queues))) if places is None else tuple(places), aligned)
            while self._wait(gather, until):
                if self._events:
                    return Fetched([], self._events.popleft(), USER_RAISE_EXCEPTION, [])
                if not gather.is_ready():
                    return Fetched([], Head(), FAILED, [] if self._gone is None else [self._gone])
                group = gather.take()
                self.finish()
                for place in range(len(self.queues)) if places is None else places:
                    self._taken[place] = time.monotonic()
                if not self._given_up or group.messages[0].head.transaction_id not in self._given_up:
                    return _fetched(group.messages, is_complete=group.is_complete)
            return Fetched([], Head(), late, [])
        finally:
            self.lock.release()

    def _acquire(self, until: float | None) -> bool:
        if self.lock.acquire(blocking=False):
            return True
        return self._connections.wait(lambda: self.lock.acquire(blocking=False), until)

    def unfetched(self, seconds: float) -> dict[int, int]:
        """Return the outputs with results of which none was taken for this time, with their numbers of results."""
        now = time.monotonic()
        return {
            place: len(queue)
            for place, queue in enumerate(self.queues)
            if len(queue) and now - self._taken[place] >= seconds
        }

    def finish(self) -> None:
        """Mark all taken messages as finished."""
        for queue in self.queues:
            for link in queue.links:
                link.finish()

    def give_up(self, head: Head) -> bool:
        """Note that a function has given a transaction up. Return True if that is new."""
        if head.transaction_id in self._given_up:
            return False
        self._given_up.add(head.transaction_id)
        self._events.append(head)
        return True

    def arrived(self) -> None:
        """Note that a message has arrived."""
        if self._gone is not None:
            self._news = time.monotonic()

    def end(self, why: Failure) -> None:
        """End fetching: only messages in flight will arrive."""
        self._news = time.monotonic()
        self._gone = why

    def has_ended(self) -> bool:
        """True if no more messages can arrive."""
        return self.closed or (self._gone is not None and time.monotonic() - self._news > _QUIET)

    def _wait(self, gather: Gather, until: float | None) -> bool:
        def is_there() -> bool:
            return bool(self._events) or gather.is_ready() or self.has_ended()

        if is_there():
            return True
        began, warned = time.monotonic(), False
        while True:
            limits = [began + _LONG if not warned else None, until]
            if self._connections.wait(
                is_there, min((each for each in limits if each is not None), default=None), gather.due
            ):
                return True
            now = time.monotonic()
            if until is not None and now >= until:
                return is_there()
            if not warned and now - began >= _LONG:
                warned = True
                _log.warning("fetch has waited for %.0f s: %s", now - began, self._explain())

    def _gather(self, places: tuple[int, ...], aligned: bool) -> Gather:
        options = self._options
        found = self._gathers.get((places, aligned))
        if found is None:
            sources = [Source(self.queues[place]) for place in places]
            if aligned and options.align and len(places) > 1:
                found = Align(sources, options.align, options.align_timeout_ms, options.align_drop)
            elif self._is_scattered and not options.n_mapping and len(places) > 1:
                found = Align(sources, _ANY, -1, False)
            else:
                found = Order(sources)
            self._gathers[places, aligned] = found
        return found


def _fetched(messages: list[Message], *, is_complete: bool) -> Fetched:
    failed = [each for each in messages if each.kind == FAILURE]
    if failed:
        return Fetched(messages, failed[0].head, failed[0].ret_code, [each.payload for each in failed])
    code = next((each.ret_code for each in messages if each.ret_code), SUCCESS) if is_complete else DATA_NOT_ALIGNED
    return Fetched(messages, messages[0].head, code, [])
