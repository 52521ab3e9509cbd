"""Focus of YOLOv5: every second pixel of an image as channels, and a convolution.

Programs import its names from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/focus.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["Conv", "Focus", "autopad", "fast_slice"]


def autopad(k: Any, p: Any = None) -> Any:
    """Padding that keeps the size of an image: half the kernel, unless it is given."""
    if p is not None:
        return p
    return k // 2 if isinstance(k, int) else [size // 2 for size in k]


class Conv(nn.Module):
    """Convolution, batch normalisation and LeakyReLU.

    Args:
        c1: channels of the input.
        c2: channels of the output.
        k: size of the kernel.
        s: stride.
        p: padding; None keeps the size of an image.
        g: groups.
        act: whether to apply LeakyReLU.
    """

    def __init__(self, c1: int, c2: int, k: Any = 1, s: Any = 1, p: Any = None, g: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, autopad(k, p), groups=g, bias=False)
        self.bn = nn.BatchNorm2d(c2)
        self.act: nn.Module = nn.LeakyReLU(0.1, inplace=True) if act else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply all three."""
        result: torch.Tensor = self.act(self.bn(self.conv(x)))
        return result

    def fuseforward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it without the normalisation, which has been folded into the weights."""
        result: torch.Tensor = self.act(self.conv(x))
        return result


def fast_slice(x: torch.Tensor) -> Sequence[torch.Tensor]:
    """The four images of every second pixel: (even, even), (odd, even), (even, odd) and (odd, odd) rows and columns."""
    return [x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)]


class Focus(nn.Module):
    """Every second pixel as channels, and `Conv`.

    Args:
        c1: channels of the input.
        c2: channels of the output.
        k: size of the kernel.
        s: stride.
        p: padding; None keeps the size of an image.
        g: groups.
        act: whether to apply LeakyReLU.
    """

    def __init__(self, c1: int, c2: int, k: Any = 1, s: Any = 1, p: Any = None, g: int = 1, act: bool = True) -> None:
        super().__init__()
        self.conv = Conv(c1 * 4, c2, k, s, p, g, act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give [N, c2, H/2, W/2] for [N, c1, H, W]."""
        result: torch.Tensor = self.conv(torch.cat(list(fast_slice(x)), 1))
        return result
