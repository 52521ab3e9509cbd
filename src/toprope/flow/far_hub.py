"""The connections of a process of a graph whose processes are on several machines, and what it tells the driver."""

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

from toprope.flow.edge import OutLink
from toprope.flow.edge_hub import Hub, Kind, Peer
from toprope.flow.edge_page import Page
from toprope.flow.far_gate import Address, Gate, dial
from toprope.flow.far_link import CREDIT
from toprope.flow.stage_plan import DRIVER, HostPlan, Reach
from toprope.functions.local.folder import join_folder, leave_folder
from toprope.functions.wire import Closed, Message

__all__ = ["FarHub", "Mirror", "Place", "Reporter", "begin", "hub_of", "is_far", "reach"]

FIGURES = 41
"""Kind of message: what a process on another machine is at."""

_EVERY = 0.05
"""Seconds between two reports."""

_Handle = Callable[[Peer, Message], None]
_Lost = Callable[[Peer], None]


def reach(is_local: bool, nodes: Callable[[], Sequence[object]]) -> Reach | None:
    """What the processes of a graph need to find each other; None where all of them are on this machine.

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


class FarHub(Hub):
    """The connections of this process, see `Hub`; to processes on other machines by TCP.

    Attributes:
        node: this machine.
        address: of this process.
        book: where the others are, by name.
    """

    def __init__(
        self, folder: Path, name: str, handle: _Handle, lost: _Lost, reached: Reach, node: str, host: str
    ) -> None:
        super().__init__(folder, name, self._sort, lost)
        self._then = handle
        self._secret = reached.secret
        self.node = node
        self.book: dict[str, Address] = {}
        self._gate = Gate(host, reached.secret, self._adopt)
        self.address = Address(node, host, self._gate.port)

    def is_far(self, name: str) -> bool:
        """Whether the process of this name is on another machine."""
        found = self.book.get(name)
        return found is not None and found.node != self.node

    def connect(self, name: str) -> Peer:
        """The peer of this name. Errors as of `Hub.connect`."""
        if not self.is_far(name):
            return super().connect(name)
        with self._lock:
            peer = self._by_name.get(name)
            if peer is not None and not peer.gone:
                return peer
            peer = self._add(dial(self.book[name], self._secret), name)
        self.send(peer, Kind.HELLO, 0, self.name)
        self.wake()
        return peer

    def _adopt(self, sock: socket.socket) -> None:
        with self._lock:
            if self.closed:
                sock.close()
                return
            self._add(sock, "")
        self.wake()

    def _sort(self, peer: Peer, message: Message) -> None:
        if message.kind == CREDIT:
            key, figures = message.meta
            link = peer.links.get(key)
            if link is not None:
                link.told(peer, figures)
        else:
            self._then(peer, message)

    def close(self) -> None:
        """End all connections."""
        self._gate.close()
        super().close()


@dataclass
class Place:
    """Where a process of a graph works.

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
        """Let go of the folder; the last one on a machine removes it."""
        if self._hold is not None:
            leave_folder(self.folder, self._hold)
            self._hold = None


def begin(plan: HostPlan) -> Place:
    """Where the process of this plan works."""
    if plan.reach is None:
        return Place(Path(plan.folder))
    node, host = _here()
    if node == plan.reach.node:
        return Place(Path(plan.folder), node, host)
    folder, hold = join_folder(hashlib.sha256(plan.reach.secret).hexdigest()[:16])
    return Place(folder, node, host, True, hold)


def hub_of(plan: HostPlan, place: Place, handle: _Handle, lost: _Lost) -> Hub:
    """The connections of the process of this plan."""
    if plan.reach is None:
        return Hub(place.folder, plan.name, handle, lost)
    return FarHub(place.folder, plan.name, handle, lost, plan.reach, place.node, place.host)


def is_far(hub: Hub, name: str) -> bool:
    """Whether the process of this name is on another machine."""
    return isinstance(hub, FarHub) and hub.is_far(name)


class Reporter:
    """Tells the driver on another machine what it would read in this process's folder.

    Args:
        hub: the connections of this process.
        links: the sending ends.
        status: the figures of each function, see `toprope.flow.stage_status`.
    """

    def __init__(self, hub: Hub, links: Sequence[OutLink], status: Sequence[memoryview]) -> None:
        self._hub = hub
        self._links = links
        self._status = status
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._report, name="flow report", daemon=True)
        self._thread.start()

    def _report(self) -> None:
        while not self._end.wait(_EVERY):
            peer = self._hub.peer(DRIVER)
            if peer is None or peer.gone:
                continue
            now = time.monotonic_ns()
            status = tuple((cells[0], max(0, now - cells[1]), *cells[2:]) for cells in self._status)
            pages = tuple((link.page.name, tuple(link.page.cells[:16])) for link in self._links)
            try:
                self._hub.send(peer, FIGURES, 0, (self._hub.name, status, pages))
            except Closed:
                continue

    def close(self) -> None:
        """Tell no more."""
        self._end.set()
        self._thread.join()


class Mirror:
    """What processes on other machines have told, in the driver's folder, where it is read as if they were here.

    Args:
        folder: of the graph.
        status: the figures of the functions of a process, by its name.
    """

    def __init__(self, folder: Path, status: Callable[[str], Sequence[memoryview]]) -> None:
        self._folder = folder
        self._status = status
        self._pages: dict[str, Page] = {}
        self._reports: dict[str, int] = {}

    def take(self, message: Message) -> bool:
        """Take a report; whether the message was one."""
        if message.kind != FIGURES:
            return False
        name, status, pages = message.meta
        now = time.monotonic_ns()
        for cells, (transaction, elapsed, *times) in zip(self._status(name), status, strict=False):
            cells[1] = now - elapsed
            cells[0] = transaction
            for place, figure in enumerate(times, 2):
                cells[place] = figure
        for page_name, figures in pages:
            page = self._pages.get(page_name)
            if page is None:
                page = self._pages[page_name] = Page(self._folder / page_name, new=True)
            for cell, figure in enumerate(figures):
                page.cells[cell] = figure
        self._reports[name] = self._reports.get(name, 0) + 1
        return True

    def told(self, apart: Iterable[str]) -> dict[str, int]:
        """How often each of these has told what it is at."""
        return {name: self._reports.get(name, 0) for name in apart}

    def is_newer(self, before: Mapping[str, int]) -> bool:
        """Whether all have told twice since they had told so often: the first time may have been under way then."""
        return all(self._reports.get(name, 0) >= count + 2 for name, count in before.items())
