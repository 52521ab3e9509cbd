"""Bandwidth between tiers: measured in less than a second each on this machine, else estimates from links.toml.

`attach`, `toprope tiers plan` and the image pipelines give its result to the planner. Not pure: reads a file, copies
memory, copies to a device. Every figure has its source (`Link.word`), and a guess is never called measured.
Measurements while other programs use the same disk or memory are slower; so would be a run at the same time. How is
free, but for direct reads in blocks of 4096 bytes (O_DIRECT). Tests: tests/cli/test_cli_tiers.py,
tests/tiers/test_tiers_full_device.py.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.device.memory import needs_memory
from toprope.tiers.plan.model import Link, Links

if TYPE_CHECKING:
    from toprope.chips import Chip
    from toprope.device import Device

__all__ = ["Speeds", "estimate", "measure", "measure_device", "measure_memory", "measure_read", "measure_write"]

_PIECE = 4 * 2**20  # bytes of a request to the disk
_BLOCK = 4096  # alignment of offsets and lengths for O_DIRECT
_COPY = 32 * 2**20  # bytes of a copy; larger than the caches of most processors
_READERS = 2  # as many as the ring has


@dataclass(frozen=True)
class Speeds:
    """Bandwidths of a machine for a plan.

    Attributes:
        links: the links between the tiers.
        device_memory: the device's own memory, which limits computing with few rows.
    """

    links: Links
    device_memory: Link


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((resources.files("toprope.tiers.plan") / "links.toml").read_text(encoding="utf-8"))


def estimate(name: str) -> Link:
    """Read the estimate of a link that cannot be measured, by its name in links.toml."""
    row = _table()[name]
    return Link(row["gb_per_s"] * 1e9, "estimate", row["source"])


def measure(
    device: Device | None, *, chip: Chip | None = None, model: Path | None = None, disk: Path | None = None
) -> Speeds:
    """Measure the links of this machine.

    Args:
        device: the device of this machine; None if it has none, or if the plan is for a chip.
        chip: the chip that the plan is for; its figures replace those that cannot be measured.
        model: a large file to read for measuring the disk; None for an estimate.
        disk: a folder for a temporary file to measure writing; None for an estimate.
    """
    memory = measure_memory()
    read = estimate("disk_read") if model is None else measure_read(model)
    write = estimate("disk_write") if disk is None else measure_write(disk)
    simulated = device is not None and device.capabilities.simulated
    if device is None or simulated:
        own = estimate("device_memory")
        if chip is not None and chip.memory_gb_per_s is not None:
            own = Link(chip.memory_gb_per_s * 1e9, "profile", f"Ascend {chip.name}")
        there, back = estimate("host_to_device"), estimate("device_to_host")
        return Speeds(Links(there, back, memory, read, write), own)
    if not device.capabilities.separate_memory:
        # A copy moves each byte twice through the memory: it is read and written.
        own = Link(2 * memory.bytes_per_second, memory.word, memory.source)
        return Speeds(Links(memory, memory, memory, read, write, unified=True), own)
    there, back, own = measure_device(device)
    return Speeds(Links(there, back, memory, read, write), own)


def measure_memory(seconds: float = 0.2) -> Link:
    """Measure copies in the host's memory by one thread, in bytes a second."""
    source, target = memoryview(bytearray(os.urandom(2**20) * (_COPY >> 20))), memoryview(bytearray(_COPY))

    def copy() -> None:
        target[:] = source

    return Link(_COPY / _shortest(copy, seconds), "measured", "copies in the host's memory")


