"""Connections of one process of a graph: sockets to the others, and a wait for messages, shared by its threads.

The driver and every process of stages have one `Connections`; links, fetcher and loops send and wait by it. Processes
on one machine use Unix sockets in the graph's private folder, those on several machines TCP after the authentication of
`multiprocessing.connection` with the graph's secret. Messages by TCP are neither encrypted nor signed: the network
between the machines of a Ray is assumed to be private, as Ray itself does.

Rules: sending never waits (what does not fit is kept and sent later, and `Peer.full` is true meanwhile); of several
threads that wait, one reads for all; the sleeping flag is set before the last check, or a wake-up is lost. All ends are
of one version of toprope, so the kinds of messages and the times at the head are free. Tests:
tests/flow/test_flow_edge.py, tests/flow/test_flow_far.py, tests/flow/test_flow_run.py.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from toprope.flow.edge.ring_buffer import WakeUp
from toprope.flow.stage.plan import Address
from toprope.functions.interrupts import interruptible
from toprope.functions.transport.wire import Channel, Closed, Message

__all__ = ["Connections", "Kind", "Peer", "Remote"]

SPIN_NS = 100_000
"""Nanoseconds that a reader spins before it sleeps."""

_SHORT_NS = 1_000_000
"""Shortest worthwhile sleep, in nanoseconds: after a shorter one the reader spins before the next."""

_LOOK_NS = 2_000_000
"""Nanoseconds between polls of the sockets while there is always something in the slots."""

_TURN = 0.05
"""Seconds after which a waiting thread checks its condition again, also without news."""

_LEAST = 0.001
"""Seconds of the shortest sleep: the unit of `poll`. A time that has passed must not make a thread spin."""

_LONGEST_PATH = 100
"""Bytes of a socket's path; the system allows 107."""

_PATIENCE = 10
"""Seconds that another machine has to answer, and for each step of the authentication."""

_AT_ONCE = 64
"""Most connections whose authentication has not finished."""


class Kind:
    """Kinds of messages between the processes of a graph."""

    HELLO, LINK, DATA, WAKE, MOVED, CLOSE, EXCEPTION, CAUGHT, TRACE, TRACED, CANCEL, CREDIT, FIGURES = range(1, 14)


class Peer:
    """Another process of the graph.

    Attributes:
        name: its name; empty until it has sent it.
        gone: whether its socket has ended.
        wake_up: wakes the process; None until it has come, and where this process sends it nothing in slots.
        sends_wake_up: whether the wake-up comes first of all.
        full: whether something has still to be sent.
    """

    def __init__(self, sock: socket.socket, name: str = "", *, sends_wake_up: bool = False) -> None:
        self.channel = Channel(sock, self._on_full)
        self.name = name
        self.gone = False
        self.links: dict[tuple[int, int, int], Any] = {}
        self.wake_up: WakeUp | None = None
        self.sends_wake_up = sends_wake_up
        self.full = False

    def _on_full(self) -> None:
        self.full = True

    def flush(self) -> None:
        """Send what did not fit."""
        self.full = False
        if not self.channel.flush():
            self.full = True


def _check_interval(left: float, due: float | None) -> float:
    """Seconds until a waiting thread checks its condition again."""
    return min(left, _TURN if due is None else min(_TURN, max(_LEAST, due - time.monotonic())))


