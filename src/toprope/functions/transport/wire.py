"""Messages over a socket between the driver and a worker; `toprope.flow` uses them between its processes, too.

A message is a kind, a number, a small tuple of plain values, and parts of bytes. The waiting thread reads the socket
itself: a thread in between would cost more than the message. A reader spins for a moment before it sleeps, since waking
a sleeping processor takes longer than most calls; after a while of spinning it yields the processor. Both ends are the
same version of toprope, so the format can change, and so can times and sizes: benchmarks/functions.py tells what a call
costs. tests/functions/test_functions_wire.py holds it.
"""

from __future__ import annotations

import marshal
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from toprope.functions.interrupts import interruptible

__all__ = ["Channel", "Closed", "Kind", "Message", "Outgoing"]

_HEADER = struct.Struct("<II")  # bytes of the marshalled message, number of parts behind it
_APART = 32 * 1024
"""Size from which parts follow the marshalled message, in bytes: inside of it they would be copied once more."""

_LARGE = 2**20
"""Size from which a message is sent and received without the copies that a short one does not notice, in bytes."""

_LARGEST = 2**33
"""Size up to which room is made for a whole message when its beginning has come, in bytes: it may never come."""

_FORMAT = 2
"""Of marshal: the newest that does not look for objects that occur twice."""

_SPIN_NS = 60_000
_POLITE_NS = 250_000
"""Time that a reader polls before it sleeps, in nanoseconds: without yielding the processor, and in total."""

_CHUNK = 256 * 1024
BUFFER = 4 * 2**20
"""Requested size of a socket's buffer, in bytes; most machines allow less."""

_PATIENCE_MS = 1
"""Time that a non-blocking sender waits for an active reader, in milliseconds."""


class Kind:
    """Kinds of messages between driver and workers."""

    # to a worker
    CODE, CREATE, CALL, FUNCTION, STOP, FREE, REPLY, CANCEL = range(1, 9)
    # from a worker
    READY, RESULT, FAIL, ITEM, END, REQUEST, RELEASE, REFS = range(20, 28)


class Message(NamedTuple):
    """One message, as `Channel.receive` returns it.

    Attributes:
        kind: of `Kind`.
        number: the call or request that it belongs to.
        meta: plain values.
        parts: bytes.
    """

    kind: int
    number: int
    meta: Any
    parts: list[bytes]


Outgoing = tuple[int, int, Any, Sequence[bytes | memoryview]]
"""A message to be sent: kind, number, plain values, parts."""


class Closed(Exception):  # noqa: N818 - an event, not a fault
    """The other side is gone."""


