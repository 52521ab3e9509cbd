"""Attention of one sequence for inference: the mathematics that the operators with a KV cache share.

Used by inference_attention.py, packed_attention.py and the modules of their operators. The card's kernels never store
the scores; this composition stores only those of a block of queries, so that its memory does not grow with the square
of long sequences. The size of a block is free. Tests: tests/compat/operators/test_inference_attention.py,
tests/compat/operators/test_atb_attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .checks import compute_dtype

__all__ = ["MASKED", "IntegerScales", "attend", "float_bits", "grouped_product", "merge"]

MASKED = -1e12
"""Score of a position that is left out (BOOL_ATTEN_MASK_SCALAR_VALUE of incre_flash_attention in ops-transformer)."""

_SCORES_AT_ONCE = 2**26


@dataclass(frozen=True)
class IntegerScales:
    """Scales of an attention whose query, key and value are int8, each one number in a tensor.

    Attributes:
        scores: factor of the integer product of query and key.
        weights: factor of the weights, exp(score - maximum), before they are rounded to int8.
        result: factor of the integer product of weights and value.
    """

    scores: torch.Tensor
    weights: torch.Tensor
    result: torch.Tensor


def float_bits(scale: torch.Tensor) -> torch.Tensor:
    """A scale as float32, which may lie in the lower half of 64 bits."""
    return scale.view(torch.float32)[..., ::2] if scale.dtype in (torch.int64, torch.uint64) else scale.float()


def grouped_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Matrix product [N, S, K] x [Nkv, K, M] -> [N, S, M] in which N/Nkv neighbouring heads share one."""
    heads, rows, inner = left.shape
    shared = right.shape[0]
    return (left.reshape(shared, heads // shared * rows, inner) @ right).reshape(heads, rows, right.shape[-1])


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    bias: torch.Tensor | None = None,
    masked: torch.Tensor | None = None,
    zero_empty_rows: bool = False,
    sink: torch.Tensor | None = None,
    scales: IntegerScales | None = None,
    half_scores: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(mask(scale * query key^T + bias)) value of one sequence, and the logarithm of the softmax's sum.

    Args:
        query: [N, Sq, D].
        key: [Nkv, Skv, D]; N is a multiple of Nkv, and neighbouring heads share one.
        value: [Nkv, Skv, Dv].
        scale: factor of the product of query and key.
        bias: added to the scaled product; broadcasts to [N, Sq, Skv].
        masked: True leaves a score out; broadcasts to [N, Sq, Skv].
        zero_empty_rows: rows without any score give zeros and the logarithm inf; otherwise all their keys count alike.
        sink: [N], a score for each head that takes part in the sum and has no value.
        scales: those of int8 inputs.
        half_scores: the products, the scaled scores and the biased ones are rounded to float16, as kernels do that
            look for speed.

    Returns:
        the result [N, Sq, Dv] and log(sum(exp(scores))) [N, Sq, 1], both in float32 (float64 for float64 input).
    """
    heads, rows = query.shape[:2]
    keys = key.shape[1]
    dtype = compute_dtype(query)
    if not keys or not rows:
        result = query.new_zeros((heads, rows, value.shape[-1]), dtype=dtype)
        return result, query.new_full((heads, rows, 1), torch.inf, dtype=dtype)
    step = max(1, _SCORES_AT_ONCE // (heads * keys))
    wide_key, wide_value = key.to(dtype).transpose(-2, -1), value.to(dtype)
    blocks = []
    for start in range(0, rows, step):
        end = min(start + step, rows)
        scores = _rounded(grouped_product(query[:, start:end].to(dtype), wide_key), half_scores)
        if scales is not None:
            scores = scores * scales.scores
        scores = _rounded(scores * scale, half_scores)
        if bias is not None:
            scores = _rounded(scores + _rows(bias, start, end, rows).to(dtype), half_scores)
        if masked is not None:
            scores = scores.masked_fill(_rows(masked, start, end, rows), MASKED)
        blocks.append(_softmax(scores, wide_value, zero_empty_rows, sink, scales))
    results, logarithms = zip(*blocks, strict=True)
    return torch.cat(results, 1), torch.cat(logarithms, 1)


def _rounded(scores: torch.Tensor, half: bool) -> torch.Tensor:
    return scores.to(torch.float16).to(scores.dtype) if half else scores


def _softmax(
    scores: torch.Tensor,
    value: torch.Tensor,
    zero_empty_rows: bool,
    sink: torch.Tensor | None,
    scales: IntegerScales | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    largest = scores.amax(dim=-1, keepdim=True)
    empty = largest <= MASKED
    if sink is not None:
        largest = torch.maximum(largest, sink.to(scores.dtype)[:, None, None])
    weights = (scores - largest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        total = total + (sink.to(scores.dtype)[:, None, None] - largest).exp()
    if scales is None:
        result = grouped_product(weights / total, value)
    else:
        integers = (weights * scales.weights).round().clamp(-128, 127)
        result = grouped_product(integers, value) * scales.result / total
    logarithm = total.log() + largest
    if zero_empty_rows:
        result, logarithm = result.masked_fill(empty, 0.0), logarithm.masked_fill(empty, torch.inf)
    return result, logarithm


def _rows(tensor: torch.Tensor, start: int, end: int, rows: int) -> torch.Tensor:
    return tensor[..., start:end, :] if tensor.dim() > 1 and tensor.shape[-2] == rows > 1 else tensor


def merge(results: torch.Tensor, logarithms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One attention from those over parts of the keys: sum of O_i exp(lse_i - lse), lse = log(sum of exp(lse_i)).

    Args:
        results: the parts, one after the other along the first axis.
        logarithms: their logarithms of sums, which broadcast to `results`; inf marks a part without keys.

    Returns:
        the result and its logarithm, without the first axis.
    """
    logarithms = logarithms.masked_fill(logarithms == torch.inf, -torch.inf)
    largest = logarithms.amax(0)
    largest = largest.masked_fill(largest == -torch.inf, 0.0)
    total = (logarithms - largest).exp().sum(0).log() + largest
    weights = (logarithms - total).exp().masked_fill(total == -torch.inf, 0.0)
    return (results * weights).sum(0), total
