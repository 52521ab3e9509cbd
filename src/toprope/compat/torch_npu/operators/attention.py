"""Fused attention and its gradient: the mathematics of npu_fusion_attention over scores that are kept whole.

Used by the operator modules for attention in this folder, which also take `list_of` and the dropout helpers from here.
The card's kernel never stores the scores; this composition does, so its memory grows with queries times keys: another
composition is free as long as the values, the float32 statistics and the position of the generator stay. Tests:
tests/compat/test_npu_fusion_attention.py, tests/compat/operators/test_fusion_attention_training.py (gradients,
dropout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from toprope.sim.npu import random

from .checks import compute_dtype, refuse
from .dropout import drawn_bits

__all__ = [
    "Dropout",
    "Gradients",
    "attention",
    "attention_grad",
    "drawn_position",
    "drawn_seed",
    "kept_weights",
    "list_of",
    "traced",
]

_PHILOX_STEP = 12
"""Numbers that one call takes from the card's generator: 10, rounded up to a multiple of 4."""


@dataclass(frozen=True)
class Dropout:
    """Dropout of the weights after the softmax.

    Attributes:
        keep: probability that a weight stays, in (0, 1].
        seed: seed of the numbers; None draws them from the device's generator.
        offset: position in that seed's sequence; another offset gives other numbers.
    """

    keep: float = 1.0
    seed: int | torch.Tensor | None = None
    offset: int | torch.Tensor = 0


