"""Modulated deformable convolution over npu_deformable_conv2d.

Programs import its names from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/deform_conv.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.modules.utils import _pair

from ._operators import operator

__all__ = ["DCNv2", "ModulatedDeformConv", "ModulatedDeformConv2dFunction"]


class ModulatedDeformConv2dFunction(torch.autograd.Function):
    """npu_deformable_conv2d with offsets in the order of mmcv, (y, x) for each point; the operator has all y first."""

    @staticmethod
    def forward(
        ctx: Any,
        input_tensor: torch.Tensor,
        offset_ori: torch.Tensor,
        mask: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        with_bias: bool = False,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        deformable_groups: int = 1,
        sort_index_for_npu_fp: Any = None,
        sort_index_for_npu_bp: Any = None,
    ) -> torch.Tensor:
        """Convolve in float32.

        Args:
            ctx: of autograd.
            input_tensor: [N, C, H, W].
            offset_ori: [N, 2 * points, H', W'].
            mask: [N, points, H', W'].
            weight: [C', C / groups, kh, kw].
            bias: [C'].
            with_bias: whether the bias has a gradient.
            stride: of the convolution.
            padding: zeros on each side.
            dilation: of the kernel.
            groups: of the convolution.
            deformable_groups: groups of channels with offsets of their own.
            sort_index_for_npu_fp: order of the offsets for the operator.
            sort_index_for_npu_bp: the inverse.

        Returns:
            [N, C', H', W'].
        """
        x, offsets = input_tensor.float(), offset_ori.float().index_select(1, sort_index_for_npu_fp)
        everything = torch.cat((offsets, mask.float()), 1)
        ctx.options = {
            "kernel_size": [weight.shape[3], weight.shape[2]],
            "stride": [1, 1, stride, stride],
            "padding": [padding] * 4,
            "dilation": [1, 1, dilation, dilation],
            "groups": groups,
            "deformable_groups": deformable_groups,
            "modulated": True,
        }
        ctx.with_bias, ctx.order, ctx.points = with_bias, sort_index_for_npu_bp, offset_ori.shape[1]
        output, sampled = operator("npu_deformable_conv2d")(x, weight, everything, bias, **ctx.options)
        ctx.save_for_backward(x, weight, sampled, everything)
        result: torch.Tensor = output
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """Give the gradients of input, offsets, mask, weight and bias."""
        x, weight, sampled, everything = ctx.saved_tensors
        grad_input, grad_weight, grad_all, grad_bias = operator("npu_deformable_conv2dbk")(
            x, grad_output, sampled, weight, everything, **ctx.options
        )
        grad_offset, grad_mask = grad_all.index_select(1, ctx.order), grad_all[:, ctx.points :]
        bias = grad_bias if ctx.with_bias else None
        return grad_input, grad_offset, grad_mask, grad_weight, bias, *([None] * 8)


class ModulatedDeformConv(nn.Module):
    """Modulated deformable 2D convolution (DCNv2), in float32.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: one number or two.
        stride: of the convolution.
        padding: zeros on each side.
        dilation: of the kernel.
        groups: of the convolution.
        deformable_groups: groups of channels with offsets of their own.
        bias: add a learnable bias.
        pack: compute offsets and mask from the input by a convolution, whose weights begin with 0.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        deformable_groups: int = 1,
        bias: bool = True,
        pack: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size: tuple[int, ...] = _pair(kernel_size)
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.groups = groups
        self.deformable_groups = deformable_groups
        self.with_bias = bias
        self.pack = pack
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels // groups, *self.kernel_size))
        self.bias: Any = nn.Parameter(torch.empty(out_channels)) if bias else torch.zeros(out_channels)
        points = deformable_groups * self.kernel_size[0] * self.kernel_size[1]
        if pack:
            self.conv_offset = nn.Conv2d(
                in_channels, 3 * points, kernel_size=self.kernel_size, stride=stride, padding=padding, bias=True
            )  # fmt: skip
        self.split_num = 2 * points
        order = [*range(1, self.split_num, 2), *range(0, self.split_num, 2)]
        self.sort_index_for_npu_fp = torch.tensor(order, dtype=torch.int32)
        self.sort_index_for_npu_bp = torch.tensor(order).argsort().int()
        self.sort_index_for_npu_todevice = False
        self.init_param()

    def init_param(self) -> None:
        """Draw the weights, and set the biases and the convolution of the offsets to 0."""
        bound = 1.0 / math.sqrt(self.in_channels * math.prod(self.kernel_size))
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            self.bias.zero_()
            if self.pack:
                self.conv_offset.weight.zero_()
                assert self.conv_offset.bias is not None
                self.conv_offset.bias.zero_()

    def forward(self, x: Any) -> torch.Tensor:
        """Convolve.

        Args:
            x: [N, C, H, W]; without `pack` a tuple (input, offset, mask).

        Returns:
            [N, out_channels, H', W'].
        """
        if self.pack:
            out = self.conv_offset(x)
            offset, mask = out[:, : self.split_num], torch.sigmoid(out[:, self.split_num :])
        else:
            x, offset, mask = x
        if not self.sort_index_for_npu_todevice:
            self.sort_index_for_npu_fp = self.sort_index_for_npu_fp.to(x.device)
            self.sort_index_for_npu_bp = self.sort_index_for_npu_bp.to(x.device)
            self.bias = self.bias.to(x.device)
            self.sort_index_for_npu_todevice = True
        convolve: Any = ModulatedDeformConv2dFunction.apply
        result: torch.Tensor = convolve(
            x, offset, mask, self.weight, self.bias, self.with_bias, self.stride, self.padding, self.dilation,
            self.groups, self.deformable_groups, self.sort_index_for_npu_fp, self.sort_index_for_npu_bp,
        )  # fmt: skip
        return result


DCNv2 = ModulatedDeformConv
