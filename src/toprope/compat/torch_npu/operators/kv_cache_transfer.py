"""Operators that write tokens into a KV cache in blocks, and read them from it.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_kv_caches.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Slot s of a cache is token s % block size of block s // block size; negative slots are left out. A cache lies as ND,
[blocks, block size, N, D], or as FRACTAL_NZ, [blocks, N * D / w, block size, w] with w of 32 bytes.

Source: the pages of npu_scatter_pa_kv_cache in op-plugin, the operators' tests there, and the documents of
torch_npu.atb (_atb_api_docs.py).
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .evaluation import has_values
from .formats import Format, format_of
from .kv_blocks import write_slots
from .registry import operator

__all__ = [
    "npu_gather_pa_kv_cache",
    "npu_gather_pa_kv_cache_functional",
    "npu_paged_cache_load",
    "npu_scatter_pa_kv_cache",
    "npu_scatter_pa_kv_cache_functional",
]

_SCATTER, _GATHER, _LOAD = "npu_scatter_pa_kv_cache", "npu_gather_pa_kv_cache", "npu_paged_cache_load"
_INTEGERS = (torch.int32, torch.int64)


def _check_slots(name: str, slots: torch.Tensor) -> None:
    if slots.dtype not in _INTEGERS:
        refuse(name, f"the slots are {slots.dtype}; the kernel takes int32 and int64")


def _scatter(
    name: str,
    pairs: tuple[tuple[torch.Tensor, torch.Tensor], ...],
    slots: torch.Tensor,
    compress_lens: torch.Tensor | None,
    compress_seq_offsets: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
    nz: bool,
) -> None:
    """Write pairs of tokens and cache."""
    _check_slots(name, slots)
    for tokens, cache in pairs:
        if tokens.dtype != cache.dtype:
            refuse(name, f"the tokens are {tokens.dtype} and the cache {cache.dtype}; they must have one dtype")
        if tokens.dim() not in (3, 4) or cache.dim() != 4:
            refuse(name, f"the kernel takes 3 or 4 dimensions and a cache of 4, but got {list(tokens.shape)}")
    if pairs[0][0].dim() == 4:
        _scatter_compressed(name, pairs, slots, compress_lens, compress_seq_offsets, seq_lens)
        return
    if compress_lens is not None or compress_seq_offsets is not None or seq_lens is not None:
        refuse(name, "compress_lens, compress_seq_offsets and seq_lens are not simulated for tokens of 3 dimensions")
    if slots.dim() != 1:
        refuse(name, f"the slots must have 1 dimension, but got {list(slots.shape)}")
    if not has_values(slots, *pairs[0]):
        return
    for tokens, cache in pairs:
        write_slots(name, tokens, cache, slots, nz)


def _scatter_compressed(
    name: str,
    pairs: tuple[tuple[torch.Tensor, torch.Tensor], ...],
    slots: torch.Tensor,
    compress_lens: torch.Tensor | None,
    compress_seq_offsets: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
) -> None:
    """Write [B, S, N, D] tokens, each head to slots of its own, without the compressed part."""
    if compress_lens is None or seq_lens is None:
        refuse(name, "tokens of 4 dimensions take compress_lens and seq_lens")
    if compress_seq_offsets is not None:
        refuse(name, "compress_seq_offsets is not simulated")
    batches, _, heads, _ = pairs[0][0].shape
    if list(slots.shape) != [batches, heads] or slots.shape != compress_lens.shape or seq_lens.numel() != batches:
        refuse(name, f"the slots {list(slots.shape)} and compress_lens must be [{batches}, {heads}], a slot for a head")
    if not has_values(slots, *pairs[0]):
        return
    starts, dropped, lengths = slots.tolist(), compress_lens.tolist(), seq_lens.tolist()
    for tokens, cache in pairs:
        if cache.shape[2] != 1 or cache.shape[3] != tokens.shape[3]:
            refuse(name, f"the cache {list(cache.shape)} must hold one head of {tokens.shape[3]} elements")
        flat = cache.view(-1, cache.shape[3])
        for batch in range(batches):
            for head in range(heads):
                count = lengths[batch] - dropped[batch][head]
                start = starts[batch][head]
                if count > 0 and start >= 0:
                    flat[start : start + count] = tokens[batch, :count, head]


def _mode_is_nz(name: str, mode: str | None) -> bool:
    if mode not in (None, "Norm", "PA_NZ"):
        refuse(name, f"cache_mode {mode} is not among None, Norm and PA_NZ")
    return mode == "PA_NZ"


@operator("npu_scatter_pa_kv_cache")
def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Write keys and values to their slots of a cache.

    Args:
        key: [T, N, D], or [B, S, N, D] with compress_lens.
        value: as key; a head may have another size.
        key_cache: in blocks; of the dtype of key.
        value_cache: in blocks.
        slot_mapping: [T], or [B, N] the first slot of each head; int32 or int64.
        compress_lens: [B, N], tokens of each head that are left out.
        compress_seq_offsets: not simulated.
        seq_lens: [B], tokens of each sequence.
        cache_mode: "PA_NZ" for caches that lie as FRACTAL_NZ, "Norm" or None for ND.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    nz = _mode_is_nz(_SCATTER, cache_mode)
    pairs = ((key, key_cache), (value, value_cache))
    _scatter(_SCATTER, pairs, slot_mapping, compress_lens, compress_seq_offsets, seq_lens, nz)


@operator("npu_scatter_pa_kv_cache_functional")
def npu_scatter_pa_kv_cache_functional(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_scatter_pa_kv_cache into copies of the caches.

    Args:
        key: [T, N, D], or [B, S, N, D] with compress_lens.
        value: as key; a head may have another size.
        key_cache: in blocks; of the dtype of key.
        value_cache: in blocks.
        slot_mapping: [T], or [B, N] the first slot of each head; int32 or int64.
        compress_lens: [B, N], tokens of each head that are left out.
        compress_seq_offsets: not simulated.
        seq_lens: [B], tokens of each sequence.
        cache_mode: "PA_NZ" for caches that lie as FRACTAL_NZ, "Norm" or None for ND.

    Returns:
        the two copies.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    nz = _mode_is_nz(_SCATTER, cache_mode)
    keys, values = (
        key_cache.clone(memory_format=torch.contiguous_format),
        value_cache.clone(memory_format=torch.contiguous_format),
    )
    pairs = ((key, keys), (value, values))
    _scatter(_SCATTER, pairs, slot_mapping, compress_lens, compress_seq_offsets, seq_lens, nz)
    return keys, values


@operator("npu_scatter_pa_cache.value")
def _scatter_pa_cache(
    key: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    key_cache: torch.Tensor,
) -> torch.Tensor:
    """Write keys to their slots of a cache.

    Args:
        key: [T, N, D], or [B, S, N, D] with compress_lens.
        slot_mapping: as npu_scatter_pa_kv_cache.
        compress_lens: as npu_scatter_pa_kv_cache.
        compress_seq_offsets: not simulated.
        seq_lens: as npu_scatter_pa_kv_cache.
        key_cache: [blocks, block size, N, D], of the dtype of key.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    pairs = ((key, key_cache),)
    _scatter("npu_scatter_pa_cache", pairs, slot_mapping, compress_lens, compress_seq_offsets, seq_lens, False)
    return key_cache


