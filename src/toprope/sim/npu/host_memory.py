"""Part of `torch.npu`: figures of the allocator of pinned host memory. Sizes are bytes.

Groups and figures are in the order of tsg_host_memory_stats in csrc/torch/memory.cpp. Tests:
tests/sim/simulated/test_npu_settings.py.
"""

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

_GROUPS = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
_FIGURES = ("current", "peak", "allocated", "freed")


def host_empty_cache() -> None:
    """Give the pinned memory that the allocator keeps for reuse back to the host, once the card was used."""
    torch.accelerator.empty_host_cache()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The figures of pinned memory as nested dictionaries.

    Blocks are counted with those that are kept for reuse, "active" are those in use. Sizes are powers of two, and times
    of the allocator's calls are not kept.
    """
    raw = (ctypes.c_int64 * (len(_GROUPS) * len(_FIGURES)))()
    native().host_memory_stats(raw)
    figures = iter(raw)
    groups = {group: {name: next(figures) for name in _FIGURES} for group in _GROUPS}
    blocks = groups["allocations"]
    return groups | {"num_host_alloc": blocks["allocated"], "num_host_free": blocks["freed"]}


def host_memory_stats() -> OrderedDict[str, Any]:
    """The figures of pinned memory with flat names such as "allocated_bytes.current"."""
    return flat(host_memory_stats_as_nested_dict())


def reset_accumulated_host_memory_stats() -> None:
    """Let the totals (allocated, freed) of pinned memory start again from zero."""
    native().reset_host_memory_stats(0)


def reset_peak_host_memory_stats() -> None:
    """Let the peaks of pinned memory start again from what is in use."""
    native().reset_host_memory_stats(1)
