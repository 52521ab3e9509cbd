"""Linear layer with quantised weights over npu_weight_quant_batchmatmul.

Programs import `LinearWeightQuant` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/linear_weight_quant.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the
values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import Parameter

from ._operators import operator

__all__ = ["LinearWeightQuant"]


class LinearWeightQuant(nn.Module):
    """x @ ((weight + antiquant_offset) * antiquant_scale).T + bias.

    The parameters are empty; a program sets their `data`. `dtype` is without effect.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: have a bias.
        device: of the parameters.
        dtype: without effect.
        antiquant_offset: have an offset of the weights.
        quant_scale: have a scale for int8 results.
        quant_offset: have an offset for int8 results.
        antiquant_group_size: features that share a scale; 0 for all.
        inner_precise: precision mode of the kernel.
        weight_dtype: dtype that int32 weights hold.
    """

    weight: torch.Tensor
    antiquant_scale: torch.Tensor
    antiquant_offset: torch.Tensor | None
    quant_scale: torch.Tensor | None
    quant_offset: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        antiquant_offset: bool = False,
        quant_scale: bool = False,
        quant_offset: bool = False,
        antiquant_group_size: int = 0,
        inner_precise: int = 0,
        weight_dtype: Any = None,
    ) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty((out_features, in_features), device=device), False)
        self.antiquant_scale = Parameter(torch.empty(out_features, device=device), False)
        wanted = {"antiquant_offset": antiquant_offset, "quant_scale": quant_scale, "quant_offset": quant_offset}
        for name, there in {**wanted, "bias": bias}.items():
            self.register_parameter(name, Parameter(torch.empty(out_features, device=device), False) if there else None)
        self.antiquant_group_size = antiquant_group_size
        self.inner_precise = inner_precise
        self.weight_dtype = weight_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the weights."""
        scale, offset = (
            tensor.transpose(-1, -2) if tensor is not None and tensor.dim() == 2 else tensor
            for tensor in (self.antiquant_scale, self.antiquant_offset)
        )
        result: torch.Tensor = operator("npu_weight_quant_batchmatmul")(
            x, self.weight.transpose(-1, -2), scale, offset, self.quant_scale, self.quant_offset, self.bias,
            self.antiquant_group_size, self.inner_precise, weight_dtype=self.weight_dtype,
        )  # fmt: skip
        return result
