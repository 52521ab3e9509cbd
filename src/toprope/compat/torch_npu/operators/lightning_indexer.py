"""Lightning indexer: the choice of the keys that a query attends to in sparse attention, and its training.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_lightning_indexer.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .._error_codes import ErrCode, ops_error
from .attention import traced
from .checks import refuse
from .registry import operator
from .sequences import (
    Lengths,
    future,
    joined,
    selected,
    sequences,
    spans,
    split_statistic,
    stacked_statistic,
)

__all__ = [
    "npu_dense_lightning_indexer_grad_kl_loss",
    "npu_dense_lightning_indexer_softmax_lse",
    "npu_lightning_indexer",
    "npu_lightning_indexer_grad",
    "npu_quant_lightning_indexer",
    "npu_sparse_lightning_indexer_grad_kl_loss",
]

_NO_LIMIT = 9223372036854775807
_HEAD = 128
_MOST_HEADS = 64
_CAUSAL = 3  # sparse_mode
_SMALLEST = 1e-8  # of a probability whose logarithm is taken
_SHIFT = 1024.0  # by which the kernel divides products of int8, so that float16 holds them


def _scores(query: torch.Tensor, key: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """sum over the heads of weights * relu(query key^T).

    Args:
        query: [Sq, N, D].
        key: [Sk, 1, D].
        weights: [Sq, N].

    Returns:
        [Sq, Sk] in float32.
    """
    products = (query.transpose(0, 1).float() @ key[:, 0].float().T).relu()
    return (products * weights.float().T.unsqueeze(-1)).sum(dim=0)


def _best(scores: torch.Tensor, count: int, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and scores of the best keys, largest first, [Sq, 1, count]; -1 and -inf where there are fewer."""
    queries, keys = scores.shape
    if causal:
        scores = scores.masked_fill(future(queries, keys, scores.device), float("-inf"))
    values, indices = scores.sort(dim=-1, descending=True, stable=True)
    kept = min(count, keys)
    values, indices = values[:, :kept], indices[:, :kept].masked_fill(values[:, :kept] == float("-inf"), -1)
    missing = (0, count - kept)
    indices = torch.nn.functional.pad(indices.int(), missing, value=-1)
    return indices.unsqueeze(1), torch.nn.functional.pad(values, missing, value=float("-inf")).unsqueeze(1)


@operator("npu_lightning_indexer")
def npu_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = _NO_LIMIT,
    next_tokens: int = _NO_LIMIT,
    return_value: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the `sparse_count` keys with the largest sum over the heads of weights * relu(query key^T).

    Args:
        query: [B, S1, N1, 128] or [T1, N1, 128]; float16 or bfloat16; up to 64 heads.
        key: [B, S2, 1, 128], [T2, 1, 128], or blocks [blocks, block_size, 1, 128].
        weights: [B, S1, N1] or [T1, N1], in the dtype of query or float32.
        actual_seq_lengths_query: lengths of the queries, for TND their running sums.
        actual_seq_lengths_key: the same for the keys; for PA_BSND lengths.
        block_table: blocks of every sequence, [B, n] in int32, for PA_BSND.
        layout_query: BSND or TND.
        layout_key: the query's, or PA_BSND.
        sparse_count: number of keys, 1 to 2048, or a multiple of 1024 up to 8192.
        sparse_mode: 0 all keys, 3 those up to the query's own position from the lower right.
        pre_tokens: its default alone.
        next_tokens: its default alone.
        return_value: whether the scores are returned; not for PA_BSND.

    Returns:
        (indices, values): [B, S1, 1, sparse_count] or [T1, 1, sparse_count]; int32, largest score first, -1 where there
        are fewer keys; the values in the dtype of query, or empty. The values have a gradient.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_lightning_indexer.md and LightningIndexerKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_lightning_indexer"
    _check_not_empty(query, key, sparse_count)
    _check_index(name, query, key, weights, sparse_mode, pre_tokens, next_tokens)
    if sparse_count > 2048 and (sparse_count > 8192 or sparse_count % 1024):
        refuse(name, f"sparse_count {sparse_count}: the kernel takes up to 2048, and 3072, 4096 and so on up to 8192")
    if return_value and layout_key == "PA_BSND":
        refuse(name, "return_value does not go with layout_key PA_BSND")
    shape = (*query.shape[:-2], key.shape[-2], sparse_count)
    if any(tensor is not None and traced(tensor) for tensor in (query, actual_seq_lengths_query)):
        return query.new_empty(shape, dtype=torch.int32), query.new_empty(shape if return_value else 0)
    found = _pairs(
        name, query, key, layout_query, layout_key, actual_seq_lengths_query, actual_seq_lengths_key, block_table
    )
    best = [
        _best(_scores(q, k, w), sparse_count, sparse_mode == _CAUSAL)
        for q, k, w in zip(found.of_query(query), found.of_key(key), found.of_query(weights), strict=True)
    ]
    indices = _padded([pair[0] for pair in best], found, query.shape[:-2])
    if not return_value:
        return indices, query.new_empty(0)
    return indices, joined([pair[1].to(query.dtype) for pair in best], layout_query, found.queries, query.shape[:-2])


