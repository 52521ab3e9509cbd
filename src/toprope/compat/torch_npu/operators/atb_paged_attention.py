"""Operators _npu_paged_attention* (torch.ops.atb): attention whose keys and values lie in blocks of a cache.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_atb_attention.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .checks import refuse
from .evaluation import has_values
from .packed_attention import ALIBI, along_diagonals, attend_cache, numbers, plain_mask
from .registry import operator
from .sequence_attention import IntegerScales, float_bits

__all__: list[str] = []

_MASKS = ("UNDEFINED", "MASK_TYPE_NORM", "MASK_TYPE_ALIBI", "MASK_TYPE_SPEC", "MASK_TYPE_MASK_FREE")
_NORM_COMPRESS = 5  # of PagedAttentionParam
_DEQUANT_FUSION, _QUANT_QKV_ONLINE = 1, 3  # quant_type
_OUT_DTYPES = {1: torch.float16, 27: torch.bfloat16}  # numbers of aclDataType


@operator("_npu_paged_attention")
def _paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
) -> None:
    """Attention of one token of each sequence over a cache in blocks.

    Args:
        query: [tokens, N, D], one token of each sequence; float16 or bfloat16.
        key_cache: keys in blocks.
        value_cache: values in blocks; a head may have another size.
        num_kv_heads: heads of the caches; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        block_table: blocks of each sequence.
        context_lens: number of keys of each sequence.
        out: receives the result.
        workspace: scratch memory, which is left alone.
    """
    attend_cache(
        "_npu_paged_attention",
        query,
        key_cache,
        value_cache,
        block_table,
        None,
        context_lens,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
    )


@operator("_npu_paged_attention_get_workspace")
def _paged_attention_get_workspace(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Scratch memory for _npu_paged_attention: one byte, since the simulated card needs none."""
    return query.new_empty(1, dtype=torch.uint8)


