"""Fused attention: the mathematics of npu_fusion_attention over scores that are kept whole.

The card's kernel never stores the scores; this composition does, so its memory grows with queries times keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .checks import compute_dtype

__all__ = ["Dropout", "attention"]


@dataclass(frozen=True)
class Dropout:
    """Dropout of the weights after the softmax.

    Attributes:
        keep: probability that a weight stays, in (0, 1].
        seed: seed of a generator of its own; 0 takes the device's generator.
        offset: position in that generator's sequence; another offset gives other numbers.
    """

    keep: float = 1.0
    seed: int = 0
    offset: int = 0

    def generator(self, device: torch.device) -> torch.Generator | None:
        """Generator for one call: None for the device's own."""
        if self.keep == 1.0 or not self.seed:
            return None
        # One stream of numbers for each pair: 2654435761 is Knuth's multiplier for hashing.
        return torch.Generator(device).manual_seed((self.seed + self.offset * 2654435761) % 2**63)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    bias: torch.Tensor | None = None,
    masked: torch.Tensor | None = None,
    zero_empty_rows: bool = False,
    keep: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """softmax(mask(scale * (query key^T + bias))) value, with dropout of the weights.

    Args:
        query: [B, N, Sq, D].
        key: [B, Nkv, Skv, D]; N is a multiple of Nkv, and neighbouring heads share one.
        value: [B, Nkv, Skv, Dv].
        scale: factor of the scores, bias included.
        bias: added to the product before it is scaled; broadcasts to [B, N, Sq, Skv].
        masked: True leaves a score out; broadcasts to [B, N, Sq, Skv].
        zero_empty_rows: rows without any score give zeros; otherwise all their keys count alike.
        keep: probability that dropout keeps a weight.
        generator: where dropout takes its numbers from; None is the device's own.

    Returns:
        the result [B, N, Sq, Dv] in the dtype of `query`, and the maximum and the sum of the softmax [B, N, Sq] in
        float32 (float64 for float64 input), both without a gradient.
    """
    dtype = compute_dtype(query)
    scores = _grouped(query.to(dtype), key.to(dtype).transpose(-2, -1))
    if bias is not None:
        scores = scores + bias.to(dtype)
    scores = scores * scale
    lowest = torch.finfo(dtype).min
    if masked is not None:
        scores = scores.masked_fill(masked, lowest)
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = (scores - largest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    weights = weights / total
    total = total.detach()
    if zero_empty_rows:
        empty = largest == lowest
        weights = weights.masked_fill(empty, 0.0)
        # What the kernel leaves in the sum of such a row.
        total = total.masked_fill(empty, torch.finfo(dtype).max)
    if keep < 1.0:
        chosen = torch.rand(weights.shape, dtype=torch.float32, device=weights.device, generator=generator) < keep
        weights = weights * chosen / keep
    return _grouped(weights, value.to(dtype)).to(query.dtype), largest.squeeze(-1), total.squeeze(-1)


def _grouped(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Matrix product [B, N, S, K] x [B, Nkv, K, M] -> [B, N, S, M] in which N/Nkv neighbouring heads share one."""
    batch, heads, rows, inner = left.shape
    shared = right.shape[1]
    stacked = left.reshape(batch, shared, heads // shared * rows, inner)
    return (stacked @ right).reshape(batch, heads, rows, right.shape[-1])