class Channel:
    """One end of a socket. Any thread may send; one reads at a time, see `reading`.

    Args:
        sock: the socket.
        on_full: makes sending never wait: what does not fit into the socket is kept, this is called, and `flush` is to
            be called until it says that all is sent. None: sending waits.
    """

    def __init__(self, sock: socket.socket, on_full: Callable[[], None] | None = None) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        sock.setblocking(True)
        self.socket = sock
        self.reading = threading.Lock()
        """Held by the thread that reads."""
        self._sending = threading.Lock()
        self._on_full = on_full
        self._unsent = bytearray()
        self._gathered: list[bytes | memoryview] | None = None
        self._rest = bytearray()
        self._needed = 0  # bytes of `_rest` from which on there is a message in it
        self._whole = bytearray()  # a large message of which a part has come; empty for none
        self._left = memoryview(b"")  # where its rest goes
        self._chunk = bytearray(_CHUNK)
        self._view = memoryview(self._chunk)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.socket.fileno()

    def send(self, kind: int, number: int, meta: Any = None, parts: Sequence[bytes | memoryview] = ()) -> int:
        """Send a message.

        Returns:
            Its bytes.

        Raises:
            Closed: the other side is gone.
        """
        frames = _frames(kind, number, meta, parts)
        if self._gathered is not None:
            self._gathered += frames
        else:
            self._send(frames)
        return sum(map(len, frames))

    def send_all(self, messages: Sequence[Outgoing]) -> None:
        """Send messages in one system call. Errors as for `send`."""
        self._send([b"".join([frame for message in messages for frame in _frames(*message)])])

    def gather(self) -> None:
        """Keep the next messages for `send_gathered`, which sends them in one go; no other thread may send."""
        self._gathered = []

    def send_gathered(self) -> None:
        """Send what was gathered. Errors as for `send`."""
        gathered, self._gathered = self._gathered, None
        if gathered:
            self._send([b"".join(gathered)])

    def _send(self, frames: Sequence[bytes | memoryview]) -> None:
        try:
            if self._on_full is None:
                with self._sending:
                    for frame in frames:
                        self.socket.sendall(frame)
            else:
                self._send_some(frames)
        except OSError:
            raise Closed from None
        except BaseException:
            self.end()  # a message that was cut off would have the next one for its rest
            raise

    def flush(self) -> bool:
        """Send the rest that did not fit. Return True if nothing is left."""
        with self._sending:
            try:
                while self._unsent:
                    del self._unsent[: self.socket.send(self._unsent, socket.MSG_DONTWAIT)]
            except BlockingIOError:
                return False
            except OSError:
                self._unsent.clear()  # the reader of the socket will see that the other side is gone
            return True

    def _send_some(self, frames: Sequence[bytes | memoryview]) -> None:
        with self._sending:
            is_told = bool(self._unsent)
            for frame in frames:
                sent = 0
                while sent < len(frame) and not self._unsent:
                    try:
                        sent += self.socket.send(memoryview(frame)[sent:] if sent else frame, socket.MSG_DONTWAIT)
                    except BlockingIOError:
                        if not self._writable.poll(_PATIENCE_MS):
                            break
                if sent < len(frame):
                    self._unsent += memoryview(frame)[sent:]
            if is_told or not self._unsent:
                return
        assert self._on_full is not None
        self._on_full()

    def receive(self, timeout: float | None = None) -> list[Message]:
        """The messages that have come; waits for one. Only for the thread that holds `reading`.

        Args:
            timeout: seconds to wait; None for ever, 0 not at all.

        Returns:
            At least one message; none where the time is over.

        Raises:
            Closed: the other side is gone and everything it sent was returned before.
        """
        while True:
            count = self._read(timeout)
            if count < 0:
                return []
            if not count:
                raise Closed
            if not self._whole:
                messages = self._parse(self._view[:count])
            elif len(self._left) > count:
                self._left = self._left[count:]
                continue
            else:
                data, self._whole, self._left = self._whole, bytearray(), memoryview(b"")
                messages = self._messages(data)
            if messages:
                return messages
            # part of a message: the rest is on its way

    def end(self) -> None:
        """Shut the connection down: readers at both ends see that the other side is gone."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close this end. Not while another thread reads it: see `end`."""
        self.socket.close()
        self._chunk, self._view, self._whole, self._left = bytearray(), memoryview(b""), bytearray(), memoryview(b"")

    def _read(self, timeout: float | None) -> int:
        """Bytes read into the chunk; -1 where the time is over."""
        count = self._receive()
        if count == -1 and timeout != 0 and self._wait(timeout):
            count = self._receive()
        return count

    def _receive(self) -> int:
        """Bytes read into the chunk; -1 where there are none, 0 where the other side is gone."""
        try:
            return self.socket.recv_into(self._left or self._chunk, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return -1
        except OSError:
            return 0

    @interruptible
    def _wait(self, timeout: float | None) -> bool:
        """Wait until data can be read. Return True if it can."""
        poll, begin = self._poll.poll, time.perf_counter_ns()
        while not poll(0):
            passed = time.perf_counter_ns() - begin
            if passed > _POLITE_NS:
                return bool(poll(None if timeout is None else max(0, int(timeout * 1000 + 0.999))))
            if passed > _SPIN_NS:
                os.sched_yield()
        return True

    def _parse(self, fresh: memoryview) -> list[Message]:
        data: bytes | bytearray
        if self._rest:
            self._rest += fresh
            if len(self._rest) < self._needed:
                return []
            data = self._rest
        else:
            data = fresh.tobytes()
        return self._messages(data)

    def _messages(self, data: bytes | bytearray) -> list[Message]:
        """The messages in what has come; part of another is kept."""
        messages: list[Message] = []
        place, size, end = 0, len(data), _HEADER.size
        while size >= end:
            head, count = _HEADER.unpack_from(data, place)
            at = place + _HEADER.size
            first = end = at + head + 8 * count
            if end > size:
                break
            if count:
                lengths = struct.unpack_from(f"<{count}Q", data, at + head)
                end += sum(lengths)
                if end > size:
                    break
            message = _new(Message, marshal.loads(data[at : at + head]))
            if count:
                view = memoryview(data)
                for length in lengths:
                    message.parts.append(bytes(view[first : first + length]))
                    first += length
            messages.append(message)
            place, end = first, first + _HEADER.size
        self._needed = end - place
        if not _LARGE <= self._needed <= _LARGEST:
            self._rest = bytearray(data[place:]) if place < size else bytearray()
        else:  # the rest of this message goes to where it belongs
            self._rest, self._whole = bytearray(), bytearray(self._needed)
            self._whole[: size - place] = memoryview(data)[place:]
            self._left = memoryview(self._whole)[size - place :]
        return messages


_new = tuple.__new__


def _frames(kind: int, number: int, meta: Any, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """A message as its bytes: in one piece, but for large parts."""
    total = sum(map(len, parts)) if parts else 0
    if total < _APART:
        head = marshal.dumps((kind, number, meta, [*parts]), _FORMAT)
        return [_HEADER.pack(len(head), 0) + head]
    head = marshal.dumps((kind, number, meta, []), _FORMAT)
    lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    first = _HEADER.pack(len(head), len(parts)) + head + lengths
    return [b"".join([first, *parts])] if total < _LARGE else [first, *parts]
