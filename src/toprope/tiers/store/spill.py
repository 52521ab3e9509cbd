"""Spill file: an unnamed file for tensors that do not fit into memory. It is deleted whenever the process ends.

`SpillFile` has weights (made by `engine.migrate`) and the levels of stacks on a disk; `SpillStore` is a store of
`tiers.training` on such a file, which writes in the background. The file never becomes longer than its capacity; an
error of a write in the background is raised by the next call, and the tensor is still readable until then. Sizes at the
top are free. Tests: tests/tiers/test_tiers_stores.py, tests/tiers/test_tiers_stack_disk.py,
tests/tiers/test_tiers_benchmark.py.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from toprope.device import Device
from toprope.errors import TierCapacityError
from toprope.sizes import gibibytes
from toprope.tiers.store.base import Done, Pending
from toprope.tiers.store.chunks import ReadChunk, WriteChunk, cut, write_failed
from toprope.tiers.store.disk_file import BLOCK, DiskFile
from toprope.tiers.store.free_list import Extents
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.transfer import Load, Transfers, queued

__all__ = ["Fetched", "SpillFile", "SpillStore", "pieces"]

_GROW = 64 * 2**20
"""Bytes by which the file grows."""

_STAGED = 64 * 2**20
_MOST_SPARE = 128 * 2**20


class SpillFile:
    """An unnamed file and the allocation of its parts.

    Args:
        folder: its folder.
        capacity: limit of its bytes.

    Raises:
        TierWriteError: no file can be made in the folder.
    """

    def __init__(self, folder: str | os.PathLike[str], capacity: int) -> None:
        self.folder, self.capacity = Path(folder), capacity
        try:
            self.descriptor = _open_unnamed(self.folder)
        except OSError as error:
            raise write_failed(error, str(folder)) from error
        self.file = DiskFile(self.folder / "(unnamed)", self.descriptor)
        try:
            self._direct = os.open(f"/proc/self/fd/{self.descriptor}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            self._direct = -1
        self._extents = Extents(BLOCK)
        self.peak = 0
        """Peak of the bytes in use."""
        self._size = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._extents.used

    def take(self, nbytes: int) -> int:
        """Allocate a part, and return its offset.

        Raises:
            TierCapacityError: there is no room in its capacity, or on the disk.
        """
        with self._lock:
            self._check_room(nbytes)
            return self._take(nbytes)

    def take_parts(self, nbytes: int) -> list[tuple[int, int]]:
        """Allocate this many bytes in one part, or in several if no free part is long enough.

        So the file never becomes longer than its capacity.

        Returns:
            Offset and bytes of each part.

        Raises:
            TierCapacityError: there is no room in its capacity, or on the disk.
        """
        with self._lock:
            self._check_room(nbytes)
            parts: list[tuple[int, int]] = []
            try:
                while nbytes or not parts:
                    piece = min(nbytes, self._extents.together(self.capacity)) if nbytes else 0
                    parts.append((self._take(piece), piece))
                    nbytes -= piece
            except TierCapacityError:
                for offset, piece in parts:
                    self._extents.give_back(offset, piece)
                raise
            return parts

    def _check_room(self, nbytes: int) -> None:
        if self._extents.used + self._extents.rounded(nbytes) > self.capacity:
            raise TierCapacityError(
                f"the disk's budget has no room for {gibibytes(nbytes)}.",
                looked_at=f"{gibibytes(self.used)} of {gibibytes(self.capacity)} are used",
                do="give a larger one",
            )

    def _take(self, nbytes: int) -> int:
        offset = self._extents.take(nbytes)
        if self._extents.end > self._size:
            try:
                disk = os.fstatvfs(self.descriptor)  # leave room to other programs
                ahead = min(_GROW, disk.f_bavail * disk.f_frsize // 8)
                grown = max(self._extents.end, min(self._size + ahead, self.capacity))
                try:
                    os.posix_fallocate(self.descriptor, self._size, grown - self._size)
                except OSError:
                    grown = self._extents.end
                    os.posix_fallocate(self.descriptor, self._size, grown - self._size)
                self._size = grown
            except OSError as error:
                self._extents.give_back(offset, nbytes)
                raise write_failed(error, str(self.folder)) from error
        self.peak = max(self.peak, self._extents.used)
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        """Free a part."""
        with self._lock:
            self._extents.give_back(offset, nbytes)

    def give_parts_back(self, parts: Sequence[tuple[int, int]]) -> None:
        """Free several parts."""
        for offset, nbytes in parts:
            self.give_back(offset, nbytes)

    def reads(self, parts: Sequence[tuple[int, int]], target: Memory) -> list[ReadChunk]:
        """Chunks that read parts into consecutive memory."""
        return [
            ReadChunk(self.file, offset, stop - start, target.part(start, stop))
            for offset, start, stop in pieces(parts)
        ]

    def writes(self, offset: int, source: Memory) -> list[WriteChunk]:
        """Chunks that write memory, rounded up to whole blocks, to a part."""
        direct = self._direct >= 0
        descriptor = self._direct if direct else self.descriptor
        return [
            WriteChunk(descriptor, offset + start, source.part(start, stop), direct=direct, where=str(self.folder))
            for start, stop in cut(source.nbytes)
        ]

    def __del__(self) -> None:
        if hasattr(self, "_direct"):
            self.close()

    def close(self) -> None:
        """Close the file, which deletes it."""
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = -1
        self.file.close()


def pieces(parts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Cut parts into pieces for one request each: offset in the file, begin and end in memory."""
    before = 0
    for offset, nbytes in parts:
        for start, stop in cut(nbytes):
            yield offset + start, before + start, before + stop
        before += nbytes