@operator("npu_lightning_indexer_grad")
def npu_lightning_indexer_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    dy: torch.Tensor,
    sparse_indices: torch.Tensor,
    weights: torch.Tensor,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _NO_LIMIT,
    next_tokens: int | None = _NO_LIMIT,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the values of npu_lightning_indexer.

    With S = query key^T at the selected keys: dW = sum of dy * relu(S), dS = dy * W where S > 0, dQ = dS K and
    dK = dS^T Q.

    Args:
        query: as for npu_lightning_indexer.
        key: its keys.
        dy: gradient of the values, [B, S1, 1, K] or [T1, 1, K]; the axis of one may be missing.
        sparse_indices: numbers of the keys, like dy; negative ones take no part.
        weights: its weights.
        actual_seq_lengths_query: lengths of the queries, for TND their running sums.
        actual_seq_lengths_key: the same for the keys.
        layout: BSND or TND.
        sparse_mode: 0 or 3; it has been applied to the indices.
        pre_tokens: without effect.
        next_tokens: without effect.

    Returns:
        gradients of query, key and weights.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: LightningIndexerGradKernelNpuOpApi.cpp and test_npu_lightning_indexer_grad.py of op-plugin.
    """
    name, kind = "npu_lightning_indexer_grad", "BSND" if layout is None else layout
    _check_index(name, query, key, weights, sparse_mode or 0, _NO_LIMIT, _NO_LIMIT)
    if traced(query):
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(weights)
    found = _pairs(name, query, key, kind, kind, actual_seq_lengths_query, actual_seq_lengths_key, None)
    rows = (*query.shape[:-2], sparse_indices.shape[-1])
    parts = []
    for q, k, w, grad, index in zip(
        found.of_query(query),
        found.of_key(key),
        *(found.of_query(tensor) for tensor in (weights, dy.reshape(rows), sparse_indices.reshape(rows))),
        strict=True,
    ):
        positions = index.long().masked_fill((index < 0) | (index >= k.shape[0]), k.shape[0])
        dense = torch.zeros(q.shape[0], k.shape[0] + 1, device=q.device)
        dense = dense.scatter_add(1, positions, grad.float())[:, :-1]
        parts.append(_chain(dense, q, k, w, None))
    return _joined_gradients(parts, found, query, key, weights)


@operator("npu_sparse_lightning_indexer_grad_kl_loss")
def npu_sparse_lightning_indexer_grad_kl_loss(
    query: torch.Tensor,
    key: torch.Tensor,
    query_index: torch.Tensor,
    key_index: torch.Tensor,
    weights: torch.Tensor,
    sparse_indices: torch.Tensor,
    softmax_max: torch.Tensor,
    softmax_sum: torch.Tensor,
    scale_value: float,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_klen: Sequence[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _NO_LIMIT,
    next_tokens: int | None = _NO_LIMIT,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss of the indexer over the selected keys, and its gradients.

    p = mean over the heads of softmax(scale * query key^T), s = softmax(I) with I = sum of weights * relu(S) and
    S = query_index key_index^T; loss = sum of p * (log p - log s); dI = s - p, and from there as
    npu_lightning_indexer_grad.

    Args:
        query: of the attention, [B, S1, N1, D] or [T1, N1, D]; float16 or bfloat16.
        key: of the attention, [B, S2, N2, D] or [T2, N2, D].
        query_index: of the indexer, [B, S1, N, 128] or [T1, N, 128].
        key_index: of the indexer, [B, S2, 1, 128] or [T2, 1, 128].
        weights: of the indexer, [B, S1, N] or [T1, N].
        sparse_indices: numbers of the selected keys, [B, S1, 1, K] or [T1, 1, K] in int32.
        softmax_max: maximum of the attention's rows, [B, N2, S1, N1/N2] or [N2, T1, N1/N2].
        softmax_sum: sum of the attention's rows.
        scale_value: factor of the attention's scores.
        query_rope: rotated part of the queries.
        key_rope: rotated part of the keys.
        actual_seq_qlen: running sums of the lengths, for TND.
        actual_seq_klen: the same for the keys.
        layout: BSND or TND.
        sparse_mode: 3.
        pre_tokens: without effect.
        next_tokens: without effect.
        sinks: not in this facade.

    Returns:
        gradients of query_index, key_index and weights, and the loss, [1] in float32.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_sparse_lightning_indexer_grad_kl_loss.md of op-plugin.
    """
    name = "npu_sparse_lightning_indexer_grad_kl_loss"
    if sinks is not None:
        refuse(name, "toprope's facade does not have the argument sinks yet")
    main = _Main(query, key, query_rope, key_rope, softmax_max, softmax_sum, scale_value)
    modes = (sparse_mode, pre_tokens, next_tokens)
    return _loss(
        name,
        main,
        query_index,
        key_index,
        weights,
        sparse_indices,
        None,
        actual_seq_qlen,
        actual_seq_klen,
        layout,
        modes,
    )


