"""Operators _npu_flash_attention* (torch.ops.atb): attention over whole sequences, or their last tokens with a cache.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`, those that end in `.out` as
`torch_npu.atb.NAME`. registry.py finds the lines `@operator(...)` as text, and imports this file at the first call.
Names and parameters follow support/npu_operators.toml, results and refusals the vendor's documents and code; how a
value is composed of torch's operators is free. Tests: tests/compat/operators/test_atb_attention.py for values and
refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .checks import refuse
from .packed_attention import (
    ALIBI,
    ALIBI_COMPRESS,
    ALIBI_COMPRESS_SQRT,
    NORM,
    NORM_COMPRESS,
    attend_cache,
    attend_sequences,
)
from .registry import operator

__all__: list[str] = []

_EXP_M8V2 = 2  # kernel type


@operator("_npu_flash_attention")
def _flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> None:
    """Attention of whole sequences with a mask.

    Args:
        query: tokens of all sequences; float16 or bfloat16.
        key: as query.
        value: as key; a head may have another size.
        mask: [S, S], [B, S, S] or [B, N, S, S]: float16 numbers that are added to the scores, bfloat16 ones that hide
            a key where they are 1.
        seq_len: number of tokens of each sequence.
        scale_value: factor of the scores.
        num_heads: heads of the query.
        num_kv_heads: heads of key and value; 0 for those of the query.
        out: receives the result.
    """
    attend_sequences(
        "_npu_flash_attention",
        query,
        key,
        value,
        seq_len,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        mask=mask,
        mask_type=NORM,
    )


@operator("_npu_flash_attention_unpad")
def _flash_attention_unpad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> None:
    """Attention of whole sequences without a mask.

    Args:
        query: tokens of all sequences; float16 or bfloat16.
        key: as query.
        value: as key; a head may have another size.
        seq_len: number of tokens of each sequence.
        scale_value: factor of the scores.
        num_heads: heads of the query.
        num_kv_heads: heads of key and value; 0 for those of the query.
        out: receives the result.
    """
    attend_sequences(
        "_npu_flash_attention_unpad", query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out
    )


@operator("_npu_flash_attention_unpad_v2")
def _flash_attention_unpad_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    *,
    kernel_type: int | None = 0,
    out: torch.Tensor,
) -> None:
    """_npu_flash_attention_unpad with a choice of the kernel.

    Args:
        query: tokens of all sequences; float16 or bfloat16.
        key: as query.
        value: as key; a head may have another size.
        seq_len: number of tokens of each sequence.
        scale_value: factor of the scores.
        num_heads: heads of the query.
        num_kv_heads: heads of key and value; 0 for those of the query.
        kernel_type: 0, or 2 for a faster exponential, which computes the same here.
        out: receives the result.
    """
    kind = kernel_type or 0
    if kind not in (0, _EXP_M8V2):
        raise RuntimeError(
            f"kernel_type only supports KERNELTYPE_DEFAULT(0) and KERNELTYPE_EXP_M8V2(2), but got: {kind}"
        )
    attend_sequences(
        "_npu_flash_attention_unpad_v2", query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out
    )


@operator("_npu_flash_attention_v2.out")
def _flash_attention_v2_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: Sequence[int],
    *,
    mask: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    kernel_type: int = 0,
    mask_type: int = 2,
    scale_value: float = 1.0,
    num_heads: int = 0,
    num_kv_heads: int = 0,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of whole sequences with a mask or a bias.

    Args:
        query: tokens of all sequences; float16 or bfloat16.
        key: as query.
        value: as key; a head may have another size.
        seq_len: number of tokens of each sequence.
        mask: as mask_type says.
        slopes: [N], for mask_type 4 and 5.
        kernel_type: precision of the kernel, which computes the same here.
        mask_type: 1 hides keys; 2 a bias, [N, S, S] or [B, N, S, S]; 4 and 5 a square of distances, times slopes.
        scale_value: factor of the scores.
        num_heads: heads of the query.
        num_kv_heads: heads of key and value; 0 for those of the query.
        out: receives the result.
    """
    if mask_type not in (NORM, ALIBI, ALIBI_COMPRESS, ALIBI_COMPRESS_SQRT):
        refuse("_npu_flash_attention_v2", f"mask_type {mask_type} is not simulated; 1, 2, 4 and 5 are")
    attend_sequences(
        "_npu_flash_attention_v2",
        query,
        key,
        value,
        seq_len,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        mask=mask,
        slopes=slopes,
        mask_type=mask_type,
    )
    return out


