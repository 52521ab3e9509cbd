"""Host memory between the processes of a graph: blocks that the sender fills and receivers read where they lie.

In front of a block lie flags, one for each receiver, which it sets when nothing there uses the block any more: giving a
block back costs no message. Segments are mapped once and stay mapped. What others may read too
is not to be written to: such arrays are read-only, as a sign.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toprope.functions.arena import Arena, Block, Reader
from toprope.functions.serial import BlockKey

__all__ = ["RECEIVERS", "Borrower", "Lender", "Own"]

RECEIVERS = 64
"""Most receivers of one block, and the bytes in front of it."""

_MAPPED = 32
"""Segments of others that stay mapped without a block in use."""

_CELLS = 64
"""Blocks without bytes that are made at once."""

_UNSET = bytes(RECEIVERS)

_LOOK = 16
"""Blocks that are looked at, at each sending, whether they have been given back."""


class Lender(Arena):
    """The blocks that this process fills."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, f"memory-{name}", keep=128 * 2**20)
        self._flags: dict[tuple[str, int], memoryview] = {}
        self._out: deque[tuple[Block, int, Any]] = deque()
        self._cells: list[Block] = []
        self._guard = threading.Lock()

    def new(self, size: int) -> tuple[Block, memoryview]:
        """A block of so many bytes, and the bytes to fill."""
        if len(self._out) > _LOOK:
            self.collect()
        block, room = super().new(size + RECEIVERS)
        room[:RECEIVERS] = _UNSET
        self._flags[block.segment, block.offset + RECEIVERS] = room[:RECEIVERS]
        return Block(block.segment, block.offset + RECEIVERS, size), room[RECEIVERS:]

    def new_flags(self) -> Block:
        """A block without bytes, for its flags: of one that is lent on."""
        if not self._cells:
            block, room = super().new(RECEIVERS * _CELLS)
            for place in range(0, RECEIVERS * _CELLS, RECEIVERS):
                cell = Block(block.segment, block.offset + place + RECEIVERS, 0)
                self._flags[cell.segment, cell.offset] = room[place : place + RECEIVERS]
                self._cells.append(cell)
        cell = self._cells.pop()
        self._flags[cell.segment, cell.offset][:] = _UNSET
        return cell

    def free(self, block: Block) -> None:
        """Take a block back."""
        if not block.size:
            self._cells.append(block)
            return
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
        if not self._out:
            return
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
            self.bytes = memoryview(mmap.mmap(file, os.fstat(file).st_size))
        finally:
            os.close(file)
        self.begin = int(numpy.frombuffer(self.bytes, numpy.uint8).__array_interface__["data"][0])
        self.end = self.begin + len(self.bytes)


@functools.cache
def _lent_type() -> Any:
    """The class of arrays that say, with their last view, that a block is not used any more.

    numpy lets a view name the array at the bottom for its base in place of the one it was made of, but only as long as
    that is an array too: below this one lies a memoryview.
    """
    import numpy

    class Lent(numpy.ndarray[Any, Any]):
        unused: Callable[[], None] | None = None  # views of this type have none
        flag: memoryview | None = None

        def __del__(self) -> None:
            if self.flag is not None:
                self.flag[0] = 1
            elif self.unused is not None:
                self.unused()

    return Lent


class Borrower(Reader):
    """The blocks of others, as this process sees them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._segments: OrderedDict[str, _Mapped] = OrderedDict()
        self._guard = threading.Lock()

    def view(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """The bytes of a block; `unused` is called when nothing here lies in them any more."""
        return self.writable(block, unused).toreadonly()

    def writable(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """The bytes of a block that nobody else reads. As `view`."""
        piece = _lent_type()((block.size,), "u1", self._segment(block.segment).bytes, block.offset)
        piece.unused = unused
        return memoryview(piece)

    def array(self, key: BlockKey, flags: BlockKey, place: int, dtype: str = "u1", shape: Sequence[int] = ()) -> Any:
        """The bytes of a block as an array of numpy, which is given back with its last view.

        Args:
            key: the block, or any piece of a segment.
            flags: the block in front of which it is said that it was given back.
            place: which of its receivers this process is.
            dtype: of numpy.
            shape: of the array; of bytes for none.
        """
        segment, offset, size = key
        found = _lent_type()(shape or (size,), dtype, self._segment(segment).bytes, offset)
        begin = flags[1] - RECEIVERS + place
        found.flag = self._segment(flags[0]).bytes[begin : begin + 1]
        return found

    def locate(self, address: int, size: int) -> BlockKey | None:
        """Where bytes of this process lie in memory that it has borrowed; None where they do not."""
        with self._guard:
            for name, mapped in self._segments.items():
                if mapped.begin <= address and address + size <= mapped.end:
                    return name, address - mapped.begin, size
        return None

    def give_back(self, place: int, key: BlockKey) -> None:
        """A receiver uses a block no more."""
        self._segment(key[0]).bytes[key[1] - RECEIVERS + place] = 1

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


class Own(Reader):
    """Blocks of others for values that may be written to.

    Args:
        borrower: the blocks.
        copies: whether others read them too, so that what is written to must be a copy.
    """

    def __init__(self, borrower: Borrower, *, copies: bool) -> None:
        self._borrower = borrower
        self._copies = copies

    def view(self, block: Block, unused: Callable[[], None]) -> memoryview:
        """The bytes of a block, or a copy of them; `unused` is called when nothing here lies in the block any more."""
        if self._copies:
            return memoryview(bytearray(self._borrower.view(block, unused)))
        return self._borrower.writable(block, unused)
