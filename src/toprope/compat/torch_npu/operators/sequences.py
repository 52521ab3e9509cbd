"""Sequences of a batch in the layouts of the sparse attention operators: cut out, and put back.

Used by lightning_indexer.py, nsa.py and sparse_flash_attention.py. The layouts are the kernels'. BSND: [B, S, ...] with
the length of each sequence. TND: [T, ...] with running sums of the lengths. PA_BSND: blocks [blocks, block_size, ...]
with the length of each sequence and a table of its blocks. Tests: tests/compat/operators/test_lightning_indexer.py,
tests/compat/operators/test_sparse_flash_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .attention import list_of
from .checks import refuse

__all__ = [
    "Lengths",
    "future",
    "joined",
    "per_head",
    "selected",
    "sequences",
    "spans",
    "split_statistic",
    "stacked_statistic",
]

Lengths = Sequence[int] | torch.Tensor | None


def spans(operator: str, name: str, layout: str, shape: torch.Size, lengths: Lengths) -> list[tuple[int, int]]:
    """Start and end of each sequence: in its row for BSND and PA_BSND, in all rows for TND.

    Raises:
        RuntimeError: the lengths are missing, or do not fit the tensor.
    """
    given = list_of(lengths)
    if layout == "BSND":
        given = [shape[1]] * shape[0] if given is None else given
        if len(given) != shape[0] or any(not 0 <= length <= shape[1] for length in given):
            refuse(operator, f"{name} {given} does not hold {shape[0]} lengths of 0 to {shape[1]}")
        return [(0, length) for length in given]
    if given is None:
        refuse(operator, f"layout {layout} takes {name}, but it is missing")
    if layout == "PA_BSND":
        return [(0, length) for length in given]
    starts = [0, *given[:-1]]
    if any(end < start for start, end in zip(starts, given, strict=True)) or (given and given[-1] > shape[0]):
        refuse(operator, f"{name} must hold running sums up to {shape[0]}, but got {given}")
    return list(zip(starts, given, strict=True))


def sequences(
    operator: str,
    tensor: torch.Tensor,
    layout: str,
    where: list[tuple[int, int]],
    block_table: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Every sequence of a tensor, [S, ...]."""
    if layout == "TND":
        return [tensor[start:end] for start, end in where]
    if layout == "BSND":
        return [tensor[row, start:end] for row, (start, end) in enumerate(where)]
    if block_table is None or block_table.dim() != 2 or block_table.shape[0] != len(where):
        shape = None if block_table is None else list(block_table.shape)
        refuse(operator, f"layout PA_BSND takes a block_table of {len(where)} rows, but got {shape}")
    size, found = tensor.shape[1], []
    for row, (_, length) in enumerate(where):
        blocks = block_table[row, : -(-length // size)].long()
        found.append(tensor[blocks].flatten(0, 1)[:length])
    return found


def joined(parts: list[torch.Tensor], layout: str, where: list[tuple[int, int]], rows: torch.Size) -> torch.Tensor:
    """The inverse of sequences for BSND and TND; rows of no sequence are zeros.

    Args:
        parts: the sequences, [S, ...].
        layout: BSND or TND.
        where: where each sequence lies.
        rows: (B, S) or (T,).
    """
    if layout == "TND":
        used = where[-1][1] if where else 0
        rest = parts[0].new_zeros((rows[0] - used, *parts[0].shape[1:]))
        return torch.cat([*parts, rest])
    missing = [rows[1] - part.shape[0] for part in parts]
    return torch.stack(
        [torch.cat([part, part.new_zeros((n, *part.shape[1:]))]) for part, n in zip(parts, missing, strict=True)]
    )


def per_head(tensor: torch.Tensor) -> torch.Tensor:
    """[S, N, D] as [1, N, S, D]."""
    return tensor.transpose(0, 1).unsqueeze(0)


def stacked_statistic(
    parts: list[torch.Tensor], layout: str, where: list[tuple[int, int]], rows: torch.Size
) -> torch.Tensor:
    """Statistics of the rows, [S, N2, ...] for each sequence, as [B, N2, S1, ...] or [N2, T1, ...]."""
    whole = joined(parts, layout, where, rows)
    return whole.transpose(0, 1).contiguous() if layout == "TND" else whole.transpose(1, 2).contiguous()


def split_statistic(statistic: torch.Tensor, layout: str, where: list[tuple[int, int]]) -> list[torch.Tensor]:
    """The inverse of stacked_statistic."""
    rows = statistic.transpose(0, 1) if layout == "TND" else statistic.transpose(1, 2)
    return sequences("", rows, layout, where)


def selected(indices: torch.Tensor, block: int, queries: int, keys: int, causal: bool) -> torch.Tensor:
    """Mask of the keys that every query sees.

    Args:
        indices: numbers of blocks, [Sq, N2, K]; negative ones take no part.
        block: number of keys in a block.
        queries: number of queries, Sq.
        keys: number of keys.
        causal: query i sees the keys up to keys - queries + i alone.

    Returns:
        a bool tensor [N2, Sq, keys].
    """
    heads = indices.shape[1]
    positions = (indices.long().unsqueeze(-1) * block + torch.arange(block, device=indices.device)).flatten(2)
    # One more column takes what lies outside.
    positions = torch.where((positions < 0) | (positions >= keys), keys, positions)
    found = torch.zeros(queries, heads, keys + 1, dtype=torch.bool, device=indices.device)
    found = found.scatter(2, positions, True)[..., :keys].transpose(0, 1)
    return found & ~future(queries, keys, indices.device) if causal else found


def future(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """Scores that the causal mask from the lower right leaves out, [queries, keys]: keys beyond keys - queries + i."""
    columns, rows = torch.arange(keys, device=device), torch.arange(queries, device=device)
    return columns > rows[:, None] + (keys - queries)
