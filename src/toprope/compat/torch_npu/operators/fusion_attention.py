"""The forward operators npu_fusion_attention, _v2 and _v3: their arguments and results.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_fusion_attention_training.py and tests/compat/test_npu_fusion_attention.py for values and
refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from toprope.sim.npu.graph_capture import current

from .._error_codes import ErrCode, ops_error
from .attention import Dropout, drawn_position, drawn_seed, list_of, traced
from .attention_layout import LAYOUTS
from .checks import refuse
from .fusion_attention_call import Arguments, prepare
from .registry import operator

__all__ = [
    "lengths_on_cpu",
    "npu_fusion_attention",
    "npu_fusion_attention_v2",
    "npu_fusion_attention_v3",
    "npu_fusion_attention_v3_infer_output",
    "npu_fusion_attention_v3_out",
]

_NO_LIMIT = 2147483647
_COPIES = 8

_Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]
_Six = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_Lengths = torch.Tensor | None


@operator("npu_fusion_attention")
def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _NO_LIMIT,
    next_tockens: int = _NO_LIMIT,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> _Result:
    """Fused attention, softmax(mask(scale * (pse + query key^T))) value with dropout of the weights.

    Args:
        query: in the layout of `input_layout`; float16, bfloat16 or float32.
        key: like query, with as many heads or a divisor of them.
        value: like key; a head may be smaller.
        head_num: number of heads of query.
        input_layout: BSH, SBH, BSND, BNSD or TND.
        pse: position bias, added before the scale: [B or 1, N, Sq or 1, Skv].
        padding_mask: torch_npu does not take it.
        atten_mask: bool or uint8; True leaves a score out. Without it sparse_mode, pre_tockens and next_tockens have
            no effect.
        scale: factor of the scores.
        keep_prob: probability that dropout keeps a weight, in (0, 1].
        pre_tockens: keys before the diagonal that are computed, in modes 0 and 4.
        next_tockens: keys after the diagonal that are computed, in modes 0 and 4.
        inner_precise: 2 gives zeros for rows whose scores are all masked; 0 and 1 are the same.
        prefix: belongs to sparse modes 5 and 6, which this facade does not have.
        actual_seq_qlen: running sums of the lengths of the queries of each batch, for TND.
        actual_seq_kvlen: the same for key and value.
        sparse_mode: 0 mask and band, 1 whole mask, 2 causal from the upper left, 3 causal from the lower right,
            4 band from the lower right.
        gen_mask_parallel: without effect here.
        sync: without effect here.
        softmax_layout: "TND" lays out maximum and sum of a TND call by row; by default every batch lies by head.
        sink: one more score for every head, [N] in float32, which takes weight but has no value.
        dropout_mask: which weights dropout keeps, one bit for each score as `_npu_dropout_gen_mask` makes them.
        seed: seed of the dropout of this call alone; 0 takes the device's generator.
        offset: position that goes with `seed`.

    Returns:
        (attention_out, softmax_max, softmax_sum, softmax_out, seed, offset, numels). Only the first has a gradient.
        softmax_max and softmax_sum are float32, [B, N, Sq, 8] or [T, N, 8]; softmax_out is empty; numels is the number
        of scores. The dropout's numbers are not those of the card.

    Raises:
        RuntimeError: the kernel would not take the arguments, or this facade does not have that form of the operator.
    """
    arguments = Arguments(
        "npu_fusion_attention", query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale,
        keep_prob, pre_tockens, next_tockens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode,
        softmax_layout, sink,
    )  # fmt: skip
    return _attend(arguments, dropout_mask, seed, offset)


@operator("npu_fusion_attention_v2")
def npu_fusion_attention_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = _NO_LIMIT,
    next_tokens: int = _NO_LIMIT,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Sequence[int] | None = None,
    kv_start_idx: Sequence[int] | None = None,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> _Result:
    """npu_fusion_attention with rotated parts of its own and biases made of slopes.

    Args:
        query: as for npu_fusion_attention, and so what is not listed here.
        key: like query.
        value: like key.
        head_num: number of heads of query.
        input_layout: BSH, SBH, BSND, BNSD or TND.
        pse: position bias, of the shape that `pse_type` takes.
        padding_mask: torch_npu does not take it.
        atten_mask: bool or uint8; True leaves a score out.
        query_rope: rotated part of the queries' heads, [T, N, Dr], for TND: the scores are
            query key^T + query_rope key_rope^T.
        key_rope: the same for the keys.
        scale: factor of the scores.
        keep_prob: probability that dropout keeps a weight.
        pre_tokens: keys before the diagonal that are computed, in modes 0 and 4.
        next_tokens: keys after the diagonal that are computed, in modes 0 and 4.
        inner_precise: 2 gives zeros for rows whose scores are all masked.
        prefix: not in this facade.
        actual_seq_qlen: running sums of the lengths of the queries, for TND.
        actual_seq_kvlen: the same for key and value.
        sparse_mode: as for npu_fusion_attention.
        gen_mask_parallel: without effect here.
        sync: without effect here.
        pse_type: 0 adds pse after the scale, 1 before it. For 2 and 3 pse has one slope for each head, [N] or [B, N] in
            float32, and -slope * |j - i| is added after the scale, for 3 with the root of the distance.
        q_start_idx: one number: position of the first query, for pse_type 2 and 3.
        kv_start_idx: one number: position of the first key.
        softmax_layout: "TND" lays out maximum and sum of a TND call by row.
        sink: one more score for every head, [N] in float32.
        dropout_mask: bits of the weights that dropout keeps.
        seed: seed of the dropout; 0 takes the device's generator.
        offset: position that goes with `seed`.

    Returns:
        as npu_fusion_attention.

    Raises:
        RuntimeError: the kernel would not take the arguments, or this facade does not have that form of the operator.

    Source: FlashAttentionV2KernelNpuOpApi.cpp of op-plugin; aclnnFlashAttentionScoreV2.md and pse.h of ops-transformer.
    """
    arguments = Arguments(
        "npu_fusion_attention_v2", query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale,
        keep_prob, pre_tokens, next_tokens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode,
        softmax_layout, sink, query_rope, key_rope, pse_type, q_start_idx, kv_start_idx,
    )  # fmt: skip
    return _attend(arguments, dropout_mask, seed, offset)


@operator("npu_fusion_attention_v3")
def npu_fusion_attention_v3(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _NO_LIMIT,
    next_tockens: int = _NO_LIMIT,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: _Lengths = None,
    actual_seq_kvlen: _Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> _Six:
    """npu_fusion_attention with seed, offset and lengths in tensors, which a captured graph can take.

    Args:
        query: as for npu_fusion_attention, and so what is not listed here.
        key: like query.
        value: like key.
        head_num: number of heads of query.
        input_layout: BSH, SBH, BSND, BNSD or TND.
        pse: position bias, added before the scale.
        padding_mask: torch_npu does not take it.
        atten_mask: bool or uint8; True leaves a score out.
        scale: factor of the scores.
        keep_prob: probability that dropout keeps a weight.
        pre_tockens: keys before the diagonal that are computed.
        next_tockens: keys after the diagonal that are computed.
        inner_precise: 2 gives zeros for rows whose scores are all masked.
        prefix: not in this facade.
        actual_seq_qlen: running sums of the lengths of the queries, a tensor on the CPU of one dimension.
        actual_seq_kvlen: the same for key and value.
        sparse_mode: as for npu_fusion_attention.
        gen_mask_parallel: without effect here.
        sync: without effect here.
        softmax_layout: "TND" lays out maximum and sum of a TND call by row.
        sink: one more score for every head, [N] in float32.

    Returns:
        (attention_out, softmax_max, softmax_sum, softmax_out, seed, offset), the last two of one element on the CPU, or
        on the card while a graph is captured.

    Raises:
        RuntimeError: as npu_fusion_attention, or lengths that are not on the CPU.

    Source: npu_fusion_attention_v3 in FlashAttentionKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_fusion_attention_v3"
    if any(isinstance(lengths, torch.Tensor) and traced(lengths) for lengths in (actual_seq_qlen, actual_seq_kvlen)):
        return _shapes_of_tnd(name, query, key, value, head_num, input_layout)
    arguments = Arguments(
        name, query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale, keep_prob, pre_tockens,
        next_tockens, inner_precise, prefix, lengths_on_cpu(actual_seq_qlen), lengths_on_cpu(actual_seq_kvlen),
        sparse_mode, softmax_layout, sink,
    )  # fmt: skip
    call = prepare(arguments)
    dropout = _dropout(query, keep_prob, None, 0, 0)
    out, largest, total = call.attend(dropout, None)
    device = query.device if current() is not None else None
    seed, offset = (
        each.reshape(1) if isinstance(each, torch.Tensor) else torch.tensor([each or 0], device=device)
        for each in (dropout.seed, dropout.offset)
    )
    return out, largest, total, query.new_empty(0), seed, offset


