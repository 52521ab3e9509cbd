"""Pinned memory of the host, as much as is asked for: torch's own allocator rounds it up to a power of two."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Callable

import torch

from toprope.device import Device

__all__ = ["pinned"]

PAGE = mmap.PAGESIZE


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
