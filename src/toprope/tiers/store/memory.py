"""Memory of the host and of devices, pinned or plain, and tensors without memory.

Used by all of `tiers`: a `Memory` is a range of bytes that loads write to, wherever it is. `free_memory` is public
(`toprope.tiers.free_memory`). `DTYPES` follows the safetensors format; `store.headers.BITS` has the same names for
code without torch. Storages without memory rely on private names of torch (`torch._C`). Tests:
tests/tiers/test_tiers_stores.py, tests/tiers/test_tiers_absent.py, tests/tiers/test_tiers_budget.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from toprope.device import Device

__all__ = [
    "DTYPES",
    "Memory",
    "as_buffer",
    "flat",
    "free_memory",
    "is_dense",
    "move",
    "pinned",
    "placeholder",
    "without_values",
]

PAGE = mmap.PAGESIZE

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "I16": torch.int16, "U16": torch.uint16,
    "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "I64": torch.int64, "U64": torch.uint64, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
"""Dtypes by their names in safetensors files."""


def pinned(nbytes: int, device: Device, *, lasting: bool) -> torch.Tensor:
    """Allocate pinned, page-aligned memory.

    For `lasting` memory, plain memory is registered with the device, which takes time. If that is not possible, torch's
    allocator is used, first without an additional page for alignment, as that could double the memory it takes.
    """
    made = _registered(nbytes, device) if lasting else None
    if made is not None:
        return made
    made = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    if made.data_ptr() % PAGE == 0:
        return made
    made = torch.empty(nbytes + PAGE, dtype=torch.uint8, pin_memory=True)
    return made[-made.data_ptr() % PAGE :][:nbytes]


def _registered(nbytes: int, device: Device) -> torch.Tensor | None:
    """Allocate plain memory and register it with the device; None if the device cannot do that."""
    area = mmap.mmap(-1, max(-(-nbytes // PAGE) * PAGE, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shown = (ctypes.c_char * len(area)).from_buffer(area)
    end = device.register_memory(ctypes.addressof(shown), len(area))
    if end is None:
        return None
    # The finalizer keeps `area`, so that its pages are freed only after they are unregistered.
    weakref.finalize(shown, _release, end, area).atexit = False
    return torch.frombuffer(shown, dtype=torch.uint8, count=max(nbytes, 1))[:nbytes]


def _release(end: Callable[[], None], area: mmap.mmap) -> None:
    end()


_HUGE = 2 * 2**20
"""Bytes of a huge page on most CPUs; a request to the disk is in one piece if its memory is contiguous."""


def as_buffer(address: int, nbytes: int) -> memoryview:
    """View memory of the host as a buffer for reading files."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def move(target: int, source: int, nbytes: int) -> None:
    """Copy bytes between addresses of the host, without Python's lock."""
    ctypes.memmove(target, source, nbytes)


