"""Shared memory of a session: blocks that one process fills and others read without a copy.

A block lies in a segment, a file in the session's folder that only this user may open. Segments are kept and their
blocks used again: fresh pages cost far more than a copy into pages that are there. Whoever made a block takes it back
once nobody uses it; readers map segments privately, so that what a reader writes is seen by nobody else.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from bisect import insort
from dataclasses import dataclass
from pathlib import Path

from toprope.functions.exceptions import CODES, YRRuntimeError

__all__ = ["Arena", "Block", "Reader"]

_ALIGN = 4096
_SEGMENT = 64 * 2**20
"""Bytes of a segment; a larger block has one of its own."""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of shared memory.

    Attributes:
        segment: name of the file in the session's folder.
        offset: where it begins.
        size: bytes.
    """

    segment: str
    offset: int
    size: int


class _Segment:
    def __init__(self, path: Path, size: int) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)  # a full store is an error here, not a SIGBUS later
            self.memory = memoryview(mmap.mmap(file, size))
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        self.path = path
        self.size = size
        self.free = [(0, size)]  # offset and size, by offset
        self.used = 0

    def take(self, size: int) -> int | None:
        for place, (offset, room) in enumerate(self.free):
            if room >= size:
                if room == size:
                    del self.free[place]
                else:
                    self.free[place] = offset + size, room - size
                self.used += size
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        insort(self.free, (offset, size))
        self.used -= size
        merged: list[tuple[int, int]] = []
        for start, room in self.free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = merged[-1][0], merged[-1][1] + room
            else:
                merged.append((start, room))
        self.free = merged


class Arena:
    """The blocks that this process makes.

    Args:
        folder: of the session.
        name: of this process in the session.
        keep: bytes of segments without a block in use that are kept for later.
    """

    def __init__(self, folder: Path, name: str, keep: int = 512 * 2**20) -> None:
        self._folder = folder
        self._name = name
        self._keep = keep
        self._lock = threading.Lock()
        self._segments: dict[str, _Segment] = {}
        self._count = 0

    def new(self, size: int) -> tuple[Block, memoryview]:
        """A block of so many bytes, and the bytes to fill.

        Raises:
            YRRuntimeError: the store is full (4202).
        """
        room = max(_ALIGN, -(-size // _ALIGN) * _ALIGN)
        with self._lock:
            for segment in self._segments.values():
                offset = segment.take(room)
                if offset is not None:
                    break
            else:
                segment = self._grow(room)
                offset = segment.take(room)
                assert offset is not None
        return Block(segment.path.name, offset, size), segment.memory[offset : offset + size]

    def free(self, block: Block) -> None:
        """Take a block back."""
        room = max(_ALIGN, -(-block.size // _ALIGN) * _ALIGN)
        with self._lock:
            segment = self._segments.get(block.segment)
            if segment is None:
                return
            segment.give(block.offset, room)
            if not segment.used and sum(each.size for each in self._segments.values() if not each.used) > self._keep:
                self._drop(segment)

    @property
    def used(self) -> int:
        """Bytes in blocks."""
        with self._lock:
            return sum(segment.used for segment in self._segments.values())

    def close(self) -> None:
        """Remove the files; what is mapped stays readable until it is let go."""
        with self._lock:
            for segment in list(self._segments.values()):
                self._drop(segment)

    def _grow(self, room: int) -> _Segment:
        self._count += 1
        path = self._folder / f"{self._name}-{self._count}"
        size = max(room, _SEGMENT)
        try:
            segment = _Segment(path, size)
        except OSError as error:
            for idle in [each for each in self._segments.values() if not each.used]:
                self._drop(idle)
            if size > room and error.errno == errno.ENOSPC:
                return self._exact(path, room)
            raise _full(self._folder, size, error) from None
        self._segments[path.name] = segment
        return segment

    def _exact(self, path: Path, room: int) -> _Segment:
        try:
            segment = _Segment(path, room)
        except OSError as error:
            raise _full(self._folder, room, error) from None
        self._segments[path.name] = segment
        return segment

    def _drop(self, segment: _Segment) -> None:
        self._segments.pop(segment.path.name, None)
        try:
            os.unlink(segment.path)
        except FileNotFoundError:
            pass


def _full(folder: Path, size: int, error: OSError) -> YRRuntimeError:
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    return YRRuntimeError(
        f"the object store in {folder} cannot take {size} bytes more: {error.strerror} ({free} bytes are free there). "
        "Let go of objects, or name a larger folder in TOPROPE_OBJECT_STORE",
        CODES["shared memory limit"],
        30,
    )


class Reader:
    """The blocks of others, as this process sees them.

    Args:
        folder: of the session.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._maps: weakref.WeakValueDictionary[str, _Map] = weakref.WeakValueDictionary()

    def view(self, block: Block) -> tuple[memoryview, object]:
        """The bytes of a block, and what keeps them mapped."""
        with self._lock:
            mapped = self._maps.get(block.segment)
            if mapped is None:
                mapped = self._maps[block.segment] = _Map(self._folder / block.segment)
        return mapped.memory[block.offset : block.offset + block.size], mapped


class _Map:
    def __init__(self, path: Path) -> None:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(file).st_size
            # private: a reader that writes gets pages of its own
            self.memory = memoryview(
                mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            )
        finally:
            os.close(file)
