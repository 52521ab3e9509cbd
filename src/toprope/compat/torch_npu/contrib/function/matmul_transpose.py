"""Product with a transposed matrix."""

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
