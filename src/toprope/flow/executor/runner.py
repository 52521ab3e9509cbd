"""Runner of a graph in the program: starts, feeds, fetches from and ends the graph.

`FlowGraph` makes one when it is first fed; futures and closures call it, too. It works on messages and on codes, which
are those of CANN's dataflow API: values, exceptions and the API's quirks belong to `FlowGraph`. Feeding is all or
nothing, `close` leaves no process and no file behind. Tests: tests/flow/test_flow_run.py,
tests/flow/test_serve_graph.py, tests/flow/test_flow_faults.py.
"""

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toprope import functions
from toprope.flow.edge.codec import Codec, Sealed
from toprope.flow.edge.connections import Connections, Kind, Peer
from toprope.flow.edge.links import InQueue, OutLink, in_link, out_link
from toprope.flow.edge.machines import Mirror, begin, make_connections, reach
from toprope.flow.edge.ring_buffer import WAITED, WAITS
from toprope.flow.exceptions import (
    FAILED,
    PARAM_INVALID,
    QUEUE_FULL,
    SUCCESS,
)
from toprope.flow.executor.fetcher import Fetched, Fetcher
from toprope.flow.executor.placement import place
from toprope.flow.executor.processes import Hosts, end_session, ensure_session
from toprope.flow.graph.nodes import DEPTH, Plan
from toprope.flow.observability.metrics import EdgeMetrics, RingCounters, StageMetrics, stage_metrics
from toprope.flow.observability.trace import chrome
from toprope.flow.stage.plan import DRIVER, HostPlan, Route
from toprope.flow.stage.spec import TORCH, Failure, Head, Message, RunOptions
from toprope.functions import context, interrupts
from toprope.functions.transport import wire
from toprope.settings import Settings

__all__ = ["Fetched", "Runner", "end_session"]

interrupts.protect(os.path.dirname(os.path.abspath(__file__)))  # all of toprope.flow

_log = logging.getLogger("toprope")

_UNFETCHED = 10.0
"""Seconds that `feed` waits while results lie at an output and nobody fetches them, after which the log says so."""

_FIGURES = 1.0
"""Time for processes on other machines to report their counters, in seconds."""

_LARGEST_ID = 2**64 - 1
_numbers = itertools.count(1)
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


