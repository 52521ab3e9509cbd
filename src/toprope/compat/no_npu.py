"""The module `torch.npu` where there is no card, real or simulated: it says so, as torch_npu does on such a machine.

Questions have an answer (no card, not initialised, nothing in memory), seeds and caches have nothing to do, and any
function that needs a card raises RuntimeError. toprope.compat.torch_import and the torch_npu facade call `install`,
which makes this file `torch.npu`. With a card, `toprope.sim.npu` is in its place and must have these names too; answers
are torch_npu's, the text of the error is free. Tests: tests/compat/test_finder.py, tests/device/test_device_absent.py.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

__all__ = [
    "Event",
    "Stream",
    "device_count",
    "empty_cache",
    "install",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
]

__toprope_stand_in__ = True
"""Says that an installation of a card may replace this `torch.npu`."""

_NEED_A_CARD = frozenset((
    "current_device", "current_stream", "default_stream", "device", "device_of", "get_device_limit", "get_device_name",
    "get_device_properties", "get_rng_state", "get_rng_state_all", "get_stream_limit", "init", "initial_seed",
    "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved",
    "memory_stats", "memory_summary", "reset_peak_memory_stats", "reset_stream_limit", "set_device",
    "set_device_limit", "set_rng_state", "set_rng_state_all", "set_stream", "set_stream_limit", "stream",
    "synchronize", "utilization",
))  # fmt: skip


def install() -> None:
    """Make this file `torch.npu`, unless torch has one. Imports torch."""
    import torch

    if not hasattr(torch, "npu"):
        sys.modules["torch.npu"] = sys.modules[__name__]
        vars(torch)["npu"] = sys.modules[__name__]


def is_available() -> bool:
    """False: there is no card."""
    return False


def device_count() -> int:
    """0: there is no card."""
    return 0


def is_initialized() -> bool:
    """False: there is no card to initialise."""
    return False


def is_bf16_supported() -> bool:
    """False: there is no card."""
    return False


def _is_in_bad_fork() -> bool:
    return False


def manual_seed(seed: int) -> None:
    """Do nothing: there is no generator to seed."""


def manual_seed_all(seed: int) -> None:
    """Do nothing: there is no generator to seed."""


def empty_cache() -> None:
    """Do nothing: there is no cache."""


class Stream:
    """Stands for the type in annotations and isinstance; making one needs a card."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("Stream")


class Event:
    """Stands for the type in annotations and isinstance; making one needs a card."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("Event")


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"torch.npu.{name} needs an NPU and there is none. `toprope run --chip 910B3 PROGRAM` gives a program a "
        "simulated one; torch.npu.is_available() says whether there is a card."
    )


def __getattr__(name: str) -> Any:
    if name in _NEED_A_CARD:
        return lambda *args, **kwargs: _refuse(name)
    raise AttributeError(f"torch.npu has no attribute {name!r} where there is no NPU")
