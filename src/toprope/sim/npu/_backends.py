"""Part of `torch.npu`: switches of attention and linear algebra, which torch_npu keeps for programs written for CUDA.

They set torch's own switches, which the simulated card's attention follows as the CPU's does. Tests:
tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from toprope.sim.npu.devices import get_soc_version

__all__ = [
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "flash_sdp_enabled",
    "get_soc_version",
    "math_sdp_enabled",
    "mem_efficient_sdp_enabled",
    "preferred_linalg_library",
    "sdp_kernel",
]


def _warn(kinds: str) -> None:
    warnings.warn(
        f"An NPU chooses its attention by itself: only torch's switch of {kinds} is read or set.", stacklevel=3
    )


def flash_sdp_enabled() -> bool:
    """Return True if flash attention is switched on in torch."""
    _warn("flash attention")
    return torch._C._get_flash_sdp_enabled()


def enable_flash_sdp(enabled: bool) -> None:
    """Switch flash attention in torch."""
    _warn("flash attention")
    torch._C._set_sdp_use_flash(enabled)


def mem_efficient_sdp_enabled() -> bool:
    """Return True if memory-efficient attention is switched on in torch."""
    _warn("memory-efficient attention")
    return torch._C._get_mem_efficient_sdp_enabled()


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Switch memory-efficient attention in torch."""
    _warn("memory-efficient attention")
    torch._C._set_sdp_use_mem_efficient(enabled)


def math_sdp_enabled() -> bool:
    """Return True if plain attention is switched on in torch."""
    _warn("plain attention")
    return torch._C._get_math_sdp_enabled()


def enable_math_sdp(enabled: bool) -> None:
    """Switch plain attention in torch."""
    _warn("plain attention")
    torch._C._set_sdp_use_math(enabled)


@contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True
) -> Iterator[dict[str, Any]]:
    """Context in which torch's switches of attention are as given; they are put back at its end."""
    warnings.warn("An NPU chooses its attention by itself: only torch's switches are set.", stacklevel=3)
    read = torch._C._get_flash_sdp_enabled, torch._C._get_math_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled
    write = torch._C._set_sdp_use_flash, torch._C._set_sdp_use_math, torch._C._set_sdp_use_mem_efficient
    before = [switch() for switch in read]
    try:
        for switch, value in zip(write, (enable_flash, enable_math, enable_mem_efficient), strict=True):
            switch(value)
        yield {}
    finally:
        for switch, value in zip(write, before, strict=True):
            switch(value)


def preferred_linalg_library(backend: Any = None) -> Any:
    """torch's default kind; what is asked for is not looked at."""
    warnings.warn("torch.npu.preferred_linalg_library: an NPU has one library only; nothing is set.", stacklevel=2)
    return torch._C._LinalgBackend.Default
