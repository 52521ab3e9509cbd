"""Multi-head latent attention (torch.ops.atb), and npu_attention_update, which merges parts of attention.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_atb_attention.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Source: RingMlaAtb.cpp, MultiHeadLatentAttentionAtb.cpp and the operators' tests in Ascend/op-plugin, the documents of
torch_npu.atb (_atb_api_docs.py), and the page of npu_attention_update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .checks import FLOATING, refuse
from .evaluation import has_values
from .packed_attention import along_diagonals, cached_tokens, hiding
from .registry import operator
from .sequence_attention import attend, merge

__all__ = ["npu_attention_update", "npu_multi_head_latent_attention", "npu_ring_mla"]

_RING, _LATENT, _UPDATE = "npu_ring_mla", "npu_multi_head_latent_attention", "npu_attention_update"
_KERNELS = ("kernel_type_default", "kernel_type_high_precision")
_HALVES = (torch.float16, torch.bfloat16)


def _mode(name: str, given: str | None, known: Sequence[str], default: str, argument: str) -> str:
    found = default if given is None else given
    if found not in known:
        refuse(name, f"{argument} {found} is not among {', '.join(known)}")
    return found


@operator("npu_ring_mla")
def npu_ring_mla(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seqlen: torch.Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: torch.Tensor | None = None,
    prev_lse: torch.Tensor | None = None,
    qk_scale: float = 1.0,
    kernel_type: str | None = None,
    mask_type: str | None = None,
    input_layout: str | None = None,
    calc_type: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over one part of the keys, merged with the result over the earlier ones.

    Args:
        q_nope: [T, N, 128], channels of the queries without positions; float16 or bfloat16.
        q_rope: [T, N, 64], those with positions.
        k_nope: [Tkv, Nkv, 128].
        k_rope: [Tkv, Nkv, 64].
        value: [Tkv, Nkv, 128].
        mask: [512, 512] or [B, 512, 512], for mask_type_triu: float16 numbers that are added to the scores, bfloat16
            ones that hide a key where they are 1. It counts from the first query and key.
        seqlen: [B] lengths, or [2, B] those of queries and of keys; on the CPU.
        head_num: N.
        kv_head_num: Nkv.
        pre_out: [T, N, 128], the result over earlier keys, for calc_type_default.
        prev_lse: [N, T], its logarithm.
        qk_scale: factor of the scores.
        kernel_type: kernel_type_default or kernel_type_high_precision, which compute the same here.
        mask_type: no_mask or mask_type_triu.
        input_layout: type_bsnd.
        calc_type: calc_type_first_ring or calc_type_default.

    Returns:
        the result [T, N, 128] and the logarithm of the softmax's sum [N, T] in float32. Sequences without keys give
        zeros in a first part, and otherwise what was there before.

    Raises:
        RuntimeError: a mode or shape that the kernel does not take.
    """
    tokens = q_nope.shape[0]
    output = q_nope.new_empty((tokens, head_num, value.shape[2]))
    softmax_lse = q_nope.new_empty((head_num, tokens), dtype=torch.float32)
    given = dict(locals())
    del given["tokens"]
    return _ring(**given)


