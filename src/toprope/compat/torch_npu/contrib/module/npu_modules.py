"""Dropout with a mask of one byte for each element.

Programs import `DropoutWithByteMask` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/npu_modules.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

import importlib

import torch
from torch import nn

from ..._error_codes import ErrCode, ops_error

__all__ = ["DropoutWithByteMask"]


class DropoutWithByteMask(nn.Module):
    """Dropout over dropout_with_byte_mask.

    Args:
        p: probability that an element is set to 0.
        inplace: must be False when the layer runs.
        max_seed: without effect.

    Raises:
        ValueError: `p` is outside [0, 1].
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, max_seed: int = 2**10 - 1) -> None:
        super().__init__()
        if p < 0 or p > 1:
            text = f"dropout probability has to be between 0 and 1, but got {p}"
            raise ValueError(text + ops_error(ErrCode.VALUE))
        self.p = p
        self.inplace = inplace

    def forward(self, input1: torch.Tensor) -> torch.Tensor:
        """Drop elements in training."""
        functions = importlib.import_module(f"{__name__.rpartition('.module.')[0]}.function.npu_functional")
        result: torch.Tensor = functions.dropout_with_byte_mask(input1, self.p, self.training, self.inplace)
        return result
