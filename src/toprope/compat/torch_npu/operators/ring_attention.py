"""Operator npu_ring_attention_update: merge the results of attention over two parts of the keys.

Part of the torch_npu facade: programs call `torch_npu.npu_ring_attention_update`. Name and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_ring_attention.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Source: RingAttentionUpdateKernelNpuOpApi.cpp of Ascend/op-plugin for the refusals, and the document of
aclnnRingAttentionUpdateV2 in hicann/ops-transformer for the formula, the layouts and the limits of the kernel.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from .._error_codes import ErrCode, ops_error
from .checks import FLOATING, refuse
from .evaluation import has_values, on_950
from .registry import operator

__all__ = ["npu_ring_attention_update"]

_NAME = "npu_ring_attention_update"
_COPIES = 8  # times that each softmax statistic is stored
_HEADS, _WIDTH, _WIDTH_STEP = 256, 768, 64  # limits of TND before the Ascend 950

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _check(holds: bool, text: str, error: ErrCode = ErrCode.VALUE) -> None:
    if not holds:
        raise RuntimeError(text + ops_error(error))


def _check_arguments(
    outputs: tuple[torch.Tensor, torch.Tensor],
    statistics: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    ends: torch.Tensor | None,
    layout: str,
    softmax_layout: str,
) -> None:
    prev, cur = outputs
    shape = statistics[0].shape
    _check(layout in ("SBH", "TND"), f"input_layout only supports 'SBH' or 'TND', but got {layout}")
    _check(
        softmax_layout in ("", "SBH", "TND"),
        f"input_softmax_layout only supports '', 'SBH' or 'TND', but got {softmax_layout}",
    )
    _check(prev.shape == cur.shape, "prev_attn_out and cur_attn_out must have the same shape.")
    _check(prev.dtype == cur.dtype, "prev_attn_out and cur_attn_out must have the same dtype.")
    _check(
        prev.dtype in FLOATING,
        f"attn_out dtype only supports float16, float32 or bfloat16, but got {prev.dtype}",
        ErrCode.TYPE,
    )
    _check(all(each.shape == shape for each in statistics), "softmax tensors must keep the same shape.")
    _check(all(each.dtype == torch.float32 for each in statistics), "softmax tensors must use float32.", ErrCode.TYPE)
    _check(
        len(shape) > 0 and shape[-1] == _COPIES,
        f"softmax tensors require the last dimension to be {_COPIES}.",
    )
    _check(prev.dim() == 3, f"prev_attn_out must be a 3D tensor, but got {prev.dim()}D.")
    if layout == "SBH":
        _check(len(shape) == 4, "softmax tensors must be 4D when input_layout is 'SBH'.")
    else:
        _check(ends is not None, "actual_seq_qlen is required when input_layout is 'TND'.")
        _check(len(shape) == 3, "softmax tensors must be 3D when input_layout is 'TND'.")
    _check(ends is None or ends.dtype == torch.int64, "actual_seq_qlen must use int64 dtype.", ErrCode.TYPE)


def _check_sizes(prev: torch.Tensor, shape: torch.Size, layout: str) -> None:
    if layout == "SBH":
        length, batch, hidden = prev.shape
        if list(shape[::2]) != [batch, length] or hidden % shape[1]:
            refuse(_NAME, f"softmax tensors are {list(shape)}; attn_out {list(prev.shape)} of SBH wants [B, N, S, 8]")
        return
    if prev.shape[:2] != shape[:2]:
        refuse(_NAME, f"softmax tensors are {list(shape)}; attn_out {list(prev.shape)} of TND wants [T, N, 8]")
    heads, width = prev.shape[1:]
    if not on_950(prev) and (heads > _HEADS or width > _WIDTH or width % _WIDTH_STEP):
        refuse(
            _NAME,
            f"attn_out has {heads} heads of {width}; with TND the kernel takes up to {_HEADS} heads of a multiple of "
            f"{_WIDTH_STEP} up to {_WIDTH}",
        )


def _by_tokens(packed: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[T, N] from numbers that lie as [N, S] of one sequence after the other, as npu_fusion_attention writes them."""
    if not has_values(packed, ends):
        return torch.empty_like(packed)
    tokens, heads = packed.shape
    bounds = [int(end) for end in ends.tolist()]
    if len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != tokens or sorted(bounds) != bounds:
        refuse(_NAME, f"actual_seq_qlen is {bounds}; it must rise from 0 to the number of tokens, {tokens}")
    flat = packed.reshape(-1)
    parts = [flat[start * heads : end * heads].reshape(heads, end - start).t() for start, end in pairwise(bounds)]
    return torch.cat(parts)


@operator("npu_ring_attention_update")
def npu_ring_attention_update(
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
    *,
    actual_seq_qlen: torch.Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> Triple:
    """Attention over two parts of the keys: both results, each times its share of the sum of the softmax.

    max = maximum(prev_max, cur_max), sum = prev_sum * exp(prev_max - max) + cur_sum * exp(cur_max - max), and
    out = (prev_out * prev_sum * exp(prev_max - max) + cur_out * cur_sum * exp(cur_max - max)) / sum.

    Args:
        prev_attn_out: the result over the first part, [S, B, H] or [T, N, D]; float16, bfloat16 or float32.
        prev_softmax_max: maximum of its scores, [B, N, S, 8] with SBH and [T, N, 8] with TND, float32, each 8 times.
        prev_softmax_sum: sum of exp(score - maximum), like `prev_softmax_max`.
        cur_attn_out: the result over the second part, like `prev_attn_out`.
        cur_softmax_max: like `prev_softmax_max`.
        cur_softmax_sum: like `prev_softmax_max`.
        actual_seq_qlen: for TND, where sequences begin and end, int64: 0, the end of the first, ... and T.
        input_layout: "SBH" or "TND".
        input_softmax_layout: for TND: "TND" if the statistics lie as [T, N, 8], "SBH" or "" if those of each
            sequence lie as [N, S, 8].

    Returns:
        the result like `prev_attn_out`, and the maximum and the sum of both parts like `prev_softmax_max`.

    Raises:
        RuntimeError: op-plugin or the kernel would not take the arguments.
    """
    statistics = prev_softmax_max, prev_softmax_sum, cur_softmax_max, cur_softmax_sum
    _check_arguments((prev_attn_out, cur_attn_out), statistics, actual_seq_qlen, input_layout, input_softmax_layout)
    _check_sizes(prev_attn_out, prev_softmax_max.shape, input_layout)
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    prev_sum = prev_softmax_sum * torch.exp(prev_softmax_max - largest)
    cur_sum = cur_softmax_sum * torch.exp(cur_softmax_max - largest)
    total = prev_sum + cur_sum
    result = torch.zeros_like(prev_attn_out, dtype=torch.float32)
    for out, part in ((prev_attn_out, prev_sum), (cur_attn_out, cur_sum)):
        share = (part / total)[..., 0]
        if input_layout == "SBH":
            share = share.permute(2, 0, 1)
            out = out.reshape(*share.shape, -1)
        elif input_softmax_layout != "TND" and actual_seq_qlen is not None:
            share = _by_tokens(share, actual_seq_qlen)
        result += (out.float() * share.unsqueeze(-1)).reshape(result.shape)
    return result.to(prev_attn_out.dtype), largest, total
