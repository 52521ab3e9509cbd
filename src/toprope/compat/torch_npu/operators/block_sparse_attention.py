"""Operators npu_block_sparse_attention (mask of blocks) and npu_fused_floyd_attention (pairs of nodes).

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_block_sparse_attention.py for values and refusals, tests/sim/simulated/test_npu_operators.py
for shapes and the card.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .attention import attention, attention_grad
from .checks import refuse, same_dtype
from .registry import operator

__all__ = [
    "npu_block_sparse_attention",
    "npu_block_sparse_attention_backward",
    "npu_fused_floyd_attention",
    "npu_fused_floyd_attention_backward",
]

_COPIES = 8
_HALVES = (torch.float16, torch.bfloat16)
_MASKED = -4000000000.0  # added to the scores that atten_mask of npu_fused_floyd_attention leaves out

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@operator("npu_block_sparse_attention")
def npu_block_sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_sparse_mask: torch.Tensor,
    block_shape: Sequence[int],
    *,
    q_input_layout: str = "TND",
    kv_input_layout: str = "TND",
    num_key_value_heads: int = 1,
    scale_value: float = 0.0,
    inner_precise: int = 1,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    softmax_lse_flag: int | None = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * query key^T) value over the blocks of scores that a mask selects.

    Args:
        query: [T1, N1, D] or [B, N1, S1, D]; float16 or bfloat16; D is 64 or 128.
        key: [T2, N2, D] or [B, N2, S2, D]; N1 is a multiple of N2.
        value: like key.
        block_sparse_mask: [B, N1, ceil(S1 / x), ceil(S2 / y)] in int8: 1 computes a block.
        block_shape: (x, y): queries and keys of a block; y is a multiple of 128.
        q_input_layout: "TND" or "BNSD".
        kv_input_layout: the same.
        num_key_value_heads: N2.
        scale_value: factor of the scores.
        inner_precise: 0 computes the softmax in float32, which bfloat16 takes; 1 in float16 on the card.
        actual_seq_lengths: length of every sequence of queries; TND needs it.
        actual_seq_lengths_kv: length of every sequence of keys.
        softmax_lse_flag: 1 gives the logarithm of the sum of the exponentials as well.

    Returns:
        (out like query, [T1, N1, 1] or [B, N1, S1, 1] in float32, or zeros). Rows without a block give zeros.

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_block_sparse_attention.md and BlockSparseAttentionKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_block_sparse_attention"
    _check_blocks(name, query, key, value, block_shape, (q_input_layout, kv_input_layout), num_key_value_heads)
    if query.dtype == torch.bfloat16 and inner_precise != 0:
        raise RuntimeError(
            f"when query/key/value are bfloat16, inner_precise must be 0, got {inner_precise}"
            + ops_error(ErrCode.PARAM)
        )
    if inner_precise not in (0, 1):
        refuse(name, f"inner_precise {inner_precise}: the kernel takes 0 and 1")
    pairs = _block_pairs(name, query, key, q_input_layout, block_sparse_mask, actual_seq_lengths, actual_seq_lengths_kv)
    outs, sums = [], []
    for row, (rows, columns) in enumerate(pairs):
        q, k, v = _own(query, row, rows), _own(key, row, columns), _own(value, row, columns)
        if not q.shape[2] or not k.shape[2]:
            outs.append(q * 0)
            sums.append(q.new_zeros(q.shape[:3], dtype=torch.float32))
            continue
        masked = _masked_blocks(block_sparse_mask[row], block_shape, q.shape[2], k.shape[2])
        out, largest, total = attention(q, k, v, scale_value, masked=masked, zero_empty_rows=True)
        outs.append(out)
        sums.append(torch.where(masked.all(dim=-1), 0.0, largest + total.log()))
    out = _together(outs, query)
    lse = _together([part.unsqueeze(-1) for part in sums], query[..., :1])
    return out, lse if softmax_lse_flag else torch.zeros_like(lse)


@operator("npu_block_sparse_attention_backward")
def npu_block_sparse_attention_backward(
    d_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_out: torch.Tensor,
    softmax_lse: torch.Tensor,
    block_sparse_mask: torch.Tensor,
    block_shape: Sequence[int] | None,
    actual_seq_lengths: Sequence[int] | None,
    actual_seq_lengths_kv: Sequence[int] | None,
    q_input_layout: str,
    kv_input_layout: str,
    num_key_value_heads: int,
    scale_value: float,
) -> _Three:
    """Gradients of query, key and value of npu_block_sparse_attention, whose arguments and results these are.

    `block_shape` is (128, 128) where it is missing.
    """
    name = "npu_block_sparse_attention_backward"
    shape = list(block_shape) if block_shape is not None and len(block_shape) >= 2 else [128, 128]
    _check_blocks(name, query, key, value, shape, (q_input_layout, kv_input_layout), num_key_value_heads)
    pairs = _block_pairs(name, query, key, q_input_layout, block_sparse_mask, actual_seq_lengths, actual_seq_lengths_kv)
    parts = []
    for row, (rows, columns) in enumerate(pairs):
        q, k, v = _own(query, row, rows), _own(key, row, columns), _own(value, row, columns)
        if not q.shape[2] or not k.shape[2]:
            parts.append((torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)))
            continue
        largest = _own(softmax_lse, row, rows)[..., 0]
        gradients = attention_grad(
            q, k, v, scale_value, _own(d_out, row, rows), _own(attention_out, row, rows), largest,
            torch.ones_like(largest), masked=_masked_blocks(block_sparse_mask[row], shape, q.shape[2], k.shape[2]),
        )  # fmt: skip
        parts.append((gradients.query, gradients.key, gradients.value))
    of_query, of_key, of_value = (list(column) for column in zip(*parts, strict=True))
    return _together(of_query, query), _together(of_key, key), _together(of_value, value)


@operator("npu_fused_floyd_attention")
def npu_fused_floyd_attention(
    query_ik: torch.Tensor,
    key_ij: torch.Tensor,
    value_ij: torch.Tensor,
    key_jk: torch.Tensor,
    value_jk: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    scale_value: float = 1.0,
) -> _Three:
    """Attention over paths from i to k by a node j.

    weights = softmax over j of scale * (query_ik . key_ij + query_ik . key_jk);
    out = sum over j of weights * (value_ij + value_jk).

    Args:
        query_ik: [B, H, N, M, D]; float16 or bfloat16; N a multiple of 16, M of 128, D is 32, 64 or 128.
        key_ij: [B, H, N, K, D]; K a multiple of 128.
        value_ij: like key_ij.
        key_jk: [B, H, K, M, D].
        value_jk: like key_jk.
        atten_mask: [B, 1, N, 1, K], bool or uint8; True leaves a node out.
        scale_value: factor of the scores.

    Returns:
        (maximum and sum of the softmax, [B, H, N, M, 8] in float32; the result, like query_ik).

    Raises:
        RuntimeError: the kernel would not take the arguments.

    Source: torch_npu-npu_fused_floyd_attention.md and test_npu_fused_floyd_attention.py of op-plugin.
    """
    name = "npu_fused_floyd_attention"
    _check_floyd(name, query_ik, key_ij, value_ij, key_jk, value_jk, atten_mask)
    scores = _floyd_scores(query_ik, key_ij, key_jk, atten_mask, scale_value)
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = (scores - largest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    weights = weights / total
    out = torch.einsum("bhikj,bhijc->bhikc", weights, value_ij.float())
    out = out + torch.einsum("bhikj,bhjkc->bhikc", weights, value_jk.float())
    copies = (*largest.shape[:-1], _COPIES)
    return largest.expand(copies).contiguous(), total.detach().expand(copies).contiguous(), out.to(query_ik.dtype)


@operator("npu_fused_floyd_attention_backward")
def npu_fused_floyd_attention_backward(
    grad_output: torch.Tensor,
    query_ik: torch.Tensor,
    key_ij: torch.Tensor,
    value_ij: torch.Tensor,
    key_jk: torch.Tensor,
    value_jk: torch.Tensor,
    attention_out: torch.Tensor,
    softmax_max: torch.Tensor,
    softmax_sum: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    scale_value: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query_ik, key_ij, value_ij, key_jk and value_jk of npu_fused_floyd_attention.

    The arguments are those of the forward operator, its results and the gradient of `attention_out`.
    """
    name = "npu_fused_floyd_attention_backward"
    _check_floyd(name, query_ik, key_ij, value_ij, key_jk, value_jk, atten_mask)
    grad, query = grad_output.float(), query_ik.float()
    scores = _floyd_scores(query_ik, key_ij, key_jk, atten_mask, scale_value)
    weights = (scores - softmax_max[..., :1]).exp() / softmax_sum[..., :1]
    of_weights = torch.einsum("bhikc,bhijc->bhikj", grad, value_ij.float())
    of_weights = of_weights + torch.einsum("bhikc,bhjkc->bhikj", grad, value_jk.float())
    product = (grad * attention_out.float()).sum(dim=-1, keepdim=True)
    of_scores = weights * (of_weights - product) * scale_value
    of_query = torch.einsum("bhikj,bhijc->bhikc", of_scores, key_ij.float())
    of_query = of_query + torch.einsum("bhikj,bhjkc->bhikc", of_scores, key_jk.float())
    return (
        of_query.to(query_ik.dtype),
        torch.einsum("bhikj,bhikc->bhijc", of_scores, query).to(key_ij.dtype),
        torch.einsum("bhikj,bhikc->bhijc", weights, grad).to(value_ij.dtype),
        torch.einsum("bhikj,bhikc->bhjkc", of_scores, query).to(key_jk.dtype),
        torch.einsum("bhikj,bhikc->bhjkc", weights, grad).to(value_jk.dtype),
    )


