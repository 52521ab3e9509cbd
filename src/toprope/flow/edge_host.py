"""Host memory between the processes of a graph: blocks that the sender fills and receivers read where they lie.

In front of a block lie flags, one for each receiver, which it sets when nothing there uses the block any more: giving a
block back costs no message. Segments are mapped once and stay mapped. What is passed is not to be written to; arrays
are read-only, as a sign.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toprope.functions.arena import Arena, Block, Reader
from toprope.functions.serial import BlockKey

__all__ = ["RECEIVERS", "Borrower", "Lender"]

RECEIVERS = 64
"""Most receivers of one block, and the bytes in front of it."""

_MAPPED = 32
"""Segments of others that stay mapped without a block in use."""

_LOOK = 16
"""Blocks that are looked at, at each sending, whether they have been given back."""


class Lender(Arena):
    """The blocks that this process fills."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, f"memory-{name}", keep=128 * 2**20)
        self._flags: dict[tuple[str, int], memoryview] = {}
        self._out: deque[tuple[Block, int, Any]] = deque()
        self._guard = threading.Lock()

    def new(self, size: int) -> tuple[Block, memoryview]:
        """A block of so many bytes, and the bytes to fill."""
        block, room = super().new(size + RECEIVERS)
        room[:RECEIVERS] = bytes(RECEIVERS)
        self._flags[block.segment, block.offset + RECEIVERS] = room[:RECEIVERS]
        return Block(block.segment, block.offset + RECEIVERS, size), room[RECEIVERS:]

    def free(self, block: Block) -> None:
        """Take a block back."""
        self._flags.pop((block.segment, block.offset), None)
        super().free(Block(block.segment, block.offset - RECEIVERS, block.size + RECEIVERS))

    def lent(self, blocks: Sequence[Block], receivers: int, kept: Any = None) -> None:
        """Take blocks back once so many receivers have given them back, and keep something alive until then."""
        with self._guard:
            self._out += [(block, receivers, kept) for block in blocks]

    def give_back(self, block: Block, place: int) -> None:
        """Give a block back for a receiver that cannot."""
        flags = self._flags.get((block.segment, block.offset))
        if flags is not None:
            flags[place] = 1

    def collect(self) -> None:
        """Take back what has been given back, the oldest first."""
        with self._guard:
            for _ in range(min(_LOOK, len(self._out))):
                block, receivers, kept = self._out.popleft()
                flags = self._flags.get((block.segment, block.offset))
                if flags is None:
                    continue
                if all(flags[:receivers]):
                    self.free(block)
                else:
                    self._out.append((block, receivers, kept))

    def close(self) -> None:
        """Remove the files; what is mapped stays readable until it is let go."""
        self._flags.clear()
        self._out.clear()
        super().close()


class _Mapped:
    """A segment of another process."""

    def __init__(self, path: Path) -> None:
        import numpy

        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.bytes: Any = numpy.frombuffer(mmap.mmap(file, os.fstat(file).st_size), numpy.uint8)
            self.begin = int(self.bytes.__array_interface__["data"][0])
            self.end = self.begin + self.bytes.size
        finally:
            os.close(file)


class Borrower(Reader):
    """The blocks of others, as this process sees them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._segments: OrderedDict[str, _Mapped] = OrderedDict()
        self._guard = threading.Lock()

    def view(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """The bytes of a block; `unused` is called when nothing here lies in them any more."""
        piece = self._segment(block.segment).bytes[block.offset : block.offset + block.size]
        weakref.finalize(piece, unused).atexit = False
        return memoryview(piece).toreadonly()

    def array(self, key: BlockKey, flags: BlockKey, place: int) -> Any:
        """The bytes of a block as an array of numpy, which is given back with its last view.

        Args:
            key: the block, or any piece of a segment.
            flags: the block in front of which it is said that it was given back.
            place: which of its receivers this process is.
        """
        segment, offset, size = key
        holder = _Holder(self._segment(segment).bytes[offset : offset + size])
        weakref.finalize(holder, _set, self._segment(flags[0]), flags[1] - RECEIVERS + place).atexit = False
        return holder.array()

    def locate(self, address: int, size: int) -> BlockKey | None:
        """Where bytes of this process lie in memory that it has borrowed; None where they do not."""
        with self._guard:
            for name, mapped in self._segments.items():
                if mapped.begin <= address and address + size <= mapped.end:
                    return name, address - mapped.begin, size
        return None

    def give_back(self, place: int, key: BlockKey) -> None:
        """A receiver uses a block no more."""
        _set(self._segment(key[0]), key[1] - RECEIVERS + place)

    def _segment(self, name: str) -> _Mapped:
        with self._guard:
            found = self._segments.get(name)
            if found is None:
                found = self._segments[name] = _Mapped(self._folder / name)
                if len(self._segments) > _MAPPED:
                    self._segments.popitem(last=False)
            else:
                self._segments.move_to_end(name)
            return found


class _Holder:
    """What all views of a block keep alive.

    numpy lets a view name the array at the bottom for its base in place of the one it was made of; an object that only
    describes its memory stays between.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_piece")

    def __init__(self, piece: Any) -> None:
        self._piece = piece
        self.__array_interface__ = piece.__array_interface__

    def array(self) -> Any:
        """An array whose base this is."""
        import numpy

        return numpy.asarray(self)


def _set(mapped: _Mapped, place: int) -> None:
    mapped.bytes[place] = 1
