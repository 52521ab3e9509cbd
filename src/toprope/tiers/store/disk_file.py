"""Files that weights are read from, past the page cache or from it, and facts about folders and their disks.

The lowest layer of `tiers.store`: all reads of weights end here; stacks and modes ask it about folders. A file is
identified by its inode, size and time of change; a file that has changed since it was opened is not read. Fixed by
Linux: direct reads (O_DIRECT) need offsets, lengths and addresses that are multiples of the disk's blocks, so other
reads go through a worker's buffer; calls that Python lacks (statx, cachestat, mincore) are made by ctypes with their
numbers and structures, and an older kernel may lack them too. Tests: tests/tiers/test_tiers_stores.py,
tests/tiers/test_tiers_stack_disk.py, tests/tiers/test_tiers_files.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from ctypes import c_char_p, c_int, c_long, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from toprope.errors import TierChangedError, TierReadError, UsageError
from toprope.tiers.store import disk_file as file_facts
from toprope.tiers.store.memory import as_buffer, move

__all__ = [
    "BLOCK",
    "Buffer",
    "DiskFile",
    "all_cached",
    "can_be_written",
    "check_folder",
    "direct_memory_alignment",
    "file_system",
    "free_on_disk",
    "is_memory",
]

_CACHESTAT = 451
"""Number of the system call cachestat, the same on every architecture; Linux 6.5 and later."""

_AT_EMPTY_PATH, _DIO_ALIGN = 0x1000, 0x2000  # of linux/fcntl.h and linux/stat.h
_STATX_BYTES, _MEMORY_ALIGNMENT = 256, 152  # size of struct statx, offset of stx_dio_mem_align in it

_FAILED = 2 ** (8 * ctypes.sizeof(c_void_p)) - 1


class _Range(ctypes.Structure):
    _fields_ = (("offset", c_uint64), ("length", c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = (
        ("cached", c_uint64),
        ("dirty", c_uint64),
        ("writeback", c_uint64),
        ("evicted", c_uint64),
        ("recently_evicted", c_uint64),
    )


def all_cached(descriptor: int, offset: int, nbytes: int) -> bool:
    """True if all of a part of a file is in the page cache; False if the system does not report it.

    Args:
        descriptor: descriptor of the file, which is open for reading.
        offset: offset in the file.
        nbytes: number of bytes, at least one.
    """
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    length = offset + nbytes - start
    pages = -(-length // mmap.PAGESIZE)
    counts = _Counts()
    if _libc().syscall(_CACHESTAT, descriptor, _Range(start, length), counts, 0) == 0:
        return bool(counts.cached >= pages)
    return _all_in_core(descriptor, start, length, pages)


def direct_memory_alignment(descriptor: int) -> int | None:
    """Alignment in bytes that direct reads of a file need in memory; None if the system does not report it.

    It is 4 for many disks, 512 for others; Linux reports it since 6.1.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        if _libc().statx(descriptor, b"", _AT_EMPTY_PATH, _DIO_ALIGN, buffer):
            return None
    except AttributeError:  # a C library without it
        return None
    mask, alignment = (int.from_bytes(buffer.raw[at : at + 4], sys.byteorder) for at in (0, _MEMORY_ALIGNMENT))
    return alignment if mask & _DIO_ALIGN and alignment else None


def _all_in_core(descriptor: int, start: int, length: int, pages: int) -> bool:
    """`all_cached` for older systems, which have to map the file first; other threads wait for that."""
    libc = _libc()
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, start)
    if address in (None, _FAILED):
        return False
    there = ctypes.create_string_buffer(pages)
    try:
        if libc.mincore(address, length, there):
            return False
    finally:
        libc.munmap(address, length)
    # The lowest bit of each byte; the others are not defined, and are 0 in Linux.
    return there.raw.count(b"\0") == 0


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = c_void_p
    libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
    libc.mincore.argtypes = [c_void_p, c_size_t, c_char_p]
    libc.munmap.argtypes = [c_void_p, c_size_t]
    libc.syscall.restype = c_long
    libc.syscall.argtypes = [c_long, c_uint, ctypes.POINTER(_Range), ctypes.POINTER(_Counts), c_uint]
    return libc


BLOCK = 4096
"""Block size in bytes to which direct reads and writes are rounded, unless the disk is known to take less."""


