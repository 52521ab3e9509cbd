"""Where a weight lies between its uses: in the host's memory, or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch

from toprope.tiers.store import alignment
from toprope.tiers.store.chunks import CastChunk, CopyChunk, ReadChunk, cut
from toprope.tiers.store.disk_file import BLOCK, DiskFile
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.spill import SpillFile
from toprope.tiers.store.transfer import CHUNK, Chunk

__all__ = ["DiskHome", "Home", "MemoryHome"]


class Home(Protocol):
    """A weight's bytes, in the order of memory, as they shall be on the device."""

    @property
    def tier(self) -> Literal["host", "disk"]:
        """ "host" or "disk"."""

    @property
    def nbytes(self) -> int:
        """Of the weight on the device."""

    @property
    def direct(self) -> bool:
        """Tell if it can be read from its file into its place without a copy, if that has the same place in a block."""
        return False

    @property
    def host_bytes(self) -> int:
        """Bytes in the host's memory, as it lies there."""
        return self.nbytes

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """What brings the bytes from `start` on into the target, as many as it has."""

    def host_chunks(self, memory: Memory) -> list[Chunk]:
        """Chunks of a load that brings it to the host's memory."""
        return self.chunks(memory)

    def on_host(self, memory: Memory) -> Home:
        """The home that it has there."""
        return MemoryHome(memory)

    def cast(self, dtype: torch.dtype) -> Home | None:
        """The same, converted once more when it is brought; None where its values have to be converted."""
        return None

    def check(self) -> None:
        """Raise if what lies there is not what it was."""

    def release(self) -> None:
        """It is not needed any more."""


class MemoryHome(Home):
    """In the host's memory.

    Args:
        memory: its bytes.
        keep: what they belong to, such as the tensor that they were in from the beginning.
    """

    tier: Literal["host", "disk"] = "host"

    def __init__(self, memory: Memory, keep: object = None) -> None:
        self.memory, self.keep = memory, keep

    @property
    def nbytes(self) -> int:
        """Of the weight."""
        return self.memory.nbytes

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """Copies."""
        most = CHUNK if target.address is not None else 2**40  # a device's own engine needs no pieces
        return [
            CopyChunk(self.memory.part(start + first, start + last), target.part(first, last))
            for first, last in cut(target.nbytes, most, most)
        ]

    def check(self) -> None:
        """Nothing: nobody else has this memory."""

    def release(self) -> None:
        """Nothing: it goes with its last reference."""


class DiskHome(Home):
    """In a file.

    Args:
        file: the file.
        offset: where in it.
        stored: the dtype there.
        count: of elements.
        casts: the dtypes that it is converted to when it is read, one after another.
        spill: where the file is our own: what the part goes back to.
    """

    tier: Literal["host", "disk"] = "disk"

    def __init__(
        self,
        file: DiskFile,
        offset: int,
        stored: torch.dtype,
        count: int,
        casts: Sequence[torch.dtype] = (),
        spill: SpillFile | None = None,
    ) -> None:
        self.file, self.offset, self.stored, self.count = file, offset, stored, count
        self.casts, self.spill = tuple(casts), spill

    @property
    def dtype(self) -> torch.dtype:
        """On the device."""
        return self.casts[-1] if self.casts else self.stored

    @property
    def nbytes(self) -> int:
        """On the device."""
        return self.count * self.dtype.itemsize

    @property
    def direct(self) -> bool:
        """Whether it can be read into its place without a copy, if that has the same place in a block."""
        return self.file.direct and not self.casts and self.offset % alignment.needed(self.stored) == 0

    def cast(self, dtype: torch.dtype) -> DiskHome:
        """The same, converted once more."""
        return DiskHome(self.file, self.offset, self.stored, self.count, (*self.casts, dtype), self.spill)

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """Reads; each but the first begins with a block of the file."""
        if not self.casts:
            offset = self.offset + start
            return [
                ReadChunk(self.file, offset + first, last - first, target.part(first, last))
                for first, last in cut(target.nbytes, CHUNK, CHUNK - offset % BLOCK, BLOCK)
            ]
        here, there = self.dtype.itemsize, self.stored.itemsize
        most = CHUNK // max(here, there)
        first_byte = self.offset + start // here * there
        return [
            CastChunk(
                self.file,
                first_byte + first * there,
                (last - first) * there,
                target.part(first * here, last * here),
                self.stored,
                self.casts,
            )
            for first, last in cut(target.nbytes // here, most, most)
        ]

    def check(self) -> None:
        """Raise if the file is not the one that it was."""
        self.file.check()

    def release(self) -> None:
        """A part of our own file goes back."""
        if self.spill is not None:
            self.spill.give_back(self.offset, self.count * self.stored.itemsize)
