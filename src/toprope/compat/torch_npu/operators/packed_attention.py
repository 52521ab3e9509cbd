"""Attention for the operators of torch.ops.atb: sequences one after the other in one tensor, and caches in blocks.

Used by atb_flash_attention.py, atb_paged_attention.py and latent_attention.py.

Queries are [T, N, D] or [T, N * D], the tokens of all sequences one after the other. A cache is [blocks, block size, N,
D], [blocks, block size, N * D] or, as FRACTAL_NZ, [blocks, N * D / 16, block size, 16]. Masks are numbers that are
added to the scaled scores; a bfloat16 call first multiplies masks that hide keys by -3e38. All of this is the kernels';
the loop over sequences is free. Tests: tests/compat/operators/test_atb_attention.py.

Source: the files of op_plugin/ops/atb in Ascend/op-plugin, which set the modes, and the formulas of their tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .checks import refuse
from .evaluation import has_values
from .sequence_attention import IntegerScales, attend

__all__ = [
    "ALIBI",
    "ALIBI_COMPRESS",
    "ALIBI_COMPRESS_SQRT",
    "NORM",
    "NORM_COMPRESS",
    "along_diagonals",
    "attend_cache",
    "attend_sequences",
    "cached_tokens",
    "hiding",
    "numbers",
    "plain_mask",
]

_HIDDEN = -3e38  # factor of a bfloat16 mask
NORM, ALIBI, NORM_COMPRESS, ALIBI_COMPRESS, ALIBI_COMPRESS_SQRT = 1, 2, 3, 4, 5  # of SelfAttentionParam


def cached_tokens(operator: str, cache: torch.Tensor, table: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """Tokens of one sequence from a cache in blocks, [N, length, D].

    Args:
        operator: name for errors.
        cache: in one of the three forms.
        table: the sequence's row of the block table.
        length: number of tokens.
        heads: N.
    """
    nz = cache.dim() == 4 and cache.shape[2] != heads and cache.shape[3] in (16, 32)
    if cache.dim() not in (3, 4) or (not nz and cache.dim() == 4 and cache.shape[2] != heads):
        refuse(operator, f"the cache {list(cache.shape)} does not have {heads} heads")
    size = cache.shape[2 if nz else 1]
    blocks = table[: -(-length // size)].long()
    if blocks.shape[0] * size < length:
        refuse(operator, f"block_table has {blocks.shape[0]} blocks of {size} tokens for a sequence of {length} tokens")
    read = cache[blocks]
    if nz:
        read = read.transpose(1, 2)
    return read.reshape(blocks.shape[0] * size, heads, -1)[:length].transpose(0, 1)


def along_diagonals(mask: torch.Tensor, queries: int, keys: int, shift: int) -> torch.Tensor:
    """A mask of these queries and keys from a smaller one whose values depend on key - query alone.

    Args:
        mask: [M, M].
        queries: number of rows.
        keys: number of columns.
        shift: key of the first query's diagonal.
    """
    size = mask.shape[0]
    values = torch.cat((mask[1:, 0].flip(0), mask[0]))
    diagonal = _diagonals(queries, keys, shift, mask.device)
    return values[(diagonal + size - 1).clamp(0, 2 * size - 2)]


def _diagonals(queries: int, keys: int, shift: int, device: torch.device) -> torch.Tensor:
    return torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - shift


def numbers(lengths: torch.Tensor | Sequence[int]) -> list[int]:
    """Lengths of sequences, given as a tensor or as a list."""
    return [int(length) for length in (lengths.flatten().tolist() if isinstance(lengths, torch.Tensor) else lengths)]


def hiding(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask that hides keys, as the number that is added to a score."""
    return mask.float() * _HIDDEN if dtype == torch.bfloat16 else mask.float()


def plain_mask(mask: torch.Tensor) -> torch.Tensor:
    """A mask that may lie as FRACTAL_NZ, [1, M / 16, M, 16]."""
    if mask.dim() == 4 and mask.shape[0] == 1 and mask.shape[3] == 16 and mask.shape[1] * 16 == mask.shape[2]:
        return mask[0].transpose(0, 1).reshape(mask.shape[2], -1)
    return mask


