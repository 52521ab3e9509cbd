"""Work of torch_npu's attention operators, from the arguments of a call; pure.

toprope.sim.composites asks it when a trace is recorded. The vendor fixes the names of arguments, the layouts and the
sparse modes (Ascend/op-plugin, docs/zh/custom_APIs/torch_npu). A layout that is not known gives None, never a guess.
Tests: tests/estimate/test_attention_work.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

__all__ = ["AttentionWork", "work_of"]

_CAUSAL = (2, 3)
"""Sparse modes that leave out what lies above the diagonal: of the left upper corner, of the right lower one."""


@dataclass(frozen=True)
class AttentionWork:
    """Work of one call.

    Attributes:
        rows: rows of the queries, over all heads and sequences.
        head: size of a head.
        operations: multiplications and additions of the two products.
    """

    rows: int
    head: int
    operations: int


def work_of(name: str, arguments: Mapping[str, Any]) -> AttentionWork | None:
    """The work of a call; None where it is no fused attention of this kind, or its layout is not known.

    Args:
        name: "npu_fusion_attention" without overload.
        arguments: by the schema's names; tensors have a `shape`.
    """
    heads = arguments.get("head_num") or arguments.get("num_heads") or arguments.get("num_query_heads")
    layout = str(arguments.get("input_layout") or "BSH").partition("_")[0]
    if not heads or "query" not in arguments or "attention" not in name or arguments.get("key") is None:
        return None
    query, key = (tuple(arguments[each].shape) for each in ("query", "key"))
    if len(query) != len(layout) or not query:
        return None
    head = query[layout.index("H")] // heads if "H" in layout else query[layout.index("D")]
    if "T" in layout:
        lengths = _lengths(arguments, "actual_seq_qlen"), _lengths(arguments, "actual_seq_kvlen")
        if not lengths[0] or len(lengths[0]) != len(lengths[1]):
            return None
        rows, pairs = query[0], sum(q * k for q, k in zip(*lengths, strict=True))
    else:
        batch, length = query[layout.index("B")], query[layout.index("S")]
        other = _length_of_keys(key, layout, arguments)
        rows, pairs = batch * length, batch * length * other
    operations = 4 * heads * pairs * head
    if int(arguments.get("sparse_mode") or 0) in _CAUSAL:
        operations //= 2
    if name.endswith(("_grad", "_backward", "_v3")) and "grad" in name:
        operations = operations * 5 // 2
    return AttentionWork(rows * heads, head, operations)


def _length_of_keys(key: Sequence[int], layout: str, arguments: Mapping[str, Any]) -> int:
    given = arguments.get("actual_seq_lengths_kv") or arguments.get("actual_seq_lengths")
    if given is not None and isinstance(given, list | tuple) and given and arguments.get("block_table") is not None:
        return max(int(each) for each in given)
    return int(key[layout.index("S")]) if len(key) == len(layout) else int(key[1])


def _lengths(arguments: Mapping[str, Any], name: str) -> list[int]:
    """Lengths of packed sequences, which are given as their ends."""
    ends = [0, *(int(each) for each in arguments.get(name) or ())]
    return [after - before for before, after in pairwise(ends)]
