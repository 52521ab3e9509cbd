"""Functions of torch.nn.functional in a form of the card's own.

Programs import `dropout_with_byte_mask` from `torch_npu.contrib.function`. Signature and errors are those of
torch_npu/contrib/function/npu_functional.py of Ascend/pytorch. Tests: tests/compat/operators/test_vision_tensors.py for
the errors; the operator's values are held by tests/compat/operators/test_dropout.py.
"""

from __future__ import annotations

import torch

from ..._error_codes import ErrCode, ops_error

__all__ = ["dropout_with_byte_mask"]


def dropout_with_byte_mask(
    input1: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Dropout with a mask of bytes: the operator dropout_with_byte_mask.

    Args:
        input1: any tensor.
        p: probability of an element to be dropped.
        training: without it nothing is dropped.
        inplace: must be False.

    Returns:
        a tensor of the same shape.

    Raises:
        ValueError: a probability that is none, or `inplace`.
    """
    if not 0.0 <= p <= 1.0:
        text = f"dropout probability has to be between 0 and 1, but got {p}"
        raise ValueError(text + ops_error(ErrCode.VALUE))
    if inplace:
        raise ValueError("dropout probability has no-inplace computing." + ops_error(ErrCode.VALUE))
    found: torch.Tensor = torch.ops.npu.dropout_with_byte_mask(input1, p, training)
    return found
