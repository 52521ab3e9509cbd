"""`torch.npu`: what the allocator of pinned host memory holds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from toprope.sim.npu._state import not_here

__all__ = [
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats",
]

_NO_FIGURES = "its allocator of pinned memory keeps no figures"


def host_empty_cache() -> None:
    """Gives the pinned memory that the allocator keeps for reuse back to the host."""
    torch.accelerator.empty_host_cache()


def host_memory_stats() -> OrderedDict[str, Any]:
    """Not there yet: the figures with flat names.

    Raises:
        NotImplementedError: always.
    """
    raise not_here("host_memory_stats", _NO_FIGURES)


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Not there yet: the figures as nested dictionaries.

    Raises:
        NotImplementedError: always.
    """
    raise not_here("host_memory_stats_as_nested_dict", _NO_FIGURES)


def reset_accumulated_host_memory_stats() -> None:
    """Not there yet: totals that start again from zero.

    Raises:
        NotImplementedError: always.
    """
    raise not_here("reset_accumulated_host_memory_stats", _NO_FIGURES)


def reset_peak_host_memory_stats() -> None:
    """Not there yet: peaks that start again from what is in use.

    Raises:
        NotImplementedError: always.
    """
    raise not_here("reset_peak_host_memory_stats", _NO_FIGURES)
