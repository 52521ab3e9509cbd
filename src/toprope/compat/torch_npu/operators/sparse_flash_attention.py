"""Attention over selected keys: npu_sparse_flash_attention, its gradient and its quantised form.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_sparse_flash_attention.py for values and refusals, tests/sim/simulated/test_npu_operators.py
for shapes and the card.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .._error_codes import ErrCode, ops_error
from .attention import attention, attention_grad, traced
from .checks import refuse, same_dtype
from .registry import operator
from .sequences import (
    Lengths,
    joined,
    per_head,
    selected,
    sequences,
    spans,
    split_statistic,
    stacked_statistic,
)

__all__ = [
    "npu_kv_quant_sparse_flash_attention",
    "npu_sparse_flash_attention",
    "npu_sparse_flash_attention_grad",
]

_NO_LIMIT = 9223372036854775807
_HEAD, _ROPE = 512, 64
_ABSORBED = 2  # attention_mode: key and value are one tensor
_CAUSAL = 3  # sparse_mode
_PER_TILE, _TILE, _SCALE_BYTES = 2, 128, 4


@dataclass(frozen=True)
class _Layout:
    """Sequences of one call: those of the queries and those of the keys."""

    name: str
    query: str
    key: str
    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]
    block_table: torch.Tensor | None = None

    def of_query(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return sequences(self.name, tensor, self.query, self.queries)

    def of_key(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return sequences(self.name, tensor, self.key, self.keys, self.block_table)


@operator("npu_sparse_flash_attention")
def npu_sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor | None,
    sparse_indices: torch.Tensor,
    scale_value: float,
    *,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _NO_LIMIT,
    next_tokens: int = _NO_LIMIT,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """softmax(scale * (query key^T + query_rope key_rope^T)) value over the selected keys of every query.

    Args:
        query: [B, S1, N1, 512] or [T1, N1, 512]; float16 or bfloat16; N1 a power of two up to 128.
        key: [B, S2, 1, 512], [T2, 1, 512] or blocks [blocks, block_size, 1, 512].
        value: like key; None takes the key.
        sparse_indices: [B, S1, 1, K] or [T1, 1, K] in int32: blocks of `sparse_block_size` keys; negative ones take no
            part.
        scale_value: factor of the scores.
        block_table: blocks of every sequence, [B, n] in int32, for PA_BSND.
        actual_seq_lengths_query: lengths of the queries, for TND their running sums.
        actual_seq_lengths_kv: the same for the keys; for PA_BSND lengths.
        query_rope: rotated part of the queries, last axis 64.
        key_rope: rotated part of the keys.
        sparse_block_size: number of keys in a block, a power of two up to 128.
        layout_query: BSND or TND.
        layout_kv: the query's, or PA_BSND.
        sparse_mode: 0 the selected keys, 3 those up to the query's own position from the lower right.
        pre_tokens: its default alone.
        next_tokens: its default alone.
        attention_mode: 2: key and value are one tensor.
        return_softmax_lse: whether maximum and sum of the softmax are returned.
        sinks: for the Ascend 950 alone.

    Returns:
        (out, softmax_max, softmax_sum): out like query; the others in float32, [B, 1, S1, N1] or [1, T1, N1], or
        empty. Queries without a key give zeros.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_sparse_flash_attention.md and SparseFlashAttentionKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_sparse_flash_attention"
    _check_query(query, key, sparse_indices, layout_query)
    _check_sizes(name, query, key, query_rope, key_rope)
    _check_modes(name, sparse_mode, pre_tokens, next_tokens, attention_mode, sparse_block_size)
    if sinks is not None:
        refuse(name, "sinks is for the Ascend 950 alone")
    if return_softmax_lse and layout_kv == "PA_BSND":
        refuse(name, "return_softmax_lse does not go with layout_kv PA_BSND")
    shape = _statistic_shape(query, key.shape[-2])
    if any(tensor is not None and traced(tensor) for tensor in (query, actual_seq_lengths_query)):
        largest, total = (query.new_empty(shape if return_softmax_lse else 0, dtype=torch.float32) for _ in range(2))
        return torch.empty_like(query, memory_format=torch.contiguous_format), largest, total
    layout = _layout(
        name, query, key, layout_query, layout_kv, actual_seq_lengths_query, actual_seq_lengths_kv, block_table
    )
    queries, keys, values = _with_rope(layout, query, key, value, query_rope, key_rope)
    results = []
    for q, k, v, index in zip(queries, keys, values, layout.of_query(sparse_indices), strict=True):
        if not q.shape[0] or not k.shape[0]:
            results.append(_nothing(q, v.shape[-1]))
            continue
        masked = _left_out(index, sparse_block_size, q, k, sparse_mode)
        out, largest, total = attention(
            per_head(q), per_head(k), per_head(v), scale_value, masked=masked, zero_empty_rows=True
        )
        results.append((out[0].transpose(0, 1), largest[0].T, total[0].T))
    rows = query.shape[:-2]
    outs, *statistics = (list(parts) for parts in zip(*results, strict=True))
    out = joined(outs, layout_query, layout.queries, rows)
    if not return_softmax_lse:
        return out, query.new_empty(0, dtype=torch.float32), query.new_empty(0, dtype=torch.float32)
    largest, total = (
        stacked_statistic([part.float().unsqueeze(1) for part in parts], layout_query, layout.queries, rows)
        for parts in statistics
    )
    return out, largest, total