def _open_unnamed(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (21, 22, 95):  # EISDIR, EINVAL, EOPNOTSUPP: no such file in this file system
            raise
    descriptor, name = tempfile.mkstemp(prefix="toprope-", dir=folder)
    os.unlink(name)
    fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return descriptor


class Fetched:
    """A load into a device's memory, which the current stream waits for."""

    def __init__(self, load: Load, device: Device | None, transfers: Transfers | None = None) -> None:
        self.load, self._device, self._transfers = load, device, transfers

    def wait(self) -> None:
        """Wait for the load, also on the current stream."""
        if self._transfers is not None and not self.load.done:
            self._transfers.hasten(self.load)
        self.load.wait()
        if self._device is not None and self.load.events:
            stream = self._device.current_stream()
            for each in self.load.events:
                stream.wait_event(each)


class _Entry:
    __slots__ = ("load", "nbytes", "parts", "shared", "staged")

    def __init__(self, parts: Sequence[tuple[int, int]], nbytes: int) -> None:
        self.parts, self.nbytes = parts, nbytes
        self.shared = False  # the staged memory is being read
        self.staged: Memory | None = None
        self.load: Load | None = None


class SpillStore:
    """A store of `store.base` in a spill file; writes go on in the background.

    Args:
        folder: folder of the file.
        capacity: limit of its bytes.
        transfers: the threads that write and read.
        device: the tensors' device, if it has its own memory.
        staged: largest number of bytes in memory that wait to be written; a larger tensor is staged as a whole.
        spare: returns the unused bytes of the host's budget, of which up to 128 MiB may be used for staging too.
    """

    name = "disk"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        capacity: int,
        transfers: Transfers,
        device: Device | None = None,
        staged: int = _STAGED,
        spare: Callable[[], int] = lambda: 0,
    ) -> None:
        self.file = SpillFile(folder, capacity)
        self.transfers, self.device, self.capacity = transfers, device, capacity
        self._staged, self._spare = staged, spare
        self._entries: dict[str, _Entry] = {}
        self._writing: list[tuple[Load, int]] = []
        self._free: dict[int, list[Memory]] = {}  # new pages cost more than copies
        self._free_bytes = 0
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._closed = False

    @property
    def used(self) -> int:
        """Bytes in use in the file."""
        return self.file.used

    @property
    def peak(self) -> int:
        """Peak of the bytes in use."""
        return self.file.peak

    def put(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy; it is written to the file in the background."""
        self._raise_background_error()
        source = Memory.of(tensor.detach().contiguous())
        nbytes = source.nbytes
        self._wait_for_room(nbytes)
        entry = _Entry(self.file.take_parts(nbytes), nbytes)
        staged = self._memory(-(-max(nbytes, 1) // BLOCK) * BLOCK)
        begin = time.perf_counter()
        staged.tensor[:nbytes].copy_(source.tensor)
        if self.device is not None:
            self.transfers.clock.copied("device_to_host", nbytes, time.perf_counter() - begin)
        entry.staged = staged
        entry.load = Load(key, [
            chunk
            for offset, start, stop in pieces(entry.parts)
            for chunk in self.file.writes(offset, staged.part(start, stop))
        ])  # fmt: skip
        with self._lock:
            old = self._entries.pop(key, None)
            self._entries[key] = entry
            self._writing.append((entry.load, nbytes))
        if old is not None:
            self._forget(old)
        entry.load.then(lambda load: self._written(entry, load))
        self.transfers.begin(entry.load)

    def _written(self, entry: _Entry, load: Load) -> None:
        with self._lock:
            self._writing = [each for each in self._writing if each[0] is not load]
            if load.error is None:
                memory, entry.staged = entry.staged, None
                held = self._free_bytes + sum(each for _, each in self._writing)
                if memory is not None and not entry.shared and held + memory.nbytes <= self._most_staged():
                    self._free.setdefault(memory.nbytes, []).append(memory)
                    self._free_bytes += memory.nbytes
            else:  # the tensor is still in memory, and can be read
                self._error = self._error or load.error

    def _memory(self, size: int) -> Memory:
        with self._lock:
            same = self._free.get(size)
            if same:
                self._free_bytes -= size
                return same.pop()
            in_use = sum(each for _, each in self._writing)
            most = self._most_staged()
            while self._free_bytes and self._free_bytes + in_use + size > most:
                other, some = next((other, some) for other, some in self._free.items() if some)
                some.pop()
                self._free_bytes -= other
        return Memory.host(size, self.device)

    def _most_staged(self) -> int:
        return max(self._staged, min(_MOST_SPARE, self._spare()))

    def _wait_for_room(self, nbytes: int) -> None:
        while True:
            with self._lock:
                first = self._writing[0][0] if self._writing else None
                staged = sum(each for _, each in self._writing)
            if first is None or staged + nbytes <= self._most_staged():
                return
            self.transfers.hasten(first)
            first.join()

    def read(self, key: str, out: torch.Tensor) -> Pending:
        """Begin to read."""
        self._raise_background_error()
        with self._lock:
            entry = self._entries[key]
            staged = entry.staged
            entry.shared = entry.shared or staged is not None
        target = Memory.of(out)
        if staged is not None:
            begin = time.perf_counter()
            target.tensor.copy_(staged.tensor[: entry.nbytes])
            if self.device is not None:
                self.transfers.clock.copied("host_to_device", entry.nbytes, time.perf_counter() - begin)
            return Done()
        load = Load(key, self.file.reads(entry.parts, target), queued(self.device))
        entry.load = load if entry.load is None or entry.load.done else _after_both(entry.load, load)
        return Fetched(self.transfers.begin(load), self.device, self.transfers)

    def contains(self, key: str) -> bool:
        """True if the store has this key."""
        return key in self._entries

    def drop(self, key: str) -> None:
        """Forget a key; running reads of it are completed."""
        with self._lock:
            entry = self._entries.pop(key)
        self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        if entry.load is None:
            self.file.give_parts_back(entry.parts)
        else:
            entry.load.then(lambda _: self.file.give_parts_back(entry.parts))

    def _raise_background_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def flush(self) -> None:
        """Wait until everything is in the file."""
        with self._lock:
            writing = [each for each, _ in self._writing]
        for each in writing:
            self.transfers.hasten(each)
            each.join()
        self._raise_background_error()

    def close(self) -> None:
        """Close the file, which deletes it."""
        if not self._closed:
            self._closed = True
            with self._lock:
                writing = [each for each, _ in self._writing]
            for each in writing:
                each.join()
            self._entries.clear()
            self._free.clear()
            self.file.close()


def _after_both(first: Load, second: Load) -> Load:
    """A load that ends when both have ended."""
    made = Load(first.label, [], count=2)
    first.then(lambda load: made.finish(load.error))
    second.then(lambda load: made.finish(load.error))
    return made
