"""Cyclic shift of feature maps, for Swin transformers.

Programs import `roll` from `torch_npu.contrib.function`. Signature and errors are those of
torch_npu/contrib/function/roll.py of Ascend/pytorch; tests/compat/operators/test_vision_tensors.py holds the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..._error_codes import ErrCode, ops_error

__all__ = ["roll"]


def roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    """Shift a feature map (N, H, W, C) cyclically along H and W.

    Args:
        x: 4 dimensions.
        shifts: along H and along W.
        dims: two numbers. torch_npu does not look at them: it always shifts dimensions 1 and 2.

    Returns:
        a tensor of the same shape, with a gradient.

    Raises:
        ValueError: another number of dimensions, shifts or dims.
    """
    if x.dim() != 4:
        raise ValueError("Expected x.dim() == 4" + ops_error(ErrCode.VALUE))
    if len(shifts) != 2:
        raise ValueError("Expected len(shifts) == 2" + ops_error(ErrCode.VALUE))
    if len(dims) != 2:
        raise ValueError("Expected len(dims) == 2" + ops_error(ErrCode.VALUE))
    return torch.roll(x, tuple(shifts), dims=(1, 2))
