"""A process of a graph: the stages that run in it, each function of them in a loop of its own.

`executor.processes` creates it as an instance of `toprope.functions` and calls `open` and `run`; the driver talks to it
by `edge.connections`, with the messages of `Kind`. The names of its files (`status-...`, `link-...`) are read in the
driver, by `executor.processes` and `observability.metrics`. Tests: tests/flow/test_flow_run.py,
tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections import deque

from toprope.flow.edge.codec import Codec
from toprope.flow.edge.connections import Kind, Peer
from toprope.flow.edge.links import InQueue, OutLink, in_link, out_link
from toprope.flow.edge.machines import Reporter, begin, make_connections
from toprope.flow.edge.ring_buffer import RingBuffer
from toprope.flow.stage.plan import DRIVER, Address, HostPlan, Route
from toprope.flow.stage.status import Status
from toprope.flow.worker.calls import Stopped
from toprope.flow.worker.loop import Loop, Outlet, Stage
from toprope.functions.transport.wire import Closed, Message

__all__ = ["Host"]


class Host:
    """The process. It is created as an instance of `toprope.functions`, and `run` is the only call that takes long.

    Args:
        plan: what runs in it.
    """

    def __init__(self, plan: HostPlan) -> None:
        self._plan = plan
        if "toprope.sim.run_record" in sys.modules:
            sys.modules["toprope.sim.run_record"].trace_fork()
        self._place = begin(plan)
        folder = self._place.folder
        self._connections = make_connections(plan, self._place, self._handle, self._lost)
        self._book: dict[str, Address] = {}
        self._connections.book = self._book
        self._connections.check = self._check
        self._codec = Codec(folder, plan.name, forwards=True)
        self._stopping = False
        self._stages = {
            (each.node, each.context.instance_id): Stage(each, self._connections, self._codec) for each in plan.stages
        }
        self._out: list[OutLink] = []
        self._loops: list[Loop] = []
        self._events: deque[tuple[str, int, int, int]] | None = None

    def open(self) -> tuple[int, Address | None]:
        """Its process, and where those on other machines find it: asked for to learn that it is there."""
        return os.getpid(), self._connections.address

    def run(self, book: dict[str, Address]) -> str:
        """Run until the graph ends. Errors outside of the user's code are raised.

        Args:
            book: addresses of the processes, if they are on several machines.
        """
        self._book.update(book)
        functions = sum(len(each.plan.spec.functions) for each in self._stages.values())
        status = Status(self._connections.folder / f"status-{self._plan.name}", functions)
        events: deque[tuple[str, int, int, int]] | None = deque(maxlen=200_000) if self._plan.trace else None
        for stage in self._stages.values():
            stage.outlets = [self._outlet(stage, routes) for routes in stage.plan.routes]
            for function in stage.plan.spec.functions:
                loop = Loop(stage, function, self._connections, self._codec, status.cells(len(self._loops)), events)
                self._loops.append(loop)
        self._events = events
        for link in self._out:
            link.connect()
        if len(self._stages) > 1:
            self._count_exits()
        cells = [status.cells(place) for place in range(len(self._loops))]
        reporter = Reporter(self._connections, self._out, cells) if self._place.is_apart else None
        try:
            if len(self._loops) == 1 and not any(each.plan.overwrites for each in self._stages.values()):
                self._loops[0].run()
            else:
                self._run_threads()
        except Stopped:
            pass
        finally:
            for stage in self._stages.values():
                if stage.made.close is not None:
                    stage.made.close()
            if reporter is not None:
                reporter.close()
            self._connections.close()
            self._codec.close()
            self._place.leave()
        return self._plan.name

    def _run_threads(self) -> None:
        threads = [
            threading.Thread(target=each.run_apart, name=f"flow {each.name}", daemon=True) for each in self._loops
        ]
        for thread in threads:
            thread.start()
        # this thread reads for those that are at work
        self._connections.wait(lambda: not any(thread.is_alive() for thread in threads), None)

    def _outlet(self, stage: Stage, routes: tuple[Route, ...]) -> Outlet:
        targets: list[list[OutLink | InQueue]] = []
        for route in routes:
            row: list[OutLink | InQueue] = []
            for target in route.targets:
                if target.host == self._plan.name:
                    queue = self._stages[target.node, target.instance].inputs[route.input]
                    queue.on_room, queue.on_host = self._connections.wake, target.on_host
                    ends = f"{stage.plan.context.instance_id}-{target.instance}"
                    name = f"link-{route.edge}-{ends}-{self._connections.name}-0"
                    queue.ring = RingBuffer(self._connections.folder / name)
                    row.append(queue)
                else:
                    key = (route.edge, stage.plan.context.instance_id, target.instance)
                    link = out_link(self._connections, key, target, route, self._codec)
                    self._out.append(link)
                    row.append(link)
            targets.append(row)
        return Outlet(self._connections, self._codec, targets)

    def _count_exits(self) -> None:
        """Count inputs from outside as done with once their outputs have left the process."""
        exits = [each for each in self._loops if each.leaves]
        newest: dict[Loop, int] = dict.fromkeys(exits, 0)
        lock = threading.Lock()

        def left(loop: Loop, transaction: int) -> None:
            with lock:
                newest[loop] = max(newest[loop], transaction)
                until = min(newest.values())
                for stage in self._stages.values():
                    for queue in stage.inputs:
                        for link in queue.links:
                            link.finish_until(until)

        for loop in self._loops:
            loop.on_left = left if loop in newest else None
            loop.is_alone = False

    # Messages

    def _handle(self, peer: Peer, message: Message) -> None:
        kind = message.kind
        if kind == Kind.LINK:
            *key, name = message.meta
            self._link(peer, (key[0], key[1], key[2]), name)
        elif kind == Kind.MOVED:
            old, new, address = message.meta
            if address is not None:
                self._book[new] = Address(*address)
            failure = pickle.loads(message.parts[0])
            for link in self._out:
                if link.target == old:
                    link.move(new, failure)
        elif kind == Kind.CLOSE:
            self._stop()
        elif kind == Kind.CAUGHT:
            transaction, code, context, node = message.meta
            for loop in self._loops:
                loop.caught(transaction, code, context, is_own=loop.node == node)
        elif kind == Kind.CANCEL:
            for loop in self._loops:
                loop.cancel(message.meta)
        elif kind == Kind.TRACE:
            try:
                self._connections.send(
                    peer, Kind.TRACED, message.number, os.getpid(), [pickle.dumps(list(self._events or ()))]
                )
            except Closed:
                pass

    def _link(self, peer: Peer, key: tuple[int, int, int], name: str) -> None:
        edge, _, instance = key
        node, place = self._targets()[edge]
        queue = self._stages[node, instance].inputs[place]
        in_link(self._connections, key, name, peer, queue)

    def _targets(self) -> dict[int, tuple[int, int]]:
        return {edge: (stage.plan.node, place) for stage in self._stages.values()
                for place, edge in enumerate(stage.plan.edges)}  # fmt: skip

    def _lost(self, peer: Peer) -> None:
        if peer.name == DRIVER:
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._connections.wake()

    def _check(self) -> None:
        if self._stopping:
            raise Stopped
