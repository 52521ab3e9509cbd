"""KV cache in blocks, for operators of the torch_npu facade: read a sequence's tokens, write tokens to their slots.

Used by inference_attention.py and kv_cache_transfer.py. A block holds `block_size` tokens. Slot s of the cache is token
s % block_size of block s // block_size: this, and the four forms of a cache, are the kernels'. Tests:
tests/compat/operators/test_kv_caches.py (writing), tests/compat/operators/test_inference_attention.py (reading).
"""

from __future__ import annotations

import torch

from .checks import refuse

__all__ = ["blocks_of", "read_blocks", "tokens_per_block", "write_slots"]


def tokens_per_block(operator: str, cache: torch.Tensor) -> int:
    """Block size of a cache as attention takes it: [blocks, S, H], [blocks, N, S, D] or [blocks, N, D/16, S, 16]."""
    if cache.dim() not in (3, 4, 5):
        refuse(operator, f"a cache in blocks has 3, 4 or 5 dimensions, but got {list(cache.shape)}")
    return cache.shape[-2]


def blocks_of(table: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """Numbers of the blocks that hold the first `length` tokens of a sequence.

    Args:
        table: the sequence's row of the block table.
        length: number of tokens.
        block_size: tokens in a block.
    """
    return table[: -(-length // block_size)].long()


def read_blocks(operator: str, cache: torch.Tensor, blocks: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """Tokens of one sequence.

    Args:
        operator: name for errors.
        cache: [blocks, S, H], [blocks, N, S, D] or, as FRACTAL_NZ, [blocks, N, D/16, S, 16] (32 for int8).
        blocks: numbers of the sequence's blocks.
        length: number of tokens.
        heads: N.

    Returns:
        [N, length, D].
    """
    size = tokens_per_block(operator, cache)
    if blocks.shape[0] * size < length:
        refuse(operator, f"block_table has {blocks.shape[0]} blocks of {size} tokens for a sequence of {length} tokens")
    read = cache[blocks]
    if cache.dim() == 3:
        if cache.shape[2] % heads:
            refuse(operator, f"the cache's last axis, {cache.shape[2]}, must be a multiple of its {heads} heads")
        return read.reshape(-1, heads, cache.shape[2] // heads)[:length].transpose(0, 1)
    if cache.shape[1] != heads:
        refuse(operator, f"the cache {list(cache.shape)} must have its {heads} heads as the second axis")
    if cache.dim() == 4:
        return read.transpose(0, 1).reshape(heads, -1, cache.shape[3])[:, :length]
    head = cache.shape[2] * cache.shape[4]
    return read.permute(1, 0, 3, 2, 4).reshape(heads, -1, head)[:, :length]


def write_slots(operator: str, tokens: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, nz: bool) -> None:
    """Write tokens to their slots of a cache, in place. Negative slots are left out.

    Args:
        operator: name for errors.
        tokens: [T, N, D] or [T, N * D].
        cache: [blocks, block size, N, D], or with nz [blocks, N * D / w, block size, w].
        slots: [T], integers.
        nz: whether the cache lies as FRACTAL_NZ.

    Raises:
        RuntimeError: the shapes do not fit each other.
    """
    count = slots.shape[0]
    if tokens.shape[0] < count:
        refuse(operator, f"there are {count} slots for {tokens.shape[0]} tokens")
    width = tokens[0].numel() if tokens.shape[0] else 0
    block_size = cache.shape[2] if nz else cache.shape[1]
    held = cache.shape[1] * cache.shape[-1] if nz else cache[0, 0].numel() if cache.numel() else 0
    if width and cache.numel() and held != width:
        refuse(operator, f"a token has {width} elements, but the cache {list(cache.shape)} holds {held} for each")
    if not count or not width:
        return
    slots = slots.long()
    kept = slots >= 0
    slots = slots[kept]
    block, offset = slots // block_size, slots % block_size
    rows = tokens[:count][kept].to(cache.dtype)
    if nz:
        cache[block, :, offset] = rows.reshape(rows.shape[0], cache.shape[1], cache.shape[3])
    else:
        cache[block, offset] = rows.reshape(rows.shape[0], *cache.shape[2:])
