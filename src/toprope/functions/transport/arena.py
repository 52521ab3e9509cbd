"""Shared memory of a session: blocks that one process fills and others read without a copy.

Drivers and workers of local sessions and of `toprope.flow` use it. A block lies in a segment, a file in the session's
folder that only this user may open. Segments are kept and their blocks used again: fresh pages cost far more than a
copy into existing pages. The creator of a block takes it back once nobody uses it; readers map blocks privately, so
that what a reader writes is seen by nobody else. Sizes and the choice of a block are free; offsets are whole pages, as
mmap needs, and the names of a worker's segments begin as `local.reactor` removes them. Held by
tests/functions/test_functions_arena.py.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
import weakref
from bisect import insort
from collections.abc import Callable
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
        """Allocate a block of this size. Return it with the bytes to fill.

        Raises:
            YRRuntimeError: the store is full (4202).
        """
        room = _rounded(size)
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
        """Free a block."""
        room = _rounded(block.size)
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
        """Remove the files; mapped blocks stay readable until they are released."""
        with self._lock:
            for segment in list(self._segments.values()):
                self._drop(segment)

    def _grow(self, room: int) -> _Segment:
        self._count += 1
        path = self._folder / f"{self._name}-{self._count}"
        try:
            segment = _Segment(path, max(room, _SEGMENT))
        except OSError:
            # what is kept for later goes, and the segment is no larger than it must be
            for idle in [each for each in self._segments.values() if not each.used]:
                self._drop(idle)
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


def _rounded(size: int) -> int:
    """Round a size up to whole pages."""
    return max(_ALIGN, -(-size // _ALIGN) * _ALIGN)


def _full(folder: Path, size: int, error: OSError) -> YRRuntimeError:
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    return YRRuntimeError(
        f"the object store in {folder} cannot take {size} bytes more: {error.strerror} ({free} bytes are free there). "
        "Release objects, or name a larger folder in TOPROPE_OBJECT_STORE",
        CODES["shared memory limit"],
        30,
    )


class Reader:
    """Blocks of other processes, mapped into this one.

    Args:
        folder: of the session.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def view(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """Map the bytes of a block. Each view is private: writes to it are seen in no other view or process.

        Args:
            block: where the bytes are.
            unused: called once when the view is no longer used; at any moment, in any thread.
        """
        file = os.open(self._folder / block.segment, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # not mmap.mmap, which keeps a descriptor open for each view
            address = _mmap(None, block.size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, file, block.offset)
            if address == _FAILED:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(file)
        holder = _bytes_type(block.size).from_address(address)
        weakref.finalize(holder, _unmap, address, block.size, unused).atexit = False
        return memoryview(holder).cast("B")


@functools.lru_cache(maxsize=64)
def _bytes_type(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    """The type of this many bytes. ctypes forgets a type that nobody uses, and making one is making a class."""
    return ctypes.c_char * size


_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def _unmap(address: int, size: int, unused: Callable[[], None]) -> None:
    _munmap(address, size)
    unused()
