"""Native sparse attention: compressed keys, attention over them, and attention over the blocks that it selects.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_nsa.py for
values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

Source: nsa_compress, nsa_compress_attention, nsa_selected_attention and their relatives in ops-transformer of CANN;
op_plugin_functions.yaml and KernelNpuOutputSize.cpp of op-plugin. Only the Atlas A2 has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .attention import Dropout, attention, attention_grad, traced
from .attention_mask import COMPRESSED, Sparse, masked_scores
from .checks import refuse, same_dtype
from .fusion_attention_call import Arguments, Call, prepare
from .registry import operator
from .sequences import per_head, selected, sequences, spans

__all__ = [
    "npu_nsa_compress",
    "npu_nsa_compress_attention",
    "npu_nsa_compress_attention_infer",
    "npu_nsa_compress_grad",
    "npu_nsa_compress_infer",
    "npu_nsa_select_attention",
    "npu_nsa_select_attention_grad",
    "npu_nsa_select_attention_infer",
]

_NO_LIMIT = 2147483647
_COPIES = 8
_ALWAYS = 23333.0  # importance of blocks that topk_mask names
_HALVES = (torch.float16, torch.bfloat16)

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# --- compressed keys


@operator("npu_nsa_compress")
def npu_nsa_compress(
    input: torch.Tensor,
    weight: torch.Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: Sequence[int] | None = None,
) -> torch.Tensor:
    """Weighted sums of windows of rows: out[i] = sum over j of weight[j] * input[i * stride + j] in each sequence.

    Args:
        input: [T, N, D]; float16 or bfloat16; D a multiple of 16 up to 256, N up to 128.
        weight: [compress_block_size, N], of the same dtype.
        compress_block_size: rows of a window, a multiple of 16 up to 128.
        compress_stride: rows between windows, a multiple of 16, at most compress_block_size.
        actual_seq_len: running sums of the lengths of the sequences. Shorter ones than a window give nothing.

    Returns:
        [number of windows, N, D].

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_nsa_compress"
    where = _windows(name, input, weight, compress_block_size, compress_stride, actual_seq_len)
    parts = [input.new_zeros((0, *input.shape[1:]))]
    for start, end in where:
        if end - start < compress_block_size:
            continue
        rows = input[start:end].float().unfold(0, compress_block_size, compress_stride)
        parts.append((rows * weight.float().T.unsqueeze(1)).sum(dim=-1).to(input.dtype))
    return torch.cat(parts)