@operator("_npu_reshape_and_cache")
def _reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write keys and values to their slots of a cache.

    Args:
        key: [T, N, D].
        value: [T, N, Dv].
        key_cache: in blocks, ND or FRACTAL_NZ.
        value_cache: in blocks, as key_cache.
        slot_indices: [T], int32.

    Raises:
        RuntimeError: the shapes do not fit each other.
    """
    name = "_npu_reshape_and_cache"
    _check_slots(name, slot_indices)
    nz = _lies_as_nz(key, key_cache) and _lies_as_nz(value, value_cache)
    if not has_values(key, slot_indices):
        return
    write_slots(name, key, key_cache, slot_indices, nz)
    write_slots(name, value, value_cache, slot_indices, nz)


@operator("_npu_reshape_and_cache_siso")
def _reshape_and_cache_siso(
    key: torch.Tensor,
    key_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Write keys to their slots of a cache.

    Args:
        key: [T, N, D].
        key_cache: [blocks, block size, N, D].
        slot_indices: [T], int32.

    Raises:
        RuntimeError: the shapes do not fit each other.
    """
    name = "_npu_reshape_and_cache_siso"
    _check_slots(name, slot_indices)
    if has_values(key, slot_indices):
        write_slots(name, key, key_cache, slot_indices, False)