@operator("npu_sparse_flash_attention_grad")
def npu_sparse_flash_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor | None,
    sparse_indices: torch.Tensor,
    d_out: torch.Tensor,
    out: torch.Tensor,
    softmax_max: torch.Tensor,
    softmax_sum: torch.Tensor,
    scale_value: float,
    sparse_block_size: int,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    actual_seq_qlen: torch.Tensor | None = None,
    actual_seq_kvlen: torch.Tensor | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _NO_LIMIT,
    next_tokens: int | None = _NO_LIMIT,
    attention_mode: int | None = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of npu_sparse_flash_attention: see `attention_grad` for the formula.

    Args:
        query: as for npu_sparse_flash_attention, and so what is not listed here.
        key: its keys.
        value: its values; None where the key was taken, whose gradient then holds both parts.
        sparse_indices: its selected blocks.
        d_out: gradient of the result.
        out: the result.
        softmax_max: maximum of the rows, [B, 1, S1, N1] or [1, T1, N1].
        softmax_sum: sum of the rows.
        scale_value: factor of the scores.
        sparse_block_size: number of keys in a block.
        query_rope: rotated part of the queries.
        key_rope: rotated part of the keys.
        actual_seq_qlen: lengths of the queries, for TND their running sums.
        actual_seq_kvlen: the same for the keys.
        layout: BSND or TND, of query and key.
        sparse_mode: 0 or 3.
        pre_tokens: its default alone.
        next_tokens: its default alone.
        attention_mode: the kernel does not take it.

    Returns:
        gradients of query, key, value, query_rope and key_rope; empty where there was none.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: SparseFlashAttentionGradKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_sparse_flash_attention_grad"
    kind = "BSND" if layout is None else layout
    mode = _CAUSAL if sparse_mode is None else sparse_mode
    _check_query(query, key, sparse_indices, kind)
    _check_sizes(name, query, key, query_rope, key_rope)
    _check_modes(name, mode, pre_tokens or _NO_LIMIT, next_tokens or _NO_LIMIT, _ABSORBED, sparse_block_size)
    if traced(query):
        like = [torch.empty_like(tensor) for tensor in (query, key, value) if tensor is not None]
        none = [query.new_empty(0)] if value is None else []
        ropes = [query.new_empty(0) if rope is None else torch.empty_like(rope) for rope in (query_rope, key_rope)]
        return tuple(like + none + ropes)  # type: ignore[return-value]
    found = _layout(name, query, key, kind, kind, actual_seq_qlen, actual_seq_kvlen, None)
    queries, keys, values = _with_rope(found, query, key, value, query_rope, key_rope)
    statistics = [split_statistic(part, kind, found.queries) for part in (softmax_max, softmax_sum)]
    others = [found.of_query(tensor) for tensor in (d_out, out, sparse_indices)]
    parts = []
    for q, k, v, grad, result, index, largest, total in zip(queries, keys, values, *others, *statistics, strict=True):
        if not q.shape[0] or not k.shape[0]:
            parts.append((torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)))
            continue
        gradients = attention_grad(
            per_head(q),
            per_head(k),
            per_head(v),
            scale_value,
            per_head(grad),
            per_head(result),
            *(part.flatten(1).T.unsqueeze(0) for part in (largest, total)),
            masked=_left_out(index, sparse_block_size, q, k, mode),
        )
        one, two, three = (part[0].transpose(0, 1) for part in (gradients.query, gradients.key, gradients.value))
        parts.append((one, two, three))
    of_query, of_key, of_value = zip(*parts, strict=True)
    d_query = joined(list(of_query), kind, found.queries, query.shape[:-2])
    d_key = joined(list(of_key), kind, found.keys, key.shape[:-2])
    d_value = joined(list(of_value), kind, found.keys, key.shape[:-2])
    head = query.shape[-1]
    d_query, d_query_rope = d_query[..., :head].contiguous(), d_query[..., head:].contiguous()
    d_key, d_key_rope = d_key[..., :head].contiguous(), d_key[..., head:].contiguous()
    if value is None:
        d_key, d_value = (d_key.float() + d_value.float()).to(key.dtype), query.new_empty(0)
    if query_rope is None or key_rope is None:
        d_query_rope, d_key_rope = query.new_empty(0), key.new_empty(0)
    return d_query, d_key, d_value, d_query_rope, d_key_rope


