"""`torch.npu`: what the allocator of pinned host memory holds. Sizes are bytes."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.npu.memory import flat

__all__ = [
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats",
]

_FIGURES = ("current", "peak", "allocated", "freed")


def host_empty_cache() -> None:
    """Gives the pinned memory that the allocator keeps for reuse back to the host."""
    torch.accelerator.empty_host_cache()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The figures of pinned memory as nested dictionaries.

    The allocator here keeps nothing for reuse: blocks in use are all there are. Times of its calls are not kept.
    """
    raw = (ctypes.c_int64 * 8)()
    native().host_memory_stats(raw)
    blocks, sizes = dict(zip(_FIGURES, raw[:4], strict=True)), dict(zip(_FIGURES, raw[4:], strict=True))
    return {
        "allocations": blocks,
        "active_requests": dict(blocks),
        "allocated_bytes": sizes,
        "active_bytes": dict(sizes),
        "num_host_alloc": blocks["allocated"],
        "num_host_free": blocks["freed"],
    }


def host_memory_stats() -> OrderedDict[str, Any]:
    """The figures of pinned memory with flat names such as "allocated_bytes.current"."""
    return flat(host_memory_stats_as_nested_dict())


def reset_accumulated_host_memory_stats() -> None:
    """Lets the totals (allocated, freed) of pinned memory start again from zero."""
    native().reset_host_memory_stats(0)


def reset_peak_host_memory_stats() -> None:
    """Lets the peaks of pinned memory start again from what is in use."""
    native().reset_host_memory_stats(1)
