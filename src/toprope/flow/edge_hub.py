"""The connections of one process of a graph: whom it is connected to, and reading what they say.

Sockets lie in the graph's private folder. Sending never waits: what does not fit is kept and sent later, and `full`
says so. Whoever waits reads; where several threads work, one of them reads for all.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toprope.flow.edge_bell import Bell
from toprope.functions.interrupts import interruptible
from toprope.functions.wire import Channel, Closed, Message

__all__ = ["Hub", "Kind", "Peer"]

SPIN_NS = 100_000
"""How long a reader looks again before it sleeps."""

_SHORT_NS = 1_000_000
"""A sleep that takes less was hardly worth it: it is looked again before the next one."""

_LOOK_NS = 2_000_000
"""How often sockets are looked at while there is always something in the slots."""

_TURN = 0.05
"""Seconds after which a waiting thread looks again, whatever it was told."""

_LEAST = 0.001
"""Seconds of the shortest sleep: the unit of `poll`. A time that has passed must not make a thread spin."""

_LONGEST_PATH = 100
"""Bytes of a socket's path; the system allows 107."""


class Kind:
    """What a message is."""

    HELLO, LINK, DATA, WAKE, MOVED, CLOSE, EXCEPTION, CAUGHT, TRACE, TRACED, CANCEL = range(1, 12)


class Peer:
    """Another process of the graph.

    Attributes:
        name: its name; empty until it has said it.
        gone: whether its socket has ended.
    """

    def __init__(self, sock: socket.socket, name: str = "", *, gets_bell: bool = False) -> None:
        self.channel = Channel(sock, self._on_full)
        self.name = name
        self.gone = False
        self.links: dict[tuple[int, int, int], Any] = {}
        self.bell: Bell | None = None
        """Wakes the process; None until it has come, and where this process passes it nothing in slots."""
        self.gets_bell = gets_bell
        """Whether that is what it says first."""
        self.full = False
        """Whether something is left to be sent."""

    def _on_full(self) -> None:
        self.full = True

    def flush(self) -> None:
        """Send what did not fit."""
        self.full = False
        if not self.channel.flush():
            self.full = True


def _turn(left: float, due: float | None) -> float:
    """Seconds until a waiting thread checks its condition again."""
    return min(left, _TURN if due is None else min(_TURN, max(_LEAST, due - time.monotonic())))


