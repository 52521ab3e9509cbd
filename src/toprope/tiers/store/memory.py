"""Memory of the host and of devices, pinned or plain, and tensors without memory."""

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
    """Pinned bytes that begin at a page.

    Plain memory is registered with the device where it is `lasting`, as that takes time. Where that cannot be done,
    torch's allocator is asked: first for no more than is needed, a page more may double what it takes.
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
    """Plain memory, registered with the device; None where it has no such thing."""
    area = mmap.mmap(-1, max(-(-nbytes // PAGE) * PAGE, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shown = (ctypes.c_char * len(area)).from_buffer(area)
    end = device.register_memory(ctypes.addressof(shown), len(area))
    if end is None:
        return None
    # `area` is kept by the finalizer: its pages go after they are registered no more.
    weakref.finalize(shown, _release, end, area).atexit = False
    return torch.frombuffer(shown, dtype=torch.uint8, count=max(nbytes, 1))[:nbytes]


def _release(end: Callable[[], None], area: mmap.mmap) -> None:
    end()


_HUGE = 2 * 2**20
"""Bytes of a huge page, of most CPUs: a request to the disk goes in one piece where its memory does."""


def as_buffer(address: int, nbytes: int) -> memoryview:
    """Memory of the host as something that files are read into."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def move(target: int, source: int, nbytes: int) -> None:
    """Copy bytes between addresses of the host, without Python's lock."""
    ctypes.memmove(target, source, nbytes)


class Memory:
    """A stretch of bytes.

    Args:
        tensor: the bytes, uint8.
        address: on the host; None on a device that has memory of its own.
    """

    __slots__ = ("__weakref__", "_tensor", "_whole", "address", "nbytes")

    def __init__(self, tensor: torch.Tensor, address: int | None = None) -> None:
        self._tensor: torch.Tensor | None = tensor
        self._whole: tuple[Memory, int] | None = None
        self.address = address
        self.nbytes = tensor.numel()
        """How many."""

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
        """Of the host, at the beginning of a page; pinned where the device has use for that.

        Args:
            nbytes: how many.
            device: that copies to and from it.
            lasting: it is there to stay. Else pinned memory comes from torch's allocator, which is quick to have and
                may take twice as much.
        """
        if device is not None and device.capabilities.pinned_memory:
            made = pinned(nbytes, device, lasting=lasting)
            return cls(made, made.data_ptr())
        return cls.several([nbytes])[0]

    @classmethod
    def several(cls, sizes: Sequence[int], alignment: int = PAGE) -> list[Memory]:
        """Stretches of the host's memory one after another, each a storage of its own."""
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += -(-size // alignment) * alignment
        if end >= _HUGE:  # Linux lays only mappings of whole huge pages where these begin
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
        """Of a device."""
        if not device.capabilities.separate_memory:
            return cls.host(nbytes)
        return cls(torch.empty(nbytes, dtype=torch.uint8, device=device.torch_device))

    def part(self, start: int, stop: int) -> Memory:
        """Some of it; on the host without a tensor until one is asked for, which would count as a view."""
        made = Memory.__new__(Memory)
        made.nbytes, made._whole = stop - start, (self, start)
        made.address = None if self.address is None else self.address + start
        made._tensor = self.tensor[start:stop] if self.address is None else None
        return made

    def fill(self, value: int) -> None:
        """Every byte."""
        if self.address is None:
            self.tensor.fill_(value)
        else:
            ctypes.memset(self.address, value, self.nbytes)


# Tensors without memory


class _Nothing:
    """A stretch of addresses whose every byte is 0xFF, in the memory of one small file; for reading only."""

    _FILE = 4 * 2**20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._areas: list[tuple[int, int]] = []
        self._libc: Any = None
        self._file = -1

    def at_least(self, nbytes: int) -> int:
        """Its address. It stays as long as the process: tensors may point there."""
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
    """A tensor with shape, strides and dtype, and no memory, for the parameter of an absent weight.

    Calls of Python are refused by the class that such a parameter has (`toprope.tiers.store.absent`). For those of C++,
    a device with memory of its own has no address to read or write; on the CPU writing raises and reading gives NaN.

    Args:
        like: shape, strides and dtype; its values are not looked at.
        device: where it is.
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
    """Whether its elements fill a stretch of memory without gaps and overlaps, in any order of dimensions."""
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
    """Bytes of a device that this process can still fill: free ones, and those its allocator holds without a use.

    None where the device tells no figure.
    """
    memory = device.memory()
    if memory.free is None:
        return None
    held = 0 if memory.reserved is None or memory.allocated is None else memory.reserved - memory.allocated
    return memory.free + max(0, held)


def without_values(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor on meta with the shape and strides of another one, and its dtype where no other is given."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device="meta")
