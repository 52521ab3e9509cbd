"""Layouts of the attention for inference: which axes the inputs and the result have, and which rows a sequence has.

Used by fused_infer_attention.py and inference_attention.py. Layouts and messages are those of
get_query_and_attention_out_layout and infer_attention_out_shape in FusedInferAttentionScoreKernelNpuOpApi.cpp of
Ascend/op-plugin. Tests: tests/compat/operators/test_inference_attention.py has the layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .._error_codes import ErrCode, ops_error
from .attention_layout import from_bnsd, to_bnsd
from .checks import refuse

__all__ = ["InferLayout", "Segment", "check_value", "infer_layout", "segments"]

_DIMS = {"BSH": 3, "BSND": 4, "BNSD": 4, "TND": 3, "NTD": 3, "NSD": 3}
_NAMES = (
    "BSH", "BSND", "BNSD", "TND", "NTD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "NTD_TND", "BSH_NBSD", "BSND_NBSD",
    "BNSD_NBSD", "TND_NTD", "NSD",
)  # fmt: skip


@dataclass(frozen=True)
class InferLayout:
    """The layout of a call.

    Attributes:
        inputs: layout of query, key and value.
        result: layout of the result; NBSD is among them.
    """

    inputs: str
    result: str

    @property
    def packed(self) -> bool:
        """True for sequences one after the other, without a batch axis."""
        return self.inputs in ("TND", "NTD")

    def to_bnsd(self, tensor: torch.Tensor, heads: int) -> torch.Tensor:
        """The tensor as [B, N, S, D]; without a batch axis it is one batch."""
        return tensor.unsqueeze(0) if self.inputs in ("NTD", "NSD") else to_bnsd(tensor, self.inputs, heads)

    def from_bnsd(self, tensor: torch.Tensor) -> torch.Tensor:
        """A result [B, N, S, D] in the layout of results, contiguous."""
        if self.result == "NBSD":
            return tensor.transpose(0, 1).contiguous()
        return tensor.squeeze(0).contiguous() if self.result in ("NTD", "NSD") else from_bnsd(tensor, self.result)

    def logarithm(self, tensor: torch.Tensor) -> torch.Tensor:
        """softmax_lse, [B, N, S, 1], as the call returns it: [T, N, 1] without a batch axis in the inputs."""
        return tensor.squeeze(0).transpose(0, 1).contiguous() if self.packed else tensor

    def sizes(self, query: torch.Tensor, heads: int) -> tuple[int, int, int, int]:
        """B, N, S and D of the query."""
        if self.inputs == "BSH":
            return query.shape[0], heads, query.shape[1], query.shape[2] // heads
        axes = {"BSND": (0, 2, 1), "BNSD": (0, 1, 2), "TND": (None, 1, 0), "NTD": (None, 0, 1), "NSD": (None, 0, 1)}
        batch, head, length = axes[self.inputs]
        return 1 if batch is None else query.shape[batch], query.shape[head], query.shape[length], query.shape[-1]


def infer_layout(query: torch.Tensor, name: str, heads: int) -> InferLayout:
    """The layout by its name.

    Raises:
        RuntimeError: there is no such layout, or the query does not have its dimensions.
    """
    if heads <= 0:
        raise RuntimeError(
            f"num_heads should be greater than 0, but the actual value is{heads}" + ops_error(ErrCode.VALUE)
        )
    if name not in _NAMES:
        raise RuntimeError(
            "layout only support BSH, BSND, TND, NTD, BNSD_BSND, BSH_BNSD, BSND_BNSD, NTD_TND, BSH_NBSD, BSND_NBSD, "
            f"BNSD_NBSD, TND_NTD, but got {name}" + ops_error(ErrCode.VALUE)
        )
    inputs, _, result = name.partition("_")
    if query.dim() != _DIMS[inputs]:
        text = "query's dim should be consistent with that"
        raise RuntimeError(f"{text} of Layout" + ops_error(ErrCode.VALUE))
    return InferLayout(inputs, result or inputs)


def check_value(query: torch.Tensor, value: torch.Tensor, layout: InferLayout, paged: bool, heads: int) -> int:
    """Size of a head of the value.

    Raises:
        RuntimeError: the value has dimensions that neither the layout nor a cache in blocks has.
    """
    eighths = 8 if value.dtype == torch.int32 else 1  # eight int4 in each int32
    if paged:
        if value.dim() not in (3, 4, 5):
            raise RuntimeError(
                f"when Page Attention enabled, value's dim should be 3/4/5, but got {value.dim()}"
                + ops_error(ErrCode.VALUE)
            )
        if value.dim() == 3:
            return value.shape[2] // heads * eighths
        return (value.shape[3] if value.dim() == 4 else value.shape[2] * value.shape[4]) * eighths
    if value.dim() != query.dim():
        raise RuntimeError(
            "when Page Attention not enabled, value'dim should equal to query's dim!" + ops_error(ErrCode.VALUE)
        )
    return (value.shape[2] // heads if layout.inputs == "BSH" else value.shape[-1]) * eighths


@dataclass(frozen=True)
class Segment:
    """One sequence: its rows of the query and of key and value, each in the tensor of its batch.

    Attributes:
        index: number of the sequence.
        query_batch: batch of the query that holds it.
        query_start: first row of the query.
        queries: number of rows.
        key_batch: batch of key and value that holds it.
        key_start: first row of key and value.
        keys: number of rows.
    """

    index: int
    query_batch: int
    query_start: int
    queries: int
    key_batch: int
    key_start: int
    keys: int


def segments(
    operator: str,
    layout: InferLayout,
    query_sizes: tuple[int, int],
    key_sizes: tuple[int, int] | None,
    query_lengths: Sequence[int] | None,
    key_lengths: Sequence[int] | None,
    padding: tuple[int, int],
) -> list[Segment]:
    """Sequences of a call.

    Args:
        operator: name for errors.
        layout: of the call.
        query_sizes: batches and length of the query.
        key_sizes: those of key and value; None if they lie in blocks.
        query_lengths: lengths of the queries, or running sums of them without a batch axis.
        key_lengths: the same for key and value; with blocks always lengths.
        padding: distance of the last row of each sequence from the end, in query and in key; -1 for sequences that
            begin at the start.

    Raises:
        RuntimeError: lengths are missing, too few, or reach beyond the tensors.
    """
    if not layout.packed:
        batches, available = query_sizes
        rows = _padded(operator, "query", query_lengths, batches, available, padding[0])
        if key_sizes is None:
            columns = [(0, length) for length in _lengths(operator, "key", key_lengths, batches, None)]
        else:
            columns = _padded(operator, "key", key_lengths, batches, key_sizes[1], padding[1])
        return [Segment(i, i, *row, i, *column) for i, (row, column) in enumerate(zip(rows, columns, strict=True))]
    if query_lengths is None or key_lengths is None:
        refuse(operator, f"{layout.inputs} takes the lengths of the sequences, for query and for key and value")
    rows = _packed(operator, "query", query_lengths, query_sizes[1])
    if key_sizes is None:
        columns = [(0, length) for length in _lengths(operator, "key", key_lengths, len(rows), None)]
    else:
        columns = _packed(operator, "key", key_lengths, key_sizes[1])
    if len(rows) != len(columns):
        refuse(operator, f"there are {len(rows)} sequences of queries and {len(columns)} of keys")
    return [Segment(i, 0, *row, 0, *column) for i, (row, column) in enumerate(zip(rows, columns, strict=True))]


def _lengths(operator: str, name: str, lengths: Sequence[int] | None, batches: int, available: int | None) -> list[int]:
    if lengths is None:
        if available is None:
            refuse(operator, "a cache in blocks takes the lengths of its sequences")
        return [available] * batches
    found = [int(length) for length in lengths]
    if len(found) == 1:
        found = found * batches
    if len(found) < batches:
        refuse(operator, f"there are {len(found)} lengths of the {name} for {batches} batches")
    for length in found[:batches]:
        if length < 0 or (available is not None and length > available):
            refuse(operator, f"length {length} of the {name} is not within 0 and {available}")
    return found[:batches]


def _padded(
    operator: str, name: str, lengths: Sequence[int] | None, batches: int, available: int, padding: int
) -> list[tuple[int, int]]:
    found = _lengths(operator, name, lengths, batches, available)
    if padding < 0:
        return [(0, length) for length in found]
    starts = [available - padding - length for length in found]
    if min(starts, default=0) < 0:
        refuse(operator, f"a padding of {padding} and the lengths {found} do not fit the {name}, of length {available}")
    return list(zip(starts, found, strict=True))


def _packed(operator: str, name: str, ends: Sequence[int], available: int) -> list[tuple[int, int]]:
    found = [int(end) for end in ends]
    starts = [0, *found[:-1]] if found else []
    if any(end < start for start, end in zip(starts, found, strict=True)):
        refuse(operator, f"the lengths of the {name} must be running sums, which do not decrease, but got {found}")
    if found and found[-1] != available:  # prompt_flash_attention_tiling.cpp of ops-transformer
        last = f"the last element of its actual sequence lengths ({found[-1]})"
        refuse(operator, f"T of the {name} ({available}) must be equal to {last}; they are running sums in TND")
    return [(start, end - start) for start, end in zip(starts, found, strict=True)]
