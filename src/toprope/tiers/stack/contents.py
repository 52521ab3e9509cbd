"""The tensors of a stack, in the memory of devices and in files on disks, and how they get from one to the other."""

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

# A speed is shown as measured after so many copies with so many bytes together: fewer tell of start-up costs.
ENOUGH_COPIES = 3
ENOUGH_BYTES = 4 * 2**20


@dataclass
class Copied:
    """What went over a link."""

    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    _until: float = 0.0

    def add(self, nbytes: int, seconds: float) -> None:
        """Note a copy."""
        self.count += 1
        self.nbytes += nbytes
        self.seconds += seconds

    def span(self, nbytes: int, begin: float, end: float) -> None:
        """Note a copy that others may have run beside: time that was counted for them is not counted again."""
        self.add(nbytes, max(0.0, end - max(begin, self._until)))
        self._until = max(self._until, end)

    @property
    def speed(self) -> float | None:
        """Bytes a second; None before enough was copied."""
        enough = self.count >= ENOUGH_COPIES and self.nbytes >= ENOUGH_BYTES and self.seconds > 0
        return self.nbytes / self.seconds if enough else None


class Contents:
    """The tensors. Whoever calls holds the stack's lock.

    What lies on a level is a tensor in the memory of its device, or a stretch of its file. Between the two, a tensor
    may be on its way from a file (`Arriving`), and a tensor that belongs into a file may be in the host's memory: for
    a moment where the file is full, and for good where it could not be written back. Nothing is ever nowhere.

    Args:
        tiers: the levels.
        levels: the record of what lies where, which is kept right with every move.
    """

    def __init__(self, tiers: Sequence[Tier], levels: Levels) -> None:
        self.tiers, self.levels = tiers, levels
        self.disks = [None if each.folder is None else DiskLevel(each.folder, each.capacity) for each in tiers]
        self.kept: dict[Hashable, torch.Tensor | Stored | Arriving] = {}
        self.brought = [Copied() for _ in tiers]
        """Into the memory of each level; for one on a disk, read from it."""
        self.written = [Copied() for _ in tiers]
        """To each level on a disk."""
        self._from: dict[Hashable, int] = {}  # of what is on its way, the level that it comes from

    # Tensors

    def take(self, tensor: torch.Tensor, level: int) -> torch.Tensor | Stored:
        """A tensor as it is kept on a level: the same object where that holds no more than it counts."""
        if self.disks[level] is not None:
            return self._write(tensor, level)
        if tensor.device != self._device(level).torch_device:
            return self._copied(tensor, devices.get(tensor.device), level)
        if tensor.untyped_storage().nbytes() <= tensor.nbytes:
            return tensor
        with torch.inference_mode(False):
            return tensor.clone()

    def put(self, key: Hashable, kept: torch.Tensor | Stored) -> None:
        """Keep this under a key, in place of what was there."""
        self.drop(key)
        self.kept[key] = kept

    def drop(self, key: Hashable) -> None:
        """Let go of what is kept under a key, if something is."""
        kept = self.kept.pop(key, None)
        level = self._from.pop(key, None) if isinstance(kept, Arriving) else self.levels.level_of(key)
        disk = None if level is None else self.disks[level]
        if disk is not None and not isinstance(kept, torch.Tensor | None):
            disk.release(kept.stored if isinstance(kept, Arriving) else kept)

    def value(self, key: Hashable) -> torch.Tensor:
        """A tensor where it is; from a file, a copy in the host's memory that is the caller's own.

        Raises:
            TierReadError: it cannot be read.
        """
        self.settle(key)
        kept = self.kept[key]
        if isinstance(kept, Stored):
            level = self.levels.level_of(key)
            assert level is not None
            return self._read(kept, level, devices.get("cpu"))
        assert isinstance(kept, torch.Tensor)
        return kept

    # Moves

    def shift(self, move: Move, *, ahead: bool = False) -> None:
        """Make a move.

        Args:
            move: the move.
            ahead: where it is from a file to memory, return before it has ended.
        """
        key, source, target = move.key, move.source, move.target
        self.settle(key)
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

    def settle(self, key: Hashable) -> None:
        """Return when a tensor that is on its way is there.

        Raises:
            TierReadError: it cannot be read; it lies in its file as before.
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

    def settle_ended(self) -> None:
        """Note what has arrived meanwhile.

        Raises:
            TierReadError: something could not be read.
        """
        for key in list(self._from):
            kept = self.kept[key]
            if isinstance(kept, Arriving) and kept.load.done:
                self.settle(key)

    def lift(self, key: Hashable, moves: Sequence[Move], nbytes: int = 0) -> None:
        """Take a tensor out of its file first, where that is full of it and has no room for what takes its place.

        Args:
            key: the tensor that is moved up or replaced.
            moves: what is moved before it.
            nbytes: what takes its own place, in whole blocks.
        """
        level, kept = self.levels.level_of(key), self.kept.get(key)
        disk = None if level is None else self.disks[level]
        if disk is None or level is None or not isinstance(kept, Stored):
            return
        needed = nbytes + sum(self.levels.taken_by(level, each.nbytes) for each in moves if each.target == level)
        if needed and disk.used + needed > disk.capacity:
            for other in list(self._from):
                self.settle(other)
            self.kept[key] = self._read(kept, level, devices.get("cpu"))
            disk.release(kept)

    def lower(self, key: Hashable) -> None:
        """Bring a tensor that was taken out of its file back into it; it stays in memory where that fails."""
        level, kept = self.levels.level_of(key), self.kept.get(key)
        if level is not None and self.disks[level] is not None and isinstance(kept, torch.Tensor):
            try:
                self.kept[key] = self._write(kept, level)
            except (TierError, TierCapacityError):
                pass  # the error that led here is told

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
        """The tensor in the memory of a level, all work on it done, so that any stream and thread may go on with it."""
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
            for key in list(self._from):  # what has arrived gives its room back
                self.settle(key)
            stored, seconds = disk.write(tensor, device)
        self.written[level].add(stored.nbytes, seconds)
        return stored