@operator("npu_kv_quant_sparse_flash_attention")
def npu_kv_quant_sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: torch.Tensor | None = None,
    value_dequant_scale: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _NO_LIMIT,
    next_tokens: int = _NO_LIMIT,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = 1,
    tile_size: int = 128,
    rope_head_dim: int = 64,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
) -> torch.Tensor:
    """npu_sparse_flash_attention with keys in int8, one scale for every 128 of their elements.

    Args:
        query: [B, S1, N1, 576] or [T1, N1, 576]: 512 elements and 64 rotated ones; float16 or bfloat16.
        key: int8, last axis 656: 512 elements, the bytes of 64 rotated ones in the dtype of the query, and those of
            4 scales in float32. [B, S2, 1, 656], [T2, 1, 656] or blocks [blocks, block_size, 1, 656].
        value: the key is taken in its place.
        sparse_indices: as for npu_sparse_flash_attention.
        scale_value: factor of the scores.
        key_quant_mode: 2.
        value_quant_mode: 2.
        key_dequant_scale: None alone.
        value_dequant_scale: None alone.
        block_table: blocks of every sequence.
        actual_seq_lengths_query: lengths of the queries.
        actual_seq_lengths_kv: lengths of the keys.
        sparse_block_size: number of keys in a block.
        layout_query: BSND or TND.
        layout_kv: the query's, or PA_BSND.
        sparse_mode: 0 or 3.
        pre_tokens: its default alone.
        next_tokens: its default alone.
        attention_mode: 2.
        quant_scale_repo_mode: 1: scales lie with the keys.
        tile_size: 128.
        rope_head_dim: 64.
        key_dtype: for hifloat8, which the Ascend 950 alone takes.
        value_dtype: as key_dtype.

    Returns:
        [B, S1, N1, 512] or [T1, N1, 512], in the dtype of the query. The weights are rounded to that dtype too.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_kv_quant_sparse_flash_attention.md of op-plugin.
    """
    name = "npu_kv_quant_sparse_flash_attention"
    _check_query(query, key, sparse_indices, layout_query)
    _check_modes(name, sparse_mode, pre_tokens, next_tokens, attention_mode, sparse_block_size)
    modes = (key_quant_mode, value_quant_mode, quant_scale_repo_mode, tile_size, rope_head_dim)
    _check_quantised(name, query, key, modes)
    if key_dequant_scale is not None or value_dequant_scale is not None:
        refuse(name, "key_dequant_scale and value_dequant_scale must be None: the scales lie with the keys")
    for argument, given in (("key_dtype", key_dtype), ("value_dtype", value_dtype)):
        if given is not None:
            raise RuntimeError(
                f"The {argument} is only used to support hifloat8, and should be default when the dtype of "
                f"{argument.removesuffix('_dtype')} tensor is not hifloat8."
            )
    if any(tensor is not None and traced(tensor) for tensor in (query, actual_seq_lengths_query)):
        return query.new_empty((*query.shape[:-1], _HEAD))
    layout = _layout(
        name, query, key, layout_query, layout_kv, actual_seq_lengths_query, actual_seq_lengths_kv, block_table
    )
    outs = []
    for q, packed, index in zip(
        layout.of_query(query), layout.of_key(key), layout.of_query(sparse_indices), strict=True
    ):
        k = _dequantised(packed, query.dtype)
        if not q.shape[0] or not k.shape[0]:
            outs.append(_nothing(q, _HEAD)[0])
            continue
        masked = _left_out(index, sparse_block_size, q, k, sparse_mode)
        scores = (q.transpose(0, 1).float() @ k[:, 0].float().T) * scale_value
        weights = scores.masked_fill(masked[0], float("-inf")).softmax(dim=-1).nan_to_num(0.0)
        out = weights.to(query.dtype).float() @ k[:, 0, :_HEAD].float()
        outs.append(out.transpose(0, 1).to(query.dtype))
    return joined(outs, layout_query, layout.queries, query.shape[:-2])


