"""The operators of attention for inference: npu_fused_infer_attention_score, its second version and its forerunners.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_inference_attention.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Their arguments become an InferenceCall, which computes. Source: the operators' pages in op-plugin and
FusedInferAttentionScore(V2)KernelNpuOpApi.cpp; torch_npu/op_plugin/meta/_meta_registrations.py has the shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .checks import refuse
from .evaluation import has_values
from .inference_attention import NO_LIMIT, InferenceCall, Quantised, attention_result
from .inference_layout import check_value, infer_layout
from .registry import operator
from .sequence_attention import IntegerScales, float_bits

__all__ = [
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_incre_flash_attention",
    "npu_prompt_flash_attention",
]

_V1, _V2 = "npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"
_PRECISE_MODES = range(10, 15)
"""Values of sparse_mode for high precision, from which op-plugin takes 10 (FlashAttentionKernelNpuOpApi.cpp)."""

_PROMPT, _INCRE = "npu_prompt_flash_attention", "npu_incre_flash_attention"


@operator("npu_fused_infer_attention_score")
def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    key_antiquant_scale: torch.Tensor | None = None,
    key_antiquant_offset: torch.Tensor | None = None,
    value_antiquant_scale: torch.Tensor | None = None,
    value_antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    query_padding_size: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    key_shared_prefix: torch.Tensor | None = None,
    value_shared_prefix: torch.Tensor | None = None,
    actual_shared_prefix_len: Sequence[int] | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    key_rope_antiquant_scale: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of prompts and of single tokens, with a KV cache: softmax(mask(scale * query key^T + pse)) value.

    Args:
        query: in the first half of `input_layout`; float16, bfloat16 or int8.
        key: like query, or a cache in blocks if there is a `block_table`: [blocks, S, H], [blocks, N, S, D] or
            [blocks, N, D/16, S, 16]; int8 (or eight int4 in an int32) with scales.
        value: like key; its heads may have another size.
        pse_shift: added to the scaled scores, [B or 1, N, Sq, Skv].
        atten_mask: bool, int8 or uint8; True leaves a score out. [Sq, Skv] with up to two axes before it, [B, Skv] for
            single tokens, or the compressed 2048 x 2048 of modes 2 to 4.
        actual_seq_lengths: lengths of the queries; running sums in TND and NTD. Rows after them give zeros.
        actual_seq_lengths_kv: lengths of key and value; running sums in TND and NTD without a block table.
        dequant_scale1: int8 query: factor of the scores (float32, or its bits in 64 bits).
        quant_scale1: int8 query: factor of the weights.
        dequant_scale2: int8 query: factor of the result.
        quant_scale2: factor of an int8 result; one number or one for each channel.
        quant_offset2: added to it.
        antiquant_scale: scales of int8 key and value, stacked: [2, ...].
        antiquant_offset: their offsets.
        key_antiquant_scale: scale of int8 key: (stored + offset) * scale.
        key_antiquant_offset: its offset.
        value_antiquant_scale: scale of int8 value.
        value_antiquant_offset: its offset.
        block_table: int32 [B, blocks of a sequence]: the cache's blocks of each sequence.
        query_padding_size: distance of the queries' last row from the end (left padding).
        kv_padding_size: the same for key and value.
        key_shared_prefix: [1, ...], keys before those of every sequence.
        value_shared_prefix: the values to them.
        actual_shared_prefix_len: how many of them count.
        query_rope: further channels of query (MLA).
        key_rope: further channels of key, in blocks as key.
        key_rope_antiquant_scale: reserved.
        num_heads: heads of query.
        scale: factor of the scores.
        pre_tokens: keys before the diagonal that count, in modes 0 and 4.
        next_tokens: keys after the diagonal that count, in modes 0 and 4.
        input_layout: BSH, BSND, BNSD, TND, NTD, NSD, or two of them with the result's after "_", NBSD among these.
        num_key_value_heads: heads of key and value; 0 for those of query.
        sparse_mode: 0 mask and band, 1 whole mask, 2 and 3 causal from the upper left and lower right, 4 band.
        inner_precise: bit 0 rounds the scores of float16 to float16; bit 1 gives zeros for rows whose scores are all
            left out.
        block_size: tokens in a block.
        antiquant_mode: 0 one scale or one for each channel, 1 one for each token.
        key_antiquant_mode: 0 and 1 as above, 2 head, 3 token and head, 4 and 5 the latter two in blocks.
        value_antiquant_mode: the same for value.
        softmax_lse_flag: whether to return the logarithm of the softmax's sum.

    Returns:
        the result, and softmax_lse [B, N, Sq, 1] ([T, N, 1] without a batch axis) in float32 with inf for rows without
        keys, or an empty tensor.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    return _call_v1(dict(locals())).run()


@operator("npu_fused_infer_attention_score.out")
def _score_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    key_antiquant_scale: torch.Tensor | None = None,
    key_antiquant_offset: torch.Tensor | None = None,
    value_antiquant_scale: torch.Tensor | None = None,
    value_antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    query_padding_size: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    key_shared_prefix: torch.Tensor | None = None,
    value_shared_prefix: torch.Tensor | None = None,
    actual_shared_prefix_len: Sequence[int] | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    key_rope_antiquant_scale: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
    workspace: torch.Tensor | None = None,
    out: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_fused_infer_attention_score into tensors that are there; `workspace` is left alone."""
    given = dict(locals())
    del given["workspace"], given["out"]
    return _written(_V1, _call_v1(given), out)


