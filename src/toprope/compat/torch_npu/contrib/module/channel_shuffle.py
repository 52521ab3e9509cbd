"""Channel shuffle of ShuffleNet by index_select, without a transposed copy.

Programs import `ChannelShuffle` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/channel_shuffle.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["ChannelShuffle"]


class ChannelShuffle(nn.Module):
    """Shuffle of the channels of two tensors.

    In training the gradient is the one of two groups, whatever `groups` says: that is all torch_npu has.

    Args:
        in_channels: channels of both inputs together.
        groups: number of groups between which the channels alternate.
        split_shuffle: give the two halves of the result.
    """

    def __init__(self, in_channels: int, groups: int = 2, split_shuffle: bool = True) -> None:
        super().__init__()
        self.split_shuffle = split_shuffle
        self.group_len = in_channels // groups
        self.out_channels = torch.arange(in_channels).reshape(groups, self.group_len).t().flatten()
        if split_shuffle:
            self.fp_index1 = self.out_channels[: self.group_len]
            self.fp_index2 = self.out_channels[self.group_len :]
        else:
            self.fp_index = self.out_channels
        self.bp_index1 = torch.arange(0, in_channels, 2)
        self.bp_index2 = torch.arange(1, in_channels, 2)
        self.checked = False

    def check_self(self, x: torch.Tensor) -> None:
        """Move the indices to the device of a tensor."""
        if self.bp_index1.device == x.device:
            self.checked = True
            return
        names = ("fp_index1", "fp_index2") if self.split_shuffle else ("fp_index",)
        for name in (*names, "bp_index1", "bp_index2"):
            index = getattr(self, name)
            setattr(self, name, (index.int() if x.device.type == "npu" else index).to(x.device))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> Any:
        """Shuffle the channels of two tensors.

        Args:
            x1: [N, C, ...].
            x2: [N, C, ...].

        Returns:
            [N, 2C, ...], or its halves with `split_shuffle`.
        """
        if not self.checked:
            self.check_self(x1)
        indices = (self.fp_index1, self.fp_index2) if self.split_shuffle else (self.fp_index,)
        if self.training:
            shuffle: Any = _Shuffle.apply
            parts: tuple[torch.Tensor, ...] = shuffle(x1, x2, self.bp_index1, self.bp_index2, *indices)
        else:
            both = torch.cat((x1, x2), 1)
            parts = tuple(both.index_select(1, index) for index in indices)
        return parts if self.split_shuffle else parts[0]


class _Shuffle(torch.autograd.Function):
    """Selection of channels, with the gradient selected as well."""

    @staticmethod
    def forward(
        ctx: Any,
        x1: torch.Tensor,
        x2: torch.Tensor,
        even: torch.Tensor,
        odd: torch.Tensor,
        *indices: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(even, odd)
        ctx.count = len(indices)
        both = torch.cat((x1, x2), 1)
        return tuple(both.index_select(1, index) for index in indices)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        even, odd = ctx.saved_tensors
        grad = torch.cat(grads, 1)
        return grad.index_select(1, even), grad.index_select(1, odd), None, None, *([None] * ctx.count)