def _check_query(query: torch.Tensor, key: torch.Tensor, sparse_indices: torch.Tensor, layout: str) -> None:
    for name, tensor in (("query", query), ("key", key), ("sparse_indices", sparse_indices)):
        if not tensor.numel():
            raise RuntimeError(f"Tensor {name} is empty." + ops_error(ErrCode.PARAM))
    if layout not in ("BSND", "TND"):
        text = f"The layout of query only support BSND and TND, but got {layout}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    dims = 4 if layout == "BSND" else 3
    if query.dim() != dims:
        text = f"When the layout of query is {layout}, the query dimension must be {dims}, but got {query.dim()}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))


def _check_sizes(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    query_rope: torch.Tensor | None,
    key_rope: torch.Tensor | None,
) -> None:
    if query.dtype not in (torch.float16, torch.bfloat16):
        refuse(name, f"query is {query.dtype}; the kernel takes float16 and bfloat16")
    same_dtype(name, query=query, key=key, query_rope=query_rope, key_rope=key_rope)
    if query.shape[-1] != _HEAD or key.shape[-1] != _HEAD:
        refuse(
            name, f"heads of query and key have {query.shape[-1]} and {key.shape[-1]} elements; the kernel takes 512"
        )
    if query_rope is None or key_rope is None:
        refuse(name, "attention_mode 2 takes query_rope and key_rope, but one of them is missing")
    if query_rope.shape[-1] != _ROPE or key_rope.shape[-1] != _ROPE:
        sizes = f"{query_rope.shape[-1]} and {key_rope.shape[-1]}"
        refuse(name, f"heads of query_rope and key_rope have {sizes} elements; the kernel takes 64")
    _check_heads(name, query, key)


def _check_heads(name: str, query: torch.Tensor, key: torch.Tensor) -> None:
    heads = query.shape[-2]
    if heads > 128 or heads & (heads - 1):
        refuse(name, f"query has {heads} heads; the kernel takes 1, 2, 4, 8, 16, 32, 64 and 128")
    if key.shape[-2] != 1:
        refuse(name, f"key has {key.shape[-2]} heads; the kernel takes 1")


def _check_modes(
    name: str, sparse_mode: int, pre_tokens: int, next_tokens: int, attention_mode: int, sparse_block_size: int
) -> None:
    if sparse_mode not in (0, _CAUSAL):
        refuse(name, f"sparse_mode {sparse_mode}: the kernel takes 0 and 3")
    if pre_tokens != _NO_LIMIT or next_tokens != _NO_LIMIT:
        refuse(name, "pre_tokens and next_tokens take their default alone")
    if attention_mode != _ABSORBED:
        refuse(name, f"attention_mode {attention_mode}: the kernel takes 2")
    if not 1 <= sparse_block_size <= 128 or sparse_block_size & (sparse_block_size - 1):
        refuse(name, f"sparse_block_size {sparse_block_size}: the kernel takes powers of two up to 128")