@operator("npu_fusion_attention_v3.out")
def npu_fusion_attention_v3_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _NO_LIMIT,
    next_tockens: int = _NO_LIMIT,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: _Lengths = None,
    actual_seq_kvlen: _Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    *,
    out: Sequence[torch.Tensor],
) -> _Six:
    """npu_fusion_attention_v3 into tensors that are there; `workspace` has no effect here.

    The other arguments and the errors are those of npu_fusion_attention_v3.
    """
    results = npu_fusion_attention_v3(
        query, key, value, head_num, input_layout, pse, padding_mask, atten_mask, scale, keep_prob, pre_tockens,
        next_tockens, inner_precise, prefix, actual_seq_qlen, actual_seq_kvlen, sparse_mode, gen_mask_parallel, sync,
        softmax_layout, sink,
    )  # fmt: skip
    if len(out) != 6:
        refuse("npu_fusion_attention_v3", f"out must have the 6 tensors of the results, but has {len(out)}")
    for target, result in zip(out, results, strict=True):
        if target.numel() == result.numel():
            target.copy_(result.reshape(target.shape))
    first, second, third, fourth, fifth, sixth = out
    return first, second, third, fourth, fifth, sixth


@operator("_npu_fusion_attention_v3_infer_output")
def npu_fusion_attention_v3_infer_output(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, input_layout: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors without values for the result, the maximum and the sum of npu_fusion_attention_v3.

    The arguments are those of npu_fusion_attention_v3.
    """
    name = "_npu_fusion_attention_v3_infer_output"
    return _empty_results(name, query, key, value, head_num, input_layout.upper())


def lengths_on_cpu(lengths: torch.Tensor | None) -> list[int] | None:
    """Running sums that come as a tensor, as a list.

    Raises:
        RuntimeError: the tensor is not on the CPU or has not one dimension.
    """
    if lengths is None:
        return None
    if lengths.device.type != "cpu":
        raise RuntimeError("tensor must be on CPU" + ops_error(ErrCode.PARAM))
    if lengths.dim() != 1:
        raise RuntimeError("tensor must be 1-dimensional" + ops_error(ErrCode.PARAM))
    return list_of(lengths)


def _attend(arguments: Arguments, dropout_mask: torch.Tensor | None, seed: int, offset: int) -> _Result:
    call = prepare(arguments)
    query = arguments.query
    dropout = _dropout(query, arguments.keep_prob, dropout_mask, seed, offset)
    if isinstance(dropout.seed, int) and isinstance(dropout.offset, int):  # else not known before the replay
        seed, offset = dropout.seed, dropout.offset
    out, largest, total = call.attend(dropout, dropout_mask)
    return out, largest, total, query.new_empty(0), seed, offset, call.numels


def _dropout(query: torch.Tensor, keep: float, mask: torch.Tensor | None, seed: int, offset: int) -> Dropout:
    if seed or keep == 1.0 or mask is not None:
        return Dropout(keep, seed, offset)
    if traced(query):
        return Dropout(keep)
    if current() is None:
        return Dropout(keep, *drawn_seed(query.device))
    return Dropout(keep, *drawn_position(query).unbind())


def _shapes_of_tnd(
    name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, input_layout: str
) -> _Six:
    """Results without values, for a compiler that propagates shapes."""
    if get_proxy_mode() is not None:
        refuse(name, "toprope's facade does not have it in compiled graphs with lengths in tensors")
    out, largest, total = _empty_results(name, query, key, value, head_num, input_layout.upper())
    seed, offset = torch.empty(1, dtype=torch.int64), torch.empty(1, dtype=torch.int64)
    return out, largest, total, query.new_empty(0), seed, offset


def _empty_results(
    name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, layout: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if head_num <= 0:
        raise RuntimeError(f"head_num must > 0, but got {head_num}" + ops_error(ErrCode.PARAM))
    if layout not in LAYOUTS:
        raise RuntimeError(f"Unsupported input_layout: {layout}" + ops_error(ErrCode.PARAM))
    shape = list(query.shape)
    if "H" in layout:
        head = shape[2] // head_num
        shared = key.shape[2] // head if head else 0
        shape[2] = head_num * (value.shape[2] // shared if shared else head)
        batch, length = (0, 1) if layout == "BSH" else (1, 0)
        statistics = [query.shape[batch], head_num, query.shape[length]]
    else:
        shape[-1] = value.shape[-1]
        statistics = shape[:2] if layout == "TND" else [shape[0], head_num, shape[layout.index("S")]]
    largest, total = (query.new_empty([*statistics, _COPIES], dtype=torch.float32) for _ in range(2))
    return query.new_empty(shape), largest, total
