"""Activations over npu_mish and npu_silu.

Programs import its names from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/activations.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

import torch
from torch import nn

from ._operators import deprecated, operator

__all__ = ["Mish", "SiLU", "Swish"]


class Mish(nn.Module):
    """x * tanh(softplus(x)). Deprecated in favour of torch.nn.Mish."""

    def __init__(self) -> None:
        super().__init__()
        deprecated("module.Mish", "torch.nn.Mish")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it to each element."""
        result: torch.Tensor = operator("npu_mish")(x)
        return result


class SiLU(nn.Module):
    """x * sigmoid(x). Deprecated in favour of torch.nn.SiLU."""

    def __init__(self) -> None:
        super().__init__()
        deprecated("module.SiLU", "torch.nn.SiLU")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it to each element."""
        result: torch.Tensor = operator("npu_silu")(x)
        return result


Swish = SiLU