def _part(operator: str, mask: torch.Tensor, index: int, queries: int, keys: int, per_head: bool) -> torch.Tensor:
    """The part of a whole mask that belongs to one sequence: [S, S], [B, S, S], [N, S, S] or [B, N, S, S]."""
    if mask.dim() == 4 or (mask.dim() == 3 and not per_head):
        mask = mask[index if mask.shape[0] > 1 else 0]
    if mask.shape[-2] < queries or mask.shape[-1] < keys:
        refuse(operator, f"the mask {list(mask.shape)} is smaller than {queries} queries and {keys} keys")
    return mask[..., :queries, :keys]


def _alibi(
    operator: str, mask: torch.Tensor, slopes: torch.Tensor | None, queries: int, keys: int, shift: int, root: bool
) -> torch.Tensor:
    """Bias of a compressed mask of distances: slope of the head times the distance, or times its square root."""
    if slopes is None:
        refuse(operator, "this mask_type takes slopes")
    distances = along_diagonals(mask.float(), queries, keys, shift)
    diagonal = _diagonals(queries, keys, shift, mask.device)
    far = -diagonal.float()  # the mask ends there, and the kernel goes on
    distances = torch.where(diagonal <= -mask.shape[0], far.clamp(min=0).sqrt() if root else far, distances)
    return slopes.float().reshape(-1, 1, 1) * distances


def _heads(operator: str, heads: int, kv_heads: int) -> int:
    """Heads of key and value; 0 stands for those of the query."""
    found = kv_heads or heads
    if heads <= 0 or found < 0 or heads % found:
        refuse(operator, f"the query's {heads} heads must be a multiple of the {found} of key and value")
    return found


