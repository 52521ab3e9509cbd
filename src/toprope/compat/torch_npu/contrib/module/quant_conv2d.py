"""Quantised convolution over npu_quant_conv2d.

Programs import `QuantConv2d` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/quant_conv2d.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.utils import _pair
from torch.nn.parameter import Parameter

from ..._error_codes import ErrCode, ops_error
from ._operators import operator

__all__ = ["QuantConv2d"]


class QuantConv2d(nn.Module):
    """(x * weight + bias) * scale, a convolution of int8.

    The parameters are empty; a program sets their `data`. `device` and `dtype` are without effect.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: one number or two.
        output_dtype: dtype of the result.
        stride: of the convolution.
        padding: on each side.
        dilation: of the kernel.
        groups: of the convolution.
        bias: have a bias.
        offset: must be False.
        offset_x: value that pads the input.
        round_mode: of the requantisation.
        input_dtype: torch_npu.hifloat8 for such input.
        weight_dtype: torch_npu.hifloat8 for such weights.
        device: without effect.
        dtype: without effect.

    Raises:
        ValueError: `offset` is true.
    """

    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        output_dtype: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        offset: bool = False,
        offset_x: int = 0,
        round_mode: str = "rint",
        input_dtype: Any = None,
        weight_dtype: Any = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _pair(kernel_size)
        self.stride = _pair(stride)
        self.padding = _pair(padding)
        self.dilation = _pair(dilation)
        self.groups = groups
        self.offset_x = offset_x
        self.round_mode = round_mode
        self.input_dtype = input_dtype
        self.weight_dtype = weight_dtype
        self.output_dtype = output_dtype
        self.weight = Parameter(torch.empty((out_channels, in_channels // groups, *self.kernel_size)), False)
        self.scale = Parameter(torch.empty(out_channels, dtype=torch.int64), False)
        self.register_parameter("bias", Parameter(torch.empty(out_channels), False) if bias else None)
        if offset:
            raise ValueError("offset must be False" + ops_error(ErrCode.VALUE))
        self.register_parameter("offset", None)

    def forward(self, quant_conv2d_input: torch.Tensor) -> torch.Tensor:
        """Convolve [N, in_channels, H, W]."""
        scale = self.scale
        if scale.dtype == torch.float32:
            scale = operator("npu_trans_quant_param")(scale)
        result: torch.Tensor = operator("npu_quant_conv2d")(
            quant_conv2d_input, self.weight, scale, self.stride, self.padding, self.dilation, self.groups,
            self.offset_x, self.round_mode, self.output_dtype, self.bias, self.offset, self.input_dtype,
            self.weight_dtype,
        )  # fmt: skip
        return result
