"""Assignment by a mask, without indices.

Programs import `npu_fast_condition_index_put` from `torch_npu.contrib.function`. Signature and errors are those of
torch_npu/contrib/function/index_op.py of Ascend/pytorch; tests/compat/operators/test_vision_tensors.py holds the
values.
"""

from __future__ import annotations

import torch

from ..._error_codes import ErrCode, ops_error

__all__ = ["npu_fast_condition_index_put"]


def npu_fast_condition_index_put(x: torch.Tensor, condition: torch.Tensor, value: float) -> torch.Tensor:
    """A copy of `x` with a value where the condition is True: x[condition] = value.

    Args:
        x: any tensor.
        condition: bool.
        value: a number.

    Returns:
        a new tensor.

    Raises:
        TypeError: `condition` is not bool.
    """
    if condition.dtype is not torch.bool:
        raise TypeError("Expected condition.dtype in [torch.bool]" + ops_error(ErrCode.TYPE))
    return torch.where(condition, torch.zeros_like(x) + value, x)
