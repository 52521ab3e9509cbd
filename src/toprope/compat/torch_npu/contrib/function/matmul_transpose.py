"""Product with a transposed matrix.

Programs import `matmul_transpose` from `torch_npu.contrib.function`. Signature and errors are those of
torch_npu/contrib/function/matmul_transpose.py of Ascend/pytorch; tests/compat/operators/test_vision_tensors.py holds
the values.
"""

from __future__ import annotations

import torch

__all__ = ["matmul_transpose"]


def matmul_transpose(tensor1: torch.Tensor, tensor2: torch.Tensor) -> torch.Tensor:
    """tensor1 @ tensor2.transpose(-2, -1), with its gradient.

    Args:
        tensor1: (..., n, k).
        tensor2: (..., m, k).

    Returns:
        (..., n, m).
    """
    return torch.matmul(tensor1, tensor2.transpose(-2, -1))