def _floyd_scores(
    query: torch.Tensor, key_ij: torch.Tensor, key_jk: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """[B, H, N, M, K] in float32."""
    scores = torch.einsum("bhikc,bhijc->bhikj", query.float(), key_ij.float())
    scores = scores + torch.einsum("bhikc,bhjkc->bhikj", query.float(), key_jk.float())
    return (scores if mask is None else scores + mask.bool() * _MASKED) * scale


def _check_floyd(
    name: str,
    query: torch.Tensor,
    key_ij: torch.Tensor,
    value_ij: torch.Tensor,
    key_jk: torch.Tensor,
    value_jk: torch.Tensor,
    mask: torch.Tensor | None,
) -> None:
    if query.dtype not in _HALVES:
        refuse(name, f"query_ik is {query.dtype}; the kernel takes float16 and bfloat16")
    same_dtype(name, query_ik=query, key_ij=key_ij, value_ij=value_ij, key_jk=key_jk, value_jk=value_jk)
    if query.dim() != 5 or key_ij.dim() != 5:
        refuse(name, f"query_ik has {query.dim()} dimensions and key_ij {key_ij.dim()}; the kernel takes 5")
    batch, heads, first, last, head = query.shape
    between = key_ij.shape[3]
    if list(key_ij.shape) != [batch, heads, first, between, head] or value_ij.shape != key_ij.shape:
        shapes = f"{list(key_ij.shape)} and {list(value_ij.shape)}"
        refuse(name, f"key_ij and value_ij have shapes {shapes}; query_ik takes {[batch, heads, first, between, head]}")
    if list(key_jk.shape) != [batch, heads, between, last, head] or value_jk.shape != key_jk.shape:
        shapes = f"{list(key_jk.shape)} and {list(value_jk.shape)}"
        refuse(name, f"key_jk and value_jk have shapes {shapes}; query_ik takes {[batch, heads, between, last, head]}")
    if not first or first % 16 or not last or last % 128 or not between or between % 128 or head not in (32, 64, 128):
        refuse(
            name,
            f"N is {first}, M {last}, K {between} and D {head}; the kernel takes multiples of 16, 128 and 128, and a "
            "head of 32, 64 or 128",
        )
    if mask is not None and (
        mask.dtype not in (torch.bool, torch.uint8) or list(mask.shape) != [batch, 1, first, 1, between]
    ):
        shape = f"{list(mask.shape)} {mask.dtype}"
        refuse(name, f"atten_mask is {shape}; these inputs take {[batch, 1, first, 1, between]} in bool or uint8")


def _check_blocks(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_shape: Sequence[int],
    layouts: tuple[str, str],
    shared: int,
) -> None:
    if not query.dtype == key.dtype == value.dtype:
        dtypes = f"query={query.dtype}, key={key.dtype}, value={value.dtype}"
        raise RuntimeError(f"query, key, value must have the same dtype, got {dtypes}" + ops_error(ErrCode.PARAM))
    if query.dtype not in _HALVES:
        refuse(name, f"query is {query.dtype}; the kernel takes float16 and bfloat16")
    if query.shape[-1] > 128:
        raise RuntimeError(f"head_dim must be <= 128, but got {query.shape[-1]}" + ops_error(ErrCode.PARAM))
    if layouts[0] != layouts[1] or layouts[0] not in ("TND", "BNSD"):
        refuse(name, f"layouts {layouts[0]} and {layouts[1]}: the kernel takes TND or BNSD for both")
    dims = 3 if layouts[0] == "TND" else 4
    if query.dim() != dims or key.dim() != dims or value.shape != key.shape:
        refuse(name, f"query, key and value have {query.dim()}, {key.dim()} and {value.dim()} dimensions, not {dims}")
    if len(block_shape) < 2 or block_shape[0] <= 0 or block_shape[1] <= 0 or block_shape[1] % 128:
        text = f"block_shape[1] (blockShapeY) must be a multiple of 128, got {list(block_shape)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if key.shape[1] != shared or query.shape[1] % shared:
        refuse(name, f"num_key_value_heads is {shared}, but query has {query.shape[1]} heads and key {key.shape[1]}")


def _block_pairs(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    layout: str,
    mask: torch.Tensor,
    query_lengths: Sequence[int] | None,
    key_lengths: Sequence[int] | None,
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Rows of the queries and of the keys of every sequence."""
    if layout == "TND":
        for what, lengths, kind in (("", query_lengths, "q"), ("_kv", key_lengths, "kv")):
            if not lengths:
                text = f"actual_seq_lengths{what} must be specified when {kind}_input_layout is TND"
                raise RuntimeError(text + ops_error(ErrCode.PARAM))
    elif (query_lengths is None) != (key_lengths is None):
        refuse(name, "actual_seq_lengths and actual_seq_lengths_kv must both be given, or neither")
    if query_lengths is None or key_lengths is None:
        query_lengths, key_lengths = ([tensor.shape[2]] * tensor.shape[0] for tensor in (query, key))
    if len(query_lengths) != len(key_lengths) or mask.shape[0] != len(query_lengths):
        counts = f"{len(query_lengths)}, {len(key_lengths)} and {mask.shape[0]}"
        refuse(name, f"actual_seq_lengths, actual_seq_lengths_kv and block_sparse_mask are of {counts} sequences")
    if layout == "BNSD":
        return [((0, one), (0, other)) for one, other in zip(query_lengths, key_lengths, strict=True)]
    pairs, row, column = [], 0, 0
    for one, other in zip(query_lengths, key_lengths, strict=True):
        pairs.append(((row, row + one), (column, column + other)))
        row, column = row + one, column + other
    return pairs


def _own(tensor: torch.Tensor, row: int, where: tuple[int, int]) -> torch.Tensor:
    """The part of a sequence, [1, N, S, D]."""
    start, end = where
    if tensor.dim() == 4:
        return tensor[row : row + 1, :, start:end]
    return tensor[start:end].transpose(0, 1).unsqueeze(0)


def _together(parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The sequences, [1, N, S, D], in the layout of `like`; rows of no sequence are zeros."""
    if like.dim() == 4:
        missing = [like.shape[2] - part.shape[2] for part in parts]
        padded = [torch.nn.functional.pad(part, (0, 0, 0, rest)) for part, rest in zip(parts, missing, strict=True)]
        return torch.cat(padded)
    whole = torch.cat([part[0].transpose(0, 1) for part in parts])
    return torch.cat([whole, whole.new_zeros((like.shape[0] - whole.shape[0], *whole.shape[1:]))])


def _masked_blocks(mask: torch.Tensor, block_shape: Sequence[int], queries: int, keys: int) -> torch.Tensor:
    """Scores that are not computed, [1, N, queries, keys], from the blocks of one sequence, [N, blocks, blocks]."""
    rows = torch.arange(queries, device=mask.device) // block_shape[0]
    columns = torch.arange(keys, device=mask.device) // block_shape[1]
    return (mask[:, rows[:, None], columns] == 0).unsqueeze(0)
