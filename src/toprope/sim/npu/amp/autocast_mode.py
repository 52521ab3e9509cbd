"""Module `torch.npu.amp.autocast_mode`: autocast with torch_npu's arguments, and the switches behind it.

Which operators run in half precision is decided in csrc/torch/autocast.cpp. Tests: tests/sim/simulated/test_amp.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.autocast_mode import autocast as _autocast

from toprope.sim.npu.devices import is_bf16_supported

__all__ = [
    "autocast",
    "custom_bwd",
    "custom_fwd",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]


class autocast(_autocast):  # noqa: N801 - torch's own name
    """`torch.autocast("npu", ...)`; float16 unless another dtype is given."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


def _deprecated(name: str) -> None:
    warnings.warn(
        f"torch.npu.amp.{name} is deprecated; torch.amp.{name} with device_type='npu' is what it does.",
        FutureWarning,
        stacklevel=3,
    )


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None) -> Callable[..., Any]:
    """`torch.amp.custom_fwd` for npu; deprecated."""
    _deprecated("custom_fwd")
    made: Callable[..., Any] = torch.amp.custom_fwd(fwd, device_type="npu", cast_inputs=cast_inputs)
    return made


def custom_bwd(bwd: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.amp.custom_bwd` for npu; deprecated."""
    _deprecated("custom_bwd")
    made: Callable[..., Any] = torch.amp.custom_bwd(bwd, device_type="npu")
    return made


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that autocast may run in on this chip."""
    if is_bf16_supported():
        return [torch.float16, torch.bfloat16, torch.float32]
    return [torch.float16, torch.float32]


def is_autocast_enabled() -> bool:
    """Return True if autocast is on for npu in this thread."""
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enable: bool) -> None:
    """Switch autocast for npu in this thread."""
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    """The dtype of autocast for npu in this thread."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Set the dtype of autocast for npu in this thread."""
    torch.set_autocast_dtype("npu", dtype)
