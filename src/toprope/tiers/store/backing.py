"""Homes: places of a weight between its uses, in the host's memory or in a file.

`Home` is the interface by which `tiers.engine` loads any weight without knowing where it is; `store.coded` has homes
of encoded weights. A home only describes the work, as chunks: the threads of `store.transfer` do it. Tests:
tests/tiers/test_tiers_attach.py, tests/tiers/test_tiers_files.py.
"""

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
    """A weight's bytes outside the device, with operations that bring them to the device."""

    @property
    def tier(self) -> Literal["host", "disk"]:
        """ "host" or "disk"."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weight on the device."""

    @property
    def direct(self) -> bool:
        """True if it can be read from its file into a slot without a copy, at an address with the file's alignment."""
        return False

    @property
    def host_bytes(self) -> int:
        """Bytes of the weight in the host's memory."""
        return self.nbytes

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """Chunks of a load that fills the target with the weight's bytes from `start` on."""

    def host_chunks(self, memory: Memory) -> list[Chunk]:
        """Chunks of a load that brings it to the host's memory."""
        return self.chunks(memory)

    def on_host(self, memory: Memory) -> Home:
        """The weight's home in the host's memory, after `host_chunks` were loaded."""
        return MemoryHome(memory)

    def cast(self, dtype: torch.dtype) -> Home | None:
        """A home that converts the values in addition when they are loaded; None if they must be converted now."""
        return None

    def check(self) -> None:
        """Raise if the stored bytes have changed."""

    def release(self) -> None:
        """Release the room; called when the weight has another home."""


class MemoryHome(Home):
    """A home in the host's memory.

    Args:
        memory: its bytes.
        keep: owner of the bytes that must stay alive, such as the weight's original tensor.
    """

    tier: Literal["host", "disk"] = "host"

    def __init__(self, memory: Memory, keep: object = None) -> None:
        self.memory, self.keep = memory, keep

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.memory.nbytes

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """Copies from the host's memory."""
        most = CHUNK if target.address is not None else 2**40  # a device's copy engine needs no pieces
        return [
            CopyChunk(self.memory.part(start + first, start + last), target.part(first, last))
            for first, last in cut(target.nbytes, most, most)
        ]

    def check(self) -> None:
        """Do nothing: nothing else writes to this memory."""

    def release(self) -> None:
        """Do nothing: the memory is freed with its last reference."""


class DiskHome(Home):
    """A home in a file.

    Args:
        file: the file.
        offset: its begin in the file, in bytes.
        stored: its dtype in the file.
        count: number of elements.
        casts: dtypes that it is converted to when it is read, one after another.
        spill: our own file, to which its part is released; None for the model's files.
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
        """Its dtype on the device."""
        return self.casts[-1] if self.casts else self.stored

    @property
    def nbytes(self) -> int:
        """Its bytes on the device."""
        return self.count * self.dtype.itemsize

    @property
    def direct(self) -> bool:
        """True if it can be read into a slot without a copy, at an address with the file's alignment."""
        return self.file.direct and not self.casts and self.offset % alignment.needed(self.stored) == 0

    def cast(self, dtype: torch.dtype) -> DiskHome:
        """A home that converts to another dtype in addition."""
        return DiskHome(self.file, self.offset, self.stored, self.count, (*self.casts, dtype), self.spill)

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """Reads; all but the first one begin at a block of the file."""
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
        """Raise if the file has changed."""
        self.file.check()

    def release(self) -> None:
        """Free its part of our own file."""
        if self.spill is not None:
            self.spill.give_back(self.offset, self.count * self.stored.itemsize)