def _lies_as_nz(tokens: torch.Tensor, cache: torch.Tensor) -> bool:
    """True for a cache as FRACTAL_NZ: by its format, and by its shape where the card grants no such format."""
    if cache.dim() != 4:
        return False
    if cache.device.type == "npu" and has_values(cache) and format_of(cache) is Format.FRACTAL_NZ:
        return True
    return cache.shape[2:] != tokens.shape[1:] and cache.shape[1] * cache.shape[3] == tokens.shape[1:].numel()


def _gathered(
    cache: torch.Tensor, block: torch.Tensor, offset: torch.Tensor, like: torch.Tensor, nz: bool
) -> torch.Tensor:
    """Tokens of a cache; those of blocks that it does not have are zeros."""
    there = (block >= 0) & (block < cache.shape[0])
    block = block.clamp(0, max(cache.shape[0] - 1, 0))
    read = cache[block, :, offset] if nz else cache[block, offset]
    read = read.reshape(block.shape[0], *like.shape[1:])
    return read.masked_fill(~there.reshape(-1, *[1] * (read.dim() - 1)), 0)


def _positions(
    table: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor | None, summed: bool, size: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset of every token of the sequences, one after the other; block -1 for those outside the table.

    Args:
        table: [B, blocks of a sequence].
        lengths: [B], or [B + 1] running sums.
        starts: [B], first token of each sequence, rounded down to a block.
        summed: whether `lengths` are running sums.
        size: tokens in a block.
        most: number of tokens that are wanted.
    """
    lengths = lengths.to(torch.long).to(table.device)
    lengths = lengths.diff() if summed else lengths
    sequence = torch.repeat_interleave(torch.arange(lengths.shape[0], device=table.device), lengths)
    first = lengths.cumsum(0) - lengths
    token = (torch.arange(sequence.shape[0], device=table.device) - first[sequence])[:most]
    sequence = sequence[:most]
    column = token // size
    if starts is not None:
        column = column + (starts.to(torch.long).to(table.device) // size)[sequence]
    inside = column < table.shape[1]
    block = table[sequence, column.clamp(max=table.shape[1] - 1)].long()
    return torch.where(inside, block, torch.full_like(block, -1)), token % size


def _gather(
    name: str,
    caches: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    lengths: torch.Tensor,
    outs: tuple[torch.Tensor, torch.Tensor],
    starts: torch.Tensor | None,
    summed: bool,
) -> None:
    """Read the sequences of two caches into tensors; rows after the last token stay."""
    for cache, out in zip(caches, outs, strict=True):
        if cache.dim() != 4 or cache.dtype != out.dtype:
            refuse(name, f"a cache {cache.dtype} {list(cache.shape)} does not fit {out.dtype} {list(out.shape)}")
    if table.dim() != 2:
        refuse(name, f"the block table must have 2 dimensions, but got {list(table.shape)}")
    if not has_values(table, lengths, *caches):
        return
    nz = _lies_as_nz(outs[0], caches[0]) and _lies_as_nz(outs[1], caches[1])
    size = caches[0].shape[2 if nz else 1]
    most = min(out.shape[0] for out in outs)
    block, offset = _positions(table, lengths, starts, summed, size, most)
    for cache, out in zip(caches, outs, strict=True):
        if out.numel():
            out[: block.shape[0]] = _gathered(cache, block, offset, out, nz)


@operator("npu_gather_pa_kv_cache")
def npu_gather_pa_kv_cache(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Read the keys and values of sequences from a cache into `key` and `value`.

    Args:
        key_cache: in blocks, ND or FRACTAL_NZ.
        value_cache: in blocks, as key_cache.
        block_tables: [B, blocks of a sequence], int32; tokens of blocks outside it or the cache are zeros.
        seq_lens: [B] lengths, or [B + 1] running sums from 0.
        key: [T, N, D].
        value: [T, N, Dv].
        seq_offset: [B], first token of each sequence, rounded down to a block.
        is_seq_lens_cumsum: whether seq_lens are running sums.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    caches, outs = (key_cache, value_cache), (key, value)
    _gather(_GATHER, caches, block_tables, seq_lens, outs, seq_offset, is_seq_lens_cumsum)


@operator("npu_gather_pa_kv_cache_functional")
def npu_gather_pa_kv_cache_functional(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_gather_pa_kv_cache into copies of `key` and `value`.

    Args:
        key_cache: in blocks, ND or FRACTAL_NZ.
        value_cache: in blocks, as key_cache.
        block_tables: [B, blocks of a sequence], int32; tokens of blocks outside it or the cache are zeros.
        seq_lens: [B] lengths, or [B + 1] running sums from 0.
        key: [T, N, D].
        value: [T, N, Dv].
        seq_offset: [B], first token of each sequence, rounded down to a block.
        is_seq_lens_cumsum: whether seq_lens are running sums.

    Returns:
        the two copies.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    caches, outs = (key_cache, value_cache), (key.clone(), value.clone())
    _gather(_GATHER, caches, block_tables, seq_lens, outs, seq_offset, is_seq_lens_cumsum)
    return outs


@operator("npu_paged_cache_load")
def npu_paged_cache_load(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    seq_starts: torch.Tensor | None = None,
    cumsum: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the keys and values of sequences from a cache.

    Args:
        key_cache: [blocks, block size, N, D].
        value_cache: [blocks, block size, N, Dv].
        block_table: [B, blocks of a sequence], int32.
        context_lens: [B] lengths, or [B + 1] running sums from 0; int32.
        seq_starts: [B], first token of each sequence, rounded down to a block.
        cumsum: whether context_lens are running sums.

    Returns:
        keys [T, N, D] and values [T, N, Dv] of all sequences, one after the other.

    Raises:
        RuntimeError: a length is negative, or the kernel would not take the arguments.
    """
    if not has_values(context_lens, key_cache):
        raise RuntimeError(
            "npu_paged_cache_load: the number of tokens is a value of context_lens, so a compiler cannot know the shape"
            + ops_error(ErrCode.NOT_SUPPORT)
        )
    if key_cache.dim() != 4 or value_cache.dim() != 4:
        refuse(_LOAD, f"caches have 4 dimensions, but got {list(key_cache.shape)} and {list(value_cache.shape)}")
    lengths = context_lens.tolist()
    if not cumsum and any(length < 0 for length in lengths):
        raise RuntimeError("Invalid context_lens: negative value encountered")
    count = (lengths[-1] if lengths else 0) if cumsum else sum(lengths)
    key = key_cache.new_zeros((count, *key_cache.shape[2:]))
    value = value_cache.new_zeros((count, *value_cache.shape[2:]))
    _gather(_LOAD, (key_cache, value_cache), block_table, context_lens, (key, value), seq_starts, cumsum)
    return key, value


@operator("npu_paged_cache_load.out")
def _paged_cache_load_out(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    seq_starts: torch.Tensor | None = None,
    cumsum: bool = False,
    key: torch.Tensor,
    value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_paged_cache_load into tensors that are there.

    Args:
        key_cache: [blocks, block size, N, D].
        value_cache: [blocks, block size, N, Dv].
        block_table: [B, blocks of a sequence], int32.
        context_lens: [B] lengths, or [B + 1] running sums from 0; int32.
        seq_starts: [B], first token of each sequence, rounded down to a block.
        cumsum: whether context_lens are running sums.
        key: [T, N, D].
        value: [T, N, Dv].

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    _gather(_LOAD, (key_cache, value_cache), block_table, context_lens, (key, value), seq_starts, cumsum)
    return key, value
