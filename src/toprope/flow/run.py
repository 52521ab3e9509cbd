"""A graph that runs, as the driver has it: it feeds, fetches, and ends it."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import pickle
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toprope.flow.edge import InLink, InQueue, OutLink, Page
from toprope.flow.edge_codec import Codec, Sealed
from toprope.flow.edge_hub import Hub, Kind, Peer
from toprope.flow.exceptions import (
    DATA_NOT_ALIGNED,
    FAILED,
    MODEL_EXECUTE_TIMEOUT,
    PARAM_INVALID,
    QUEUE_EMPTY,
    QUEUE_FULL,
    SUCCESS,
    USER_RAISE_EXCEPTION,
)
from toprope.flow.gather import Align, Gather, Order, Source
from toprope.flow.graph import DEPTH, Plan
from toprope.flow.metrics import EdgeMetrics, Pages
from toprope.flow.run_hosts import Hosts, end_session, ensure_session
from toprope.flow.run_place import place
from toprope.flow.stage_plan import DRIVER
from toprope.flow.stage_spec import TORCH, Failure, Head, Message, RunOptions
from toprope.flow.trace import chrome
from toprope.functions import current, interrupts, wire

__all__ = ["Fetched", "Runner", "end_session"]

interrupts.protect(__file__)

_LARGEST_ID = 2**64 - 1
_SETTLE = 1.0
"""Seconds without news after which a graph that cannot go on has nothing left to fetch."""

_LONG = 60.0
"""Seconds of waiting after which the log says what is waited for."""

_numbers = itertools.count(1)
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_log = logging.getLogger("toprope")


class Fetched(NamedTuple):
    """What `Runner.fetch` gives.

    Attributes:
        messages: one for each place that was asked for; none where there is no result.
        head: what travels with them.
        code: 0, or what is wrong.
        errors: why messages have failed.
    """

    messages: list[Message]
    head: Head
    code: int
    errors: list[Failure]


class Runner:
    """A graph that runs.

    Args:
        plan: the graph.
        options: how it runs.
    """

    def __init__(self, plan: Plan, options: RunOptions | None = None) -> None:
        self._plan = plan
        self._options = options or RunOptions()
        self._hub: Hub | None = None
        self._feeding = threading.Lock()
        self._fetching = threading.Lock()
        self._ids = [0] * len(plan.inputs)
        self._events: deque[Head] = deque()
        self._given_up: set[int] = set()
        self._gathers: dict[tuple[tuple[int, ...], bool], Gather] = {}
        self._broken: Failure | None = None
        self._broken_since = 0.0
        self._closed = False
        self._traces: dict[int, list[tuple[str, int, int, int]]] = {}

    # Beginning

    def start(self) -> None:
        """Start the stages.

        Raises:
            DfException: one cannot start, with the cause; nothing is left running.
        """
        ensure_session()
        self._folder, self._hold = _folder()
        try:
            placed = place(self._plan, self._options, self._folder)
            self._codec = Codec(self._folder, DRIVER)
            self._hub = Hub(self._folder, DRIVER, self._handle, self._lost)
            self._hosts = Hosts(placed, self._options, self._folder, self._moved, self._break)
            self._hub.check = self._hosts.check_deadlines
            self._queues = [InQueue(self._hub, self._codec, DEPTH) for _ in self._plan.fetched]
            self._is_scattered = placed.is_scattered
            self._pages = Pages(self._folder, self._plan)
            self._links = [
                [
                    [
                        OutLink(
                            self._hub, (route.edge, 0, target.instance), target.host, route.depth, route.overwrites,
                            self._codec, target.on_host, route.name,
                        )
                        for target in route.targets
                    ]
                    for route in routes
                ]
                for routes in placed.feeds
            ]  # fmt: skip
            _runners.add(self)
            self._hosts.start(self._hub.connect)  # type: ignore[arg-type]
            for link in self._all_links():
                link.connect()
        except BaseException:
            self.close()
            raise

    def _all_links(self) -> list[OutLink]:
        return [link for routes in self._links for row in routes for link in row]

    # Feeding

    def feed(self, values: Mapping[int, Message], timeout_ms: int = -1, *, partial: bool = False) -> int:
        """Feed one message for each input of the graph, or for some of them. All or nothing.

        The transaction's number stands in the heads of the messages afterwards.

        Args:
            values: by place in `Plan.inputs`.
            timeout_ms: how long to wait for room; -1 for ever.
            partial: whether inputs may be left out.

        Returns:
            0; 207014 where there is no room within this time, 145000 for wrong arguments, 4294967295 where the graph
            has ended or cannot go on.
        """
        if timeout_ms < -1 or self._hub is None or self._closed or self._broken is not None:
            return FAILED
        if not values or (len(values) < len(self._links) and not partial):
            return PARAM_INVALID
        until = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        if not self._hub.wait(lambda: self._feeding.acquire(blocking=False), until):
            return QUEUE_FULL
        try:
            ids = {input: self._next_id(input, message) for input, message in values.items()}
            if any(id is None for id in ids.values()):
                return PARAM_INVALID
            links = [(input, self._chosen(input, ids[input])) for input in values]  # type: ignore[arg-type]
            for _, row in links:
                for link in row:
                    if not self._wait_for_room(link, until):
                        return FAILED if self._broken is not None or self._closed else QUEUE_FULL
            self._send(values, ids, links)  # type: ignore[arg-type]
            return SUCCESS
        finally:
            self._feeding.release()

    def _wait_for_room(self, link: OutLink, until: float | None) -> bool:
        if link.is_free():
            return True
        cells, began = link.page.cells, time.monotonic_ns()
        cells[2] = 1
        assert self._hub is not None
        self._hub.wait(lambda: link.is_free() or self._broken is not None or self._closed, until)
        link.page.cells[5] += time.monotonic_ns() - began
        return link.is_free() and self._broken is None

    def _next_id(self, input: int, message: Message) -> int | None:
        wanted, last = message.head.transaction_id, self._ids[input]
        if wanted and self._options.n_mapping:
            return wanted if last <= wanted < _LARGEST_ID else None
        return last + 1

    def _chosen(self, input: int, id: int) -> list[OutLink]:
        return [row[(id - 1) % len(row)] for row in self._links[input]]

    def _send(
        self, values: Mapping[int, Message], ids: Mapping[int, int], links: Sequence[tuple[int, list[OutLink]]]
    ) -> None:
        sealed: list[tuple[OutLink, Sealed, int]] = []
        try:
            for input, row in links:
                message = values[input]
                message.head.transaction_id = ids[input]
                if message.kind == TORCH:
                    sealed += [(link, self._codec.seal(message, 1, link.on_host), 0) for link in row]
                else:
                    one = self._codec.seal(message, len(row), on_host=True)
                    sealed += [(link, one, place) for place, link in enumerate(row)]
        except BaseException:
            for _, each, place in sealed:
                self._codec.give_back(each, place)
            raise
        for link, each, place in sealed:
            link.send(each, place)
        for input, id in ids.items():
            self._ids[input] = id

    # Fetching

    def fetch(self, places: Sequence[int] | None = None, timeout_ms: int = -1, *, aligned: bool = False) -> Fetched:
        """The next results.

        Args:
            places: of which outputs, as places in `Plan.fetched`; None for all.
            timeout_ms: how long to wait; -1 for ever, 0 not at all.
            aligned: whether results are put together by their transactions, as the options say.

        Returns:
            Messages with code 0, or with the code of those that failed. Without messages: 545601 where the time is
            over, 207013 where it was 0, 345103 where a function gave the transaction up, 4294967295 where the graph
            has ended or cannot go on. 345104 with what there is of an incomplete group.
        """
        if timeout_ms < -1 or self._hub is None or self._closed:
            return Fetched([], Head(), FAILED, [])
        hub = self._hub
        until = time.monotonic() + (0.002 if not timeout_ms else timeout_ms / 1000) if timeout_ms >= 0 else None
        if not hub.wait(lambda: self._fetching.acquire(blocking=False), until):
            return Fetched([], Head(), MODEL_EXECUTE_TIMEOUT if timeout_ms else QUEUE_EMPTY, [])
        try:
            gather = self._gather(tuple(range(len(self._queues))) if places is None else tuple(places), aligned)
            while True:
                found = self._wait_for_result(gather, until)
                if not found:
                    return Fetched([], Head(), MODEL_EXECUTE_TIMEOUT if timeout_ms else QUEUE_EMPTY, [])
                if self._events:
                    return Fetched([], self._events.popleft(), USER_RAISE_EXCEPTION, [])
                if not gather.is_ready():
                    return Fetched([], Head(), FAILED, [self._broken] if self._broken is not None else [])
                group = gather.take()
                for queue in self._queues:
                    for link in queue.links:
                        link.finish()
                head = group.messages[0].head
                if head.transaction_id not in self._given_up:
                    return _fetched(group.messages, head, group.is_complete)
        finally:
            self._fetching.release()

    def _wait_for_result(self, gather: Gather, until: float | None) -> bool:
        assert self._hub is not None
        began = time.monotonic()

        def is_there() -> bool:
            return bool(self._events) or gather.is_ready() or self._has_ended()

        warned = False
        while True:
            due = gather.due()
            turn = began + _LONG if until is None else until
            if self._hub.wait(is_there, turn if due is None else min(due, turn)):
                return True
            now = time.monotonic()
            if until is not None and now >= until:
                return is_there()
            if not warned and now - began >= _LONG:
                warned = True
                _log.warning("fetch has waited for %.0f s: %s", now - began, self._hosts.explain())
            began = now if warned else began

    def _has_ended(self) -> bool:
        """Whether no more can come."""
        if self._closed:
            return True
        return self._broken is not None and time.monotonic() - self._broken_since > _SETTLE

    def _gather(self, places: tuple[int, ...], aligned: bool) -> Gather:
        options = self._options
        found = self._gathers.get((places, aligned))
        if found is None:
            sources = [Source(self._queues[place]) for place in places]
            if aligned and options.align and len(places) > 1:
                found = Align(sources, options.align, options.align_timeout_ms, options.align_drop)
            elif self._is_scattered and not options.n_mapping and len(places) > 1:
                found = Align(sources, 1024, -1, False)
            else:
                found = Order(sources)
            self._gathers[places, aligned] = found
        return found

    # Messages of the stages

    def _handle(self, peer: Peer, message: wire.Message) -> None:
        kind = message.kind
        if kind == Kind.DATA:
            key, place, *meta = message.meta
            link = peer.links.get(key)
            if link is not None:
                link.queue.add(link, place, tuple(meta), message.parts)
                if self._broken is not None:
                    self._broken_since = time.monotonic()
        elif kind == Kind.LINK:
            *key, name = message.meta
            queue = self._queues[self._plan.edges[key[0]].input]
            link = InLink(Page(self._folder / name, new=False), peer, queue)
            queue.links = [*(each for each in queue.links if not each.peer.gone), link]
            peer.links[key[0], key[1], key[2]] = link
        elif kind == Kind.EXCEPTION:
            code, context, node, *fields = message.meta
            head = Head(*fields)
            if head.transaction_id not in self._given_up:
                self._given_up.add(head.transaction_id)
                self._events.append(head)
                assert self._hub is not None
                self._hub.tell_all(Kind.CAUGHT, (head.transaction_id, code, context, node))
        elif kind == Kind.TRACED:
            self._traces[message.meta] = pickle.loads(message.parts[0])

    def _lost(self, peer: Peer) -> None:
        """The session tells how the process ended."""

    def _moved(self, old: str, new: str, failure: Failure) -> None:
        """A process stands in for a dead one."""
        hub = self._hub
        if hub is None or self._closed:
            return
        hub.connect(new)
        try:
            part = pickle.dumps(failure)
        except Exception:
            part = pickle.dumps(Failure(RuntimeError(str(failure.error)), stage=failure.stage, code=failure.code))
        hub.tell_all(Kind.MOVED, (old, new), [part])
        for link in self._all_links():
            if link.target == old:
                link.move(new, failure)
        hub.wake()

    def _break(self, failure: Failure) -> None:
        """The graph cannot go on."""
        self._broken_since = time.monotonic()
        self._broken = failure
        if self._hub is not None:
            self._hub.wake()

    # Asking

    @property
    def error(self) -> Failure | None:
        """Why the graph cannot go on; None while it can."""
        return self._broken

    @property
    def restarts(self) -> int:
        """How often a process was started again."""
        return self._hosts.restarts

    def pids(self) -> dict[str, int]:
        """The processes of the stages, by their names."""
        return self._hosts.pids()

    def metrics(self) -> list[EdgeMetrics]:
        """The figures of all edges."""
        return self._pages.metrics()

    def trace(self, timeout: float = 5) -> dict[str, Any]:
        """What the stages did, as a Chrome trace; of those that are at work for longer than this, nothing.

        Args:
            timeout: seconds.
        """
        assert self._hub is not None
        self._traces = {}
        wanted = set(self._hosts.pids().values())
        self._hub.tell_all(Kind.TRACE)
        self._hub.wait(lambda: wanted <= set(self._traces), time.monotonic() + timeout)
        return chrome(self._traces, self._hosts.pids())

    # The end

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until everything that was fed has come out, whether it was fetched or not; it can be fetched later.

        Args:
            timeout: seconds; None for ever.

        Returns:
            Whether it has.
        """
        if self._hub is None or self._closed:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        before = -1

        def is_quiet() -> bool:
            nonlocal before
            for queue in self._queues:
                queue.absorb()
                for link in queue.links:
                    link.finish()
            sent = self._pages.quiet([DRIVER, *self._hosts.names()])
            before, last = sent, before
            return (sent >= 0 and sent == last) or self._has_ended()

        with self._fetching:
            return self._hub.wait(is_quiet, until) and self._broken is None

    def close(self) -> None:
        """End the graph: what is under way is lost. Nothing is left behind."""
        if self._closed:
            return
        self._closed = True
        _runners.discard(self)
        hub = self._hub
        if hub is not None:
            hub.wake()
            hub.tell_all(Kind.CLOSE)
            if hasattr(self, "_hosts"):
                self._hosts.close()
            hub.close()
            self._codec.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._hold is not None:
            os.close(self._hold)

    def __enter__(self) -> Runner:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fetched(messages: list[Message], head: Head, is_complete: bool) -> Fetched:
    failed = [each for each in messages if each.failed]
    if failed:
        return Fetched(messages, failed[0].head, failed[0].ret_code, [each.payload for each in failed])
    code = next((each.ret_code for each in messages if each.ret_code), SUCCESS) if is_complete else DATA_NOT_ALIGNED
    return Fetched(messages, head, code, [])


def _folder() -> tuple[Path, int | None]:
    """A folder for a graph, in that of the session where it has one on this machine; it goes with the session."""
    base = getattr(current.backend(), "folder", None)
    if isinstance(base, Path):
        folder = base / f"flow-{next(_numbers)}"
        folder.mkdir(mode=0o700)
        return folder, None
    from toprope.functions.local.folder import hold, shared_folder

    folder = shared_folder()
    return folder, hold(folder)


@atexit.register
def close_all() -> None:
    """End all graphs of this program."""
    for runner in list(_runners):
        runner.close()
