"""Linear layer with quantised input and weights over npu_quant_matmul.

Programs import its names from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/linear_quant.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import Parameter

from ..._error_codes import ErrCode, ops_error
from ._operators import operator

__all__ = ["LinearQuant"]


def optional(size: int, dtype: torch.dtype, wanted: bool) -> Parameter | None:
    """A parameter without a gradient, or None."""
    return Parameter(torch.empty(size, dtype=dtype), False) if wanted else None


class LinearQuant(nn.Module):
    """x @ weight.T for int8 (or int4, eight to an int32), dequantised by `scale`.

    The parameters are empty; a program sets their `data`. `device` and `dtype` are without effect.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: have a bias.
        offset: have an offset for int8 results.
        pertoken_scale: have a scale for each row of the input.
        device: without effect.
        dtype: without effect.
        output_dtype: dtype of the result.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    pertoken_scale: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: Any = None,
        dtype: Any = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(torch.empty((out_features, in_features)), False)
        self.scale = Parameter(torch.empty(out_features), False)
        self.output_dtype = output_dtype
        self.register_parameter("offset", optional(out_features, torch.float32, offset))
        self.register_parameter("pertoken_scale", optional(out_features, torch.float32, pertoken_scale))
        self.register_parameter("bias", optional(out_features, torch.int32, bias))

    def forward(self, linear_quant_input: torch.Tensor) -> torch.Tensor:
        """Multiply by the weights.

        Raises:
            ValueError: input and weights are not both int8 or both int32.
        """
        self._check(linear_quant_input)
        scale = self.scale
        if self.pertoken_scale is None and self._needs_conversion():
            scale = operator("npu_trans_quant_param")(scale, self.offset)
        result: torch.Tensor = operator("npu_quant_matmul")(
            linear_quant_input, self.weight.transpose(-1, -2), scale, offset=self.offset,
            pertoken_scale=self.pertoken_scale, bias=self.bias, output_dtype=self.output_dtype,
        )  # fmt: skip
        return result

    def _check(self, x: torch.Tensor) -> None:
        dtypes = {x.dtype, self.weight.dtype}
        if len(dtypes) != 1 or not dtypes <= {torch.int8, torch.int32}:
            raise ValueError(
                "input and weight should be both torch.int32 or both torch.int8 datatype, "
                f"but now input is {x.dtype}, weight is {self.weight.dtype}." + ops_error(ErrCode.TYPE)
            )

    def _needs_conversion(self) -> bool:
        """Return True if the scale must become the 64-bit form that the kernel takes for these dtypes."""
        return self.scale.dtype == torch.float32 and self.output_dtype not in (torch.bfloat16, torch.int32)