@operator("_npu_paged_attention_v2.out")
def _paged_attention_v2_out(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: Sequence[int],
    *,
    value_cache: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    mask_type: int = 0,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of one token of each sequence over a cache in blocks, with a bias.

    Args:
        query: [tokens, N, D], one token of each sequence; float16 or bfloat16.
        key_cache: keys in blocks.
        block_table: blocks of each sequence.
        context_lens: number of keys of each sequence.
        value_cache: values in blocks.
        mask: mask_type 2: added to the scores, [tokens, N or 1, 1, Skv] or [tokens, 1, Skv].
        num_kv_heads: heads of the caches; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        mask_type: 0 none, 2 a bias.
        workspace: scratch memory, which is left alone.
        out: receives the result.
    """
    name = "_npu_paged_attention_v2"
    if mask_type not in (0, ALIBI):
        refuse(name, f"mask_type {mask_type} is not among 0 (none) and 2 (a bias)")
    if value_cache is None:
        refuse(name, "value_cache is missing")
    if mask_type and mask is None:
        refuse(name, "mask_type 2 takes a mask")
    attend_cache(
        name,
        query,
        key_cache,
        value_cache,
        block_table,
        None,
        context_lens,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        mask=mask if mask_type else None,
        rows_of_tokens=True,
    )
    return out


@operator("_npu_paged_attention_v2_get_workspace")
def _paged_attention_v2_get_workspace(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: Sequence[int],
    *,
    value_cache: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    mask_type: int = 0,
    out: torch.Tensor,
) -> torch.Tensor:
    """Scratch memory for _npu_paged_attention_v2: one byte, since the simulated card needs none."""
    return query.new_empty(1, dtype=torch.uint8)


@operator("_npu_paged_attention_mla")
def _paged_attention_mla(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mla_vheadsize: int,
    out: torch.Tensor,
) -> None:
    """Attention of one token of each sequence whose values are the first channels of its keys.

    Args:
        query: [tokens, N, D], one token of each sequence; float16 or bfloat16.
        key_cache: keys in blocks.
        num_kv_heads: heads of the cache; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        block_table: blocks of each sequence.
        context_lens: number of keys of each sequence.
        mla_vheadsize: number of those channels.
        out: receives the result.
    """
    attend_cache(
        "_npu_paged_attention_mla",
        query,
        key_cache,
        key_cache,
        block_table,
        None,
        context_lens,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        value_head=mla_vheadsize,
    )


@operator("_npu_paged_attention_splitfuse")
def _paged_attention_splitfuse(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    """Attention of prompts and single tokens together over a cache in blocks.

    Args:
        query: the last tokens of the sequences, one after the other; float16 or bfloat16.
        key_cache: keys in blocks.
        value_cache: values in blocks.
        block_table: blocks of each sequence.
        context_lens: number of keys of each sequence.
        mask: [tokens, Skv], added to the scores.
        seq_len: number of tokens of each sequence in the query.
        num_kv_heads: heads of the caches; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        out: receives the result.
    """
    attend_cache(
        "_npu_paged_attention_splitfuse",
        query,
        key_cache,
        value_cache,
        block_table,
        seq_len,
        context_lens,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        mask=mask,
        rows_of_tokens=True,
    )


@operator("_npu_paged_attention_splitfuse_v2")
def _paged_attention_splitfuse_v2(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    *,
    mask_type: int | None = 5,
    out: torch.Tensor,
) -> None:
    """_npu_paged_attention_splitfuse with a compressed mask.

    Args:
        query: the last tokens of the sequences, one after the other; float16 or bfloat16.
        key_cache: keys in blocks.
        value_cache: values in blocks.
        block_table: blocks of each sequence.
        context_lens: number of keys of each sequence.
        mask: 2048 x 2048, added to the scores by the distance of query and key.
        seq_len: number of tokens of each sequence in the query.
        num_kv_heads: heads of the caches; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        mask_type: 5.
        out: receives the result.
    """
    kind = _NORM_COMPRESS if mask_type is None else mask_type
    if kind != _NORM_COMPRESS:
        known = f"{_MASKS[kind]}({kind})" if 0 <= kind < len(_MASKS) else f"UNKNOWN({kind})"
        raise RuntimeError(f"mask_type only supports MASK_TYPE_NORM_COMPRESS(5), but got: {known}")
    name = "_npu_paged_attention_splitfuse_v2"
    plain = plain_mask(mask)
    if plain.numel() != plain.shape[-1] ** 2:
        refuse(name, f"the mask {list(mask.shape)} must be square")
    distances = plain.reshape(plain.shape[-2:])
    if not has_values(query, out):
        return
    rows = [
        along_diagonals(distances, asked, keys, keys - asked)
        for asked, keys in zip(numbers(seq_len), numbers(context_lens), strict=True)
    ]
    widest = max((row.shape[1] for row in rows), default=0)
    padded = [torch.nn.functional.pad(row, (0, widest - row.shape[1])) for row in rows]
    attend_cache(
        name,
        query,
        key_cache,
        value_cache,
        block_table,
        seq_len,
        context_lens,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        mask=torch.cat(padded) if padded else None,
        rows_of_tokens=True,
    )


@operator("_npu_paged_attention_quant")
def _paged_attention_quant(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    quant_type: int,
    outdata_type: int,
    k_descale: torch.Tensor,
    v_descale: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """_npu_paged_attention of int8 caches.

    Args:
        query: [tokens, N, D], one token of each sequence; int8, or float16 and bfloat16 with quant_type 1.
        key_cache: int8 keys in blocks.
        value_cache: int8 values in blocks.
        num_kv_heads: heads of the caches; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        block_table: blocks of each sequence.
        context_lens: number of keys of each sequence.
        quant_type: 1 turns keys and values into numbers; 3 computes with integers, the weights rounded to 127ths.
        outdata_type: 1 for float16, 27 for bfloat16.
        k_descale: factors of the keys' channels [Nkv * D], or of the heads' scores [N].
        v_descale: factors of the values' channels, or of the heads' results.
        out: receives the result.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    name = "_npu_paged_attention_quant"
    if quant_type not in (_DEQUANT_FUSION, _QUANT_QKV_ONLINE):
        refuse(name, f"quant_type {quant_type} is not simulated; 1 and 3 are")
    if key_cache.dtype != torch.int8 or value_cache.dtype != torch.int8:
        refuse(name, f"the caches are {key_cache.dtype} and {value_cache.dtype}; the kernel takes int8")
    wanted = out.dtype if quant_type == _DEQUANT_FUSION else torch.int8
    if query.dtype != wanted:
        refuse(name, f"query is {query.dtype}; with quant_type {quant_type} the kernel takes {wanted}")
    if outdata_type in _OUT_DTYPES and _OUT_DTYPES[outdata_type] != out.dtype:
        refuse(name, f"out is {out.dtype}, but outdata_type {outdata_type} is {_OUT_DTYPES[outdata_type]}")
    integers, channels = None, None
    keys, values = float_bits(k_descale), float_bits(v_descale)
    if quant_type == _DEQUANT_FUSION:
        kv_heads = num_kv_heads or num_heads
        channels = keys.reshape(kv_heads, 1, -1), values.reshape(kv_heads, 1, -1)
    else:
        weights = torch.full((1,), 127.0, device=query.device)
        integers = IntegerScales(keys.reshape(-1, 1, 1), weights, values.reshape(-1, 1, 1) / 127.0)
    attend_cache(
        name,
        query,
        key_cache,
        value_cache,
        block_table,
        None,
        context_lens,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        integer_scales=integers,
        channel_scales=channels,
    )