class Memory:
    """A range of bytes in memory.

    Args:
        tensor: the bytes, uint8.
        address: address on the host; None on a device with its own memory.
    """

    __slots__ = ("__weakref__", "_tensor", "_whole", "address", "nbytes")

    def __init__(self, tensor: torch.Tensor, address: int | None = None) -> None:
        self._tensor: torch.Tensor | None = tensor
        self._whole: tuple[Memory, int] | None = None
        self.address = address
        self.nbytes = tensor.numel()
        """Number of bytes."""

    @property
    def tensor(self) -> torch.Tensor:
        """The bytes, uint8."""
        if self._tensor is None:
            assert self._whole is not None
            whole, start = self._whole
            self._tensor = whole.tensor[start : start + self.nbytes]
        return self._tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Memory:
        """The memory of a dense tensor, as bytes."""
        count = tensor.nbytes
        flat = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
        made = flat.view(torch.uint8) if count else torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return cls(made, made.data_ptr() if tensor.device.type == "cpu" else None)

    @classmethod
    def host(cls, nbytes: int, device: Device | None = None, *, lasting: bool = False) -> Memory:
        """Allocate page-aligned memory of the host, which is pinned if the device benefits from that.

        Args:
            nbytes: number of bytes.
            device: the device that copies to and from it.
            lasting: True for memory with a long life. Else pinned memory comes from torch's allocator, which is faster
                and may take twice as much.
        """
        if device is not None and device.capabilities.pinned_memory:
            made = pinned(nbytes, device, lasting=lasting)
            return cls(made, made.data_ptr())
        return cls.several([nbytes])[0]

    @classmethod
    def several(cls, sizes: Sequence[int], alignment: int = PAGE) -> list[Memory]:
        """Allocate consecutive ranges of the host's memory, each with a storage of its own."""
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += -(-size // alignment) * alignment
        if end >= _HUGE:  # Linux aligns only mappings of whole huge pages to these
            end = -(-end // _HUGE) * _HUGE
        area = mmap.mmap(-1, max(end, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                area.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # a kernel without huge pages
                pass
        view = memoryview(area)
        found = []
        for start, size in zip(starts, sizes, strict=True):
            tensor = torch.frombuffer(view, dtype=torch.uint8, count=max(size, 1), offset=start)
            found.append(cls(tensor[:size] if not size else tensor, tensor.data_ptr()))
        return found

    @classmethod
    def on(cls, device: Device, nbytes: int) -> Memory:
        """Allocate memory of a device."""
        if not device.capabilities.separate_memory:
            return cls.host(nbytes)
        return cls(torch.empty(nbytes, dtype=torch.uint8, device=device.torch_device))

    def part(self, start: int, stop: int) -> Memory:
        """A part of it; on the host its tensor is made when needed, as it would count as a view."""
        made = Memory.__new__(Memory)
        made.nbytes, made._whole = stop - start, (self, start)
        made.address = None if self.address is None else self.address + start
        made._tensor = self.tensor[start:stop] if self.address is None else None
        return made

    def fill(self, value: int) -> None:
        """Set every byte to a value."""
        if self.address is None:
            self.tensor.fill_(value)
        else:
            ctypes.memset(self.address, value, self.nbytes)


# Tensors without memory


class _Nothing:
    """A read-only range of addresses with 0xFF in every byte, all mapped to one small file."""

    _FILE = 4 * 2**20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._areas: list[tuple[int, int]] = []
        self._libc: Any = None
        self._file = -1

    def at_least(self, nbytes: int) -> int:
        """Address of at least this many bytes, valid until the process ends, as tensors may point there."""
        with self._lock:
            for address, size in self._areas:
                if size >= nbytes:
                    return address
            return self._grow(nbytes)

    def _grow(self, nbytes: int) -> int:
        if self._libc is None:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._libc.mmap.restype = ctypes.c_void_p
            self._libc.mmap.argtypes = [
                ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
            ]  # fmt: skip
            self._file = os.memfd_create("toprope-nothing", os.MFD_CLOEXEC)
            os.truncate(self._file, self._FILE)
            for _ in range(self._FILE >> 20):
                os.write(self._file, b"\xff" * 2**20)
        size = -(-nbytes // self._FILE) * self._FILE
        size = max(size, 2 * max((each for _, each in self._areas), default=0))
        reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        address = self._map(None, size, reserve, -1)
        for start in range(0, size, self._FILE):
            self._map(address + start, self._FILE, mmap.MAP_SHARED | 0x10, self._file)  # MAP_FIXED
        self._areas.append((address, size))
        return address

    def _map(self, address: int | None, size: int, flags: int, file: int) -> int:
        found = self._libc.mmap(address, size, mmap.PROT_READ, flags, file, 0)
        if found is None or found == 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1:
            code = ctypes.get_errno()
            raise MemoryError(f"mmap of {size} bytes: {os.strerror(code)}")
        return int(found)


_nothing = _Nothing()


def placeholder(like: torch.Tensor, device: Device) -> torch.Tensor:
    """Make a tensor with shape, strides and dtype but without memory, for the parameter of an absent weight.

    Calls from Python are refused by the class of such a parameter (`toprope.tiers.store.absent`). For C++ code, a
    device with its own memory has no address to read or write; on the CPU writing raises and reading gives NaN.

    Args:
        like: tensor with the shape, strides and dtype; its values are not used.
        device: the placeholder's device.
    """
    extent = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    nbytes = extent * like.dtype.itemsize if like.numel() else 0
    address = 0 if device.capabilities.separate_memory else _nothing.at_least(max(nbytes, 1))
    with torch.inference_mode(False), torch.no_grad():
        storage: Any = torch._C._construct_storage_from_data_pointer(address, device.torch_device, nbytes)
        made = torch.empty(0, dtype=like.dtype, device=device.torch_device)
        made.set_(storage, 0, like.shape, like.stride())
        torch._C._set_throw_on_mutable_data_ptr(made)
        forbid = getattr(torch._C, "_set_storage_access_error_msg", None)  # torch built with CUDA
        if forbid is not None:
            forbid(made, "this weight is not on the device now: it is there while its module runs")
        return made


def is_dense(tensor: torch.Tensor) -> bool:
    """True if a tensor's elements fill a range of memory without gaps and overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in the order of memory, as a view."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def free_memory(device: Device) -> int | None:
    """Bytes of a device that this process can still use: free ones, and unused ones in torch's allocator.

    None if the device does not report its free memory.
    """
    memory = device.memory()
    if memory.free is None:
        return None
    held = 0 if memory.reserved is None or memory.allocated is None else memory.reserved - memory.allocated
    return memory.free + max(0, held)


def without_values(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Make a tensor on meta with the shape and strides of another one, and its dtype unless one is given."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device="meta")
