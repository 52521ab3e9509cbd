"""Part of `torch.npu`: figures of the card's memory allocator. All sizes are bytes.

The allocator is C++ (csrc/core/memory.h, rules in memory_rules.h); groups and figures are in the order of its
MemoryStats. Tests: tests/sim/simulated/test_memory_figures.py.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections import OrderedDict
from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.npu._state import (
    TYPE,
    VALUE,
    allocator_index,
    also_in_torch_npu,
    check_index,
    device_index,
    lazy_init,
    message,
)
from toprope.sim.npu.devices import is_initialized
from toprope.sim.npu.history import dump_snapshot as _dump_snapshot
from toprope.sim.npu.history import record_memory_history as _record_memory_history
from toprope.sim.npu.history import set_allocator_settings as _set_allocator_settings
from toprope.sim.npu.history import snapshot as _snapshot
from toprope.sim.npu.memory_pieces import memory_snapshot
from toprope.sim.npu.streams import Stream, current_stream, stream_of_handle
from toprope.sim.npu.streams import stream as stream_context

__all__ = [
    "_dump_snapshot",
    "_record_memory_history",
    "_set_allocator_settings",
    "_snapshot",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "empty_virt_addr_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

_GROUPS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_POOLS = ("all", "small_pool", "large_pool")
_FIGURES = ("current", "peak", "allocated", "freed")
_LENGTH = len(_GROUPS) * len(_POOLS) * len(_FIGURES) + 2


def empty_cache() -> None:
    """Give the memory that the allocator keeps for reuse back to the cards."""
    native().empty_cache(-1)


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The allocator's figures as nested dictionaries: group, pool, figure. Empty before the cards are used."""
    if not is_initialized():
        return {}
    values = iter(_raw(device))
    stats: dict[str, Any] = {
        group: {pool: {figure: next(values) for figure in _FIGURES} for pool in _POOLS} for group in _GROUPS
    }
    stats["num_alloc_retries"], stats["num_ooms"] = next(values), next(values)
    stats["num_device_alloc"] = stats["segment"]["all"]["allocated"]
    stats["num_device_free"] = stats["segment"]["all"]["freed"]
    # Waits for streams that still use memory are not counted; no rule refuses before the card is full.
    stats["num_sync_all_streams"] = stats["num_oom_rejections"] = 0
    nothing = dict.fromkeys(_FIGURES, 0)
    stats["oversize_allocations"], stats["oversize_segments"] = dict(nothing), dict(nothing)
    stats["max_split_size"] = -1
    return stats


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """The allocator's figures with flat names such as "allocated_bytes.all.peak"."""
    return flat(memory_stats_as_nested_dict(device))


def flat(nested: dict[str, Any]) -> OrderedDict[str, int]:
    """Nested figures with their keys joined by points, in order."""
    found: dict[str, int] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            found[prefix] = value

    add("", nested)
    return OrderedDict(sorted(found.items()))


def _figure(device: Any, group: str, figure: str) -> int:
    """One figure of all pools; programs ask for these often."""
    if not is_initialized():
        return 0
    return _raw(device)[(_GROUPS.index(group) * len(_POOLS)) * len(_FIGURES) + _FIGURES.index(figure)]


def _raw(device: Any) -> ctypes.Array[ctypes.c_int64]:
    raw = (ctypes.c_int64 * _LENGTH)()
    native().memory_stats(allocator_index(device), raw)
    return raw


def _renamed(former: str, now: str) -> None:
    warnings.warn(f"torch_npu.npu.{former} has become torch_npu.npu.{now}", DeprecationWarning, stacklevel=3)


def memory_allocated(device: Any = None) -> int:
    """Bytes in use by tensors."""
    return _figure(device, "allocated_bytes", "current")


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes in use by tensors since the start or the last reset."""
    return _figure(device, "allocated_bytes", "peak")


def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the card, in use or kept for reuse."""
    return _figure(device, "reserved_bytes", "current")


def max_memory_reserved(device: Any = None) -> int:
    """Most bytes taken from the card since the start or the last reset."""
    return _figure(device, "reserved_bytes", "peak")


def memory_cached(device: Any = None) -> int:
    """Former name of `memory_reserved`."""
    _renamed("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """Former name of `max_memory_reserved`."""
    _renamed("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start again from what is in use now."""
    lazy_init()
    native().reset_peaks(allocator_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let the totals (allocated, freed, retries, failures) start again from zero."""
    lazy_init()
    native().reset_totals(allocator_index(device))


def reset_max_memory_allocated(device: Any = None) -> None:
    """Former name of `reset_peak_memory_stats`, which resets all peaks."""
    _renamed("reset_max_memory_allocated", "reset_peak_memory_stats, which resets all peaks")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """Former name of `reset_peak_memory_stats`, which resets all peaks."""
    _renamed("reset_max_memory_cached", "reset_peak_memory_stats, which resets all peaks")
    reset_peak_memory_stats(device)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let the process take at most this part of the card, from 0 to 1.

    Raises:
        TypeError: the fraction is not a float.
        ValueError: it is not from 0 to 1.
    """
    lazy_init()
    if not isinstance(fraction, float):
        raise TypeError(message("Invalid type for fraction argument, must be `float`", TYPE))
    if not 0 <= fraction <= 1:
        raise ValueError(message(f"Invalid fraction value: {fraction}. Allowed range: 0~1", VALUE))
    native().set_fraction(check_index(device), fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of the card that the process may take, from 0 to 1."""
    lazy_init()
    return float(native().fraction(check_index(device)))


_held: dict[int, torch.UntypedStorage] = {}
"""Memory that `caching_allocator_alloc` has given out, by address."""


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """Take memory from the allocator for other libraries; `caching_allocator_delete` gives it back.

    Args:
        size: bytes.
        device: the card, None for the current one.
        stream: the stream that will use it, as `torch.npu.Stream` or its number `npu_stream`; None for the current.

    Returns:
        The address, 0 for no bytes.

    Raises:
        TypeError: the stream is neither.
        RuntimeError: 107003, the number is no stream of that card.
        torch.OutOfMemoryError: the card is full.
    """
    index = device_index(device)
    if stream is None:
        stream = current_stream(index)
    elif not isinstance(stream, Stream):
        if not isinstance(stream, int):
            raise TypeError(
                message(
                    "Invalid type for stream argument, must be `torch_npu.npu.Stream` or `int` representing a pointer"
                    " to a existing stream",
                    TYPE,
                )
            )
        stream = stream_of_handle(stream, index)
    with stream_context(stream):
        storage = torch.UntypedStorage(size, device=f"npu:{index}")  # type: ignore[no-untyped-call]
    address = int(storage.data_ptr())
    if address:
        _held[address] = storage
    return address


def caching_allocator_delete(mem_ptr: int) -> None:
    """Give memory of `caching_allocator_alloc` back to the allocator; nothing for 0.

    Raises:
        RuntimeError: the address is not of such memory.
    """
    if mem_ptr and _held.pop(mem_ptr, None) is None:
        raise RuntimeError(f"invalid device pointer: {mem_ptr:#x}")


def empty_virt_addr_cache() -> None:
    """Give free memory back to the card where segments are expandable: nothing else keeps a mapping here."""
    if "expandable_segments:True" in os.environ.get("PYTORCH_NPU_ALLOC_CONF", "").replace(" ", ""):
        empty_cache()


def get_allocator_backend() -> str:
    """ "native": torch's kind of caching allocator, the only one here."""
    return "native"


__getattr__ = also_in_torch_npu(__name__)
