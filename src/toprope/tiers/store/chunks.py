"""Units of work of the transfer threads: read a part of a file, copy a part of the host's memory, write to a file.

Homes (`backing`, `coded`) and stores (`host`, `spill`) make them; the threads of `store.transfer` run them, several
of one load at the same time: a chunk touches its own range of memory or file and nothing else. A copy to a card waits
for the work that still uses its target (`Load.after`). Codes of errors are Linux's. Tests:
tests/tiers/test_tiers_stores.py, tests/tiers/test_tiers_stack_disk.py, tests/tiers/test_tiers_codes.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from toprope.errors import TierCapacityError, TierWriteError
from toprope.tiers.store.disk_file import BLOCK, DiskFile
from toprope.tiers.store.memory import Memory, as_buffer, move
from toprope.tiers.store.transfer import CHUNK, Load, Worker

__all__ = [
    "SERIAL",
    "CastChunk",
    "CopyChunk",
    "PatchChunk",
    "ReadChunk",
    "StageChunk",
    "WriteChunk",
    "cut",
    "deliver",
    "write_failed",
]

SERIAL = 32256
"""Number of elements that torch converts in the calling thread, without its thread pool."""


def cut(nbytes: int, most: int = CHUNK, first: int = CHUNK, least: int = 0) -> Iterator[tuple[int, int]]:
    """Cut a range of bytes into pieces; the first one may be shorter, so that the others are aligned.

    A rest of at most `least` bytes at the end is joined to the piece before it.
    """
    start = 0
    while start < nbytes:
        stop = start + (first if not start else most)
        if stop + least >= nbytes:
            stop = nbytes
        yield start, stop
        start = stop


def deliver(worker: Worker, load: Load, target: Memory, source: torch.Tensor, *, stay: bool) -> None:
    """Copy from the host's memory to a device.

    Args:
        stay: wait until the copy has ended, as `source` will be overwritten then.
    """
    device = worker.device
    assert device is not None
    with device.as_current(), device.on_stream(worker.stream):
        event = load.arrived.get(worker)
        if event is None:  # the first copy of this load on this stream, which runs copies in order
            for each in load.after:
                worker.stream.wait_event(each)
            event = load.arrived[worker] = device.event()
        target.tensor.copy_(source, non_blocking=True)
        event.record(worker.stream)
        if stay:
            event.synchronize()
            del load.arrived[worker]


class ReadChunk:
    """Read a part of a file to its target."""

    __slots__ = ("file", "nbytes", "offset", "target")

    def __init__(self, file: DiskFile, offset: int, nbytes: int, target: Memory) -> None:
        self.file, self.offset, self.nbytes, self.target = file, offset, nbytes, target

    def run(self, worker: Worker, load: Load) -> None:
        """Read the part, straight into the target or through the worker's buffer."""
        begin = time.perf_counter()
        if self.target.address is not None:
            moved, _ = self.file.read(self.offset, self.nbytes, self.target.address, worker.buffer)
        else:
            at, moved, _ = self.file.read_aside(self.offset, self.nbytes, worker.buffer)
            deliver(worker, load, self.target, worker.memory.tensor[at : at + self.nbytes], stay=True)
            worker.moved["host_to_device"] += self.nbytes
        if worker.link is not None:
            worker.link.carry(self.nbytes, begin)
        worker.moved["disk_read" if moved else "page_cache"] += moved or self.nbytes
        worker.busy["disk_read"] += time.perf_counter() - begin


class CastChunk:
    """Read a part of a file and convert it, one dtype after another, as `.to` would have done."""

    __slots__ = ("casts", "file", "nbytes", "offset", "stored", "target")

    def __init__(
        self,
        file: DiskFile,
        offset: int,
        nbytes: int,
        target: Memory,
        stored: torch.dtype,
        casts: Sequence[torch.dtype],
    ) -> None:
        self.file, self.offset, self.nbytes, self.target = file, offset, nbytes, target
        self.stored, self.casts = stored, casts

    def run(self, worker: Worker, load: Load) -> None:
        """Read the part, convert it, and write it to the target."""
        begin = time.perf_counter()
        at, moved, _ = self.file.read_aside(self.offset, self.nbytes, worker.buffer)
        raw = worker.memory.tensor[at : at + self.nbytes].clone().view(self.stored)
        made = torch.empty(raw.numel(), dtype=self.casts[-1])
        for start in range(0, raw.numel(), SERIAL):
            piece = raw[start : start + SERIAL]
            for dtype in self.casts:
                piece = piece.to(dtype)
            made[start : start + SERIAL] = piece
        flat = made.view(torch.uint8)
        if self.target.address is not None:
            move(self.target.address, flat.data_ptr(), flat.numel())
        else:
            deliver(worker, load, self.target, flat, stay=True)
            worker.moved["host_to_device"] += flat.numel()
        worker.moved["disk_read" if moved else "page_cache"] += moved or self.nbytes
        worker.busy["disk_read"] += time.perf_counter() - begin