@operator("_npu_fused_infer_attention_score_get_max_workspace")
def _score_workspace(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    key_antiquant_scale: torch.Tensor | None = None,
    key_antiquant_offset: torch.Tensor | None = None,
    value_antiquant_scale: torch.Tensor | None = None,
    value_antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    query_padding_size: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    key_shared_prefix: torch.Tensor | None = None,
    value_shared_prefix: torch.Tensor | None = None,
    actual_shared_prefix_len: Sequence[int] | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    key_rope_antiquant_scale: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> torch.Tensor:
    """Scratch memory for npu_fused_infer_attention_score.out: one element, since the simulated card needs none."""
    return query.new_empty(1)


@operator("_npu_fused_infer_attention_score_infer_output")
def _score_results(
    query: torch.Tensor,
    value: torch.Tensor,
    *,
    input_layout: str = "BSH",
    quant_scale2: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_lse_flag: bool = False,
    query_rope: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty tensors for the results of npu_fused_infer_attention_score."""
    layout = infer_layout(query, input_layout, num_heads)
    head = check_value(query, value, layout, block_table is not None, num_key_value_heads or num_heads)
    return attention_result(
        query, layout, num_heads, head, quantised=quant_scale2 is not None, lse=softmax_lse_flag, query_rope=query_rope
    )


@operator("npu_fused_infer_attention_score_v2")
def npu_fused_infer_attention_score_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale_query: torch.Tensor | None = None,
    dequant_scale_key: torch.Tensor | None = None,
    dequant_offset_key: torch.Tensor | None = None,
    dequant_scale_value: torch.Tensor | None = None,
    dequant_offset_value: torch.Tensor | None = None,
    dequant_scale_key_rope: torch.Tensor | None = None,
    quant_scale_out: torch.Tensor | None = None,
    quant_offset_out: torch.Tensor | None = None,
    quant_scale_p: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    query_rope_dtype: int | None = None,
    key_rope_dtype: int | None = None,
    key_shared_prefix_dtype: int | None = None,
    value_shared_prefix_dtype: int | None = None,
    dequant_scale_query_dtype: int | None = None,
    dequant_scale_key_dtype: int | None = None,
    dequant_scale_value_dtype: int | None = None,
    dequant_scale_key_rope_dtype: int | None = None,
    out_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_fused_infer_attention_score with a sink, and without left padding, a shared prefix and stacked scales.

    Args:
        query: in the first half of `input_layout`; float16 or bfloat16.
        key: like query, or a cache in blocks; int8 with scales.
        value: like key.
        query_rope: further channels of query (MLA).
        key_rope: further channels of key.
        pse_shift: added to the scaled scores, [B or 1, N, Sq, Skv].
        atten_mask: True leaves a score out.
        actual_seq_qlen: lengths of the queries; running sums in TND and NTD.
        actual_seq_kvlen: lengths of key and value; running sums in TND and NTD without a block table.
        block_table: the cache's blocks of each sequence, int32.
        dequant_scale_query: belongs to int8 queries, which are not simulated.
        dequant_scale_key: scale of int8 key.
        dequant_offset_key: its offset.
        dequant_scale_value: scale of int8 value.
        dequant_offset_value: its offset.
        dequant_scale_key_rope: reserved.
        quant_scale_out: factor of an int8 result.
        quant_offset_out: added to it.
        quant_scale_p: belongs to the Ascend 950.
        learnable_sink: [N], a score of each head that takes part in the softmax's sum; TND and NTD_TND.
        num_query_heads: heads of query.
        num_key_value_heads: heads of key and value; 0 for those of query.
        softmax_scale: factor of the scores.
        pre_tokens: keys before the diagonal that count, in modes 0 and 4.
        next_tokens: keys after the diagonal that count, in modes 0 and 4.
        input_layout: as npu_fused_infer_attention_score.
        sparse_mode: as npu_fused_infer_attention_score.
        block_size: tokens in a block.
        query_quant_mode: belongs to int8 queries.
        key_quant_mode: as key_antiquant_mode of npu_fused_infer_attention_score.
        value_quant_mode: the same for value.
        inner_precise: bit 0 rounds the scores of float16 to float16; bit 1 gives zeros for rows whose scores are all
            left out.
        return_softmax_lse: whether to return the logarithm of the softmax's sum.
        query_dtype: reserved, as all arguments up to out_dtype.
        key_dtype: reserved.
        value_dtype: reserved.
        query_rope_dtype: reserved.
        key_rope_dtype: reserved.
        key_shared_prefix_dtype: reserved.
        value_shared_prefix_dtype: reserved.
        dequant_scale_query_dtype: reserved.
        dequant_scale_key_dtype: reserved.
        dequant_scale_value_dtype: reserved.
        dequant_scale_key_rope_dtype: reserved.
        out_dtype: reserved.

    Returns:
        as npu_fused_infer_attention_score.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    return _call_v2(dict(locals())).run()


@operator("npu_fused_infer_attention_score_v2.out")
def _score_v2_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale_query: torch.Tensor | None = None,
    dequant_scale_key: torch.Tensor | None = None,
    dequant_offset_key: torch.Tensor | None = None,
    dequant_scale_value: torch.Tensor | None = None,
    dequant_offset_value: torch.Tensor | None = None,
    dequant_scale_key_rope: torch.Tensor | None = None,
    quant_scale_out: torch.Tensor | None = None,
    quant_offset_out: torch.Tensor | None = None,
    quant_scale_p: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    query_rope_dtype: int | None = None,
    key_rope_dtype: int | None = None,
    key_shared_prefix_dtype: int | None = None,
    value_shared_prefix_dtype: int | None = None,
    dequant_scale_query_dtype: int | None = None,
    dequant_scale_key_dtype: int | None = None,
    dequant_scale_value_dtype: int | None = None,
    dequant_scale_key_rope_dtype: int | None = None,
    out_dtype: int | None = None,
    workspace: torch.Tensor | None = None,
    out: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_fused_infer_attention_score_v2 into tensors that are there; `workspace` is left alone."""
    given = dict(locals())
    del given["workspace"], given["out"]
    return _written(_V2, _call_v2(given), out)


@operator("_npu_fused_infer_attention_score_v2_get_max_workspace")
def _score_v2_workspace(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale_query: torch.Tensor | None = None,
    dequant_scale_key: torch.Tensor | None = None,
    dequant_offset_key: torch.Tensor | None = None,
    dequant_scale_value: torch.Tensor | None = None,
    dequant_offset_value: torch.Tensor | None = None,
    dequant_scale_key_rope: torch.Tensor | None = None,
    quant_scale_out: torch.Tensor | None = None,
    quant_offset_out: torch.Tensor | None = None,
    quant_scale_p: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = NO_LIMIT,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    query_rope_dtype: int | None = None,
    key_rope_dtype: int | None = None,
    key_shared_prefix_dtype: int | None = None,
    value_shared_prefix_dtype: int | None = None,
    dequant_scale_query_dtype: int | None = None,
    dequant_scale_key_dtype: int | None = None,
    dequant_scale_value_dtype: int | None = None,
    dequant_scale_key_rope_dtype: int | None = None,
    out_dtype: int | None = None,
) -> torch.Tensor:
    """Scratch memory for npu_fused_infer_attention_score_v2.out: one element, since the simulated card needs none."""
    return query.new_empty(1)


@operator("_npu_fused_infer_attention_score_v2_infer_output")
def _score_v2_results(
    query: torch.Tensor,
    value: torch.Tensor,
    *,
    query_dtype: int | None = None,
    value_dtype: int | None = None,
    input_layout: str = "BSH",
    quant_scale_out: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    return_softmax_lse: bool = False,
    query_rope: torch.Tensor | None = None,
    out_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty tensors for the results of npu_fused_infer_attention_score_v2."""
    layout = infer_layout(query, input_layout, num_query_heads)
    head = check_value(query, value, layout, block_table is not None, num_key_value_heads or num_query_heads)
    return attention_result(
        query,
        layout,
        num_query_heads,
        head,
        quantised=quant_scale_out is not None,
        lse=return_softmax_lse,
        query_rope=query_rope,
    )


@operator("npu_prompt_flash_attention")
def npu_prompt_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    deq_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    deq_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = NO_LIMIT,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    sparse_mode: int = 0,
) -> torch.Tensor:
    """Attention of prompts: softmax(mask(scale_value * query key^T + pse_shift)) value.

    Args:
        query: in `input_layout`; float16, bfloat16 or int8.
        key: like query.
        value: like key.
        padding_mask: reserved.
        atten_mask: True leaves a score out; [Sq, Skv] with up to two axes before it, or the compressed 2048 x 2048.
        pse_shift: added to the scaled scores, [B or 1, N, Sq, Skv].
        actual_seq_lengths: lengths of the queries.
        deq_scale1: int8 query: factor of the scores.
        quant_scale1: int8 query: factor of the weights.
        deq_scale2: int8 query: factor of the result.
        quant_scale2: factor of an int8 result.
        quant_offset2: added to it.
        num_heads: heads of query.
        scale_value: factor of the scores.
        pre_tokens: keys before the diagonal that count, in modes 0 and 4 and with a mask.
        next_tokens: keys after the diagonal that count.
        input_layout: BSH, BSND, BNSD, BNSD_BSND, TND or NSD.
        num_key_value_heads: heads of key and value; 0 for those of query.
        actual_seq_lengths_kv: lengths of key and value.
        sparse_mode: 0 to 4, as npu_fused_infer_attention_score. The scores of float16 are then rounded to float16; 10
            to 14 are the same modes with scores in float32.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    precise = sparse_mode in _PRECISE_MODES
    if input_layout not in ("BSH", "BSND", "BNSD", "BNSD_BSND", "TND", "NSD"):
        refuse(_PROMPT, f"input_layout {input_layout} is not among BSH, BSND, BNSD, BNSD_BSND, TND and NSD")
    call = InferenceCall(
        operator=_PROMPT,
        query=query,
        key=key,
        value=value,
        input_layout=input_layout,
        num_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        scale=scale_value,
        pse_shift=pse_shift,
        atten_mask=atten_mask,
        query_lengths=actual_seq_lengths,
        key_lengths=actual_seq_lengths_kv,
        sparse_mode=sparse_mode - _PRECISE_MODES.start if precise else sparse_mode,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        inner_precise=0 if precise else 1,
        integer_scales=_integer_scales(_PROMPT, query, deq_scale1, quant_scale1, deq_scale2),
        out_scale=quant_scale2,
        out_offset=quant_offset2,
    )
    return call.run()[0]


@operator("npu_incre_flash_attention")
def npu_incre_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
) -> torch.Tensor:
    """Attention of one new token of each sequence.

    Args:
        query: in `input_layout`, with one token in each batch; float16 or bfloat16.
        key: like query, or a cache in blocks; int8 with scales.
        value: like key.
        padding_mask: reserved.
        atten_mask: True leaves a score out; [B, Skv], [B, 1, Skv] or [B, 1, 1, Skv].
        pse_shift: added to the scaled scores, [B or 1, N, 1, Skv].
        actual_seq_lengths: lengths of key and value.
        antiquant_scale: scales of int8 key and value, stacked: [2, ...].
        antiquant_offset: their offsets.
        block_table: the cache's blocks of each sequence, int32.
        dequant_scale1: int8 query: factor of the scores.
        quant_scale1: int8 query: factor of the weights.
        dequant_scale2: int8 query: factor of the result.
        quant_scale2: factor of an int8 result.
        quant_offset2: added to it.
        kv_padding_size: distance of the last key from the end (left padding).
        num_heads: heads of query.
        scale_value: factor of the scores.
        input_layout: BSH, BSND or BNSD.
        num_key_value_heads: heads of key and value; 0 for those of query.
        block_size: tokens in a block.
        inner_precise: 0 or 1, which compute the same here.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    if input_layout not in ("BSH", "BSND", "BNSD"):
        refuse(_INCRE, f"input_layout {input_layout} is not among BSH, BSND and BNSD")
    layout = infer_layout(query, input_layout, num_heads)
    if layout.sizes(query, num_heads)[2] != 1:
        refuse(_INCRE, f"the query {list(query.shape)} must have one token in each batch")
    key_scales, value_scales = _stacked_scales(antiquant_scale, antiquant_offset, 0)
    call = InferenceCall(
        operator=_INCRE,
        query=query,
        key=key,
        value=value,
        input_layout=input_layout,
        num_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        scale=scale_value,
        pse_shift=pse_shift,
        atten_mask=atten_mask,
        key_lengths=actual_seq_lengths,
        inner_precise=inner_precise,
        block_table=block_table,
        block_size=block_size,
        key_padding=kv_padding_size,
        key_scales=key_scales,
        value_scales=value_scales,
        integer_scales=_integer_scales(_INCRE, query, dequant_scale1, quant_scale1, dequant_scale2),
        out_scale=quant_scale2,
        out_offset=quant_offset2,
    )
    return call.run()[0]


def _call_v1(given: dict[str, Any]) -> InferenceCall:
    """The call of npu_fused_infer_attention_score, from its arguments by their names."""
    query = given["query"]
    integers = (given.pop("dequant_scale1"), given.pop("quant_scale1"), given.pop("dequant_scale2"))
    stacked = _stacked_scales(given.pop("antiquant_scale"), given.pop("antiquant_offset"), given.pop("antiquant_mode"))
    scales = [
        _scales(given.pop(f"{name}_antiquant_scale"), given.pop(f"{name}_antiquant_offset"), mode)
        for name, mode in (("key", given.pop("key_antiquant_mode")), ("value", given.pop("value_antiquant_mode")))
    ]
    del given["key_rope_antiquant_scale"]
    return InferenceCall(
        operator=_V1,
        query_lengths=given.pop("actual_seq_lengths"),
        key_lengths=given.pop("actual_seq_lengths_kv"),
        query_padding=given.pop("query_padding_size"),
        key_padding=given.pop("kv_padding_size"),
        key_prefix=given.pop("key_shared_prefix"),
        value_prefix=given.pop("value_shared_prefix"),
        prefix_length=given.pop("actual_shared_prefix_len"),
        key_scales=scales[0] or stacked[0],  # the separate scales win
        value_scales=scales[1] or stacked[1],
        integer_scales=_integer_scales(_V1, query, *integers),
        out_scale=given.pop("quant_scale2"),
        out_offset=given.pop("quant_offset2"),
        lse=given.pop("softmax_lse_flag"),
        **given,
    )


def _call_v2(given: dict[str, Any]) -> InferenceCall:
    """The call of npu_fused_infer_attention_score_v2, from its arguments by their names."""
    if given["query"].dtype == torch.int8 or given["dequant_scale_query"] is not None:
        refuse(_V2, "an int8 query is not simulated; float16 and bfloat16 are")
    if given["quant_scale_p"] is not None:
        refuse(_V2, "quant_scale_p belongs to the Ascend 950 and is not simulated")
    sink = given["learnable_sink"]
    if sink is not None:
        if given["input_layout"] not in ("TND", "NTD_TND"):
            refuse(_V2, f"learnable_sink takes the layouts TND and NTD_TND, but got {given['input_layout']}")
        if sink.dtype != torch.bfloat16:
            refuse(_V2, f"learnable_sink is {sink.dtype}; the kernel takes bfloat16")
        if given["pse_shift"] is not None or given["quant_scale_out"] is not None:
            refuse(_V2, "learnable_sink takes neither pse_shift nor quant_scale_out")
    names = ["query", "key", "value", "query_rope", "key_rope", "pse_shift", "atten_mask", "block_table", "block_size"]
    names += ["num_key_value_heads", "pre_tokens", "next_tokens", "input_layout", "sparse_mode", "inner_precise"]
    return InferenceCall(
        operator=_V2,
        num_heads=given["num_query_heads"],
        scale=given["softmax_scale"],
        query_lengths=given["actual_seq_qlen"],
        key_lengths=given["actual_seq_kvlen"],
        key_scales=_scales(given["dequant_scale_key"], given["dequant_offset_key"], given["key_quant_mode"]),
        value_scales=_scales(given["dequant_scale_value"], given["dequant_offset_value"], given["value_quant_mode"]),
        out_scale=given["quant_scale_out"],
        out_offset=given["quant_offset_out"],
        sink=sink,
        lse=given["return_softmax_lse"],
        **{name: given[name] for name in names},
    )


def _scales(scale: torch.Tensor | None, offset: torch.Tensor | None, mode: int) -> Quantised | None:
    return None if scale is None else Quantised(scale, offset, mode)


def _stacked_scales(
    scale: torch.Tensor | None, offset: torch.Tensor | None, mode: int
) -> tuple[Quantised | None, Quantised | None]:
    """Scales of key and of value from tensors whose first axis has two parts."""
    if scale is None:
        return None, None
    pair = [Quantised(scale[i], None if offset is None else offset[i], mode) for i in (0, 1)]
    return pair[0], pair[1]


def _integer_scales(
    operator: str,
    query: torch.Tensor,
    scores: torch.Tensor | None,
    weights: torch.Tensor | None,
    result: torch.Tensor | None,
) -> IntegerScales | None:
    if scores is None and weights is None and result is None:
        return None
    if query.dtype != torch.int8 or scores is None or weights is None or result is None:
        refuse(operator, "dequant_scale1, quant_scale1 and dequant_scale2 belong together, to an int8 query")
    return IntegerScales(float_bits(scores), weights.float(), float_bits(result))


def _written(operator: str, call: InferenceCall, targets: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the results of a call into tensors of as many elements."""
    if len(targets) != 2:
        refuse(operator, f"out must be (attention_out, softmax_lse), but got {len(targets)} tensors")
    out, lse = targets
    found, logarithm = call.run()
    if out.numel() != found.numel() or out.dtype != found.dtype:
        refuse(
            operator,
            f"the result is {found.dtype} {list(found.shape)}, but attention_out {out.dtype} {list(out.shape)}",
        )
    if call.lse and lse.numel() != logarithm.numel():
        refuse(operator, f"softmax_lse has the shape {list(logarithm.shape)}, but the tensor for it {list(lse.shape)}")
    if not has_values(out):
        return out, lse
    out.copy_(found.reshape(out.shape))
    if call.lse:
        lse.copy_(logarithm.reshape(lse.shape))
    return out, lse
