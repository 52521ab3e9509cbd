"""Graph on several machines: the folder of each of its processes, and the counters that they send to the driver.

Called where a graph and its processes begin (`executor.runner`, `worker.process`). The other half of several machines
is in `edge.links` (remote ends) and `edge.connections` (TCP); placement on machines is Ray's. A report has all cells of
`stage.status`, and of a ring buffer the first 16: a counter behind them would not travel. Reports may come at another
interval, but `drain` and `metrics` wait for two of them. Tests: tests/flow/test_flow_far.py.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toprope.flow.edge.connections import Connections, Kind, Peer
from toprope.flow.edge.links import OutLink
from toprope.flow.edge.ring_buffer import RingBuffer
from toprope.flow.stage.plan import DRIVER, HostPlan, Reach
from toprope.flow.stage.status import SINCE, TRANSACTION
from toprope.functions.local.folder import join_folder, leave_folder
from toprope.functions.transport.wire import Closed, Message

__all__ = ["Mirror", "Place", "Reporter", "begin", "make_connections", "reach"]

_EVERY = 0.05
"""Seconds between two reports."""


def reach(is_local: bool, nodes: Callable[[], Sequence[object]]) -> Reach | None:
    """Make the secret and the address by which processes of a graph find each other; None on one machine.

    Args:
        is_local: whether the session runs on this machine alone.
        nodes: the machines of the session.
    """
    if is_local or len(nodes()) < 2:
        return None
    return Reach(secrets.token_bytes(32), *_here())


def _here() -> tuple[str, str]:
    """This machine, as Ray knows it, and its address."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return "", "127.0.0.1"
    is_client = ray.util.client.ray.is_connected()  # such a program is on no node of its Ray
    node = f"client-{os.getpid()}-{socket.gethostname()}" if is_client else ray.get_runtime_context().get_node_id()
    return node, ray.util.get_node_ip_address()


@dataclass
class Place:
    """The machine and the folder of a process of a graph.

    Attributes:
        folder: of its sockets and memory: the graph's, or on another machine one of its own.
        node, host: the machine, and its address.
        is_apart: whether the driver is on another machine.
    """

    folder: Path
    node: str = ""
    host: str = ""
    is_apart: bool = False
    _hold: int | None = field(default=None, repr=False)

    def leave(self) -> None:
        """Release the folder; the last process on a machine removes it."""
        if self._hold is not None:
            leave_folder(self.folder, self._hold)
            self._hold = None


def begin(plan: HostPlan) -> Place:
    """Find or make the folder of the process of this plan."""
    if plan.reach is None:
        return Place(Path(plan.folder))
    node, host = _here()
    if node == plan.reach.node:
        return Place(Path(plan.folder), node, host)
    folder, hold = join_folder(hashlib.sha256(plan.reach.secret).hexdigest()[:16])
    return Place(folder, node, host, True, hold)


def make_connections(
    plan: HostPlan, place: Place, handle: Callable[[Peer, Message], None], lost: Callable[[Peer], None]
) -> Connections:
    """Make the connections of the process of this plan, see `Connections`."""
    secret = None if plan.reach is None else plan.reach.secret
    return Connections(place.folder, plan.name, handle, lost, secret, place.node, place.host)


class Reporter:
    """Sends the counters in this process's folder to the driver on another machine.

    Args:
        connections: of this process.
        links: the sending ends.
        status: the figures of each function, see `toprope.flow.stage.status`.
    """

    def __init__(self, connections: Connections, links: Sequence[OutLink], status: Sequence[memoryview]) -> None:
        self._connections = connections
        self._links = links
        self._status = status
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._report, name="flow report", daemon=True)
        self._thread.start()

    def _report(self) -> None:
        while not self._end.wait(_EVERY):
            peer = self._connections.peer(DRIVER)
            if peer is None or peer.gone:
                continue
            now = time.monotonic_ns()
            status = tuple((cells[TRANSACTION], max(0, now - cells[SINCE]), *cells[2:]) for cells in self._status)
            rings = tuple((link.ring.name, tuple(link.ring.cells[:16])) for link in self._links)
            try:
                self._connections.send(peer, Kind.FIGURES, 0, (self._connections.name, status, rings))
            except Closed:
                continue

    def close(self) -> None:
        """Send no more."""
        self._end.set()
        self._thread.join()


class Mirror:
    """Copies the counters that other machines send into the driver's folder, where they are read as if local.

    Args:
        folder: of the graph.
        status: the figures of the functions of a process, by its name.
    """

    def __init__(self, folder: Path, status: Callable[[str], Sequence[memoryview]]) -> None:
        self._folder = folder
        self._status = status
        self._rings: dict[str, RingBuffer] = {}
        self._reports: dict[str, int] = {}

    def take(self, message: Message) -> bool:
        """Handle a report. Return False if the message is none."""
        if message.kind != Kind.FIGURES:
            return False
        name, status, rings = message.meta
        now = time.monotonic_ns()
        for cells, (transaction, elapsed, *times) in zip(self._status(name), status, strict=False):
            cells[SINCE] = now - elapsed
            cells[TRANSACTION] = transaction
            for place, figure in enumerate(times, 2):
                cells[place] = figure
        for ring_name, figures in rings:
            ring = self._rings.get(ring_name)
            if ring is None:
                ring = self._rings[ring_name] = RingBuffer(self._folder / ring_name)
            for cell, figure in enumerate(figures):
                ring.cells[cell] = figure
        self._reports[name] = self._reports.get(name, 0) + 1
        return True

    def reports(self, apart: Iterable[str]) -> dict[str, int]:
        """Number of reports of each of these processes."""
        return {name: self._reports.get(name, 0) for name in apart}

    def is_newer(self, before: Mapping[str, int]) -> bool:
        """True if each has sent two more reports than these: the first may have been in flight already."""
        return all(self._reports.get(name, 0) >= count + 2 for name, count in before.items())
