"""The tensors of a stack, in the memory of devices and in files on disks, and the copies between them.

`stack.stack` calls it under its lock, with moves that `stack.levels` has planned: nothing is decided here. A move that
fails leaves the tensor where it was. Tests: tests/tiers/test_tiers_stack_disk.py, tests/tiers/test_tiers_stack.py.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from toprope import device as devices
from toprope.device import Device
from toprope.errors import TierCapacityError, TierError
from toprope.tiers.stack.disk import Arriving, DiskLevel, Stored
from toprope.tiers.stack.levels import Levels, Move
from toprope.tiers.stack.tier import Tier

__all__ = ["Contents", "Copied"]

# Least number and total bytes of copies for a measured speed: with fewer, start-up costs would dominate.
ENOUGH_COPIES = 3
ENOUGH_BYTES = 4 * 2**20


@dataclass
class Copied:
    """Counts, bytes and seconds of the copies over a link."""

    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    _until: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        """Record a copy."""
        self.count += 1
        self.nbytes += nbytes
        self.seconds += seconds

    def span(self, nbytes: int, begin: float, end: float) -> None:
        """Record a copy that may overlap with others; time that is counted already is not counted again."""
        self.add(nbytes, max(0.0, end - max(begin, self._until)))
        self._until = max(self._until, end)

    @property
    def speed(self) -> float | None:
        """Bytes a second; None until enough was copied."""
        enough = self.count >= ENOUGH_COPIES and self.nbytes >= ENOUGH_BYTES and self.seconds > 0
        return self.nbytes / self.seconds if enough else None


class Contents:
    """The tensors of a stack. The caller holds the stack's lock.

    On a level, a tensor is in the memory of the level's device, or a part of the level's file. In between, a tensor may
    be read from a file (`Arriving`); and a tensor whose level is a file may be in the host's memory: temporarily if the
    file is full, permanently if it could not be written back. A tensor is never lost.

    Args:
        tiers: the levels.
        levels: the record of each key's level, which is updated with every move.
    """

    def __init__(self, tiers: Sequence[Tier], levels: Levels) -> None:
        self.tiers, self.levels = tiers, levels
        self.disks = [None if each.folder is None else DiskLevel(each.folder, each.capacity) for each in tiers]
        self.kept: dict[Hashable, torch.Tensor | Stored | Arriving] = {}
        self.brought = [Copied() for _ in tiers]
        """Copies into the memory of each level; for a level on a disk, reads from it."""
        self.written = [Copied() for _ in tiers]
        """Writes to each level on a disk."""
        self._from: dict[Hashable, int] = {}  # for tensors that are being read, the level that they come from

    # Tensors

    def take(self, tensor: torch.Tensor, level: int) -> torch.Tensor | Stored:
        """Store a tensor on a level; keeps the same object if it is in that memory and its storage is no larger."""
        if self.disks[level] is not None:
            return self._write(tensor, level)
        if tensor.device != self._device(level).torch_device:
            return self._copied(tensor, devices.get(tensor.device), level)
        if tensor.untyped_storage().nbytes() <= tensor.nbytes:
            return tensor
        with torch.inference_mode(False):
            return tensor.clone()

    def put(self, key: Hashable, kept: torch.Tensor | Stored) -> None:
        """Keep a stored tensor under a key; replaces the key's old tensor."""
        self.drop(key)
        self.kept[key] = kept

    def drop(self, key: Hashable) -> None:
        """Release the tensor of a key, if there is one."""
        kept = self.kept.pop(key, None)
        level = self._from.pop(key, None) if isinstance(kept, Arriving) else self.levels.level_of(key)
        disk = None if level is None else self.disks[level]
        if disk is not None and not isinstance(kept, torch.Tensor | None):
            disk.release(kept.stored if isinstance(kept, Arriving) else kept)

    def value(self, key: Hashable) -> torch.Tensor:
        """The tensor of a key; if it is in a file, a new copy in the host's memory.

        Raises:
            TierReadError: it cannot be read.
        """
        self.wait_for(key)
        kept = self.kept[key]
        if isinstance(kept, Stored):
            level = self.levels.level_of(key)
            assert level is not None
            return self._read(kept, level, devices.get("cpu"))
        assert isinstance(kept, torch.Tensor)
        return kept

    # Moves

    def shift(self, move: Move, *, ahead: bool = False) -> None:
        """Carry out one move that `Levels` has planned: copy the tensor, then record it.

        Args:
            move: the move.
            ahead: return before a read from a file to memory has ended.
        """
        key, source, target = move.key, move.source, move.target
        self.wait_for(key)
        kept = self.kept[key]
        if isinstance(kept, Stored):
            disk = self.disks[source]
            assert disk is not None
            if self.disks[target] is not None:
                self.kept[key] = self._write(self._read(kept, source, devices.get("cpu")), target)
                disk.release(kept)
            elif ahead:
                self.kept[key] = disk.read(kept, self._device(target), urgent=False)
                self._from[key] = source
            else:
                self.kept[key] = self._read(kept, source, self._device(target))
                disk.release(kept)
        elif isinstance(kept, torch.Tensor):
            if self.disks[target] is not None:
                self.kept[key] = self._write(kept, target)
            else:
                self.kept[key] = self._copied(kept, devices.get(kept.device), target)
        self.levels.apply(move)

    def wait_for(self, key: Hashable) -> None:
        """Wait until a tensor that is being read is there.

        Raises:
            TierReadError: it cannot be read; it stays in its file.
        """
        arriving = self.kept.get(key)
        if not isinstance(arriving, Arriving):
            return
        source, target = self._from[key], self.levels.level_of(key)
        assert target is not None
        try:
            arriving.disk.wait(arriving, self._device(target))
        except Exception:
            if arriving.load.done:
                self.kept[key] = arriving.stored
                del self._from[key]
                self.levels.apply(Move(key, self.levels.bytes_of(key), target, source))
            raise
        self.kept[key] = arriving.tensor
        del self._from[key]
        arriving.disk.release(arriving.stored)
        self.brought[source].span(arriving.stored.nbytes, arriving.load.begin, arriving.load.end)

    def complete_ended(self) -> None:
        """Complete the reads that have ended in the meantime.

        Raises:
            TierReadError: a tensor could not be read.
        """
        for key in list(self._from):
            kept = self.kept[key]
            if isinstance(kept, Arriving) and kept.load.done:
                self.wait_for(key)

    def lift(self, key: Hashable, moves: Sequence[Move], nbytes: int = 0) -> None:
        """Read a tensor out of its file before other moves, if the file has no room for them otherwise.

        Args:
            key: the tensor that is moved up or replaced.
            moves: the moves before its own.
            nbytes: bytes of the tensor that replaces it, in whole blocks.
        """
        level, kept = self.levels.level_of(key), self.kept.get(key)
        disk = None if level is None else self.disks[level]
        if disk is None or level is None or not isinstance(kept, Stored):
            return
        needed = nbytes + sum(self.levels.taken_by(level, each.nbytes) for each in moves if each.target == level)
        if needed and disk.used + needed > disk.capacity:
            for other in list(self._from):
                self.wait_for(other)
            self.kept[key] = self._read(kept, level, devices.get("cpu"))
            disk.release(kept)

    def lower(self, key: Hashable) -> None:
        """Write a tensor that `lift` has read back into its file; it stays in memory if that fails."""
        level, kept = self.levels.level_of(key), self.kept.get(key)
        if level is not None and self.disks[level] is not None and isinstance(kept, torch.Tensor):
            try:
                self.kept[key] = self._write(kept, level)
            except (TierError, TierCapacityError):
                pass  # the caller raises the first error

    def close(self) -> None:
        """Forget everything, and delete files."""
        self.kept.clear()
        self._from.clear()
        for disk in self.disks:
            if disk is not None:
                disk.close()

    # Links

    def _device(self, level: int) -> Device:
        device = self.tiers[level].device
        assert device is not None
        return device

    def _copied(self, tensor: torch.Tensor, source: Device, level: int) -> torch.Tensor:
        """Copy a tensor to the memory of a level and wait, so that any stream and thread may use it."""
        target = self._device(level)
        if target == source:
            return tensor
        source.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode(False):  # an inference tensor could not be used in training any more
            moved = tensor.to(target.torch_device)
        target.synchronize()
        self.brought[level].add(moved.nbytes, time.perf_counter() - begin)
        return moved

    def _read(self, stored: Stored, level: int, device: Device) -> torch.Tensor:
        disk = self.disks[level]
        assert disk is not None
        arriving = disk.read(stored, device, urgent=True)
        disk.wait(arriving, device)
        self.brought[level].span(stored.nbytes, arriving.load.begin, arriving.load.end)
        return arriving.tensor

    def _write(self, tensor: torch.Tensor, level: int) -> Stored:
        disk, device = self.disks[level], devices.get(tensor.device)
        assert disk is not None
        device.synchronize()
        try:
            stored, seconds = disk.write(tensor, device)
        except TierCapacityError:
            if not self._from:
                raise
            for key in list(self._from):  # reads that have ended release their room
                self.wait_for(key)
            stored, seconds = disk.write(tensor, device)
        self.written[level].add(stored.nbytes, seconds)
        return stored
