"""The level of a stack on a disk: tensors are parts of one file, written and read past the page cache.

`stack.contents` calls it. The file is made with the first tensor. It has a name, so that users see what takes the
disk's room, and is locked as long as its stack lives: a process that makes such a file removes unlocked ones, which
kill -9 may leave. Other processes, also of older releases, go by that name and lock: both stay. Tests:
tests/tiers/test_tiers_stack_disk.py.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch

from toprope.device import Device
from toprope.tiers.store.chunks import StageChunk, write_failed
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.spill import SpillFile, pieces
from toprope.tiers.store.transfer import Load, Transfers, queued

__all__ = ["Arriving", "DiskLevel", "Stored"]

NAME = "toprope-stack-"


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in the file: its parts, each an offset and a number of bytes, and its dtype, shape and strides."""

    parts: tuple[tuple[int, int], ...]
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Arriving:
    """A tensor that is being read; its place in the file, `stored`, is kept until it is there."""

    tensor: torch.Tensor
    stored: Stored
    load: Load
    disk: DiskLevel


class _Held:
    """Resources of a level that must be released at the end: the file, its name and the threads."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.file: SpillFile | None = None
        self.path: Path | None = None
        self.transfers: dict[Device | None, Transfers] = {}

    def close(self) -> None:
        if os.getpid() != self.process:
            return  # in a forked process: the file belongs to its parent
        path, self.path = self.path, None
        if path is not None:
            path.unlink(missing_ok=True)
        for each in self.transfers.values():
            each.close()
        self.transfers.clear()
        file, self.file = self.file, None
        if file is not None:
            file.close()


class DiskLevel:
    """The level of a stack on a disk: tensors as parts of one file.

    Args:
        folder: folder of the file; created if needed.
        capacity: limit of the tensors' bytes in it, in whole blocks.
    """

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder, self.capacity = folder, capacity
        self._held = _Held()
        self._finalizer = weakref.finalize(self, self._held.close)

    @property
    def used(self) -> int:
        """Bytes in use in the file."""
        return 0 if self._held.file is None else self._held.file.used

    @property
    def path(self) -> Path | None:
        """The file; None before the first tensor, or if the file system allowed no name."""
        return self._held.path

    def write(self, tensor: torch.Tensor, device: Device) -> tuple[Stored, float]:
        """Write a tensor, and return when it is in the file; operators on it must have ended before.

        Args:
            tensor: a dense tensor.
            device: its device.

        Returns:
            Its place in the file, and the seconds that writing took.

        Raises:
            TierCapacityError: the file, or the disk, has no room for it.
            TierWriteError: the disk cannot be written.
        """
        tensor = _plain(tensor)
        source = Memory.of(tensor)
        file = self._file()
        parts = tuple(file.take_parts(source.nbytes))
        stored = Stored(parts, source.nbytes, tensor.dtype, tensor.shape, tensor.stride())
        chunks = [StageChunk(file, offset, source.part(start, stop)) for offset, start, stop in pieces(parts)]
        load = Load("a tensor to the disk", chunks)
        try:
            self._transfers(device).begin(load, urgent=True)
        except BaseException:
            self.release(stored)
            raise
        try:
            load.wait()
        except BaseException as error:  # chunks that are being written are completed, the others are not begun
            load.error = load.error or error
            load.then(lambda _: self.release(stored))
            raise
        return stored, max(0.0, load.end - load.begin)

    def read(self, stored: Stored, device: Device, *, urgent: bool) -> Arriving:
        """Begin to read a tensor into memory of a device.

        Raises:
            torch.OutOfMemoryError: the device has no memory for it.
            TierError: the level is closed, or the process was forked.
        """
        with torch.inference_mode(False), torch.no_grad():
            made = torch.empty_strided(stored.shape, stored.stride, dtype=stored.dtype, device=device.torch_device)
        target = Memory.of(made)
        after = queued(device if target.address is None else None)
        file = self._file()
        chunks = file.reads(stored.parts, target)
        load = Load("a tensor from the disk", chunks, after)
        if chunks:
            self._transfers(device).begin(load, urgent=urgent)
        return Arriving(made, stored, load, self)

    def wait(self, arriving: Arriving, device: Device) -> None:
        """Wait until a tensor was read.

        Raises:
            TierReadError: it cannot be read.
        """
        if not arriving.load.done:
            self._transfers(device).hasten(arriving.load)
        arriving.load.wait()

    def release(self, stored: Stored) -> None:
        """Free a tensor's parts of the file."""
        if self._held.file is not None:
            self._held.file.give_parts_back(stored.parts)

    def close(self) -> None:
        """Delete the file, and end the threads. Calling it again does nothing."""
        self._finalizer()

    def _transfers(self, device: Device) -> Transfers:
        moving = device if device.capabilities.separate_memory else None
        found = self._held.transfers.get(moving)
        if found is None:
            found = self._held.transfers[moving] = Transfers(moving)
        return found

    def _file(self) -> SpillFile:
        if self._held.file is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise write_failed(error, str(self.folder)) from error
            _remove_left(self.folder)
            self._held.file = file = SpillFile(self.folder, self.capacity)
            self._held.path = path = _name(file)
            if path is not None:
                file.file.path = path  # for error messages
        return self._held.file


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with resolved conjugation and negation, and without gaps in memory."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    return tensor if dense else tensor.contiguous()


def _name(file: SpillFile) -> Path | None:
    """Lock the file, then give it a name; None if the file system cannot, then it goes with the process."""
    path = file.folder / f"{NAME}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = os.open(file.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # follow_symlinks has an effect only with dir_fd
            os.link(f"/proc/self/fd/{file.descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)
    except OSError:
        return None
    return path


def _remove_left(folder: Path) -> None:
    """Remove files of stacks whose process was killed."""
    for path in folder.glob(f"{NAME}*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another user's, or removed in the meantime
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except OSError:  # locked: its stack lives
            pass
        finally:
            os.close(descriptor)
