"""`torch.npu`: what the card's allocator holds. All sizes are bytes."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from typing import Any

from toprope.sim.native import native
from toprope.sim.npu._state import check_index, device_index, lazy_init, message

__all__ = [
    "empty_cache",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
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
    """Gives the memory that the allocator keeps for reuse back to the cards."""
    native().empty_cache(-1)


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The allocator's figures as nested dictionaries: group, pool, figure."""
    lazy_init()
    raw = (ctypes.c_int64 * _LENGTH)()
    native().memory_stats(check_index(device), raw)
    values = iter(raw)
    stats: dict[str, Any] = {
        group: {pool: {figure: next(values) for figure in _FIGURES} for pool in _POOLS} for group in _GROUPS
    }
    stats["num_alloc_retries"], stats["num_ooms"] = next(values), next(values)
    nothing = dict.fromkeys(_FIGURES, 0)
    stats["oversize_allocations"], stats["oversize_segments"] = dict(nothing), dict(nothing)
    stats["max_split_size"] = -1
    return stats


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """The allocator's figures with flat names such as "allocated_bytes.all.peak"."""
    flat: dict[str, int] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    add("", memory_stats_as_nested_dict(device))
    return OrderedDict(sorted(flat.items()))


def _figure(device: Any, group: str, figure: str) -> int:
    return int(memory_stats_as_nested_dict(device)[group]["all"][figure])


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
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """Former name of `max_memory_reserved`."""
    return max_memory_reserved(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Lets the peaks start again from what is in use now."""
    lazy_init()
    native().reset_peaks(device_index(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Lets the totals (allocated, freed, retries, failures) start again from zero."""
    lazy_init()
    native().reset_totals(device_index(device))


def reset_max_memory_allocated(device: Any = None) -> None:
    """Former name of `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """Former name of `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Lets the process take at most this part of the card, from 0 to 1.

    Raises:
        TypeError: the fraction is not a float.
        ValueError: it is not from 0 to 1.
    """
    lazy_init()
    if not isinstance(fraction, float):
        raise TypeError(message("Invalid type for fraction argument, must be `float`", "ERR00002 PTA invalid type"))
    if not 0 <= fraction <= 1:
        raise ValueError(
            message(f"Invalid fraction value: {fraction}. Allowed range: 0~1", "ERR00003 PTA invalid value")
        )
    native().set_fraction(check_index(device), fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of the card that the process may take, from 0 to 1."""
    lazy_init()
    return float(native().fraction(check_index(device)))