class Hub:
    """The connections of this process.

    Args:
        folder: where the sockets lie.
        name: of this process in the graph.
        handle: told of each message, in the thread that reads.
        lost: told of a peer that is gone.
    """

    clock = staticmethod(time.monotonic_ns)

    def __init__(
        self, folder: Path, name: str, handle: Callable[[Peer, Message], None], lost: Callable[[Peer], None]
    ) -> None:
        self.folder = folder
        self.name = name
        self._handle = handle
        self._lost = lost
        self._peers: dict[int, Peer] = {}
        self._by_name: dict[str, Peer] = {}
        self._poll = select.poll()
        self._dir = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._bell = Bell(folder, name)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path(name))
        self._listener.listen(256)
        self._listener.setblocking(False)
        for file in (self._listener.fileno(), self._bell.fileno()):
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
        """The receiving ends of links (`toprope.flow.edge.InLink`)."""
        self.arrived: Callable[[], None] = lambda: None
        """Told when messages have come by them."""
        self.check: Callable[[], None] = lambda: None
        """Called while waiting: raises what ends the wait."""
        self.closed = False

    def connect(self, name: str) -> Peer:
        """The peer of this name, connected to if it was not.

        Raises:
            OSError: it is not there.
        """
        with self._lock:
            peer = self._by_name.get(name)
            if peer is not None and not peer.gone:
                return peer
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(self._path(name))
            except OSError:
                sock.close()
                raise
            peer = self._add(sock, name, gets_bell=True)
        self.send(peer, Kind.HELLO, 0, self.name)
        self.wake()  # a thread that waits does not know the new socket yet
        return peer

    def send(self, peer: Peer, kind: int, number: int, meta: Any = None, parts: Sequence[Any] = ()) -> None:
        """Send a message.

        Raises:
            Closed: the peer is gone.
        """
        peer.channel.send(kind, number, meta, parts)

    def rouse(self, peer: Peer) -> None:
        """Something lies in a slot of a peer: it is woken where it sleeps. Errors as of `send`."""
        if peer.bell is not None:
            peer.bell.ring()
        else:
            peer.channel.send(Kind.WAKE, 0)

    def forewarn(self, peer: Peer) -> None:
        """A peer will be given something in a moment: where it sleeps, it wakes up meanwhile."""
        if peer.bell is not None:
            peer.bell.ring()

    def tell_all(self, kind: int, meta: Any = None, parts: Sequence[Any] = ()) -> None:
        """Send a message to all other processes; two of them may have two sockets between them."""
        for peer in list(self._by_name.values()):
            if not peer.gone:
                try:
                    peer.channel.send(kind, 0, meta, parts)
                except Closed:
                    pass

    def peer(self, name: str) -> Peer | None:
        """The peer of this name, None where there is none."""
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
                        self.pump(_turn(left, due()))
                finally:
                    self._reading.release()
                    self.tell()
            else:
                self._wait_for_news(done, _turn(left, due()))
        return True

    def look(self) -> None:
        """Read what has come, without waiting. Raises what ends waits."""
        self.check()
        if self._reading.acquire(blocking=False):
            try:
                self.pump(0)
            finally:
                self._reading.release()
                self.tell()
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

    def tell(self) -> None:
        """Something may have come to hold for threads that wait."""
        if self._waiting:
            with self._news:
                self._news.notify_all()

    def wake(self) -> None:
        """Tell all threads that wait, also the one that reads."""
        self._woken += 1
        self.tell()
        if self._asleep:
            self._bell.knock()

    def pump(self, timeout: float) -> None:
        """Read what has come; waits for something. For the thread that holds the right to read."""
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
            self._take_in(found)
        for peer in self._peers.values():
            if peer.full:
                peer.flush()
        self._drain()

    def _drain(self) -> bool:
        """Take what lies in the slots of links; whether there was anything."""
        found = False
        for link in self.links:
            if link.drain():
                found = True
        if found:
            self.arrived()
        return found

    def _await(self, woken: int, timeout: float) -> list[tuple[int, int]] | None:
        """Wait for something: what the sockets have; None where there is other news."""
        found = self._spin(woken) if self._slept < _SHORT_NS else []
        if found == []:
            began = time.perf_counter_ns()
            found = self._lie_down(woken, timeout)
            self._slept = time.perf_counter_ns() - began
            if [file for file, _ in found] == [self._bell.fileno()] and self._woken == woken and not self._drain():
                # woken before there is anything: it is on its way
                self._bell.clear()
                found = self._spin(woken)
        return found

    def _spin(self, woken: int) -> list[tuple[int, int]] | None:
        """Look again for a moment: what the sockets have; None where there is other news."""
        found: list[tuple[int, int]] | None = []
        until, turn = time.perf_counter_ns() + SPIN_NS, 0
        while time.perf_counter_ns() < until and not found:
            if self._drain() or self._woken != woken:
                found = None
                break
            turn += 1
            os.sched_yield()  # who has something for this process may wait for this processor
            if turn % 16 == 0:
                found = self._poll.poll(0)
        return found

    def _lie_down(self, woken: int, timeout: float) -> list[tuple[int, int]]:
        """Sleep until something comes; whoever has something for this process knocks meanwhile."""
        self._asleep = True
        self._bell.hang_out()
        try:
            if self._woken != woken or self._drain():  # it came before anybody could see that this process sleeps
                return []
            return self._sleep(0.002 if any(each.full for each in self._peers.values()) else timeout)
        finally:
            self._bell.take_in()
            self._asleep = False

    def _take_in(self, found: list[tuple[int, int]]) -> None:
        """Read the sockets that have something."""
        for file, _ in found:
            peer = self._peers.get(file)
            if peer is not None:
                self._read(peer)
            elif file == self._bell.fileno():
                self._bell.clear()
            else:
                self._accept()

    @interruptible
    def _sleep(self, timeout: float) -> list[tuple[int, int]]:
        return self._poll.poll(max(1, int(timeout * 1000 + 0.999)))

    def _read(self, peer: Peer) -> None:
        if peer.gets_bell:
            peer.gets_bell = False
            peer.bell = Bell.taken(peer.channel.socket, self.folder, peer.name)
        try:
            for message in peer.channel.receive(0):
                if message.kind == Kind.HELLO:
                    peer.name = message.meta
                    self._by_name[peer.name] = peer
                elif message.kind == Kind.DATA:
                    key, place, meta = message.meta
                    if key in peer.links:
                        peer.links[key].add_apart(place, meta, message.parts)
                else:
                    self._handle(peer, message)
        except Closed:
            self._drop(peer)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._bell.give(sock)
        with self._lock:
            self._add(sock, "")

    def _add(self, sock: socket.socket, name: str, *, gets_bell: bool = False) -> Peer:
        peer = Peer(sock, name, gets_bell=gets_bell)
        self._peers = {**self._peers, sock.fileno(): peer}  # others may be going through it
        if name:
            self._by_name[name] = peer
        self._poll.register(sock, select.POLLIN)
        return peer

    def add_link(self, peer: Peer, key: tuple[int, int, int], link: Any) -> None:
        """The receiving end of a link, whose sender has said that there is one."""
        peer.links[key] = link
        self.links = [*self.links, link]

    def _drop(self, peer: Peer) -> None:
        self._drain()  # what it has sent before it went
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
        self.closed = True
        with self._reading, self._lock:
            for peer in self._peers.values():
                peer.gone = True
                peer.channel.end()
                peer.channel.close()
            self._peers = {}
            self._listener.close()
            self._bell.close()
            os.close(self._dir)

    def _path(self, name: str) -> str:
        path = str(self.folder / name)
        return path if len(path.encode()) <= _LONGEST_PATH else f"/proc/self/fd/{self._dir}/{name}"