@operator("_npu_flash_attention_v3")
def _flash_attention_v3(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    *,
    mask_type: int | None = 3,
    out: torch.Tensor,
) -> None:
    """Attention of whole sequences with a compressed causal mask.

    Args:
        query: tokens of all sequences; float16 or bfloat16.
        key: as query.
        value: as key; a head may have another size.
        mask: a square, as in _npu_flash_attention; it counts by the distance of query and key.
        seq_len: number of tokens of each sequence.
        scale_value: factor of the scores.
        num_heads: heads of the query.
        num_kv_heads: heads of key and value; 0 for those of the query.
        mask_type: 3.
        out: receives the result.
    """
    kind = NORM_COMPRESS if mask_type is None else mask_type
    if kind != NORM_COMPRESS:
        raise RuntimeError(f"mask_type only supports MASK_TYPE_NORM_COMPRESS, but got: {kind}")
    attend_sequences(
        "_npu_flash_attention_v3",
        query,
        key,
        value,
        seq_len,
        scale_value,
        num_heads,
        num_kv_heads,
        out,
        mask=mask,
        mask_type=NORM_COMPRESS,
    )


@operator("_npu_flash_attention_qlens")
def _flash_attention_qlens(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    context_lens: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    """Attention of the last tokens of sequences over a cache in blocks, causal.

    Args:
        query: the last tokens of the sequences, one after the other; float16 or bfloat16.
        key_cache: keys in blocks.
        value_cache: values in blocks.
        block_table: blocks of each sequence.
        mask: a square, as in _npu_flash_attention_v3.
        seq_len: number of tokens of each sequence in the query.
        context_lens: number of keys of each sequence.
        num_kv_heads: heads of the caches; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        out: receives the result.
    """
    attend_cache(
        "_npu_flash_attention_qlens",
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
        mask_type=NORM_COMPRESS,
    )


@operator("_npu_flash_attention_prefix_v2.out")
def _flash_attention_prefix_v2_out(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    mask: torch.Tensor,
    seq_len: Sequence[int],
    context_lens: Sequence[int],
    *,
    slopes: torch.Tensor | None = None,
    kernel_type: int = 1,
    mask_type: int = 3,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    out: torch.Tensor,
) -> torch.Tensor:
    """_npu_flash_attention_qlens with a choice of the mask.

    Args:
        query: the last tokens of the sequences, one after the other; float16 or bfloat16.
        key_cache: keys in blocks.
        value_cache: values in blocks.
        block_table: blocks of each sequence.
        mask: a square, as mask_type says.
        seq_len: number of tokens of each sequence in the query.
        context_lens: number of keys of each sequence.
        slopes: [N], for mask_type 4 and 5.
        kernel_type: precision of the kernel, which computes the same here.
        mask_type: 3 hides keys by their distance; 4 and 5 distances, times slopes.
        num_kv_heads: heads of the caches; 0 for those of the query.
        num_heads: heads of the query.
        scale_value: factor of the scores.
        out: receives the result.
    """
    name = "_npu_flash_attention_prefix_v2"
    if mask_type not in (NORM_COMPRESS, ALIBI_COMPRESS, ALIBI_COMPRESS_SQRT):
        refuse(name, f"mask_type {mask_type} is not simulated; 3, 4 and 5 are")
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
        mask=mask,
        slopes=slopes,
        mask_type=mask_type,
    )
    return out
