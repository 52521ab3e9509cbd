"""Pinned memory of the host, as much as is asked for: torch's own allocator rounds it up to a power of two."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any

import torch

from toprope.device import Device

__all__ = ["pinned"]

PAGE = mmap.PAGESIZE
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every card of the process."""


def pinned(nbytes: int, device: Device, *, lasting: bool) -> torch.Tensor:
    """Pinned bytes that begin at a page.

    With CUDA plain memory is registered where it is `lasting`, as that takes time. Where that cannot be done, and on
    other devices, torch's allocator is asked: first for no more than is needed, a page more may double what it takes.
    """
    if lasting and device.torch_device.type == "cuda":
        made = _registered(nbytes, device)
        if made is not None:
            return made
    made = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    if made.data_ptr() % PAGE == 0:
        return made
    made = torch.empty(nbytes + PAGE, dtype=torch.uint8, pin_memory=True)
    return made[-made.data_ptr() % PAGE :][:nbytes]


def _registered(nbytes: int, device: Device) -> torch.Tensor | None:
    """Plain memory, registered with CUDA; None where CUDA refuses."""
    area = mmap.mmap(-1, max(-(-nbytes // PAGE) * PAGE, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shown = (ctypes.c_char * len(area)).from_buffer(area)
    address = ctypes.addressof(shown)
    with device.as_current():
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(address, len(area), _PORTABLE)) != 0:
            return None
    # `area` is kept by the finalizer: its pages go after they are registered no more.
    weakref.finalize(shown, _unregister, runtime, address, area, device).atexit = False
    return torch.frombuffer(shown, dtype=torch.uint8, count=max(nbytes, 1))[:nbytes]


def _unregister(runtime: Any, address: int, area: mmap.mmap, device: Device) -> None:
    device.synchronize()  # a copy may be under way
    runtime.cudaHostUnregister(address)