class Remote:
    """The TCP side of a process: a listener for other machines, and authenticated connections to them.

    Args:
        secret: of the graph.
        host: address of this machine that others can reach.
        node: this machine.
        adopt: takes each authenticated socket, in a thread of its own.
    """

    def __init__(self, secret: bytes, host: str, node: str, adopt: Callable[[socket.socket], None]) -> None:
        self._secret = secret
        self._adopt = adopt
        self._room = threading.Semaphore(_AT_ONCE)
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
        self.address = Address(node, host, self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="flow accept", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._admit, args=(sock,), name="flow accept", daemon=True).start()
            else:
                sock.close()

    def _admit(self, sock: socket.socket) -> None:
        try:
            _authenticate(sock, self._secret, deliver_challenge, answer_challenge)
            self._adopt(sock)
        except OSError:
            sock.close()
        finally:
            self._room.release()

    def connect(self, address: Address) -> socket.socket:
        """Connect to the process at an address.

        Raises:
            OSError: it is not there, or does not know the secret.
        """
        sock = socket.create_connection((address.host, address.port), _PATIENCE)
        try:
            _authenticate(sock, self._secret, answer_challenge, deliver_challenge)
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """Stop listening."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait of the other thread
        except OSError:
            pass
        self._listener.close()


def _authenticate(sock: socket.socket, secret: bytes, *steps: Callable[[Connection, bytes], None]) -> None:
    """Have both ends prove that they know the secret, and prepare the socket for messages.

    Raises:
        OSError: the other end does not prove it, or not in time.
    """
    sock.settimeout(None)  # in Python's own timeouts the descriptor does not block
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PATIENCE, 0))
    connection = Connection(os.dup(sock.fileno()))
    try:
        for step in steps:
            step(connection, secret)
    except (AuthenticationError, AssertionError, EOFError) as error:  # an assertion: Python 3.11, no challenge
        raise ConnectionRefusedError(f"the other end is no process of this graph: {error!r}") from None
    finally:
        connection.close()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # a machine that is gone says nothing: it is asked after 10 s of silence, and given up after 30 s
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connections:
    """Connections of this process.

    Args:
        folder: of the sockets.
        name: of this process in the graph.
        handle: called with each message, in the thread that reads.
        lost: called with a peer that is gone.
        secret: of a graph on several machines; None on one.
        node, host: this machine, and its address, where there are several.

    Attributes:
        address: of this process for other machines; None if the graph is on one.
        book: addresses of the processes, by name, if the graph is on several machines.
        links: the receiving ends of edges (`toprope.flow.edge.links.InLink`).
        arrived: called after messages have come by them.
        check: called while waiting: raises what ends the wait.
    """

    clock = staticmethod(time.monotonic_ns)

    def __init__(
        self, folder: Path, name: str, handle: Callable[[Peer, Message], None], lost: Callable[[Peer], None],
        secret: bytes | None = None, node: str = "", host: str = "",
    ) -> None:  # fmt: skip
        self.folder = folder
        self.name = name
        self.node = node
        self._handle = handle
        self._lost = lost
        self._peers: dict[int, Peer] = {}
        self._by_name: dict[str, Peer] = {}
        self._poll = select.poll()
        self._dir = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._wake_up = WakeUp(folder, name)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path(name))
        self._listener.listen(256)
        self._listener.setblocking(False)
        for file in (self._listener.fileno(), self._wake_up.fileno()):
            self._poll.register(file, select.POLLIN)
        self._lock = threading.Lock()
        self._reading = threading.RLock()
        self._news = threading.Condition(threading.Lock())
        self._waiting = 0
        self._asleep = False
        self._woken = 0
        self._looked = 0
        self._slept = 0  # nanoseconds of the last sleep
        self.links: list[Any] = []
        self.arrived: Callable[[], None] = lambda: None
        self.check: Callable[[], None] = lambda: None
        self.closed = False
        self.book: Mapping[str, Address] = {}
        self._remote = None if secret is None else Remote(secret, host, node, self._adopt)
        self.address = None if self._remote is None else self._remote.address

    def is_remote(self, name: str) -> bool:
        """True if the process of this name is on another machine."""
        found = self.book.get(name)
        return found is not None and found.node != self.node

    def connect(self, name: str) -> Peer:
        """Connect to the process of this name, if that was not done before.

        Raises:
            OSError: it is not there, or does not know the graph's secret.
        """
        with self._lock:
            peer = self._by_name.get(name)
            if peer is not None and not peer.gone:
                return peer
            if self._remote is not None and self.is_remote(name):
                peer = self._add(self._remote.connect(self.book[name]), name)
            else:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    sock.connect(self._path(name))
                except OSError:
                    sock.close()
                    raise
                peer = self._add(sock, name, sends_wake_up=True)
        self.send(peer, Kind.HELLO, 0, self.name)
        self.wake()  # a thread that waits does not know the new socket yet
        return peer

    def _adopt(self, sock: socket.socket) -> None:
        with self._lock:
            if self.closed:
                sock.close()
                return
            self._add(sock, "")
        self.wake()

    def send(self, peer: Peer, kind: int, number: int, meta: Any = None, parts: Sequence[Any] = ()) -> None:
        """Send a message.

        Raises:
            Closed: the peer is gone.
        """
        peer.channel.send(kind, number, meta, parts)

    def wake_peer(self, peer: Peer) -> None:
        """Wake the peer if it sleeps, after a message was put into a slot. Raises like `send`."""
        if peer.wake_up is not None:
            peer.wake_up.signal_if_asleep()
        else:
            peer.channel.send(Kind.WAKE, 0)

    def wake_early(self, peer: Peer) -> None:
        """Wake the peer if it sleeps, before a message that is still being made."""
        if peer.wake_up is not None:
            peer.wake_up.signal_if_asleep()

    def send_all(self, kind: int, meta: Any = None, parts: Sequence[Any] = ()) -> None:
        """Send a message to all other processes; two of them may have two sockets between them."""
        for peer in list(self._by_name.values()):
            if not peer.gone:
                try:
                    peer.channel.send(kind, 0, meta, parts)
                except Closed:
                    pass

    def peer(self, name: str) -> Peer | None:
        """The peer of this name; None if there is none."""
        return self._by_name.get(name)

    def wait(
        self, done: Callable[[], bool], until: float | None, due: Callable[[], float | None] = lambda: None
    ) -> bool:
        """Wait until a condition holds, and read meanwhile; false if time is up first.

        Args:
            done: the condition; quick, and called often.
            until: of time.monotonic; None for ever.
            due: the time at which `done` may change without a message, such as the time limit of a batch; asked again
                before each sleep, since a message that arrives may set it. None for never.
        """
        while not done():
            self.check()
            left = _TURN if until is None else until - time.monotonic()
            if left <= 0:
                return False
            if self._reading.acquire(blocking=False):
                try:
                    if not done():
                        self.pump(_check_interval(left, due()))
                finally:
                    self._reading.release()
                    self.notify()
            else:
                self._wait_for_news(done, _check_interval(left, due()))
        return True

    def look(self) -> None:
        """Read the available messages, without waiting. Raises like `wait`."""
        self.check()
        if self._reading.acquire(blocking=False):
            try:
                self.pump(0)
            finally:
                self._reading.release()
                self.notify()
        self.check()

    @interruptible
    def _wait_for_news(self, done: Callable[[], bool], timeout: float) -> None:
        with self._news:
            self._waiting += 1
            try:
                if not done():
                    self._news.wait(timeout)
            finally:
                self._waiting -= 1

    def notify(self) -> None:
        """Have threads that wait check their conditions."""
        if self._waiting:
            with self._news:
                self._news.notify_all()

    def wake(self) -> None:
        """Have all threads that wait check their conditions, the one that reads too."""
        self._woken += 1
        self.notify()
        if self._asleep:
            self._wake_up.signal()

    def pump(self, timeout: float) -> None:
        """Wait for messages and read them. For the thread that holds the right to read."""
        woken, now = self._woken, time.perf_counter_ns()
        if self._drain():
            if now - self._looked < _LOOK_NS:
                return
            timeout = 0
        self._looked = now
        if timeout <= 0:
            found = self._poll.poll(0)
        else:
            looked = self._await(woken, timeout)
            if looked is None:
                return
            found = looked
        if found:
            self._read_ready(found)
        for peer in self._peers.values():
            if peer.full:
                peer.flush()
        self._drain()

    def _drain(self) -> bool:
        """Take the messages from the slots of all links. Return True if there were any."""
        found = False
        for link in self.links:
            if link.drain():
                found = True
        if found:
            self.arrived()
        return found

    def _await(self, woken: int, timeout: float) -> list[tuple[int, int]] | None:
        """Wait for the sockets: those that are ready; None if there is other news."""
        found = self._spin(woken) if self._slept < _SHORT_NS else []
        if found == []:
            began = time.perf_counter_ns()
            found = self._sleep_unless_woken(woken, timeout)
            self._slept = time.perf_counter_ns() - began
            if [file for file, _ in found] == [self._wake_up.fileno()] and self._woken == woken and not self._drain():
                # woken before there is anything: it is on its way
                self._wake_up.clear()
                found = self._spin(woken)
        return found

    def _spin(self, woken: int) -> list[tuple[int, int]] | None:
        """Spin for a moment: the sockets that are ready; None if there is other news."""
        found: list[tuple[int, int]] | None = []
        until, turn = time.perf_counter_ns() + SPIN_NS, 0
        while time.perf_counter_ns() < until and not found:
            if self._drain() or self._woken != woken:
                found = None
                break
            turn += 1
            os.sched_yield()  # a sender may wait for this processor
            if turn % 16 == 0:
                found = self._poll.poll(0)
        return found

    def _sleep_unless_woken(self, woken: int, timeout: float) -> list[tuple[int, int]]:
        """Sleep until a socket is ready or a sender signals."""
        self._asleep = True
        self._wake_up.set_asleep()
        try:
            if self._woken != woken or self._drain():  # it came before the flag could be seen
                return []
            return self._sleep(0.002 if any(each.full for each in self._peers.values()) else timeout)
        finally:
            self._wake_up.set_awake()
            self._asleep = False

    def _read_ready(self, found: list[tuple[int, int]]) -> None:
        """Read the sockets that are ready."""
        for file, _ in found:
            peer = self._peers.get(file)
            if peer is not None:
                self._read(peer)
            elif file == self._wake_up.fileno():
                self._wake_up.clear()
            else:
                self._accept()

    @interruptible
    def _sleep(self, timeout: float) -> list[tuple[int, int]]:
        return self._poll.poll(max(1, int(timeout * 1000 + 0.999)))

    def _read(self, peer: Peer) -> None:
        if peer.sends_wake_up:
            peer.sends_wake_up = False
            peer.wake_up = WakeUp.receive(peer.channel.socket, self.folder, peer.name)
        try:
            for message in peer.channel.receive(0):
                if message.kind == Kind.HELLO:
                    peer.name = message.meta
                    self._by_name[peer.name] = peer
                elif message.kind == Kind.DATA:
                    key, place, meta = message.meta
                    if key in peer.links:
                        peer.links[key].add_from_socket(place, meta, message.parts)
                elif message.kind == Kind.CREDIT:
                    key, figures = message.meta
                    if key in peer.links:
                        peer.links[key].credit(peer, figures)
                else:
                    self._handle(peer, message)
        except Closed:
            self._drop(peer)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._wake_up.send(sock)
        with self._lock:
            self._add(sock, "")

    def _add(self, sock: socket.socket, name: str, *, sends_wake_up: bool = False) -> Peer:
        peer = Peer(sock, name, sends_wake_up=sends_wake_up)
        self._peers = {**self._peers, sock.fileno(): peer}  # others may be going through it
        if name:
            self._by_name[name] = peer
        self._poll.register(sock, select.POLLIN)
        return peer

    def add_link(self, peer: Peer, key: tuple[int, int, int], link: Any) -> None:
        """Add the receiving end of an edge, which its sender has announced."""
        peer.links[key] = link
        self.links = [*self.links, link]

    def _drop(self, peer: Peer) -> None:
        self._drain()  # what it sent before
        with self._lock:
            self.links = [each for each in self.links if each.peer is not peer]
            peer.gone = True
            self._peers = {file: each for file, each in self._peers.items() if each is not peer}
            if self._by_name.get(peer.name) is peer:
                del self._by_name[peer.name]
            self._poll.unregister(peer.channel.socket)
            peer.channel.close()
        self._lost(peer)

    def close(self) -> None:
        """End all connections."""
        if self._remote is not None:
            self._remote.close()
        self.closed = True
        with self._reading, self._lock:
            for peer in self._peers.values():
                peer.gone = True
                peer.channel.end()
                peer.channel.close()
            self._peers = {}
            self._listener.close()
            self._wake_up.close()
            os.close(self._dir)

    def _path(self, name: str) -> str:
        path = str(self.folder / name)
        return path if len(path.encode()) <= _LONGEST_PATH else f"/proc/self/fd/{self._dir}/{name}"