@dataclass(frozen=True)
class Gradients:
    """Gradients of one call of `attention`; those of bias and sink only where they were given."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    sink: torch.Tensor | None


def traced(tensor: torch.Tensor) -> bool:
    """True if a compiler looks at shapes alone, so that the tensor has no values."""
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type == "meta"


def drawn_seed(device: torch.device) -> tuple[int, int]:
    """Seed and offset for one call, from the device's generator, which moves on.

    Together they reproduce the dropout: the backward operators take them.
    """
    if device.type == "npu":
        seed, offset = random.initial_seed(), random._get_rng_state_offset(device)
        random._set_rng_state_offset(offset + _PHILOX_STEP, device)
    else:
        seed, offset = torch.initial_seed(), int(torch.randint(2**31, ()))
    return (seed + 2**63) % 2**64 - 2**63, offset


def drawn_position(like: torch.Tensor) -> torch.Tensor:
    """`drawn_seed` as an operator, which a captured graph does again at every replay.

    Returns:
        seed and offset, [2] int64 on the device of a tensor.
    """
    position: torch.Tensor = torch.ops.toprope_draws.position(like)
    return position


def _position(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(drawn_seed(like.device), device=like.device)


_library: Any = torch.library.Library("toprope_draws", "DEF")  # type: ignore[no-untyped-call]
_library.define("position(Tensor like) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.impl("position", _position, "CompositeExplicitAutograd")
torch.library.register_fake("toprope_draws::position", lambda like: like.new_empty(2, dtype=torch.int64), lib=_library)


def kept_weights(
    operator: str, count: int, dropout: Dropout, mask: torch.Tensor | None, device: torch.device
) -> torch.Tensor | None:
    """Mask of the weights that dropout keeps, one after the other as the scores lie.

    Args:
        operator: its name, for errors.
        count: number of scores of the call.
        dropout: its probability and seed.
        mask: one bit for each score, the lowest of a byte first, in uint8; None draws them.
        device: of the result.

    Returns:
        a bool tensor of `count` elements, or None if all are kept.

    Raises:
        RuntimeError: the mask has another dtype, or too few bits.
    """
    if mask is not None:
        if mask.dtype != torch.uint8 or mask.numel() * 8 < count:
            shape = f"{list(mask.shape)} {mask.dtype}"
            refuse(operator, f"dropout_mask holds one bit for each of the {count} scores in uint8, but got {shape}")
        bits = (mask.reshape(-1, 1).int() >> torch.arange(8, dtype=torch.int32, device=mask.device)) & 1
        return bits.reshape(-1)[:count].bool()
    if dropout.keep == 1.0:
        return None
    if dropout.seed is None:
        return torch.rand(count, dtype=torch.float32, device=device) < dropout.keep
    return drawn_bits(count, 1 - dropout.keep, dropout.seed, dropout.offset, device)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    bias: torch.Tensor | None = None,
    bias_after_scale: bool = False,
    masked: torch.Tensor | None = None,
    zero_empty_rows: bool = False,
    sink: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
    keep: float = 1.0,
    rounded: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """softmax(mask(scale * (query key^T + bias))) value, with dropout of the weights.

    Args:
        query: [B, N, Sq, D].
        key: [B, Nkv, Skv, D]; N is a multiple of Nkv, and neighbouring heads share one.
        value: [B, Nkv, Skv, Dv].
        scale: factor of the scores, bias included.
        bias: added to the product before it is scaled; broadcasts to [B, N, Sq, Skv].
        bias_after_scale: the bias is added after the scale instead.
        masked: True leaves a score out; broadcasts to [B, N, Sq, Skv].
        zero_empty_rows: rows without any score give zeros; otherwise all their keys count alike.
        sink: [N]: a further score of every row, which takes weight but has no value.
        kept: True for weights that dropout keeps, [B, N, Sq, Skv].
        keep: probability that dropout keeps a weight, by whose reciprocal the kept ones grow.
        rounded: the weights are rounded to the dtype of `query` before they meet the values.

    Returns:
        the result [B, N, Sq, Dv] in the dtype of `query`, and the maximum and the sum of the softmax [B, N, Sq] in
        float32 (float64 for float64 input), both without a gradient.
    """
    dtype = compute_dtype(query)
    scores = _scores(query, key, scale, bias, bias_after_scale, masked)
    largest = scores.detach().amax(dim=-1, keepdim=True)
    if sink is not None:
        sink = sink.to(dtype).reshape(1, -1, 1, 1)
        largest = torch.maximum(largest, sink.detach())
    weights = (scores - largest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        total = total + (sink - largest).exp()
    weights = weights / total
    total = total.detach()
    if zero_empty_rows:
        empty = largest == torch.finfo(dtype).min
        weights = weights.masked_fill(empty, 0.0)
        # What the kernel leaves in the sum of such a row.
        total = total.masked_fill(empty, torch.finfo(dtype).max)
    if kept is not None:
        weights = weights * kept / keep
    if rounded:
        weights = weights.to(query.dtype).to(dtype)
    return _grouped(weights, value.to(dtype)).to(query.dtype), largest.squeeze(-1), total.squeeze(-1)


def attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    grad: torch.Tensor,
    out: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    bias_after_scale: bool = False,
    masked: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
    keep: float = 1.0,
) -> Gradients:
    """Gradients of `attention`, from the statistics of its softmax.

    With P = exp(scores - largest) / total: dV = P^T dO, dS = P * (dO V^T - rowsum(dO * O)), dQ = scale * dS K,
    dK = scale * dS^T Q. The statistics and `out` may be those of more keys than these, as in ring attention.

    Args:
        query: [B, N, Sq, D]; this and what follows are those of `attention`.
        key: [B, Nkv, Skv, D].
        value: [B, Nkv, Skv, Dv].
        scale: factor of the scores.
        grad: gradient of the result, [B, N, Sq, Dv].
        out: the result, [B, N, Sq, Dv].
        largest: maximum of every row, [B, N, Sq].
        total: sum of every row, [B, N, Sq].
        bias: position bias.
        bias_after_scale: the bias is added after the scale.
        masked: True leaves a score out.
        sink: further score of every row.
        kept: True for weights that dropout kept.
        keep: probability that dropout kept a weight.

    Returns:
        the gradients in the dtypes of the inputs.
    """
    dtype = compute_dtype(query)
    largest, total = largest.to(dtype).unsqueeze(-1), total.to(dtype).unsqueeze(-1)
    weights = (_scores(query, key, scale, bias, bias_after_scale, masked) - largest).exp() / total
    wide = grad.to(dtype)
    of_weights = _grouped(wide, value.to(dtype).transpose(-2, -1))
    used = weights
    if kept is not None:
        of_weights, used = of_weights * kept / keep, weights * kept / keep
    product = (wide * out.to(dtype)).sum(dim=-1, keepdim=True)
    scores = weights * (of_weights - product)
    of_sink = None
    if sink is not None:
        share = (sink.to(dtype).reshape(1, -1, 1, 1) - largest).exp() / total
        of_sink = -(share * product).sum(dim=(0, 2, 3)).to(sink.dtype)
    of_bias = None
    if bias is not None:
        of_bias = (scores if bias_after_scale else scores * scale).sum_to_size(bias.shape).to(bias.dtype)
    shared = key.shape[1]
    return Gradients(
        (_grouped(scores, key.to(dtype)) * scale).to(query.dtype),
        (_gathered(scores, query.to(dtype), shared) * scale).to(key.dtype),
        _gathered(used, wide, shared).to(value.dtype),
        of_bias,
        of_sink,
    )


def _scores(
    query: torch.Tensor,
    key: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None,
    bias_after_scale: bool,
    masked: torch.Tensor | None,
) -> torch.Tensor:
    dtype = compute_dtype(query)
    scores = _grouped(query.to(dtype), key.to(dtype).transpose(-2, -1))
    if bias is not None and not bias_after_scale:
        scores = scores + bias.to(dtype)
    scores = scores * scale
    if bias is not None and bias_after_scale:
        scores = scores + bias.to(dtype)
    return scores if masked is None else scores.masked_fill(masked, torch.finfo(dtype).min)


def _grouped(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Matrix product [B, N, S, K] x [B, Nkv, K, M] -> [B, N, S, M] in which N/Nkv neighbouring heads share one."""
    batch, heads, rows, inner = left.shape
    shared = right.shape[1]
    stacked = left.reshape(batch, shared, heads // shared * rows, inner)
    return (stacked @ right).reshape(batch, heads, rows, right.shape[-1])


def _gathered(weights: torch.Tensor, rows: torch.Tensor, shared: int) -> torch.Tensor:
    """weights^T rows, [B, N, S, K] and [B, N, S, M] -> [B, Nkv, K, M], summed over the heads that share one."""
    batch, heads, length, columns = weights.shape
    stacked = weights.reshape(batch, shared, heads // shared * length, columns)
    return stacked.transpose(-2, -1) @ rows.reshape(batch, shared, heads // shared * length, rows.shape[-1])


def list_of(lengths: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    """Lengths that come as a list or as a tensor, as a list."""
    if isinstance(lengths, torch.Tensor):
        return [int(length) for length in lengths.tolist()]
    return None if lengths is None else list(lengths)