def _check_quantised(name: str, query: torch.Tensor, key: torch.Tensor, modes: tuple[int, int, int, int, int]) -> None:
    if query.dtype not in (torch.float16, torch.bfloat16) or key.dtype != torch.int8:
        refuse(name, f"query is {query.dtype} and key {key.dtype}; the kernel takes float16 or bfloat16, and int8")
    names = ("key_quant_mode", "value_quant_mode", "quant_scale_repo_mode", "tile_size", "rope_head_dim")
    taken = (_PER_TILE, _PER_TILE, 1, _TILE, _ROPE)
    for argument, given, wanted in zip(names, modes, taken, strict=True):
        if given != wanted:
            refuse(name, f"{argument} {given}: the kernel takes {wanted}")
    packed = _HEAD + 2 * _ROPE + _SCALE_BYTES * _HEAD // _TILE
    if query.shape[-1] != _HEAD + _ROPE or key.shape[-1] != packed:
        sizes = f"{query.shape[-1]} and {key.shape[-1]}"
        refuse(name, f"heads of query and key have {sizes} elements; the kernel takes {_HEAD + _ROPE} and {packed}")
    _check_heads(name, query, key)


def _layout(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    layout_query: str,
    layout_key: str,
    query_lengths: Lengths,
    key_lengths: Lengths,
    block_table: torch.Tensor | None,
) -> _Layout:
    if layout_key not in ("PA_BSND", layout_query):
        refuse(name, f"layout_kv {layout_key!r}: with layout_query {layout_query} it is that or PA_BSND")
    queries = spans(name, "the lengths of the queries", layout_query, query.shape, query_lengths)
    keys = spans(name, "the lengths of the keys", layout_key, key.shape, key_lengths)
    if len(queries) != len(keys):
        refuse(name, f"there are {len(queries)} sequences of queries and {len(keys)} of keys")
    return _Layout(name, layout_query, layout_key, queries, keys, block_table)


def _with_rope(
    layout: _Layout,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor | None,
    query_rope: torch.Tensor | None,
    key_rope: torch.Tensor | None,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    queries, keys = layout.of_query(query), layout.of_key(key)
    values = keys if value is None else layout.of_key(value)
    if query_rope is not None and key_rope is not None:
        ropes = (layout.of_query(query_rope), layout.of_key(key_rope))
        queries = [torch.cat(pair, dim=-1) for pair in zip(queries, ropes[0], strict=True)]
        keys = [torch.cat(pair, dim=-1) for pair in zip(keys, ropes[1], strict=True)]
    return queries, keys, values


def _left_out(index: torch.Tensor, block: int, query: torch.Tensor, key: torch.Tensor, mode: int) -> torch.Tensor:
    """Scores that are not computed, [1, 1, Sq, Sk]."""
    return ~selected(index, block, query.shape[0], key.shape[0], mode == _CAUSAL).unsqueeze(0)


def _nothing(query: torch.Tensor, head: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    statistic = query.new_zeros(query.shape[:2], dtype=torch.float32)
    return query.new_zeros((*query.shape[:2], head)), statistic, statistic


def _statistic_shape(query: torch.Tensor, heads: int) -> list[int]:
    group = query.shape[-2] // heads
    return [heads, query.shape[0], group] if query.dim() == 3 else [query.shape[0], heads, query.shape[1], group]


def _dequantised(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys of a sequence, [S, 1, 576] in `dtype`, from their bytes."""
    rope = packed[..., _HEAD : _HEAD + 2 * _ROPE].contiguous().view(dtype)
    scales = packed[..., _HEAD + 2 * _ROPE :].contiguous().view(torch.float32).repeat_interleave(_TILE, dim=-1)
    return torch.cat(((packed[..., :_HEAD].float() * scales).to(dtype), rope), dim=-1)
