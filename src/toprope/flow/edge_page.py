"""What the two ends of an edge share: figures, and slots that small messages are passed in, without a call of the
system."""

from __future__ import annotations

import marshal
import mmap
import os
import struct
import threading
from pathlib import Path
from typing import Any

__all__ = [
    "BETWEEN",
    "BYTES",
    "CELLS",
    "DONE",
    "FORMAT",
    "LOST",
    "SENT",
    "SHARED",
    "TAKEN",
    "TO_HOST",
    "WAITED",
    "WAITS",
    "Page",
    "fence",
    "shared_cells",
]

TAKEN, DONE, WAITS, SENT, BYTES, WAITED, TO_HOST, BETWEEN, LOST, SHARED = range(10)
"""Cells of a page: messages taken and done with, whether the sender waits, messages sent, their bytes, nanoseconds
waited, copies from a card to the host and from card to card, messages lost to OVERWRITE, tensors passed by reference.
Each has one writer."""

CELLS = ("taken", "done", "waits", "sent", "bytes", "waited_ns", "to_host", "between", "lost", "shared")

FORMAT = 2
"""Of marshal: the newest that does not look for objects that occur twice."""

_SIZE = 4096
_SLOT = 512
_LENGTH = struct.Struct("<I")
_fence = threading.Lock()


def fence() -> None:
    """What was written before is seen before what is written after, and read in this order too, on any processor.

    A lock that is let go of orders what stands before it, one that is taken what stands behind it.
    """
    with _fence:
        pass
    with _fence:
        pass


def shared_cells(path: Path, size: int, *, new: bool) -> memoryview:
    """The bytes of a file that processes share.

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


class Page:
    """The figures of one link, and its slots, in a file that both sides map.

    Args:
        path: the file.
        new: whether to make it.
        slots: how many messages a new one holds.
    """

    def __init__(self, path: Path, new: bool, slots: int = 0) -> None:
        self._bytes = shared_cells(path, _SIZE + _SLOT * slots, new=new)
        self.cells = self._bytes[:_SIZE].cast("Q")
        self._slots = (len(self._bytes) - _SIZE) // _SLOT
        self.name = path.name

    def put(self, number: int, record: tuple[Any, ...]) -> bool:
        """Put a message into its slot, and say that it was sent.

        Args:
            number: of the message, from 1 on; fewer than there are slots may be under way.
            record: plain values.

        Returns:
            Whether there is room for it in a slot; else it has to be sent in another way.
        """
        fits = bool(self._slots) and self._write(_SIZE + (number - 1) % self._slots * _SLOT, record)
        fence()
        self.cells[SENT] = number
        return fits

    def _write(self, place: int, record: tuple[Any, ...]) -> bool:
        frame = marshal.dumps(record, FORMAT)
        size, begin = len(frame), place + _LENGTH.size
        fits = begin + size <= place + _SLOT
        if fits:
            self._bytes[begin : begin + size] = frame
        _LENGTH.pack_into(self._bytes, place, size if fits else 0)
        return fits

    def get(self, number: int) -> tuple[Any, ...] | None:
        """The message of this number, which was sent; None where it comes in another way."""
        if not self._slots:
            return None
        place = _SIZE + (number - 1) % self._slots * _SLOT
        (size,) = _LENGTH.unpack_from(self._bytes, place)
        if not size:
            return None
        begin = place + _LENGTH.size
        found: tuple[Any, ...] = marshal.loads(self._bytes[begin : begin + size])
        return found
