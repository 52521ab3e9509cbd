"""Errors that say that memory ran out, processes that hold it, and the host's own memory.

Used by `base`, `cpu` and `probing`, and by `tiers`, which needs the same answers. The texts that mean "out of memory"
are those of torch, torch_npu and the vendor's codes; files and their units are Linux's (/proc, cgroup 2). Tests:
tests/device/test_device_cpu.py, tests/device/test_device_probing.py (`needs_memory`).
"""

from __future__ import annotations

import ctypes
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from toprope.errors import DeviceFullError
from toprope.sizes import gibibytes

__all__ = ["HasMemory", "HostMemory", "MachineMemory", "is_out_of_memory", "needs_memory"]

# Texts of RuntimeError from torch, torch_npu and the vendors' runtimes. 207005 and 207008, of which the first is
# printed as "storage space", are about streams: a smaller batch does not help against them.
_TEXTS = re.compile(
    r"\bout of memory\b"
    r"|error code is (?:207001|200000)\b"
    r"|\bEL0004\b"
    r"|CU(?:BLAS|DNN|FFT|SPARSE|SOLVER)_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|\[enforce fail at alloc_cpu\.cpp",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error, or the one it was raised from, says that memory ran out: of an NPU, a GPU or the host.

    Example:
        >>> is_out_of_memory(RuntimeError("NPU out of memory. Tried to allocate 3.47 GiB"))
        True
        >>> is_out_of_memory(RuntimeError("shapes do not match"))
        False
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, MemoryError | DeviceFullError) or type(at).__name__ == "OutOfMemoryError":
            return True
        if isinstance(at, RuntimeError) and _TEXTS.search(str(at)):
            return True
        at = at.__cause__
    return False


class HasMemory(Protocol):
    """The part of `toprope.device.Device` that reports memory."""

    def memory(self) -> Any: ...  # noqa: D102
    def holders(self) -> tuple[str, ...]: ...  # noqa: D102
    def is_out_of_memory(self, error: BaseException) -> bool: ...  # noqa: D102


@contextmanager
def needs_memory(device: HasMemory, doing: str) -> Iterator[None]:
    """Context manager: out-of-memory errors become an error that names the holders of the device's memory.

    Args:
        device: whose memory is needed.
        doing: what for, after "has no memory left to".

    Raises:
        DeviceFullError: raised from the error that said that memory ran out.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, DeviceFullError) or not device.is_out_of_memory(error):
            raise
        facts: list[str] = []
        with suppress(Exception):  # a device without memory may refuse these questions too
            found = device.memory()
            if found.free is not None and found.total is not None:
                facts.append(f"{gibibytes(found.free)} of {gibibytes(found.total)} free")
            held = found.allocated if found.reserved is None else found.reserved
            facts += [f"this process holds {gibibytes(held)}"] if held is not None else []
            facts += device.holders()
        raise DeviceFullError(
            f"{device} has no memory left to {doing}.",
            looked_at="; ".join(facts),
            do="end the processes that hold it, use another device, or hold less in this process",
        ) from error


class MachineMemory(NamedTuple):
    """The memory of the whole machine in bytes, whatever a container allows of it.

    Attributes:
        total: its size.
        used: what is in use, without what the system would give up at need.
        available: what programs could still get.
    """

    total: int
    used: int
    available: int


class HostMemory:
    """The memory of the host as this process can use it. Figures in bytes.

    Args:
        root: where /proc and /sys are; another folder in tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def resident(self) -> int:
        """Memory that the process holds, pages of mapped files included."""
        import psutil

        return int(psutil.Process().memory_info().rss)

    def peak(self) -> int:
        """The most that it held since its start or since `reset_peak`."""
        for line in self._lines("proc/self/status"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def reset_peak(self) -> None:
        """Reset `peak`; nothing happens where the system does not allow it."""
        try:
            (self._root / "proc/self/clear_refs").write_text("5")
        except OSError:
            pass

    def free_and_total(self) -> tuple[int, int]:
        """Memory that is free, and the whole size; of the container if its limit is less than the machine has."""
        import psutil

        machine = psutil.virtual_memory()
        free, total = int(machine.available), int(machine.total)
        limit = self._number("sys/fs/cgroup/memory.max")
        if limit is None or limit >= total:
            return free, total
        used = self._number("sys/fs/cgroup/memory.current") or 0
        given_back_at_need = 0
        for line in self._lines("sys/fs/cgroup/memory.stat"):
            if line.startswith("inactive_file "):
                given_back_at_need = int(line.split()[1])
        return max(0, min(free, limit - used + given_back_at_need)), limit

    def machine(self) -> MachineMemory:
        """The memory of the whole machine: by psutil, or from /proc/meminfo where psutil cannot be imported.

        Raises:
            OSError: neither tells it.
        """
        try:
            import psutil
        except Exception:  # whatever a broken installation raises
            rows = (line.partition(":") for line in self._lines("proc/meminfo"))
            kibibytes = {name: int(rest.split()[0]) for name, _, rest in rows}
            if not {"MemTotal", "MemAvailable"} <= kibibytes.keys():
                raise OSError("psutil cannot be imported, and /proc/meminfo does not tell the memory") from None
            total, available = kibibytes["MemTotal"] * 1024, kibibytes["MemAvailable"] * 1024
            return MachineMemory(total, total - available, available)
        found = psutil.virtual_memory()
        return MachineMemory(int(found.total), int(found.used), int(found.available))

    @staticmethod
    def trim() -> None:
        """Give the system back what the C library keeps of freed memory; nothing happens where it has no such call.

        glibc keeps what small tensors leave, for the next ones; one block in use holds back all that lies below it.
        """
        try:
            give_back = ctypes.CDLL(None).malloc_trim  # malloc_trim(3) of glibc; musl and macOS have none
        except (AttributeError, OSError):
            return
        give_back(ctypes.c_size_t(0))

    def _lines(self, path: str) -> list[str]:
        try:
            return (self._root / path).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    def _number(self, path: str) -> int | None:
        lines = self._lines(path)
        return int(lines[0]) if lines and lines[0].isdigit() else None
