"""DLPack for the card: torch's C++ side knows it as an extension device, its Python side does not.

Registered by installer.py. Tests: tests/sim/simulated/test_host_access.py.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["register"]

_EXTENSION = 12
"""kDLExtDev of the DLPack standard (dlpack.h)."""


def register() -> None:
    """Let `Tensor.__dlpack_device__` answer for tensors on npu; others are asked as before."""
    import torch

    ours = torch.Tensor.__dlpack_device__
    if hasattr(ours, "__toprope__"):
        return

    @functools.wraps(ours)
    def dlpack_device(self: torch.Tensor) -> Any:
        if self.device.type == "npu":
            return _EXTENSION, self.device.index
        return ours(self)

    dlpack_device.__toprope__ = True  # type: ignore[attr-defined]
    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