class Buffer:
    """Page-aligned memory of a worker, for reads that cannot go directly into their target.

    Args:
        address: its address.
        nbytes: its size.
        keep: owner of the memory, which must stay alive.
    """

    def __init__(self, address: int, nbytes: int, keep: object) -> None:
        self.address, self.nbytes, self._keep = address, nbytes, keep
        self.view = as_buffer(address, nbytes)


class DiskFile:
    """A file that weights are read from.

    Args:
        path: its path, for errors and to check that it is still the same file.
        descriptor: for a file that has no name any more, its open descriptor, which is closed with this object.

    Raises:
        TierReadError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], descriptor: int | None = None) -> None:
        self.path = Path(path)
        self.named = descriptor is None
        self._plain = self._direct = -1
        try:
            self._plain = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC) if descriptor is None else descriptor
            status = os.fstat(self._plain)
        except OSError as error:
            raise self._read_error(error) from error
        self.size = status.st_size
        self._identity = status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns
        # The system reports only to an owner which pages of a file are in memory.
        self._reports_cached = status.st_uid == os.geteuid() or os.geteuid() == 0 or os.access(self._plain, os.W_OK)
        self.block = BLOCK
        self._open_direct()
        self.memory_block = min(self.block, file_facts.direct_memory_alignment(self._plain) or self.block)

    @property
    def direct(self) -> bool:
        """True if reads can go past the page cache."""
        return self._direct >= 0

    def _open_direct(self) -> None:
        try:
            self._direct = os.open(f"/proc/self/fd/{self._plain}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return
        with mmap.mmap(-1, 4 * BLOCK) as area:
            view = memoryview(area)
            for block in (512, BLOCK):
                try:
                    os.preadv(self._direct, [view[block : 2 * block]], 0)
                except OSError:
                    continue
                finally:
                    self.block = block
                view.release()
                return
            view.release()
        os.close(self._direct)
        self._direct = -1

    def check(self) -> None:
        """Raise if the file has changed since it was opened.

        Raises:
            TierChangedError: it was written to, replaced or removed.
        """
        if not self.named:
            return
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise TierChangedError(
                f"{self.path.name} is gone: {error.strerror}.",
                looked_at=str(self.path),
                do="put it back, or attach the model again",
            ) from error
        now = status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns
        if now != self._identity:
            change = f"size {self._identity[2]}, now {now[2]}"
            if now[2] == self._identity[2]:
                change = "another file" if now[:2] != self._identity[:2] else "its time of change"
            raise TierChangedError(
                f"{self.path.name} has changed since the model was attached.",
                looked_at=f"{self.path}: {change}",
                do="attach the model again",
            )

    def cached(self, offset: int, nbytes: int) -> bool:
        """True if all of a part of the file is in the page cache."""
        if not self._reports_cached or nbytes <= 0:
            return False
        return file_facts.all_cached(self._plain, offset, nbytes)

    def read(self, offset: int, nbytes: int, target: int, buffer: Buffer) -> tuple[int, bool]:
        """Read into the host's memory.

        Args:
            offset: offset in the file.
            nbytes: number of bytes; rounded up to blocks, they must fit into the buffer.
            target: address to read to.
            buffer: buffer of this thread.

        Returns:
            Bytes that were read from the disk; True if they went past the page cache.

        Raises:
            TierReadError: the disk has an error, or the file is too short.
            TierChangedError: the file is too short because it has changed.
        """
        if not nbytes:
            return 0, False
        try:
            if not self.direct or self.cached(offset, nbytes):
                was_cached = self.direct
                self._fill(self._plain, [as_buffer(target, nbytes)], offset, nbytes)
                if not was_cached:
                    os.posix_fadvise(self._plain, offset, nbytes, os.POSIX_FADV_DONTNEED)
                return (0 if was_cached else nbytes), False
            return self._read_direct(offset, nbytes, target, buffer), True
        except OSError as error:
            raise self._read_error(error, offset, nbytes) from error

    def _read_direct(self, offset: int, nbytes: int, target: int, buffer: Buffer) -> int:
        block = self.block
        start, stop = offset // block * block, -(-(offset + nbytes) // block) * block
        if (target - offset) % self.memory_block == 0 and nbytes >= 4 * block:
            # Whole blocks are read into the target; the rests at both ends go through the buffer, in the same request.
            first, last = -(-offset // block) * block, (offset + nbytes) // block * block
            views = [as_buffer(target + first - offset, last - first)]
            if first > offset:
                views.insert(0, buffer.view[:block])
            if last < stop:
                views.append(buffer.view[block : 2 * block])
            self._fill(self._direct, views, start, offset + nbytes - start)
            if first > offset:
                move(target, buffer.address + offset - start, first - offset)
            if last < stop:
                move(target + last - offset, buffer.address + block, offset + nbytes - last)
            return stop - start
        self._fill(self._direct, [buffer.view[: stop - start]], start, offset + nbytes - start)
        move(target, buffer.address + offset - start, nbytes)
        return stop - start

    def read_aside(self, offset: int, nbytes: int, buffer: Buffer) -> tuple[int, int, bool]:
        """Read into the buffer, from which the caller copies the bytes elsewhere.

        Returns:
            Offset of the bytes in the buffer; bytes that were read from the disk; True if past the page cache.

        Raises:
            TierReadError: as for `read`.
        """
        if not self.direct or self.cached(offset, nbytes):
            return (0, *self.read(offset, nbytes, buffer.address, buffer))
        start, stop = offset // self.block * self.block, -(-(offset + nbytes) // self.block) * self.block
        try:
            self._fill(self._direct, [buffer.view[: stop - start]], start, offset + nbytes - start)
        except OSError as error:
            raise self._read_error(error, offset, nbytes) from error
        return offset - start, stop - start, True

    def _fill(self, descriptor: int, views: list[memoryview], offset: int, least: int) -> None:
        """Read into one view after another until `least` bytes were read."""
        got = 0
        while got < least:
            count = os.preadv(descriptor, _without_first(views, got) if got else views, offset + got)
            # A direct read that ends within a block is at the end of the file.
            if count <= 0 or (got + count < least and descriptor == self._direct and count % self.block):
                # Reads ahead of use may find a change of the file before `check` is called.
                self.check()
                raise TierReadError(
                    f"{self.path.name} ends before the weights that should be in it.",
                    looked_at=f"{self.path}: at byte {offset + got}; it had {self.size}",
                    do="check that nobody writes to it, or download it again",
                )
            got += count

    def _read_error(self, error: OSError, offset: int = 0, nbytes: int = 0) -> TierReadError:
        return TierReadError(
            f"{self.path.name} cannot be read: {error.strerror}.",
            looked_at=f"{self.path}" + (f", bytes {offset} to {offset + nbytes}" if nbytes else ""),
            do="check the disk" if nbytes else "check the path and the rights",
        )

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        for descriptor in (self._plain, self._direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._plain = self._direct = -1


def _without_first(views: list[memoryview], nbytes: int) -> list[memoryview]:
    """The views without the first `nbytes` bytes."""
    left = []
    for view in views:
        if nbytes < len(view):
            left.append(view[nbytes:] if nbytes else view)
        nbytes = max(0, nbytes - len(view))
    return left


def check_folder(folder: Path) -> None:
    """Refuse a folder in which no file can be made.

    Raises:
        UsageError: it is not there, or cannot be written.
    """
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why = "cannot be written" if folder.is_dir() else "is not there" if not folder.exists() else "is no folder"
        raise UsageError(
            f"the stack's level on the disk needs a folder, and {folder} {why}.",
            do="name a folder that is there and can be written",
        )


def _nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest existing one above it."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())


def free_on_disk(folder: Path) -> int:
    """Free bytes of a folder's disk for this user."""
    status = os.statvfs(_nearest_existing(folder))
    return status.f_bavail * status.f_frsize


def can_be_written(folder: Path) -> bool:
    """True if a file can be made in a folder, or, if the folder does not exist, the folder can be made."""
    return os.access(_nearest_existing(folder), os.W_OK | os.X_OK)


def is_memory(folder: Path) -> bool:
    """True if files in a folder are in memory (tmpfs), not on a disk."""
    device = file_system(folder)
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    kinds = (line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2] == name)
    return next(kinds, "") in ("tmpfs", "ramfs")


def file_system(folder: Path) -> int:
    """Device number of the file system that a folder is on."""
    return os.stat(_nearest_existing(folder)).st_dev