class CopyChunk:
    """Copy from the host's memory to the target."""

    __slots__ = ("source", "target")

    def __init__(self, source: Memory, target: Memory) -> None:
        self.source, self.target = source, target

    def run(self, worker: Worker, load: Load) -> None:
        """Copy the part, on the worker's stream if the target is a device."""
        begin = time.perf_counter()
        nbytes = self.source.nbytes
        if self.target.address is not None:
            assert self.source.address is not None
            move(self.target.address, self.source.address, nbytes)
        else:
            pinned = self.source.tensor.is_pinned()
            deliver(worker, load, self.target, self.source.tensor, stay=not pinned)
        if worker.link is not None:
            worker.link.carry(nbytes, begin)
        worker.moved["host_to_device"] += nbytes
        worker.busy["host_to_device"] += time.perf_counter() - begin


class WriteChunk:
    """Write a part of the host's memory to a file.

    Args:
        descriptor: the file's descriptor; one for direct writes if `direct`.
        offset: offset in the file; a multiple of `BLOCK` for direct writes.
        source: aligned memory; the bytes after it, up to a multiple of `BLOCK`, are written too.
        direct: write past the page cache.
    """

    __slots__ = ("descriptor", "direct", "offset", "source", "where")

    def __init__(self, descriptor: int, offset: int, source: Memory, *, direct: bool, where: str) -> None:
        self.descriptor, self.offset, self.source, self.direct, self.where = descriptor, offset, source, direct, where

    def run(self, worker: Worker, load: Load) -> None:
        """Write the part to the file."""
        begin = time.perf_counter()
        assert self.source.address is not None
        nbytes = -(-self.source.nbytes // BLOCK) * BLOCK
        view, done = as_buffer(self.source.address, nbytes), 0
        try:
            while done < nbytes:
                count = os.pwritev(self.descriptor, [view[done:] if done else view], self.offset + done)
                if count <= 0:
                    raise OSError(5, os.strerror(5))
                done += count
        except OSError as error:
            raise write_failed(error, self.where) from error
        worker.moved["disk_write"] += nbytes
        worker.busy["disk_write"] += time.perf_counter() - begin


class StageChunk:
    """Write a part of a weight, from memory of any device and alignment, to our own file through the worker's buffer.

    Args:
        file: the file.
        offset: offset in the file; a multiple of `BLOCK`.
        source: the bytes.
    """

    __slots__ = ("file", "offset", "source")

    def __init__(self, file: Writable, offset: int, source: Memory) -> None:
        self.file, self.offset, self.source = file, offset, source

    def run(self, worker: Worker, load: Load) -> None:
        """Copy the part into the worker's buffer, and write that to the file."""
        staged = worker.memory.part(0, self.source.nbytes)
        if self.source.address is not None:
            assert staged.address is not None
            move(staged.address, self.source.address, self.source.nbytes)
        else:
            staged.tensor.copy_(self.source.tensor)
            worker.moved["device_to_host"] += self.source.nbytes
        for each in self.file.writes(self.offset, staged):
            each.run(worker, load)


class PatchChunk:
    """Write a part of a weight from aligned memory to any offset of our own file.

    Args:
        file: the file.
        offset: offset in the file.
        source: the bytes; memory after them, up to a multiple of `BLOCK`, may be written.
        last: the weight ends with these bytes, so that the rest of the last block of the file is unused.
    """

    __slots__ = ("file", "last", "offset", "source")

    def __init__(self, file: Writable, offset: int, source: Memory, *, last: bool) -> None:
        self.file, self.offset, self.source, self.last = file, offset, source, last

    def run(self, worker: Worker, load: Load) -> None:
        """Write the part: by `WriteChunk`s if it consists of whole blocks, else by an ordinary write."""
        if self.offset % BLOCK == 0 and (self.last or self.source.nbytes % BLOCK == 0):
            for each in self.file.writes(self.offset, self.source):
                each.run(worker, load)
            return
        assert self.source.address is not None
        begin, view, done = time.perf_counter(), as_buffer(self.source.address, self.source.nbytes), 0
        try:
            while done < self.source.nbytes:
                done += os.pwritev(self.file.descriptor, [view[done:] if done else view], self.offset + done)
        except OSError as error:
            raise write_failed(error, "our own file") from error
        worker.moved["disk_write"] += self.source.nbytes
        worker.busy["disk_write"] += time.perf_counter() - begin


class Writable(Protocol):
    """A file that can be written to."""

    descriptor: int

    def writes(self, offset: int, source: Memory) -> list[WriteChunk]:
        """Chunks that write memory to an offset of the file."""


def write_failed(error: OSError, where: str) -> Exception:
    """Error for a failed write."""
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return TierCapacityError(
            f"the disk is full: {where}.",
            looked_at=str(error.strerror),
            do="free some of it, or give a folder on another disk",
        )
    return TierWriteError(
        f"tensors that do not fit into memory cannot be written to {where}: {error.strerror}.",
        do="check the disk, or give another folder",
    )