@operator("npu_ring_mla.out")
def _ring_mla_out(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seqlen: torch.Tensor,
    head_num: int,
    kv_head_num: int,
    *,
    pre_out: torch.Tensor | None = None,
    prev_lse: torch.Tensor | None = None,
    qk_scale: float = 1.0,
    kernel_type: str | None = None,
    mask_type: str | None = None,
    input_layout: str | None = None,
    calc_type: str | None = None,
    output: torch.Tensor,
    softmax_lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_ring_mla into tensors that are there.

    Args:
        q_nope: [T, N, 128], channels of the queries without positions; float16 or bfloat16.
        q_rope: [T, N, 64], those with positions.
        k_nope: [Tkv, Nkv, 128].
        k_rope: [Tkv, Nkv, 64].
        value: [Tkv, Nkv, 128].
        mask: [512, 512] or [B, 512, 512], for mask_type_triu: float16 numbers that are added to the scores, bfloat16
            ones that hide a key where they are 1. It counts from the first query and key.
        seqlen: [B] lengths, or [2, B] those of queries and of keys; on the CPU.
        head_num: N.
        kv_head_num: Nkv.
        pre_out: [T, N, 128], the result over earlier keys, for calc_type_default.
        prev_lse: [N, T], its logarithm.
        qk_scale: factor of the scores.
        kernel_type: kernel_type_default or kernel_type_high_precision, which compute the same here.
        mask_type: no_mask or mask_type_triu.
        input_layout: type_bsnd.
        calc_type: calc_type_first_ring or calc_type_default.
        output: receives the result.
        softmax_lse: receives the logarithm.

    Raises:
        RuntimeError: a mode or shape that the kernel does not take.
    """
    return _ring(**dict(locals()))


def _ring(
    *,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seqlen: torch.Tensor,
    head_num: int,
    kv_head_num: int,
    pre_out: torch.Tensor | None,
    prev_lse: torch.Tensor | None,
    qk_scale: float,
    kernel_type: str | None,
    mask_type: str | None,
    input_layout: str | None,
    calc_type: str | None,
    output: torch.Tensor,
    softmax_lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute npu_ring_mla into `output` and `softmax_lse`."""
    _mode(
        _RING, kernel_type, ("kernel_type_default", "kernel_type_high_precision"), "kernel_type_default", "kernel_type"
    )
    masks = _mode(_RING, mask_type, ("no_mask", "mask_type_triu"), "no_mask", "mask_type") == "mask_type_triu"
    _mode(_RING, input_layout, ("type_bsnd",), "type_bsnd", "input_layout")
    calc = _mode(_RING, calc_type, ("calc_type_default", "calc_type_first_ring"), "calc_type_first_ring", "calc_type")
    if seqlen.device.type != "cpu":
        raise RuntimeError("Expected CPU tensor, please check whether the input seqlen tensor device is correct.")
    if q_nope.dtype not in _HALVES:
        refuse(_RING, f"q_nope is {q_nope.dtype}; the kernel takes float16 and bfloat16")
    first = calc == "calc_type_first_ring"
    if not first and (pre_out is None or prev_lse is None):
        refuse(_RING, "calc_type_default takes pre_out and prev_lse")
    if not has_values(q_nope, seqlen):
        return output, softmax_lse
    query = torch.cat((q_nope, q_rope), -1).transpose(0, 1)
    key = torch.cat((k_nope, k_rope.expand(*k_nope.shape[:2], k_rope.shape[2])), -1).transpose(0, 1)
    values = value.transpose(0, 1)
    lengths = (seqlen if seqlen.dim() == 2 else seqlen.expand(2, -1)).tolist()
    start, key_start = 0, 0
    for index, (asked, keys) in enumerate(zip(*lengths, strict=True)):
        rows, columns = slice(start, start + asked), slice(key_start, key_start + keys)
        start, key_start = start + asked, key_start + keys
        earlier = None
        if not first and pre_out is not None and prev_lse is not None:
            earlier = pre_out[rows].float().transpose(0, 1), prev_lse[:, rows].float()[..., None]
        if keys:
            bias = None
            if masks:
                square = mask[index if mask.shape[0] > 1 else 0] if mask.dim() == 3 else mask
                bias = hiding(along_diagonals(square, asked, keys, 0), q_nope.dtype)
            found, logarithm = attend(query[:, rows], key[:, columns], values[:, columns], qk_scale, bias=bias)
            if earlier is not None:
                found, logarithm = merge(torch.stack((earlier[0], found)), torch.stack((earlier[1], logarithm)))
        elif earlier is not None:
            found, logarithm = earlier
        else:
            found = output.new_zeros((head_num, asked, value.shape[2]), dtype=torch.float32)
            logarithm = softmax_lse.new_zeros((head_num, asked, 1))
        output[rows] = found.transpose(0, 1).to(output.dtype)
        softmax_lse[:, rows] = logarithm[..., 0].to(softmax_lse.dtype)
    return output, softmax_lse


@operator("npu_multi_head_latent_attention")
def npu_multi_head_latent_attention(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    ctkv: torch.Tensor,
    k_rope: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    *,
    mask: torch.Tensor | None = None,
    qseqlen: Sequence[int] | None = None,
    qk_descale: torch.Tensor | None = None,
    pv_descale: torch.Tensor | None = None,
    mask_type: str | None = None,
    calc_type: str | None = None,
    cache_mode: str | None = None,
) -> torch.Tensor:
    """Attention over a cache of latent keys, which are the values as well.

    Args:
        q_nope: [T, N, 512], channels of the queries without positions; float16 or bfloat16.
        q_rope: [T, N, 64], those with positions.
        ctkv: [blocks, block size, Nkv, 512], keys and values, or [blocks, Nkv * 512 / 16, block size, 16] for nzcache.
        k_rope: [blocks, block size, Nkv, 64], further channels of the keys, or as FRACTAL_NZ.
        block_tables: [B, blocks of a sequence], int32.
        context_lens: number of keys of each sequence.
        q_headnum: N.
        qk_scale: factor of the scores.
        kv_headnum: Nkv.
        mask: for mask_type_spec and mask_type_free: [T, Skv], added to the scores.
        qseqlen: number of queries of each sequence; one each without it.
        qk_descale: belongs to the int8 cache, which is not simulated.
        pv_descale: as qk_descale.
        mask_type: undefined, or mask_type_spec.
        calc_type: calc_type_undefined, calc_type_spec for several queries of a sequence, or calc_type_ring.
        cache_mode: krope_ctkv or nzcache.

    Returns:
        [T, N, 512], of the dtype of q_rope.

    Raises:
        RuntimeError: a mode or shape that the kernel does not take.
    """
    return _latent(dict(locals()))[0]


@operator("npu_multi_head_latent_attention.out")
def _latent_out(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    ctkv: torch.Tensor,
    k_rope: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    *,
    mask: torch.Tensor | None = None,
    qseqlen: Sequence[int] | None = None,
    qk_descale: torch.Tensor | None = None,
    pv_descale: torch.Tensor | None = None,
    mask_type: str | None = None,
    calc_type: str | None = None,
    cache_mode: str | None = None,
    output: torch.Tensor,
) -> torch.Tensor:
    """npu_multi_head_latent_attention into a tensor that is there.

    Args:
        q_nope: [T, N, 512], channels of the queries without positions; float16 or bfloat16.
        q_rope: [T, N, 64], those with positions.
        ctkv: [blocks, block size, Nkv, 512], keys and values, or [blocks, Nkv * 512 / 16, block size, 16] for nzcache.
        k_rope: [blocks, block size, Nkv, 64], further channels of the keys, or as FRACTAL_NZ.
        block_tables: [B, blocks of a sequence], int32.
        context_lens: number of keys of each sequence.
        q_headnum: N.
        qk_scale: factor of the scores.
        kv_headnum: Nkv.
        mask: for mask_type_spec and mask_type_free: [T, Skv], added to the scores.
        qseqlen: number of queries of each sequence; one each without it.
        qk_descale: belongs to the int8 cache, which is not simulated.
        pv_descale: as qk_descale.
        mask_type: undefined, or mask_type_spec.
        calc_type: calc_type_undefined, calc_type_spec for several queries of a sequence, or calc_type_ring.
        cache_mode: krope_ctkv or nzcache.
        output: receives the result.

    Raises:
        RuntimeError: a mode or shape that the kernel does not take.
    """
    given = dict(locals())
    del given["output"]
    output.copy_(_latent(given)[0])
    return output


@operator("npu_multi_head_latent_attention.lse")
def _latent_lse(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    ctkv: torch.Tensor,
    k_rope: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    return_lse: bool,
    *,
    mask: torch.Tensor | None = None,
    qseqlen: Sequence[int] | None = None,
    qk_descale: torch.Tensor | None = None,
    pv_descale: torch.Tensor | None = None,
    mask_type: str | None = None,
    calc_type: str | None = None,
    cache_mode: str | None = None,
    workspace: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """npu_multi_head_latent_attention with the logarithm of the softmax's sum.

    Args:
        q_nope: [T, N, 512], channels of the queries without positions; float16 or bfloat16.
        q_rope: [T, N, 64], those with positions.
        ctkv: [blocks, block size, Nkv, 512], keys and values, or [blocks, Nkv * 512 / 16, block size, 16] for nzcache.
        k_rope: [blocks, block size, Nkv, 64], further channels of the keys, or as FRACTAL_NZ.
        block_tables: [B, blocks of a sequence], int32.
        context_lens: number of keys of each sequence.
        q_headnum: N.
        qk_scale: factor of the scores.
        kv_headnum: Nkv.
        return_lse: whether to return it; it takes calc_type_ring.
        mask: for mask_type_spec and mask_type_free: [T, Skv], added to the scores.
        qseqlen: number of queries of each sequence; one each without it.
        qk_descale: belongs to the int8 cache, which is not simulated.
        pv_descale: as qk_descale.
        mask_type: undefined, or mask_type_spec.
        calc_type: calc_type_undefined, calc_type_spec for several queries of a sequence, or calc_type_ring.
        cache_mode: krope_ctkv or nzcache.
        workspace: scratch memory, which is left alone.

    Returns:
        the result, and the logarithm [T, N, 1] of the dtype of q_rope, or None.

    Raises:
        RuntimeError: a mode or shape that the kernel does not take.
    """
    given = dict(locals())
    del given["workspace"], given["return_lse"]
    output, lse = _latent(given)
    return output, lse if return_lse else None


@operator("npu_multi_head_latent_attention.lse_out")
def _latent_lse_out(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    ctkv: torch.Tensor,
    k_rope: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    return_lse: bool,
    *,
    mask: torch.Tensor | None = None,
    qseqlen: Sequence[int] | None = None,
    qk_descale: torch.Tensor | None = None,
    pv_descale: torch.Tensor | None = None,
    mask_type: str | None = None,
    calc_type: str | None = None,
    cache_mode: str | None = None,
    workspace: torch.Tensor | None = None,
    output: torch.Tensor,
    lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_multi_head_latent_attention.lse into tensors that are there.

    Args:
        q_nope: [T, N, 512], channels of the queries without positions; float16 or bfloat16.
        q_rope: [T, N, 64], those with positions.
        ctkv: [blocks, block size, Nkv, 512], keys and values, or [blocks, Nkv * 512 / 16, block size, 16] for nzcache.
        k_rope: [blocks, block size, Nkv, 64], further channels of the keys, or as FRACTAL_NZ.
        block_tables: [B, blocks of a sequence], int32.
        context_lens: number of keys of each sequence.
        q_headnum: N.
        qk_scale: factor of the scores.
        kv_headnum: Nkv.
        return_lse: whether to write the logarithm.
        mask: for mask_type_spec and mask_type_free: [T, Skv], added to the scores.
        qseqlen: number of queries of each sequence; one each without it.
        qk_descale: belongs to the int8 cache, which is not simulated.
        pv_descale: as qk_descale.
        mask_type: undefined, or mask_type_spec.
        calc_type: calc_type_undefined, calc_type_spec for several queries of a sequence, or calc_type_ring.
        cache_mode: krope_ctkv or nzcache.
        workspace: scratch memory, which is left alone.
        output: receives the result.
        lse: receives the logarithm.

    Raises:
        RuntimeError: a mode or shape that the kernel does not take.
    """
    given = dict(locals())
    del given["workspace"], given["return_lse"], given["output"], given["lse"]
    found, logarithm = _latent(given)
    output.copy_(found)
    if return_lse:
        lse.copy_(logarithm)
    return output, lse


@operator("_npu_multi_head_latent_attention_get_workspace.lse")
def _latent_workspace(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    ctkv: torch.Tensor,
    k_rope: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    return_lse: bool,
    *,
    mask: torch.Tensor | None = None,
    qseqlen: Sequence[int] | None = None,
    qk_descale: torch.Tensor | None = None,
    pv_descale: torch.Tensor | None = None,
    mask_type: str | None = None,
    calc_type: str | None = None,
    cache_mode: str | None = None,
) -> torch.Tensor:
    """Scratch memory for npu_multi_head_latent_attention.lse: one byte, since the simulated card needs none."""
    return q_nope.new_empty(1, dtype=torch.uint8)


def _latent(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_multi_head_latent_attention from its arguments by their names: the result and the logarithm."""
    q_nope, q_rope, mask, qseqlen = given["q_nope"], given["q_rope"], given["mask"], given["qseqlen"]
    masks = ("undefined", "mask_type_spec", "mask_type_free")
    mask_type = _mode(_LATENT, given["mask_type"], masks, "undefined", "mask_type")
    calcs = ("calc_type_undefined", "calc_type_spec", "calc_type_ring")
    _mode(_LATENT, given["calc_type"], calcs, "calc_type_undefined", "calc_type")
    modes = ("krope_ctkv", "int8_nzcache", "nzcache")
    if _mode(_LATENT, given["cache_mode"], modes, "krope_ctkv", "cache_mode") == "int8_nzcache":
        refuse(_LATENT, "cache_mode int8_nzcache is not simulated; krope_ctkv and nzcache are")
    if mask_type == "mask_type_free":
        refuse(_LATENT, "mask_type mask_type_free is not simulated; undefined and mask_type_spec are")
    if q_nope.dtype not in _HALVES or q_rope.dtype != q_nope.dtype:
        refuse(_LATENT, f"q_nope is {q_nope.dtype} and q_rope {q_rope.dtype}; the kernel takes float16 and bfloat16")
    if mask_type == "mask_type_spec" and mask is None:
        refuse(_LATENT, "mask_type_spec takes a mask")
    output = q_nope.new_zeros(q_nope.shape, dtype=q_rope.dtype)
    lse = q_rope.new_zeros((*q_nope.shape[:2], 1))
    if not has_values(q_nope, given["ctkv"]):
        return output, lse
    query = torch.cat((q_nope, q_rope), -1).transpose(0, 1)
    keys = [int(length) for length in given["context_lens"]]
    queries = [1] * len(keys) if qseqlen is None else [int(length) for length in qseqlen]
    if len(keys) != len(queries) or sum(queries) > query.shape[1] or len(keys) > given["block_tables"].shape[0]:
        refuse(_LATENT, f"the lengths {queries} and {keys} do not fit {query.shape[1]} tokens and the block table")
    start = 0
    for index, (asked, length) in enumerate(zip(queries, keys, strict=True)):
        rows = slice(start, start + asked)
        start += asked
        table = given["block_tables"][index]
        latent = cached_tokens(_LATENT, given["ctkv"], table, length, given["kv_headnum"])
        rope = cached_tokens(_LATENT, given["k_rope"], table, length, given["kv_headnum"])
        bias = mask[rows, :length].float() if mask_type == "mask_type_spec" else None
        found, logarithm = attend(query[:, rows], torch.cat((latent, rope), -1), latent, given["qk_scale"], bias=bias)
        output[rows] = found.transpose(0, 1).to(output.dtype)
        lse[rows] = logarithm.transpose(0, 1).to(lse.dtype)
    return output, lse


@operator("npu_attention_update")
def npu_attention_update(
    lse: Sequence[torch.Tensor],
    local_out: Sequence[torch.Tensor],
    update_type: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One attention from those over parts of the keys: sum of O_i exp(lse_i - lse), lse = log(sum of exp(lse_i)).

    Args:
        lse: [T] float32, the logarithm of the softmax's sum of each part.
        local_out: [T, D], the result of each part; float16, bfloat16 or float32.
        update_type: 1 returns lse as well, 0 does not.

    Returns:
        the result [T, D], and lse [T] or None.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    if not 1 <= len(lse) <= 16 or len(lse) != len(local_out):
        refuse(_UPDATE, f"there are {len(lse)} lse and {len(local_out)} local_out; the kernel takes 1 to 16 of each")
    if update_type not in (0, 1):
        refuse(_UPDATE, f"update_type {update_type} is not among 0 and 1")
    first = local_out[0]
    for part, result in zip(lse, local_out, strict=True):
        if part.dtype != torch.float32 or result.dtype not in FLOATING or result.dtype != first.dtype:
            refuse(_UPDATE, f"lse is {part.dtype} and local_out {result.dtype}; the kernel takes float32 and one dtype")
        if result.dim() != 2 or result.shape != first.shape or list(part.shape) != [result.shape[0]]:
            refuse(_UPDATE, f"lse {list(part.shape)} and local_out {list(result.shape)} must be [T] and [T, D]")
    head = first.shape[1]
    if head % 8 or not 8 <= head <= 512:
        refuse(_UPDATE, f"a head has {head} elements; the kernel takes multiples of 8 up to 512")
    result, logarithm = merge(torch.stack([part.float() for part in local_out]), torch.stack(list(lse))[..., None])
    return result.to(first.dtype), logarithm[:, 0] if update_type else None
