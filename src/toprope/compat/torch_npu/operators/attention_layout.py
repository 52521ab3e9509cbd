"""Layouts of npu_fusion_attention (BSH, SBH, BSND, BNSD, TND): what the axes of the inputs mean, and checks of sizes.

Used by fusion_attention.py, fusion_attention_call.py and inference_layout.py. Layouts, limits and refusals are those of
the operator's page in Ascend/op-plugin; only the words of an error are free. Tests:
tests/compat/test_npu_fusion_attention.py has every layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .checks import refuse

__all__ = ["LAYOUTS", "Segment", "Sizes", "from_bnsd", "segments", "sizes", "to_bnsd"]

LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")
"""Batch, sequence, heads, size of a head, H = N * D, and T = all sequences one after the other."""

_OPERATOR = "npu_fusion_attention"
_LARGEST_HEAD = 768
_MOST_HEADS = 256


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call; for TND batch is 1 and the sequence lengths are those of all batches together."""

    batch: int
    heads: int
    shared_heads: int
    queries: int
    keys: int
    head: int
    value_head: int


@dataclass(frozen=True)
class Segment:
    """One batch of a TND call: its rows in the query, and in key and value."""

    query_start: int
    query_end: int
    key_start: int
    key_end: int

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.query_end - self.query_start

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.key_end - self.key_start


def to_bnsd(tensor: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """The tensor as [B, N, S, D]; a TND tensor is one batch."""
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "TND":
        return tensor.transpose(0, 1).unsqueeze(0)
    if layout == "SBH":
        tensor = tensor.transpose(0, 1)
    batch, length, width = tensor.shape
    return tensor.reshape(batch, length, heads, width // heads).transpose(1, 2)


def from_bnsd(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The inverse of to_bnsd, contiguous."""
    if layout == "BNSD":
        return tensor.contiguous()
    if layout == "TND":
        return tensor.squeeze(0).transpose(0, 1).contiguous()
    tensor = tensor.transpose(1, 2)
    if layout == "BSND":
        return tensor.contiguous()
    batch, length, heads, head = tensor.shape
    tensor = tensor.reshape(batch, length, heads * head)
    return (tensor.transpose(0, 1) if layout == "SBH" else tensor).contiguous()


def sizes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, layout: str) -> Sizes:
    """Read the sizes of the inputs.

    Raises:
        RuntimeError: the shapes do not fit the layout or each other, or are beyond what the kernel takes.
    """
    if head_num <= 0:
        refuse(_OPERATOR, f"head_num must be more than 0, but got {head_num}")
    dims = 4 if layout in ("BSND", "BNSD") else 3
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != dims:
            refuse(_OPERATOR, f"{name} has {tensor.dim()} dimensions; {layout} has {dims}")
    found = (
        _flat_sizes(query, key, value, head_num, layout)
        if "H" in layout
        else _split_sizes(query, key, value, head_num, layout)
    )
    _check_sizes(found, query, key, value)
    return found


def _flat_sizes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, layout: str) -> Sizes:
    batch, length = (0, 1) if layout == "BSH" else (1, 0)
    width, key_width = query.shape[2], key.shape[2]
    if not width or width % head_num:
        refuse(_OPERATOR, f"the last axis of query, {width}, must be a multiple of head_num, {head_num}")
    head = width // head_num
    if not key_width or key_width % head:
        refuse(_OPERATOR, f"the last axis of key, {key_width}, must be a multiple of the size of a head, {head}")
    shared = key_width // head
    if value.shape[2] % shared:
        refuse(_OPERATOR, f"the last axis of value, {value.shape[2]}, must be a multiple of the key's {shared} heads")
    _check_pair(key, value, query, batch, length)
    return Sizes(
        query.shape[batch], head_num, shared, query.shape[length], key.shape[length], head, value.shape[2] // shared
    )


def _split_sizes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, layout: str) -> Sizes:
    heads, length = layout.index("N"), layout.index("T" if layout == "TND" else "S")
    if query.shape[heads] != head_num:
        refuse(_OPERATOR, f"head_num is {head_num}, but query has {query.shape[heads]} heads in layout {layout}")
    if key.shape[heads] != value.shape[heads]:
        refuse(_OPERATOR, f"key has {key.shape[heads]} heads and value {value.shape[heads]}; they must be as many")
    if key.shape[-1] != query.shape[-1]:
        refuse(_OPERATOR, f"heads of query and key must have one size, but got {query.shape[-1]} and {key.shape[-1]}")
    _check_pair(key, value, query, None if layout == "TND" else 0, length)
    batch = 1 if layout == "TND" else query.shape[0]
    return Sizes(
        batch, head_num, key.shape[heads], query.shape[length], key.shape[length], query.shape[-1], value.shape[-1]
    )


def _check_pair(key: torch.Tensor, value: torch.Tensor, query: torch.Tensor, batch: int | None, length: int) -> None:
    if key.shape[length] != value.shape[length]:
        refuse(
            _OPERATOR,
            f"key and value must have one sequence length, but got {key.shape[length]} and {value.shape[length]}",
        )
    if batch is None:
        return
    batches = [tensor.shape[batch] for tensor in (query, key, value)]
    if len(set(batches)) > 1:
        refuse(_OPERATOR, f"query, key and value must have one batch size, but got {batches}")


def _check_sizes(found: Sizes, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if not query.numel() or not key.numel() or not value.numel():
        refuse(_OPERATOR, "query, key or value is empty")
    if found.heads % found.shared_heads:
        refuse(
            _OPERATOR,
            f"the query's {found.heads} heads must be a multiple of the {found.shared_heads} of key and value",
        )
    if found.heads > _MOST_HEADS:
        refuse(_OPERATOR, f"there are {found.heads} heads; the kernel takes at most {_MOST_HEADS}")
    if found.head > _LARGEST_HEAD:
        refuse(_OPERATOR, f"a head has {found.head} elements; the kernel takes at most {_LARGEST_HEAD}")
    if found.value_head > found.head:
        refuse(
            _OPERATOR,
            f"a head of value, {found.value_head}, must not be larger than one of query and key, {found.head}",
        )


def segments(query_ends: Sequence[int] | None, key_ends: Sequence[int] | None, found: Sizes) -> list[Segment]:
    """Batches of a TND call from the running sums of their lengths; zeros at the end are batches that take no part.

    Raises:
        RuntimeError: the sums are missing, decrease, or reach beyond the inputs.
    """
    if not query_ends or not key_ends or len(query_ends) != len(key_ends):
        refuse(_OPERATOR, "TND takes actual_seq_qlen and actual_seq_kvlen, as long as each other and not empty")
    rows = _borders("actual_seq_qlen", query_ends, found.queries)
    columns = _borders("actual_seq_kvlen", key_ends, found.keys)
    return [Segment(*row, *column) for row, column in zip(rows, columns, strict=True)]


def _borders(name: str, ends: Sequence[int], available: int) -> list[tuple[int, int]]:
    used = list(ends)
    while used and used[-1] == 0:
        used.pop()
    starts = [0, *used[:-1]] if used else []
    if any(end < start for start, end in zip(starts, used, strict=True)):
        refuse(_OPERATOR, f"{name} must hold running sums, which do not decrease, but got {list(ends)}")
    if used and used[-1] > available:
        refuse(_OPERATOR, f"{name} ends at {used[-1]}, but there are {available} rows")
    last = used[-1] if used else 0
    return list(zip(starts, used, strict=True)) + [(last, last)] * (len(ends) - len(used))