def _shortest(work: Callable[[], None], seconds: float) -> float:
    """Shortest time of several runs after a first one, in about this many seconds."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return max(best, 1e-9)


def measure_device(device: Device, seconds: float = 0.2) -> tuple[Link, Link, Link]:
    """Measure host to device, device to host, and the device's own memory (bytes read and written) by copies."""
    import torch

    host = torch.zeros(_COPY, dtype=torch.uint8)
    pinned = device.capabilities.pinned_memory
    if pinned:
        host = host.pin_memory()
    with device.as_current(), needs_memory(device, "measure how fast it copies"):
        first, second = (torch.zeros(_COPY, dtype=torch.uint8, device=device.torch_device) for _ in range(2))

        def timed(target: torch.Tensor, source: torch.Tensor) -> float:
            def copy() -> None:
                target.copy_(source, non_blocking=pinned)
                device.synchronize()

            return _shortest(copy, seconds)

        there, back, own = timed(first, host), timed(host, first), timed(second, first)
    how = f"copies {'from and to pinned memory ' if pinned else ''}on {device}"
    return (
        Link(_COPY / there, "measured", how),
        Link(_COPY / back, "measured", how),
        Link(2 * _COPY / own, "measured", f"copies on {device}"),
    )


def measure_read(file: Path, seconds: float = 0.5) -> Link:
    """Measure reads from a file, past the page cache if the file system can.

    Returns:
        Bytes a second; an estimate for a tiny file, or one with holes.
    """
    try:
        size = file.stat().st_size // _BLOCK * _BLOCK
        if not size:
            return estimate("disk_read")
        descriptor, direct = _open(file)
    except OSError:
        return estimate("disk_read")
    try:
        if os.lseek(descriptor, 0, os.SEEK_HOLE) < size:
            return estimate("disk_read")  # the disk is not read for holes
        moved, took = _read(descriptor, size, seconds)
    finally:
        os.close(descriptor)
    if not moved:
        return estimate("disk_read")
    how = "O_DIRECT" if direct else "through the page cache: the file system has no O_DIRECT"
    return Link(moved / took, "measured", f"{file.name}, {how}")


def _open(file: Path) -> tuple[int, bool]:
    """Open a file for reading; return its descriptor, and True if reads go past the page cache."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    else:
        with mmap.mmap(-1, _BLOCK) as buffer:
            try:
                os.preadv(descriptor, [buffer], 0)
                return descriptor, True
            except OSError:
                os.close(descriptor)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return descriptor, False


def _read(descriptor: int, size: int, seconds: float) -> tuple[int, float]:
    """Read with several threads, each its own part of the file over and over; return bytes and seconds."""
    piece = min(_PIECE, size)
    pieces = size // piece
    readers = min(_READERS, pieces)
    moved = [0] * readers
    start = time.perf_counter()

    def reader(number: int) -> None:
        first, last = pieces * number // readers, pieces * (number + 1) // readers
        at = first
        with mmap.mmap(-1, piece) as buffer:
            while time.perf_counter() - start < seconds:
                try:
                    got = os.preadv(descriptor, [buffer], at * piece)
                except OSError:
                    return
                if got <= 0:
                    return
                moved[number] += got
                at = at + 1 if at + 1 < last else first

    threads = [threading.Thread(target=reader, args=(number,), daemon=True) for number in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(moved), time.perf_counter() - start


def measure_write(folder: Path, seconds: float = 0.3) -> Link:
    """Measure writes to an unnamed temporary file in a folder until they are on the disk, in bytes a second."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return estimate("disk_write")
    try:
        direct = _set_direct(descriptor)
        moved, start = 0, time.perf_counter()
        with mmap.mmap(-1, _PIECE) as buffer:
            buffer.write(os.urandom(_PIECE))
            while time.perf_counter() - start < seconds and moved < 64 * _PIECE:
                moved += os.pwritev(descriptor, [buffer], moved)
        os.fdatasync(descriptor)
        took = time.perf_counter() - start
    except OSError:  # full, or over a quota: the plan reports how much it needs
        return estimate("disk_write")
    finally:
        os.close(descriptor)
    return Link(moved / took, "measured", f"{'O_DIRECT' if direct else 'buffered'} and fdatasync in {folder}")


def _set_direct(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True