class Runner:
    """A running graph: its processes, its edges from and to the driver, and its end.

    Args:
        plan: the graph.
        options: how it runs.
    """

    def __init__(self, plan: Plan, options: RunOptions | None = None) -> None:
        self._plan = plan
        self._options = options or RunOptions()
        self._connections: Connections | None = None
        self._feeding = threading.Lock()
        self._ids = [0] * len(plan.inputs)
        self._broken: Failure | None = None
        self._closed = False
        self._links: list[list[list[OutLink]]] = []
        self._folder = Path()
        self._hold: int | None = None
        self._traces: dict[int, list[tuple[str, int, int, int]]] = {}
        self.is_ordered = True
        """True if results come in the order of their inputs: no stage has several instances."""

    # Beginning

    def start(self) -> None:
        """Start the stages.

        Raises:
            DfException: one cannot start, with the cause; nothing is left running.
        """
        ensure_session()
        self._folder, self._hold, self._is_local = _folder()
        try:
            placed = place(self._plan, self._options, self._folder, _cards if self._is_local else lambda: None)
            self._codec = Codec(self._folder, DRIVER)
            reached = reach(self._is_local, functions.resources)
            self._hosts = Hosts(placed, self._options, self._folder, reached, self._moved, self._fail)
            self._mirror = Mirror(self._folder, self._hosts.status)
            as_host = HostPlan(DRIVER, str(self._folder), (), reach=reached)
            connections = make_connections(as_host, begin(as_host), self._handle, self._lost)
            connections.book = self._hosts.book
            if connections.address is not None:
                self._hosts.book[DRIVER] = connections.address
            queues = [InQueue(connections, self._codec, DEPTH) for _ in self._plan.fetched]
            self._results = Fetcher(connections, queues, self._options, placed.is_scattered, self.explain)
            connections.check = self._hosts.check_deadlines
            connections.arrived = self._results.arrived
            self._connections = connections
            self.is_ordered = not placed.is_scattered
            self._rings = RingCounters(self._folder, self._plan)
            _runners.add(self)
            self._hosts.start(self._connections.connect)  # type: ignore[arg-type]
            self._links = [[self._links_of_route(route) for route in routes] for routes in placed.feeds]
            for link in self._all_links():
                link.connect()
        except BaseException:
            self.close()
            raise

    def _links_of_route(self, route: Route) -> list[OutLink]:
        assert self._connections is not None
        return [
            out_link(self._connections, (route.edge, 0, target.instance), target, route, self._codec)
            for target in route.targets
        ]

    def _all_links(self) -> list[OutLink]:
        return [link for routes in self._links for row in routes for link in row]

    # Feeding

    def feed(self, values: Mapping[int, Message], timeout_ms: int = -1, *, partial: bool = False) -> int:
        """Feed one message for each input of the graph, or for some of them. All or nothing.

        The transaction's number is in the heads of the messages afterwards.

        Args:
            values: by place in `Plan.inputs`.
            timeout_ms: how long to wait for room; -1 for ever.
            partial: whether inputs may be left out.

        Returns:
            0; 207014 where there is no room within this time, 145000 for wrong arguments, 4294967295 where the graph
            has ended or cannot go on.
        """
        if timeout_ms < -1 or self._connections is None or self._closed or self._broken is not None:
            return FAILED
        if not values or (len(values) < len(self._links) and not partial):
            return PARAM_INVALID
        until = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        if not self._connections.wait(lambda: self._feeding.acquire(blocking=False), until):
            return QUEUE_FULL
        try:
            ids = {input: self._next_id(input, message) for input, message in values.items()}
            if any(id is None for id in ids.values()):
                return PARAM_INVALID
            if self._options.replies:
                ids = self._with_room(ids)  # type: ignore[arg-type]
            links = [(input, self._links_for(input, ids[input])) for input in values]  # type: ignore[arg-type]
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
        cells, began = link.ring.cells, time.monotonic_ns()
        cells[WAITS] = 1
        assert self._connections is not None

        def is_over() -> bool:
            return link.is_free() or self._broken is not None or self._closed

        soon = time.monotonic() + _UNFETCHED
        if (
            not self._connections.wait(is_over, soon if until is None else min(soon, until))
            and time.monotonic() >= soon
        ):
            self._warn_unfetched(link)
            self._connections.wait(is_over, until)
        link.ring.cells[WAITED] += time.monotonic_ns() - began
        return link.is_free() and self._broken is None

    def _unfetched(self) -> str:
        """Describe the results that are not fetched; empty if there are none."""
        outputs = self._plan.fetched
        return ", ".join(
            f"{count} of output {outputs[place].index} of {outputs[place].node.name}"
            for place, count in self._results.unfetched(_UNFETCHED).items()
        )

    def _warn_unfetched(self, link: OutLink) -> None:
        """Warn if unfetched results keep `feed` waiting; the stages may also just be slow."""
        listed = self._unfetched()
        if listed:
            _log.warning(
                "feed has waited for %.0f s for room in the edge to %s (%d messages). unfetched results: %s. "
                "do: fetch in another thread, or after every few inputs, and fetch every output of the graph",
                _UNFETCHED, link.name, link.depth, listed,
            )  # fmt: skip

    def explain(self) -> str:
        """Describe the stages at work, and results of outputs that are not fetched."""
        listed = self._unfetched()
        at_work = self._hosts.explain()
        return f"{at_work}; results of outputs that were not asked for: {listed}" if listed else at_work

    def _next_id(self, input: int, message: Message) -> int | None:
        wanted, last = message.head.transaction_id, self._ids[input]
        if wanted and self._options.n_mapping:
            return wanted if last <= wanted < _LARGEST_ID else None
        return last + 1

    def _with_room(self, ids: dict[int, int]) -> dict[int, int | None]:
        """Leave out numbers whose instance has no room now, such as one that is being started again."""
        most = max(len(row) for routes in self._links for row in routes)
        for skipped in range(most):
            found: dict[int, int | None] = {input: id + skipped for input, id in ids.items()}
            if all(link.is_free() for input in ids for link in self._links_for(input, ids[input] + skipped)):
                return found
        return dict(ids)

    def _links_for(self, input: int, id: int) -> list[OutLink]:
        return [row[(id - 1) % len(row)] for row in self._links[input]]

    def _send(
        self, values: Mapping[int, Message], ids: Mapping[int, int], links: Sequence[tuple[int, list[OutLink]]]
    ) -> None:
        sealed: list[tuple[OutLink, Sealed, int]] = []
        before = {input: values[input].head.transaction_id for input in ids}
        try:
            for input, row in links:
                message = values[input]
                message.head.transaction_id = ids[input]
                if message.kind == TORCH:
                    sealed += [(link, self._codec.seal(message, 1, link.on_host, link.wake_early), 0) for link in row]
                else:
                    one = self._codec.seal(message, len(row), on_host=True)
                    sealed += [(link, one, place) for place, link in enumerate(row)]
        except BaseException:
            for _, each, place in sealed:
                self._codec.give_back(each, place)
            for input, id in before.items():  # by which the caller sees that it was not fed
                values[input].head.transaction_id = id
            raise
        for link, each, place in sealed:
            link.send(each, place)
        for input, id in ids.items():
            self._ids[input] = id

    def cancel(self, transaction: int) -> None:
        """Drop a transaction: stages that have not begun with it leave it out."""
        if self._connections is not None and not self._closed:
            self._connections.send_all(Kind.CANCEL, transaction)

    # Fetching

    def fetch(self, places: Sequence[int] | None = None, timeout_ms: int = -1, *, aligned: bool = False) -> Fetched:
        """The next results, see `Fetcher.fetch`."""
        if self._connections is None:
            return Fetched([], Head(), FAILED, [])
        return self._results.fetch(places, timeout_ms, aligned=aligned)

    # Messages of the stages

    def _handle(self, peer: Peer, message: wire.Message) -> None:
        kind = message.kind
        if self._mirror.take(message):
            return
        if kind == Kind.LINK:
            *key, name = message.meta
            queue = self._results.queues[self._plan.edges[key[0]].input]
            assert self._connections is not None
            in_link(self._connections, (key[0], key[1], key[2]), name, peer, queue)
        elif kind == Kind.EXCEPTION:
            code, context, node, *fields = message.meta
            head = Head(*fields)
            if self._results.give_up(head) and self._connections is not None:
                self._connections.send_all(Kind.CAUGHT, (head.transaction_id, code, context, node))
        elif kind == Kind.TRACED:
            self._traces[message.meta] = pickle.loads(message.parts[0])

    def _lost(self, peer: Peer) -> None:
        """Ignore a lost peer: the session reports how its process ended."""

    def _moved(self, old: str, new: str, failure: Failure) -> None:
        """Make all processes send to the successor of a dead process."""
        connections = self._connections
        if connections is None or self._closed:
            return
        connections.connect(new)
        found = self._hosts.book.get(new)
        address = tuple(found) if found is not None else None
        try:
            part = pickle.dumps(failure)
        except Exception:
            part = pickle.dumps(Failure(RuntimeError(str(failure.error)), stage=failure.stage, code=failure.code))
        connections.send_all(Kind.MOVED, (old, new, address), [part])
        for link in self._all_links():
            if link.target == old:
                link.move(new, failure)
        connections.wake()

    def _fail(self, failure: Failure) -> None:
        """Fail the graph."""
        self._broken = failure
        self._results.end(failure)
        if self._connections is not None:
            self._connections.wake()

    # Asking

    @property
    def error(self) -> Failure | None:
        """Reason of the graph's failure; None while it runs."""
        return self._broken

    @property
    def restarts(self) -> int:
        """Number of times that a process was started again."""
        return self._hosts.restarts

    def pids(self) -> dict[str, int]:
        """The processes of the stages, by their names."""
        return self._hosts.pids()

    def metrics(self) -> list[EdgeMetrics]:
        """The figures of all edges; those from other machines are waited for."""
        reported = self._mirror.reports(self._hosts.names(apart=True))
        if reported and self._connections is not None and not self._closed:
            self._connections.wait(lambda: self._mirror.is_newer(reported), time.monotonic() + _FIGURES)
        return self._rings.metrics()

    def stage_metrics(self) -> list[StageMetrics]:
        """The calls of all stages."""
        return stage_metrics(self._hosts.figures())

    def trace(self, timeout: float = 5) -> dict[str, Any]:
        """Collect a Chrome trace of the stages; stages that do not answer in time are left out.

        Args:
            timeout: seconds.
        """
        assert self._connections is not None
        self._traces = {}
        wanted = set(self._hosts.pids().values())
        self._connections.send_all(Kind.TRACE)
        self._connections.wait(lambda: wanted <= set(self._traces), time.monotonic() + timeout)
        return chrome(self._traces, self._hosts.pids())

    # The end

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all results of the fed inputs have arrived; they can be fetched later.

        Args:
            timeout: seconds; None for ever.

        Returns:
            Whether it has.
        """
        if self._connections is None or self._closed:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        before = -1
        reported = self._mirror.reports(self._hosts.names(apart=True))

        def is_quiet() -> bool:
            nonlocal before, reported
            for queue in self._results.queues:
                queue.absorb()
            self._results.finish()
            if not self._mirror.is_newer(reported):
                return False
            reported = self._mirror.reports(self._hosts.names(apart=True))
            sent = self._rings.quiet([DRIVER, *self._hosts.names()])
            before, last = sent, before
            return (sent >= 0 and sent == last) or self._results.has_ended()

        with self._results.lock:
            return self._connections.wait(is_quiet, until) and self._broken is None

    def close(self) -> None:
        """End the graph. Inputs in flight are lost; nothing is left behind."""
        if self._closed:
            return
        self._closed = True
        _runners.discard(self)
        connections = self._connections
        if connections is not None:
            self._results.closed = True
            connections.wake()
            self._hosts.expect_end()
            connections.send_all(Kind.CLOSE)
            self._hosts.close()
            connections.close()
            self._codec.close()
        if self._folder.name:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._hold is not None:
            os.close(self._hold)

    def __enter__(self) -> Runner:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cards() -> int | None:
    """Count the cards of the session; None where stages run on the CPU, and any number will do."""
    if Settings.load().device == "cpu":
        return None
    capacities = [node["capacity"] for node in functions.resources()]  # {"NPU/910B4": 2, "CPU": 4000}
    cards = [amount for each in capacities for key, amount in each.items() if key.startswith(("NPU/", "GPU/"))]
    return int(sum(cards)) or None


def _folder() -> tuple[Path, int | None, bool]:
    """Make a folder for a graph, inside the session's if that is on this machine; it goes with the session.

    Returns:
        The folder, what holds it, and whether the session is on this machine alone.
    """
    base = getattr(context.backend(), "folder", None)
    if isinstance(base, Path):
        folder = base / f"flow-{next(_numbers)}"
        folder.mkdir(mode=0o700)
        return folder, None, True
    from toprope.functions.local.folder import hold, shared_folder

    folder = shared_folder()
    return folder, hold(folder), False


@atexit.register
def close_all() -> None:
    """End all graphs of this program."""
    for runner in list(_runners):
        runner.close()