def _rows(operator: str, tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """[T, N, D] or [T, N * D] as [N, T, D]."""
    if tensor.dim() == 2 and tensor.shape[1] % heads == 0:
        return tensor.reshape(tensor.shape[0], heads, -1).transpose(0, 1)
    if tensor.dim() != 3 or tensor.shape[1] != heads:
        refuse(operator, f"the tensor {list(tensor.shape)} does not have {heads} heads")
    return tensor.transpose(0, 1)


def _check_dtype(operator: str, query: torch.Tensor, out: torch.Tensor) -> None:
    if query.dtype not in (torch.float16, torch.bfloat16):
        refuse(operator, f"query is {query.dtype}; the kernel takes float16 and bfloat16")
    if out.dtype != query.dtype:
        refuse(operator, f"query is {query.dtype} and out {out.dtype}; they must have one dtype")


def _write(operator: str, out: torch.Tensor, parts: list[torch.Tensor]) -> None:
    """Write results [N, S, D] of the sequences one after the other; later rows of `out` stay."""
    if not parts:
        return
    rows = torch.cat(parts, 1).transpose(0, 1)
    width = out.shape[1:].numel()
    if rows.shape[0] > out.shape[0] or width != rows.shape[1] * rows.shape[2]:
        refuse(operator, f"the result is {list(rows.shape)}, but out {list(out.shape)}")
    out[: rows.shape[0]] = rows.reshape(rows.shape[0], *out.shape[1:]).to(out.dtype)


def attend_sequences(
    name: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: torch.Tensor | Sequence[int],
    scale: float,
    heads: int,
    kv_heads: int,
    out: torch.Tensor,
    mask: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    mask_type: int = 0,
) -> None:
    """Attention of whole sequences with keys and values of the same lengths."""
    kv_heads = _heads(name, heads, kv_heads)
    _check_dtype(name, query, out)
    if mask_type and mask is None:
        refuse(name, f"mask_type {mask_type} takes a mask")
    if not has_values(query, out):
        return
    rows, keys, values = _rows(name, query, heads), _rows(name, key, kv_heads), _rows(name, value, kv_heads)
    mask = None if mask is None else plain_mask(mask)
    parts, start = [], 0
    for index, length in enumerate(numbers(lengths)):
        end = start + length
        if end > min(rows.shape[1], keys.shape[1], values.shape[1]):
            refuse(name, f"the lengths of the sequences end at {end}, beyond the tokens")
        bias = None
        if mask is not None:
            bias = _bias(name, mask, mask_type, slopes, query.dtype, index, length, length)
        parts.append(attend(rows[:, start:end], keys[:, start:end], values[:, start:end], scale, bias=bias)[0])
        start = end
    _write(name, out, parts)


def _bias(
    name: str,
    mask: torch.Tensor,
    mask_type: int,
    slopes: torch.Tensor | None,
    dtype: torch.dtype,
    index: int,
    queries: int,
    keys: int,
) -> torch.Tensor:
    """Numbers that a mask adds to the scores of one sequence; its diagonal ends at the last query and key."""
    if mask_type == NORM:
        return hiding(_part(name, mask, index, queries, keys, False), dtype)
    if mask_type == ALIBI:
        return _part(name, mask, index, queries, keys, True).float()
    if mask_type == NORM_COMPRESS:
        return hiding(along_diagonals(mask.reshape(mask.shape[-2:]), queries, keys, keys - queries), dtype)
    return _alibi(name, mask, slopes, queries, keys, keys - queries, mask_type == ALIBI_COMPRESS_SQRT)


def attend_cache(
    name: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    table: torch.Tensor,
    query_lengths: torch.Tensor | Sequence[int] | None,
    key_lengths: torch.Tensor | Sequence[int],
    scale: float,
    heads: int,
    kv_heads: int,
    out: torch.Tensor,
    mask: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    mask_type: int = 0,
    rows_of_tokens: bool = False,
    value_head: int = 0,
    integer_scales: IntegerScales | None = None,
    channel_scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Attention of the last tokens of sequences whose keys and values lie in blocks.

    Args:
        name: of the operator.
        query: the sequences' last tokens.
        key_cache: keys in blocks.
        value_cache: values in blocks.
        table: the blocks of each sequence.
        query_lengths: number of tokens of each sequence in the query; None for one each.
        key_lengths: number of keys of each sequence.
        scale: factor of the scores.
        heads: of the query.
        kv_heads: of the caches; 0 for those of the query.
        out: receives the result.
        mask: added to the scores.
        slopes: of the heads, for compressed masks of distances.
        mask_type: of SelfAttentionParam.
        rows_of_tokens: the mask's rows belong to the query's tokens: [T, Skv], or [T, 1 or N, 1, Skv].
        value_head: size of a value's head, the first channels of the value cache; 0 for all.
        integer_scales: those of an int8 query with int8 caches.
        channel_scales: [Nkv, 1, D] factors of int8 keys and values.
    """
    kv_heads = _heads(name, heads, kv_heads)
    if integer_scales is None:
        _check_dtype(name, query, out)
    if not has_values(query, out):
        return
    rows = _rows(name, query, heads)
    keys = numbers(key_lengths)
    queries = [1] * len(keys) if query_lengths is None else numbers(query_lengths)
    if len(queries) != len(keys) or len(keys) > table.shape[0] or sum(queries) > rows.shape[1]:
        refuse(
            name,
            f"{len(queries)} lengths of queries (sum {sum(queries)}), {len(keys)} of keys, a block table of "
            f"{table.shape[0]} rows and {rows.shape[1]} tokens do not fit each other",
        )
    mask = None if mask is None else plain_mask(mask)
    parts, start = [], 0
    for index, (asked, length) in enumerate(zip(queries, keys, strict=True)):
        end = start + asked
        key = cached_tokens(name, key_cache, table[index], length, kv_heads)
        value = cached_tokens(name, value_cache, table[index], length, kv_heads)
        if value_head:
            value = value[..., :value_head]
        if channel_scales is not None:
            key, value = key.float() * channel_scales[0], value.float() * channel_scales[1]
        bias = None
        if mask is not None and rows_of_tokens:
            bias = _token_rows(name, mask, start, end, length)
        elif mask is not None:
            bias = _bias(name, mask, mask_type, slopes, query.dtype, index, asked, length)
        parts.append(attend(rows[:, start:end], key, value, scale, bias=bias, scales=integer_scales)[0])
        start = end
    _write(name, out, parts)


def _token_rows(name: str, mask: torch.Tensor, start: int, end: int, keys: int) -> torch.Tensor:
    if mask.shape[0] < end or mask.shape[-1] < keys:
        refuse(name, f"the mask {list(mask.shape)} has no rows {start} to {end} of {keys} keys")
    part = mask[start:end, ..., :keys].float()
    return part if part.dim() == 2 else part.reshape(end - start, -1, keys).transpose(0, 1)