@operator("npu_dense_lightning_indexer_grad_kl_loss")
def npu_dense_lightning_indexer_grad_kl_loss(
    query: torch.Tensor,
    key: torch.Tensor,
    query_index: torch.Tensor,
    key_index: torch.Tensor,
    weights: torch.Tensor,
    softmax_max: torch.Tensor,
    softmax_sum: torch.Tensor,
    softmax_max_index: torch.Tensor,
    softmax_sum_index: torch.Tensor,
    scale_value: float,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_klen: Sequence[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _NO_LIMIT,
    next_tokens: int | None = _NO_LIMIT,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss of the indexer over all keys up to the query's own position, and its gradients.

    Formula: npu_sparse_lightning_indexer_grad_kl_loss. Two arguments are new:

    Args:
        query: of the attention.
        key: of the attention.
        query_index: of the indexer.
        key_index: of the indexer.
        weights: of the indexer.
        softmax_max: maximum of the attention's rows.
        softmax_sum: sum of the attention's rows.
        softmax_max_index: maximum of the indexer's rows, [B, 1, S1] or [1, T1], of
            npu_dense_lightning_indexer_softmax_lse.
        softmax_sum_index: sum of the indexer's rows.
        scale_value: factor of the attention's scores.
        query_rope: rotated part of the queries.
        key_rope: rotated part of the keys.
        actual_seq_qlen: running sums of the lengths, for TND.
        actual_seq_klen: the same for the keys.
        layout: BSND or TND.
        sparse_mode: 3.
        pre_tokens: without effect.
        next_tokens: without effect.

    Returns:
        gradients of query_index, key_index and weights, and the loss, [1] in float32.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_dense_lightning_indexer_grad_kl_loss.md of op-plugin.
    """
    name = "npu_dense_lightning_indexer_grad_kl_loss"
    main = _Main(query, key, query_rope, key_rope, softmax_max, softmax_sum, scale_value)
    modes = (sparse_mode, pre_tokens, next_tokens)
    statistics = (softmax_max_index, softmax_sum_index)
    return _loss(
        name, main, query_index, key_index, weights, None, statistics, actual_seq_qlen, actual_seq_klen, layout, modes
    )


@operator("npu_dense_lightning_indexer_softmax_lse")
def npu_dense_lightning_indexer_softmax_lse(
    query_index: torch.Tensor,
    key_index: torch.Tensor,
    weights: torch.Tensor,
    *,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_klen: Sequence[int] | None = None,
    layout: str | None = "BSND",
    sparse_mode: int | None = 3,
    pre_tokens: int | None = _NO_LIMIT,
    next_tokens: int | None = _NO_LIMIT,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum and sum of the softmax of the indexer's scores, over the keys up to the query's own position.

    Args:
        query_index: [B, S1, N, 128] or [T1, N, 128]; float16 or bfloat16.
        key_index: [B, S2, 1, 128] or [T2, 1, 128].
        weights: [B, S1, N] or [T1, N].
        actual_seq_qlen: running sums of the lengths of the queries, for TND.
        actual_seq_klen: the same for the keys.
        layout: BSND or TND.
        sparse_mode: 3.
        pre_tokens: without effect.
        next_tokens: without effect.

    Returns:
        (maximum, sum) in float32, [B, 1, S1] or [1, T1].

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_dense_lightning_indexer_softmax_lse.md of op-plugin.
    """
    name, kind = "npu_dense_lightning_indexer_softmax_lse", "BSND" if layout is None else layout
    for what, tensor in (("query", query_index), ("key", key_index)):
        _check_dims(what, tensor)
    _check_training(name, query_index, key_index, weights, (sparse_mode, pre_tokens, next_tokens))
    if traced(query_index):
        rows, heads = query_index.shape[:-2], key_index.shape[-2]
        shape = [heads, rows[0]] if kind == "TND" else [rows[0], heads, rows[1]]
        return tuple(query_index.new_empty(shape, dtype=torch.float32) for _ in range(2))  # type: ignore[return-value]
    found = _pairs(name, query_index, key_index, kind, kind, actual_seq_qlen, actual_seq_klen, None)
    largest, total = [], []
    for q, k, w in zip(found.of_query(query_index), found.of_key(key_index), found.of_query(weights), strict=True):
        scores = _scores(q, k, w).masked_fill(future(q.shape[0], k.shape[0], q.device), float("-inf"))
        largest.append(scores.amax(dim=-1, keepdim=True))
        total.append((scores - largest[-1]).exp().sum(dim=-1, keepdim=True))
    one, other = (stacked_statistic(parts, kind, found.queries, query_index.shape[:-2]) for parts in (largest, total))
    return one, other


@operator("npu_quant_lightning_indexer")
def npu_quant_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = _NO_LIMIT,
    next_tokens: int = _NO_LIMIT,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
) -> torch.Tensor:
    """npu_lightning_indexer of query and key in int8, with one scale for each of their heads.

    The relu of the products, divided by 1024, is rounded to float16, and so are the products of the weights and the
    scales of the query; the sum over the heads is taken in float32, times the scale of the key.

    Args:
        query: int8, [B, S1, N1, 128] or [T1, N1, 128].
        key: int8, [B, S2, 1, 128], [T2, 1, 128], or blocks [blocks, block_size, 1, 128].
        weights: float16, [B, S1, N1] or [T1, N1].
        query_dequant_scale: float16, like weights.
        key_dequant_scale: float16, like key without its last axis.
        query_quant_mode: 0: a scale for each token and head.
        key_quant_mode: 0.
        actual_seq_lengths_query: lengths of the queries, for TND their running sums.
        actual_seq_lengths_key: the same for the keys; for PA_BSND lengths.
        block_table: blocks of every sequence, for PA_BSND.
        layout_query: BSND or TND.
        layout_key: the query's, or PA_BSND.
        sparse_count: number of keys, 1 to 2048.
        sparse_mode: 0 or 3.
        pre_tokens: its default alone.
        next_tokens: its default alone.
        query_dtype: for hifloat8, which the Ascend 950 alone takes.
        key_dtype: as query_dtype.

    Returns:
        the numbers of the keys in int32, as npu_lightning_indexer.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_quant_lightning_indexer.md and test_npu_quant_lightning_indexer.py of op-plugin.
    """
    name = "npu_quant_lightning_indexer"
    _check_not_empty(query, key, sparse_count)
    for argument, given in (("query", query_dtype), ("key", key_dtype)):
        if given is not None:
            raise RuntimeError(
                f"The {argument}_dtype is only used to support hifloat8, and should be default when the dtype of "
                f"{argument} tensor is not hifloat8."
            )
    if query.dtype != torch.int8 or key.dtype != torch.int8:
        refuse(name, f"query is {query.dtype} and key {key.dtype}; the kernel takes int8")
    if {weights.dtype, query_dequant_scale.dtype, key_dequant_scale.dtype} != {torch.float16}:
        found_dtypes = f"{weights.dtype}, {query_dequant_scale.dtype} and {key_dequant_scale.dtype}"
        refuse(name, f"weights and scales are {found_dtypes}; with int8 the kernel takes float16")
    if query_quant_mode or key_quant_mode:
        refuse(name, f"query_quant_mode {query_quant_mode}, key_quant_mode {key_quant_mode}: the kernel takes 0")
    if sparse_count > 2048:
        refuse(name, f"sparse_count {sparse_count}: the kernel takes 1 to 2048")
    _check_heads(name, query, key, sparse_mode, pre_tokens, next_tokens)
    if any(tensor is not None and traced(tensor) for tensor in (query, actual_seq_lengths_query)):
        return query.new_empty((*query.shape[:-2], key.shape[-2], sparse_count), dtype=torch.int32)
    found = _pairs(
        name, query, key, layout_query, layout_key, actual_seq_lengths_query, actual_seq_lengths_key, block_table
    )
    best = []
    for q, k, w, q_scale, k_scale in zip(
        found.of_query(query),
        found.of_key(key),
        found.of_query(weights),
        found.of_query(query_dequant_scale),
        found.of_key(key_dequant_scale),
        strict=True,
    ):
        products = (q.transpose(0, 1).float() @ k[:, 0].float().T).relu() / _SHIFT
        factors = (w * q_scale).float().T.unsqueeze(-1)
        scores = (products.half().float() * factors).sum(dim=0) * k_scale[:, 0].float()
        best.append(_best(scores, sparse_count, sparse_mode == _CAUSAL)[0])
    return _padded(best, found, query.shape[:-2])


@dataclass(frozen=True)
class _Pairs:
    """Sequences of one call: those of the queries and those of the keys."""

    name: str
    query: str
    key: str
    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]
    block_table: torch.Tensor | None

    def of_query(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return sequences(self.name, tensor, self.query, self.queries)

    def of_key(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return sequences(self.name, tensor, self.key, self.keys, self.block_table)


@dataclass(frozen=True)
class _Main:
    """The attention that the indexer learns from."""

    query: torch.Tensor
    key: torch.Tensor
    query_rope: torch.Tensor | None
    key_rope: torch.Tensor | None
    largest: torch.Tensor
    total: torch.Tensor
    scale: float

    def shares(self, found: _Pairs, layout: str) -> list[torch.Tensor]:
        """exp(scale * query key^T - maximum) / sum of every sequence, its mean over the heads, [Sq, Sk]."""
        query, key = self.query, self.key
        if self.query_rope is not None and self.key_rope is not None:
            query, key = torch.cat((query, self.query_rope), dim=-1), torch.cat((key, self.key_rope), dim=-1)
        statistics = [split_statistic(part, layout, found.queries) for part in (self.largest, self.total)]
        shares = []
        for q, k, largest, total in zip(found.of_query(query), found.of_key(key), *statistics, strict=True):
            heads, shared = q.shape[1], k.shape[1]
            wide = k.float().repeat_interleave(heads // shared, dim=1).permute(1, 2, 0)
            scores = (q.transpose(0, 1).float() @ wide) * self.scale
            weights = (scores - largest.flatten(1).T.unsqueeze(-1)).exp() / total.flatten(1).T.unsqueeze(-1)
            shares.append(weights.sum(dim=0) / heads)
        return shares


def _loss(
    name: str,
    main: _Main,
    query_index: torch.Tensor,
    key_index: torch.Tensor,
    weights: torch.Tensor,
    sparse_indices: torch.Tensor | None,
    statistics: tuple[torch.Tensor, torch.Tensor] | None,
    query_ends: Lengths,
    key_ends: Lengths,
    layout: str | None,
    modes: tuple[int | None, int | None, int | None],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    kind = "BSND" if layout is None else layout
    named = {"query": main.query, "query_rope": main.query_rope, "key": main.key, "key_rope": main.key_rope}
    for what, tensor in named.items():
        if tensor is not None:
            _check_dims(what, tensor)
    _check_training(name, query_index, key_index, weights, modes)
    if traced(query_index):
        like = (torch.empty_like(query_index), torch.empty_like(key_index), torch.empty_like(weights))
        return *like, query_index.new_empty(1, dtype=torch.float32)
    found = _pairs(name, query_index, key_index, kind, kind, query_ends, key_ends, None)
    given = [split_statistic(part, kind, found.queries) for part in statistics] if statistics is not None else None
    index = found.of_query(sparse_indices) if sparse_indices is not None else None
    parts, loss = [], torch.zeros(1, device=query_index.device)
    tensors = (found.of_query(query_index), found.of_key(key_index), found.of_query(weights), main.shares(found, kind))
    for row, (q, k, w, share) in enumerate(zip(*tensors, strict=True)):
        left_out = future(q.shape[0], k.shape[0], q.device)
        if index is not None:
            left_out = ~selected(index[row], 1, q.shape[0], k.shape[0], True)[0]
        scores = _scores(q, k, w).masked_fill(left_out, float("-inf"))
        if given is None:
            own = scores.softmax(dim=-1).nan_to_num(0.0)
        else:
            own = (scores - given[0][row].reshape(-1, 1)).exp() / given[1][row].reshape(-1, 1)
        share = share.masked_fill(left_out, 0.0)
        loss += (share * (share.clamp(min=_SMALLEST).log() - own.clamp(min=_SMALLEST).log())).sum()
        parts.append(_chain(own - share, q, k, w, query_index.dtype))
    return *_joined_gradients(parts, found, query_index, key_index, weights), loss


def _chain(
    of_scores: torch.Tensor, query: torch.Tensor, key: torch.Tensor, weights: torch.Tensor, rounded: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and weights of _scores, in float32.

    Args:
        of_scores: gradient of the scores, [Sq, Sk].
        query: [Sq, N, D].
        key: [Sk, 1, D].
        weights: [Sq, N].
        rounded: dtype to which the kernel rounds the gradient of the products, if any.
    """
    wide_query, wide_key = query.transpose(0, 1).float(), key[:, 0].float()
    products = wide_query @ wide_key.T
    of_weights = (of_scores * products.relu()).sum(dim=-1).T
    of_products = of_scores * weights.float().T.unsqueeze(-1) * (products > 0)
    if rounded is not None:
        of_products = of_products.to(rounded).float()
    of_query = (of_products @ wide_key).transpose(0, 1)
    of_key = (of_products.transpose(1, 2) @ wide_query).sum(dim=0).unsqueeze(1)
    return of_query, of_key, of_weights


def _joined_gradients(
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    found: _Pairs,
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    of_query, of_key, of_weights = (list(column) for column in zip(*parts, strict=True))
    return (
        joined(of_query, found.query, found.queries, query.shape[:-2]).to(query.dtype),
        joined(of_key, found.key, found.keys, key.shape[:-2]).to(key.dtype),
        joined(of_weights, found.query, found.queries, query.shape[:-2]).to(weights.dtype),
    )


def _padded(parts: list[torch.Tensor], found: _Pairs, rows: torch.Size) -> torch.Tensor:
    """Numbers of the keys; rows of no sequence are -1."""
    return joined([part + 1 for part in parts], found.query, found.queries, rows) - 1


def _pairs(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    layout_query: str,
    layout_key: str,
    query_lengths: Lengths,
    key_lengths: Lengths,
    block_table: torch.Tensor | None,
) -> _Pairs:
    if layout_query not in ("BSND", "TND"):
        refuse(name, f"layout {layout_query!r} of the queries: the kernel takes BSND and TND")
    if layout_key not in ("PA_BSND", layout_query):
        refuse(name, f"layout {layout_key!r} of the keys: with {layout_query} it is that or PA_BSND")
    queries = spans(name, "the lengths of the queries", layout_query, query.shape, query_lengths)
    keys = spans(name, "the lengths of the keys", layout_key, key.shape, key_lengths)
    if len(queries) != len(keys):
        refuse(name, f"there are {len(queries)} sequences of queries and {len(keys)} of keys")
    return _Pairs(name, layout_query, layout_key, queries, keys, block_table)


def _check_not_empty(query: torch.Tensor, key: torch.Tensor, sparse_count: int) -> None:
    for name, tensor in (("query", query), ("key", key)):
        if not tensor.numel():
            raise RuntimeError(f"Tensor {name} is empty.")
    if sparse_count <= 0:
        raise RuntimeError(f"sparse count should be greater than 0, but now is {sparse_count}")


def _check_dims(name: str, tensor: torch.Tensor) -> None:
    if tensor.dim() not in (3, 4):
        text = f"The shapes of the input {name} should be 3 or 4 dimensional, but got {tensor.dim()}-dimensional"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))


def _check_training(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    modes: tuple[int | None, int | None, int | None],
) -> None:
    # Mode 3 has no use for the other two, pre_tokens and next_tokens.
    sparse_mode = _CAUSAL if modes[0] is None else modes[0]
    if sparse_mode != _CAUSAL:
        refuse(name, f"sparse_mode {sparse_mode}: the kernel takes 3")
    _check_index(name, query, key, weights, sparse_mode, _NO_LIMIT, _NO_LIMIT)


def _check_index(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    sparse_mode: int,
    pre_tokens: int,
    next_tokens: int,
) -> None:
    if query.dtype not in (torch.float16, torch.bfloat16) or key.dtype != query.dtype:
        refuse(name, f"query is {query.dtype} and key {key.dtype}; the kernel takes float16 or bfloat16 for both")
    if weights.dtype not in (query.dtype, torch.float32):
        refuse(name, f"weights are {weights.dtype}; the kernel takes {query.dtype} or float32")
    _check_heads(name, query, key, sparse_mode, pre_tokens, next_tokens)


def _check_heads(
    name: str, query: torch.Tensor, key: torch.Tensor, sparse_mode: int, pre_tokens: int, next_tokens: int
) -> None:
    if query.dim() not in (3, 4):
        refuse(name, f"query has {query.dim()} dimensions; BSND has 4 and TND has 3")
    if query.shape[-1] != _HEAD or key.shape[-1] != _HEAD:
        refuse(
            name, f"heads of query and key have {query.shape[-1]} and {key.shape[-1]} elements; the kernel takes 128"
        )
    if query.shape[-2] > _MOST_HEADS or key.shape[-2] != 1:
        refuse(name, f"query has {query.shape[-2]} heads and key {key.shape[-2]}; the kernel takes up to 64, and 1")
    if sparse_mode not in (0, _CAUSAL):
        refuse(name, f"sparse_mode {sparse_mode}: the kernel takes 0 and 3")
    if pre_tokens != _NO_LIMIT or next_tokens != _NO_LIMIT:
        refuse(name, "pre_tokens and next_tokens take their default alone")
