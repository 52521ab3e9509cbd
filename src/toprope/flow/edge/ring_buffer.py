"""Shared-memory ring buffer of an edge with a cross-process wake-up: no system call while both sides are awake.

`edge.links` puts messages in and takes them out, `edge.connections` sleeps on the wake-up, `observability.metrics`
reads the counters. The ring buffer has counters and slots for small messages. The wake-up is an eventfd plus a shared
"sleeping" flag, so that senders signal only a sleeping receiver. Both ends are of one version of toprope, so the layout
is free; each counter has one writer, and a message is counted as sent only after it lies in its slot. The order of
memory accesses matters here (`fence`): run the tests on more than one kind of processor after a change. Tests:
tests/flow/test_flow_edge.py.
"""

from __future__ import annotations

import marshal
import mmap
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

__all__ = [
    "BETWEEN",
    "BYTES",
    "CELLS",
    "DONE",
    "LOST",
    "SENT",
    "SHARED",
    "TAKEN",
    "TO_HOST",
    "WAITED",
    "WAITS",
    "RingBuffer",
    "WakeUp",
    "fence",
]

TAKEN, DONE, WAITS, SENT, BYTES, WAITED, TO_HOST, BETWEEN, LOST, SHARED = range(10)
"""Counters: messages taken and done with, whether the sender waits, messages sent, their bytes, nanoseconds waited,
copies from a card to the host and from card to card, messages lost to OVERWRITE, tensors passed by reference. Each has
one writer."""

CELLS = ("taken", "done", "waits", "sent", "bytes", "waited_ns", "to_host", "between", "lost", "shared")

_FORMAT = 2
"""Of marshal: the newest that does not look for objects that occur twice."""

_SIZE = 4096
_SLOT = 512
_LENGTH = struct.Struct("<I")
_ONE = (1).to_bytes(8, sys.byteorder)
_fence = threading.Lock()


def fence() -> None:
    """Order memory accesses: earlier writes are seen before later ones, and reads keep this order, on any processor.

    Releasing a lock orders what comes before it, acquiring one what comes after it.
    """
    with _fence:
        pass
    with _fence:
        pass


def _shared_bytes(path: Path, size: int, *, new: bool) -> memoryview:
    """Map a file that processes share.

    Args:
        path: the file.
        size: bytes, of a new one.
        new: whether to make it.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if new else 0), 0o600)
    try:
        if new:
            os.ftruncate(file, size)
        return memoryview(mmap.mmap(file, os.fstat(file).st_size))
    finally:
        os.close(file)


class RingBuffer:
    """Counters and slots of one edge, in a file that both sides map.

    Args:
        path: the file; None for counters that this process alone sees, without slots.
        new: whether to make it.
        slots: how many messages a new one holds.
    """

    def __init__(self, path: Path | None, new: bool = True, slots: int = 0) -> None:
        size = _SIZE + _SLOT * slots
        self._bytes = memoryview(bytearray(size)) if path is None else _shared_bytes(path, size, new=new)
        self.cells = self._bytes[:_SIZE].cast("Q")
        self._slots = (len(self._bytes) - _SIZE) // _SLOT
        self.name = "" if path is None else path.name

    def put(self, number: int, record: tuple[Any, ...]) -> bool:
        """Put a message into its slot, and count it as sent.

        Args:
            number: of the message, from 1 on; fewer than there are slots may be under way.
            record: plain values.

        Returns:
            Whether it fits into a slot; else it has to be sent by the socket.
        """
        fits = bool(self._slots) and self._write(_SIZE + (number - 1) % self._slots * _SLOT, record)
        fence()
        self.cells[SENT] = number
        return fits

    def _write(self, place: int, record: tuple[Any, ...]) -> bool:
        frame = marshal.dumps(record, _FORMAT)
        size, begin = len(frame), place + _LENGTH.size
        fits = begin + size <= place + _SLOT
        if fits:
            self._bytes[begin : begin + size] = frame
        _LENGTH.pack_into(self._bytes, place, size if fits else 0)
        return fits

    def get(self, number: int) -> tuple[Any, ...] | None:
        """Read the message of this number, which was sent; None if it comes by the socket."""
        if not self._slots:
            return None
        place = _SIZE + (number - 1) % self._slots * _SLOT
        (size,) = _LENGTH.unpack_from(self._bytes, place)
        if not size:
            return None
        begin = place + _LENGTH.size
        found: tuple[Any, ...] = marshal.loads(self._bytes[begin : begin + size])
        return found


class WakeUp:
    """Wake-up of a process: an eventfd that it sleeps on, and a shared flag that is set while it sleeps.

    Not a pipe or a socket: their wake-up moves the sleeper to the processor of the sender, which is not done yet, and
    the other processors stay idle.

    Args:
        folder: of the graph.
        name: of the process.
        file: the eventfd of that process, received from it and owned by this object; None for the process itself,
            which makes both.
    """

    def __init__(self, folder: Path, name: str, file: int | None = None) -> None:
        self._file = -1 if file is None else file
        self._sleeps = _shared_bytes(folder / f"wake-up-{name}", 1, new=file is None)
        if file is None:
            self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def send(self, sock: socket.socket) -> None:
        """Send the eventfd to the process at the other end, which receives it first of all."""
        try:
            socket.send_fds(sock, [b"b"], [self._file])
        except OSError:
            pass  # the other side is gone, which is seen by reading

    @classmethod
    def receive(cls, sock: socket.socket, folder: Path, name: str) -> WakeUp | None:
        """Receive the wake-up of the process of this name; None if there is none.

        Then the socket has ended, or this process may have no more descriptors, and wakes the other one by the socket.
        """
        try:
            _, files, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
            return cls(folder, name, files[0]) if files else None
        except OSError:
            return None

    def fileno(self) -> int:
        """Descriptor of the eventfd."""
        return self._file

    def signal_if_asleep(self) -> None:
        """Wake the process if it sleeps."""
        fence()
        if self._sleeps[0]:
            self._sleeps[0] = 0  # others need not wake it too
            self.signal()

    def signal(self) -> None:
        """Wake the process."""
        try:
            os.write(self._file, _ONE)
        except OSError:
            pass  # it was signalled often enough, or has ended

    def set_asleep(self) -> None:
        """Set the flag; what was sent before is seen by a check after this."""
        self._sleeps[0] = 1
        fence()

    def set_awake(self) -> None:
        """Clear the flag."""
        self._sleeps[0] = 0

    def clear(self) -> None:
        """Forget past signals."""
        try:
            os.read(self._file, 8)
        except OSError:
            pass

    def close(self) -> None:
        """Close this end."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()