@operator("npu_nsa_compress_grad")
def npu_nsa_compress_grad(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of input and weight of npu_nsa_compress, whose other arguments these are; `grad` is like its result."""
    name = "npu_nsa_compress_grad"
    where = _windows(name, input, weight, compress_block_size, compress_stride, actual_seq_len)
    of_input = torch.zeros(input.shape, dtype=torch.float32, device=input.device)
    of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=input.device)
    used = 0
    for start, end in where:
        if end - start < compress_block_size:
            continue
        rows = input[start:end].float().unfold(0, compress_block_size, compress_stride)
        own = grad[used : used + rows.shape[0]].float()
        used += rows.shape[0]
        of_weight += (own.unsqueeze(-1) * rows).sum(dim=(0, 2)).T
        positions = torch.arange(rows.shape[0], device=input.device)[:, None] * compress_stride
        positions = positions + torch.arange(compress_block_size, device=input.device) + start
        shares = own.unsqueeze(1) * weight.float().unsqueeze(-1)
        of_input.index_add_(0, positions.reshape(-1), shares.reshape(-1, *input.shape[1:]))
    return of_input.to(input.dtype), of_weight.to(weight.dtype)


@operator("npu_nsa_compress_infer.cache")
def npu_nsa_compress_infer(
    input: torch.Tensor,
    weight: torch.Tensor,
    slot_mapping: torch.Tensor,
    compress_block_size: int,
    compress_stride: int,
    page_block_size: int,
    *,
    block_table: torch.Tensor | None = None,
    actual_seq_len: Sequence[int] | None = None,
    cache: torch.Tensor,
) -> torch.Tensor:
    """Write the last window of every sequence that has just been filled, compressed, to a cache.

    Args:
        input: blocks [blocks, page_block_size, N, D], or [T, N, D] without a block_table.
        weight: [compress_block_size, N].
        slot_mapping: row of the cache for each sequence, [B] in int32.
        compress_block_size: rows of a window.
        compress_stride: rows between windows: a window ends where its length and a multiple of this are reached.
        page_block_size: rows of a block.
        block_table: blocks of every sequence, [B, n] in int32.
        actual_seq_len: length of every sequence.
        cache: [rows, N, D]; written.

    Returns:
        the cache.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_nsa_compress_infer"
    _check_windows(name, input, weight, compress_block_size, compress_stride)
    if actual_seq_len is None or len(actual_seq_len) != slot_mapping.shape[0]:
        refuse(name, f"actual_seq_len must hold {slot_mapping.shape[0]} lengths, but got {actual_seq_len}")
    if traced(input):
        return cache
    start = 0
    for row, length in enumerate(actual_seq_len):
        first, start = start, start + length
        past = length - compress_block_size
        if past < 0 or past % compress_stride:
            continue
        if block_table is None:
            window = input[first + past : first + length]
        else:
            positions = torch.arange(past, length, device=input.device)
            blocks = block_table[row].long()[positions // page_block_size]
            window = input[blocks, positions % page_block_size]
        cache[int(slot_mapping[row])] = (window.float() * weight.float().unsqueeze(-1)).sum(dim=0).to(cache.dtype)
    return cache


# --- attention over compressed keys


@operator("npu_nsa_compress_attention")
def npu_nsa_compress_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale_value: float,
    head_num: int,
    compress_block_size: int,
    compress_stride: int,
    select_block_size: int,
    select_block_count: int,
    *,
    topk_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_cmp_seq_kvlen: Sequence[int] | None = None,
    actual_sel_seq_kvlen: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention over compressed keys, and the blocks of uncompressed keys that matter most.

    With P the weights of the attention, m = select_block_size / compress_stride and n = compress_block_size /
    compress_stride, the importance of block j is the sum over the heads of one group, over a < m and b < n, of
    P[m * (j + 1) - a - b].

    Args:
        query: [T1, N1, D]; float16 or bfloat16.
        key: [T2, N2, D], compressed.
        value: [T2, N2, Dv].
        scale_value: factor of the scores.
        head_num: N1.
        compress_block_size: rows that a compressed key stands for, a multiple of 16 up to 128.
        compress_stride: rows between them, a multiple of 16 up to 64.
        select_block_size: rows of a selected block, a multiple of 16 up to 128.
        select_block_count: number of selected blocks, up to 32.
        topk_mask: [largest S1, largest number of blocks]; True selects a block in any case.
        atten_mask: [largest S1, largest S2]; True leaves a score out.
        actual_seq_qlen: running sums of the lengths of the queries.
        actual_cmp_seq_kvlen: running sums of the lengths of the compressed keys.
        actual_sel_seq_kvlen: running sums of the numbers of blocks.

    Returns:
        (out [T1, N1, Dv], blocks [T1, N2, select_block_count] in int32 with the most important first, maximum and sum
        of the softmax [T1, N1, 8] in float32 as npu_fusion_attention lays them).

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_nsa_compress_attention"
    _check_importance(name, compress_block_size, compress_stride, select_block_size)
    if not 1 <= select_block_count <= 32:
        refuse(name, f"select_block_count {select_block_count}: the kernel takes 1 to 32")
    if actual_seq_qlen is None or actual_cmp_seq_kvlen is None or actual_sel_seq_kvlen is None:
        refuse(name, "actual_seq_qlen, actual_cmp_seq_kvlen and actual_sel_seq_kvlen must be given")
    arguments = Arguments(
        name, query, key, value, head_num, "TND", None, None, atten_mask, scale_value, 1.0, _NO_LIMIT, _NO_LIMIT, 0,
        None, actual_seq_qlen, actual_cmp_seq_kvlen, 1, "", None,
    )  # fmt: skip
    call = prepare(arguments)
    out, largest, total = call.attend(Dropout(), None)
    with torch.no_grad():
        blocks = _important_blocks(
            call,
            [end - start for start, end in zip([0, *actual_sel_seq_kvlen], actual_sel_seq_kvlen, strict=False)],
            (select_block_size // compress_stride, compress_block_size // compress_stride),
            select_block_count,
            topk_mask,
        )
    return out, blocks, largest, total


@operator("npu_nsa_compress_attention_infer")
def npu_nsa_compress_attention_infer(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale_value: float,
    head_num: int,
    key_value_head_num: int,
    select_block_size: int,
    select_block_count: int,
    page_block_size: int,
    compress_block_size: int,
    compress_stride: int,
    *,
    layout: str = "TND",
    atten_mask: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    topk_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_cmp_seq_kvlen: Sequence[int] | None = None,
    actual_sel_seq_kvlen: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_nsa_compress_attention of one query for each sequence, over keys in blocks.

    The first block and the last two are always selected: they come first, then the most important of the others.

    Args:
        query: [B, N1, D] or [B, 1, N1, D]; float16 or bfloat16.
        key: [blocks, page_block_size, N2 * D].
        value: [blocks, page_block_size, N2 * Dv].
        scale_value: factor of the scores.
        head_num: N1.
        key_value_head_num: N2.
        select_block_size: rows of a selected block.
        select_block_count: number of selected blocks.
        page_block_size: rows of a block of the cache.
        compress_block_size: rows that a compressed key stands for.
        compress_stride: rows between them.
        layout: "TND" or "BSND".
        atten_mask: not in this facade.
        block_table: blocks of every sequence, [B, n] in int32.
        topk_mask: the kernel does not take it.
        actual_seq_qlen: one for each sequence; this facade does not have more queries.
        actual_cmp_seq_kvlen: length of every sequence.
        actual_sel_seq_kvlen: length of every sequence before its compression; without effect.

    Returns:
        (out like query with the heads of value, blocks [B, N2, select_block_count] or [B, 1, N2, select_block_count]).

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_nsa_compress_attention_infer"
    if layout not in ("TND", "BSND"):
        raise RuntimeError("layout only support TND or BSND now." + ops_error(ErrCode.PARAM))
    _check_paged(name, query, key, head_num, key_value_head_num, page_block_size, block_table, layout)
    _check_importance(name, compress_block_size, compress_stride, select_block_size)
    _check_one_query(name, query, layout, atten_mask, actual_seq_qlen)
    if actual_cmp_seq_kvlen is None or len(actual_cmp_seq_kvlen) != query.shape[0]:
        refuse(name, f"actual_cmp_seq_kvlen must hold {query.shape[0]} lengths, but got {actual_cmp_seq_kvlen}")
    head = value.shape[2] // key_value_head_num
    indices_shape = (*query.shape[:-2], key_value_head_num, select_block_count)
    if traced(query):
        return query.new_empty((*query.shape[:-1], head)), query.new_empty(indices_shape, dtype=torch.int32)
    counts = (select_block_size // compress_stride, compress_block_size // compress_stride)
    where = [(0, length) for length in actual_cmp_seq_kvlen]
    keys, values = (sequences(name, tensor, "PA_BSND", where, block_table) for tensor in (key, value))
    outs, indices = [], []
    for row, k, v in zip(query.reshape(query.shape[0], head_num, -1), keys, values, strict=True):
        one = row.unsqueeze(0).unsqueeze(2)
        heads = [per_head(part.reshape(part.shape[0], key_value_head_num, -1)) for part in (k, v)]
        weights = _weights(one, heads[0], scale_value, None)
        group = head_num // key_value_head_num
        out = weights.to(query.dtype).float() @ heads[1].float().repeat_interleave(group, dim=1)
        outs.append(out.reshape(head_num, -1).to(query.dtype))
        length = (k.shape[0] - 1) * compress_stride + compress_block_size
        importance = _importance(weights, -(-length // select_block_size), counts, key_value_head_num)[0, :, 0]
        importance[:, 0] = importance[:, -2:] = float("inf")
        best = importance.sort(dim=-1, descending=True, stable=True).indices
        indices.append(_first(best, select_block_count))
    out, blocks = torch.stack(outs), torch.stack(indices)
    return out.reshape(*query.shape[:-1], head), blocks.reshape(indices_shape)


# --- attention over selected blocks


@operator("npu_nsa_select_attention")
def npu_nsa_select_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    topk_indices: torch.Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
) -> _Three:
    """Attention of every query over the blocks of keys that are selected for it.

    Args:
        query: [T1, N1, 192]; float16 or bfloat16.
        key: [T2, N2, 192].
        value: [T2, N2, 128].
        topk_indices: [T1, N2, select_block_count] in int32.
        scale_value: factor of the scores.
        head_num: N1.
        select_block_size: rows of a block, a multiple of 16 up to 128.
        select_block_count: number of blocks, up to 32.
        atten_mask: the compressed mask of 2048 x 2048, causal from the upper left, or one that covers the longest
            sequences; True leaves a score out.
        actual_seq_qlen: running sums of the lengths of the queries.
        actual_seq_kvlen: running sums of the lengths of the keys.

    Returns:
        (out [T1, N1, 128], maximum and sum of the softmax [T1, N1, 8] in float32).

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_nsa_select_attention"
    queries, keys = _check_selected(
        name, query, key, value, head_num, select_block_size, select_block_count, actual_seq_qlen, actual_seq_kvlen
    )
    results = []
    for (first, end), (begin, stop) in zip(queries, keys, strict=True):
        q, k, v = query[first:end], key[begin:stop], value[begin:stop]
        if end == first:
            continue
        left_out = _left_out(topk_indices[first:end], select_block_size, head_num, q, k, atten_mask)
        out, *statistics = attention(
            per_head(q), per_head(k), per_head(v), scale_value, masked=left_out, zero_empty_rows=True, rounded=True
        )
        results.append((out[0].transpose(0, 1), *(part[0].T for part in statistics)))
    rest = query.shape[0] - queries[-1][1]
    zeros = query.new_zeros((rest, head_num), dtype=torch.float32)
    results.append((query.new_zeros((rest, head_num, value.shape[2])), zeros, zeros))
    out, largest, total = (torch.cat(column) for column in zip(*results, strict=True))
    largest, total = (part.float().unsqueeze(-1).repeat(1, 1, _COPIES) for part in (largest, total))
    return out, largest, total


@operator("npu_nsa_select_attention_grad")
def npu_nsa_select_attention_grad(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_out: torch.Tensor,
    softmax_max: torch.Tensor,
    softmax_sum: torch.Tensor,
    topk_indices: torch.Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
) -> _Three:
    """Gradients of query, key and value of npu_nsa_select_attention, whose arguments and results these are."""
    name = "npu_nsa_select_attention_grad"
    queries, keys = _check_selected(
        name, query, key, value, head_num, select_block_size, select_block_count, actual_seq_qlen, actual_seq_kvlen
    )
    found = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    for (first, end), (begin, stop) in zip(queries, keys, strict=True):
        if end == first:
            continue
        rows, columns = slice(first, end), slice(begin, stop)
        q, k, v = query[rows], key[columns], value[columns]
        gradients = attention_grad(
            per_head(q),
            per_head(k),
            per_head(v),
            scale_value,
            per_head(grad[rows]),
            per_head(attention_out[rows]),
            softmax_max[rows, :, 0].T.unsqueeze(0),
            softmax_sum[rows, :, 0].T.unsqueeze(0),
            masked=_left_out(topk_indices[rows], select_block_size, head_num, q, k, atten_mask),
        )
        found[0][rows] = gradients.query[0].transpose(0, 1)
        found[1][columns] = gradients.key[0].transpose(0, 1)
        found[2][columns] = gradients.value[0].transpose(0, 1)
    return found[0], found[1], found[2]


@operator("npu_nsa_select_attention_infer")
def npu_nsa_select_attention_infer(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    topk_indices: torch.Tensor,
    scale_value: float,
    head_num: int,
    key_value_head_num: int,
    select_block_size: int,
    select_block_count: int,
    page_block_size: int,
    *,
    layout: str = "BSND",
    atten_mask: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
) -> torch.Tensor:
    """npu_nsa_select_attention of one query for each sequence, over keys in blocks.

    Args:
        query: [B, 1, N1 * D], [B, 1, N1, D] or [B, N1, D], as `layout` says; float16 or bfloat16.
        key: [blocks, page_block_size, N2 * D], for BSND [blocks, page_block_size, N2, D].
        value: like key.
        topk_indices: [B, N2, select_block_count], for BSND [B, 1, N2, select_block_count]; negative ones take no part.
        scale_value: factor of the scores.
        head_num: N1.
        key_value_head_num: N2.
        select_block_size: rows of a selected block.
        select_block_count: number of selected blocks.
        page_block_size: rows of a block of the cache.
        layout: "BSH", "BSND" or "TND".
        atten_mask: the kernel does not take it.
        block_table: blocks of every sequence, [B, n] in int32.
        actual_seq_qlen: one for each sequence; this facade does not have more queries.
        actual_seq_kvlen: length of every sequence.

    Returns:
        like query, with the heads of value.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "npu_nsa_select_attention_infer"
    if layout not in ("BSH", "BSND", "TND"):
        raise RuntimeError("layout only support BSH or BSND or TND now." + ops_error(ErrCode.PARAM))
    _check_paged(name, query, key, head_num, key_value_head_num, page_block_size, block_table, layout)
    _check_one_query(name, query, layout, atten_mask, actual_seq_qlen)
    if actual_seq_kvlen is None or len(actual_seq_kvlen) != query.shape[0]:
        refuse(name, f"actual_seq_kvlen must hold {query.shape[0]} lengths, but got {actual_seq_kvlen}")
    batch = query.shape[0]
    head = value.shape[3] if value.dim() == 4 else value.shape[2] // key_value_head_num
    shape = (batch, 1, head_num * head) if layout == "BSH" else (*query.shape[:-1], head)
    if traced(query):
        return query.new_empty(shape)
    where = [(0, length) for length in actual_seq_kvlen]
    keys, values = (sequences(name, tensor, "PA_BSND", where, block_table) for tensor in (key, value))
    indices = topk_indices.reshape(batch, 1, key_value_head_num, -1)
    outs = []
    for row, k, v, index in zip(query.reshape(batch, head_num, -1), keys, values, indices, strict=True):
        own_key, own_value = (per_head(part.reshape(part.shape[0], key_value_head_num, -1)) for part in (k, v))
        one = row.unsqueeze(0)
        left_out = _left_out(index, select_block_size, head_num, one, k, None)
        out = attention(per_head(one), own_key, own_value, scale_value, masked=left_out, zero_empty_rows=True)[0]
        outs.append(out)
    return torch.cat(outs).reshape(shape)


# --- parts


def _weights(query: torch.Tensor, key: torch.Tensor, scale: float, masked: torch.Tensor | None) -> torch.Tensor:
    """softmax(scale * query key^T), [1, N, Sq, Sk] in float32."""
    group = query.shape[1] // key.shape[1]
    scores = (query.float() @ key.float().repeat_interleave(group, dim=1).transpose(-2, -1)) * scale
    if masked is not None:
        scores = scores.masked_fill(masked, torch.finfo(torch.float32).min)
    return scores.softmax(dim=-1)


def _importance(weights: torch.Tensor, blocks: int, counts: tuple[int, int], shared: int) -> torch.Tensor:
    """Importance of every block, [1, N2, Sq, blocks], from the weights [1, N1, Sq, Sk]."""
    batch, heads, queries, keys = weights.shape
    grouped = weights.reshape(batch, shared, heads // shared, queries, keys).sum(dim=2)
    ends = (torch.arange(blocks, device=weights.device) + 1) * counts[0]
    found = grouped.new_zeros((*grouped.shape[:-1], blocks))
    for step in range(counts[0]):
        for other in range(counts[1]):
            positions = ends - step - other
            inside = (positions >= 0) & (positions < keys)
            found += grouped[..., positions.clamp(0, max(keys - 1, 0))] * inside
    return found


def _important_blocks(
    call: Call, counts_of_blocks: list[int], counts: tuple[int, int], wanted: int, topk_mask: torch.Tensor | None
) -> torch.Tensor:
    query, key, _ = call.tensors
    shared, rows = key.shape[1], query.shape[2]
    found = torch.zeros((rows, shared, wanted), dtype=torch.int32, device=query.device)
    batches = call.batches or []
    mask = call.arguments.atten_mask
    longest = [max(batch.queries for batch in batches), max(batch.keys for batch in batches)]
    for batch, blocks in zip(batches, counts_of_blocks, strict=True):
        if not batch.queries or not batch.keys:
            continue
        own = None
        if mask is not None:
            corner = list(mask.shape) == longest
            first, begin = (0, 0) if corner else (batch.query_start, batch.key_start)
            own = mask[first : first + batch.queries, begin : begin + batch.keys].bool()
        columns = slice(batch.key_start, batch.key_end)
        part = query[:, :, batch.query_start : batch.query_end]
        weights = _weights(part, key[:, :, columns], call.arguments.scale, own)
        importance = _importance(weights, blocks, counts, shared)
        if topk_mask is not None:
            importance = importance.masked_fill(topk_mask[: batch.queries, :blocks].bool(), _ALWAYS)
        best = importance.sort(dim=-1, descending=True, stable=True).indices[0]
        found[batch.query_start : batch.query_end] = _first(best, wanted).transpose(0, 1)
    return found


def _first(indices: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` of the last axis in int32; -1 where there are fewer."""
    missing = count - indices.shape[-1]
    kept = indices[..., :count].int()
    return torch.nn.functional.pad(kept, (0, missing), value=-1) if missing > 0 else kept


def _left_out(
    indices: torch.Tensor,
    block: int,
    head_num: int,
    query: torch.Tensor,
    key: torch.Tensor,
    atten_mask: torch.Tensor | None,
) -> torch.Tensor:
    """Scores that are not computed, [1, N1, Sq, Sk]."""
    queries, keys = query.shape[0], key.shape[0]
    left_out = ~selected(indices, block, queries, keys, False)
    left_out = left_out.repeat_interleave(head_num // indices.shape[1], dim=0).unsqueeze(0)
    if atten_mask is None:
        return left_out
    if list(atten_mask.shape) == [COMPRESSED, COMPRESSED]:
        return left_out | masked_scores(atten_mask, Sparse(2, _NO_LIMIT, _NO_LIMIT), queries, keys)
    return left_out | atten_mask[:queries, :keys].bool()


def _windows(
    name: str, input: torch.Tensor, weight: torch.Tensor, block: int, stride: int, ends: Sequence[int] | None
) -> list[tuple[int, int]]:
    _check_windows(name, input, weight, block, stride)
    if input.dim() != 3 or not input.numel():
        refuse(name, f"input has shape {list(input.shape)}; the kernel takes [T, N, D] that is not empty")
    where = spans(name, "actual_seq_len", "TND", input.shape, ends)
    if not where or where[-1][1] != input.shape[0]:
        refuse(name, f"actual_seq_len must end at the {input.shape[0]} rows of input, but got {ends}")
    return where


def _check_windows(name: str, input: torch.Tensor, weight: torch.Tensor, block: int, stride: int) -> None:
    if input.dtype not in _HALVES or weight.dtype != input.dtype:
        refuse(name, f"input is {input.dtype} and weight {weight.dtype}; the kernel takes float16 or bfloat16 for both")
    if stride <= 0:
        raise RuntimeError("compress_stride must be greater than 0." + ops_error(ErrCode.VALUE))
    if block % 16 or not 16 <= block <= 128 or stride % 16 or stride > block:
        refuse(
            name,
            f"compress_block_size {block}, compress_stride {stride}: the kernel takes multiples of 16 up to 128, and a "
            "stride that is not larger than the block",
        )
    if list(weight.shape) != [block, input.shape[-2]] or input.shape[-2] > 128:
        refuse(
            name, f"weight has shape {list(weight.shape)}; these arguments take [{block}, {input.shape[-2]}], N <= 128"
        )
    if input.shape[-1] % 16 or input.shape[-1] > 256:
        refuse(name, f"a head has {input.shape[-1]} elements; the kernel takes multiples of 16 up to 256")


def _check_importance(name: str, block: int, stride: int, select: int) -> None:
    sizes = f"compress_block_size {block}, compress_stride {stride}, select_block_size {select}"
    if block % 16 or stride % 16 or select % 16 or stride <= 0:
        refuse(name, f"{sizes}: the kernel takes multiples of 16")
    if not stride <= block <= select or select % stride:
        refuse(
            name, f"{sizes}: the kernel takes compress_stride <= compress_block_size <= select_block_size, in multiples"
        )


def _check_selected(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    block: int,
    count: int,
    query_ends: Sequence[int] | None,
    key_ends: Sequence[int] | None,
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    if query.dtype not in _HALVES:
        refuse(name, f"query is {query.dtype}; the kernel takes float16 and bfloat16")
    same_dtype(name, query=query, key=key, value=value)
    if query.dim() != 3 or query.shape[1] != head_num:
        refuse(name, f"query has shape {list(query.shape)}; the kernel takes [T, {head_num}, D]")
    if key.shape[1] != value.shape[1] or head_num % key.shape[1]:
        refuse(name, f"key and value have {key.shape[1]} and {value.shape[1]} heads, query {head_num}")
    if query.shape[2] != 192 or key.shape[2] != 192 or value.shape[2] != 128:
        sizes = f"{query.shape[2]}, {key.shape[2]} and {value.shape[2]}"
        refuse(name, f"heads of query, key and value have {sizes} elements; the kernel takes 192, 192 and 128")
    if block % 16 or not 16 <= block <= 128 or not 1 <= count <= 32:
        refuse(name, f"select_block_size {block}, select_block_count {count}: multiples of 16 up to 128, and 1 to 32")
    queries = spans(name, "actual_seq_qlen", "TND", query.shape, query_ends)
    keys = spans(name, "actual_seq_kvlen", "TND", key.shape, key_ends)
    if len(queries) != len(keys) or not queries:
        refuse(name, f"actual_seq_qlen holds {len(queries)} lengths and actual_seq_kvlen {len(keys)}")
    return queries, keys


def _check_paged(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    head_num: int,
    shared: int,
    page: int,
    block_table: torch.Tensor | None,
    layout: str,
) -> None:
    if query.dtype not in _HALVES or key.dtype != query.dtype:
        refuse(name, f"query is {query.dtype} and key {key.dtype}; the kernel takes float16 or bfloat16 for both")
    if shared <= 0:
        raise RuntimeError("key_value_head_num must be greater than 0." + ops_error(ErrCode.VALUE))
    if head_num % shared:
        refuse(name, f"head_num {head_num} is not a multiple of key_value_head_num {shared}")
    if block_table is None:
        refuse(name, "the kernel takes keys in blocks alone, but block_table is missing")
    if key.shape[1] != page:
        refuse(name, f"a block of key has {key.shape[1]} rows, but page_block_size is {page}")
    dims = 4 if layout == "BSND" else 3
    if query.dim() != dims:
        refuse(name, f"query has {query.dim()} dimensions; {layout} has {dims}")


def _check_one_query(
    name: str,
    query: torch.Tensor,
    layout: str,
    atten_mask: torch.Tensor | None,
    lengths: Sequence[int] | None,
) -> None:
    if (layout != "TND" and query.shape[1] != 1) or any(length != 1 for length in lengths or ()):
        refuse(name, "toprope's facade does not have more than one query for a sequence yet")
    if atten_mask is not None:
        refuse(name, "toprope's facade does not have the argument atten_mask yet")
