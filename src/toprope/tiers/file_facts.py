"""What the system tells about files: which parts lie in its page cache, and where in memory direct reads may go."""

from __future__ import annotations

import ctypes
import mmap
import sys
from ctypes import c_char_p, c_int, c_long, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

__all__ = ["all_cached", "direct_memory_alignment"]

_CACHESTAT = 451
"""The system call's number, the same on every architecture; Linux 6.5 and later."""

_AT_EMPTY_PATH, _DIO_ALIGN = 0x1000, 0x2000  # of linux/fcntl.h and linux/stat.h
_STATX_BYTES, _MEMORY_ALIGNMENT = 256, 152  # of struct statx, and where stx_dio_mem_align is in it

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
    """Whether all of a part of a file lies in the page cache; False where the system does not tell.

    Args:
        descriptor: of the file, which is open for reading.
        offset: from the start of the file.
        nbytes: how many, at least one.
    """
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    length = offset + nbytes - start
    pages = -(-length // mmap.PAGESIZE)
    counts = _Counts()
    if _libc().syscall(_CACHESTAT, descriptor, _Range(start, length), counts, 0) == 0:
        return bool(counts.cached >= pages)
    return _all_in_core(descriptor, start, length, pages)


def direct_memory_alignment(descriptor: int) -> int | None:
    """Bytes whose multiples the memory of direct reads of a file has to begin at; None where the system does not tell.

    It is 4 for many disks, 512 for others; Linux tells it since 6.1.
    """
    told = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        if _libc().statx(descriptor, b"", _AT_EMPTY_PATH, _DIO_ALIGN, told):
            return None
    except AttributeError:  # a C library without it
        return None
    mask, alignment = (int.from_bytes(told.raw[at : at + 4], sys.byteorder) for at in (0, _MEMORY_ALIGNMENT))
    return alignment if mask & _DIO_ALIGN and alignment else None


def _all_in_core(descriptor: int, start: int, length: int, pages: int) -> bool:
    """The same from older systems, which have to map it first: other threads wait for that."""
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
