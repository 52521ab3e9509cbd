"""Masked, scaled and dropped attention probabilities in one call.

Programs import `fuse_add_softmax_dropout` from `torch_npu.contrib.function`. Signature and errors are those of
torch_npu/contrib/function/fuse_add_softmax_dropout.py of Ascend/pytorch; tests/compat/operators/test_vision_tensors.py
holds the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

__all__ = ["fuse_add_softmax_dropout"]

_FUSED_HEIGHTS = (128, 256, 384, 512)
_FUSED_HEADS = 32


def fuse_add_softmax_dropout(
    training: bool,
    dropout: Callable[[torch.Tensor], torch.Tensor],
    attn_mask: torch.Tensor,
    attn_scores: torch.Tensor,
    attn_head_size: float,
    p: float = 0.5,
    dim: int = -1,
) -> torch.Tensor:
    """dropout(softmax(attn_mask + attn_scores / sqrt(attn_head_size))) along the last dimension.

    Shapes with 128, 256, 384 or 512 rows and a multiple of 32 heads go through npu_dropout_with_add_softmax, with `p`
    while training and 0 otherwise; the others through `dropout`.

    Args:
        training: see above.
        dropout: a layer.
        attn_mask: added to the scores.
        attn_scores: (N, heads, rows, columns).
        attn_head_size: size of a head.
        p: probability of an element to be dropped.
        dim: not used, as in torch_npu.

    Returns:
        of the shape of `attn_scores`.
    """
    batch, heads, rows, _ = attn_scores.size()
    scale = 1 / math.sqrt(attn_head_size)
    if rows in _FUSED_HEIGHTS and (batch * heads) % _FUSED_HEADS == 0:
        fused = torch.ops.npu.npu_dropout_with_add_softmax
        found: torch.Tensor = fused(attn_scores, attn_mask, scale, p if training else 0.0, -1)[2]
        return found
    return dropout(torch.softmax(torch.add(attn_mask, attn_scores, alpha=scale), dim=-1))
