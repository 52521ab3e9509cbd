"""Operators that write parts of a tensor by index, and npu_advance_step_flashattn, the step of a decoding loop.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_kv_caches.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Source: aclnnInplaceScatterUpdate and aclnnAdvanceStep(V2) of ops-nn, the operators' pages and tests in op-plugin.
"""

from __future__ import annotations

import torch

from toprope.sim.npu._state import chip

from .checks import refuse
from .evaluation import has_values
from .registry import operator

__all__ = [
    "npu_advance_step_flashattn",
    "npu_scatter_nd_update",
    "npu_scatter_nd_update_",
    "scatter_update",
    "scatter_update_",
]

_ADVANCE = "npu_advance_step_flashattn"
_INTEGERS = (torch.int32, torch.int64)


def _check_indices(name: str, data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> None:
    if indices.dtype not in _INTEGERS:
        refuse(name, f"the indices are {indices.dtype}; the kernel takes int32 and int64")
    if data.dtype != updates.dtype:
        refuse(name, f"the tensor is {data.dtype} and the updates {updates.dtype}; they must have one dtype")


def _update(name: str, data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> None:
    """Write updates in place, those of each batch at its own place along an axis."""
    _check_indices(name, data, indices, updates)
    dims = data.dim()
    if not 2 <= dims <= 8 or updates.dim() != dims:
        refuse(name, f"the tensor has {dims} dimensions and the updates {updates.dim()}; the kernel takes 2 to 8 alike")
    if not -dims <= axis < dims or axis % dims == 0:
        refuse(name, f"axis {axis} is not one of the axes 1 to {dims - 1}")
    if indices.dim() not in (1, 2) or not indices.numel() or not data.numel() or not updates.numel():
        refuse(name, f"the indices {list(indices.shape)} must have 1 or 2 dimensions, and no tensor may be empty")
    if indices.dim() == 2 and indices.shape[1] != 2:
        refuse(name, f"indices of 2 dimensions are [count, 2], batch and place, but got {list(indices.shape)}")
    along = axis % dims
    if indices.shape[0] != updates.shape[0] or (indices.dim() == 1 and indices.shape[0] > data.shape[0]):
        refuse(name, f"there are {indices.shape[0]} indices for {updates.shape[0]} updates of {data.shape[0]} batches")
    rest = [size for place, size in enumerate(data.shape) if place not in (0, along)]
    if rest != [size for place, size in enumerate(updates.shape) if place not in (0, along)]:
        refuse(name, f"the updates {list(updates.shape)} do not fit the tensor {list(data.shape)} along axis {axis}")
    if not has_values(data, indices):
        return
    count = updates.shape[along]
    if indices.dim() == 1:
        batch, start = torch.arange(indices.shape[0], device=data.device), indices.long()
    else:
        batch, start = indices[:, 0].long(), indices[:, 1].long()
    place = start[:, None] + torch.arange(count, device=data.device)
    data.transpose(1, along)[batch[:, None], place] = updates.transpose(1, along)


def _update_nd(name: str, data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> None:
    """Write updates in place at places whose first coordinates the last axis of the indices holds."""
    _check_indices(name, data, indices, updates)
    if not 1 <= data.dim() <= 8 or indices.dim() < 2 or not 1 <= indices.shape[-1] <= data.dim():
        refuse(name, f"the indices {list(indices.shape)} do not fit the tensor {list(data.shape)}")
    depth = indices.shape[-1]
    wanted = [*indices.shape[:-1], *data.shape[depth:]]
    if list(updates.shape) != wanted:
        refuse(name, f"the updates are {list(updates.shape)}, but the indices take {wanted}")
    if has_values(data, indices):
        data[indices.long().unbind(-1)] = updates


@operator("scatter_update")
def scatter_update(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    axis: int,
) -> torch.Tensor:
    """A copy of the tensor with updates along an axis, those of each batch at its own place.

    data[b, ..., indices[b] + k, ...] = updates[b, ..., k, ...]

    Args:
        self: 2 to 8 dimensions.
        indices: [B], the first place of each batch along the axis, or [count, 2], batch and place; int32 or int64.
        updates: as self, with fewer elements along the axis.
        axis: any but the first.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    result = self.clone()
    _update("scatter_update", result, indices, updates, axis)
    return result


@operator("scatter_update_")
def scatter_update_(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    axis: int,
) -> torch.Tensor:
    """Write updates along an axis in place, those of each batch at its own place.

    Args:
        self: 2 to 8 dimensions.
        indices: [B], the first place of each batch along the axis, or [count, 2], batch and place; int32 or int64.
        updates: as self, with fewer elements along the axis.
        axis: any but the first.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    _update("scatter_update_", self, indices, updates, axis)
    return self


@operator("npu_scatter_nd_update")
def npu_scatter_nd_update(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
) -> torch.Tensor:
    """A copy of the tensor with updates at places.

    Args:
        self: 1 to 8 dimensions.
        indices: [..., a], the first a coordinates of each place; int32 or int64.
        updates: [..., rest of the shape of self], of the dtype of self.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    result = self.clone()
    _update_nd("npu_scatter_nd_update", result, indices, updates)
    return result


@operator("npu_scatter_nd_update_")
def npu_scatter_nd_update_(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
) -> torch.Tensor:
    """Write updates at places of the tensor, in place.

    Args:
        self: 1 to 8 dimensions.
        indices: [..., a], the first a coordinates of each place; int32 or int64.
        updates: [..., rest of the shape of self], of the dtype of self.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    _update_nd("npu_scatter_nd_update_", self, indices, updates)
    return self


@operator("npu_advance_step_flashattn")
def npu_advance_step_flashattn(
    input_tokens: torch.Tensor,
    sampled_token_ids: torch.Tensor,
    input_positions: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_tables: torch.Tensor,
    num_seqs: int,
    num_queries: int,
    block_size: int,
    *,
    spec_token: torch.Tensor | None = None,
    accepted_num: torch.Tensor | None = None,
) -> None:
    """Prepare the inputs of the next decoding step, in place.

    Without spec_token each of the first num_queries sequences takes its sampled token, one position further; the first
    of the other sequences gets token 0, position 0 and slot -1. With it, a sequence has 1 + n tokens: the last accepted
    one and n drafted ones, 1 + accepted_num positions further.

    Args:
        input_tokens: [num_seqs], or [num_seqs * (1 + n)]; int64, as all of them.
        sampled_token_ids: [num_queries, 1], or [num_seqs, 1 + n] with -1 after the accepted tokens.
        input_positions: as input_tokens.
        seq_lens: as input_tokens.
        slot_mapping: as input_tokens.
        block_tables: [num_seqs, blocks of a sequence].
        num_seqs: number of sequences.
        num_queries: how many of them take part.
        block_size: tokens in a block.
        spec_token: [num_seqs, n], drafted tokens.
        accepted_num: [num_seqs], how many of the last drafted tokens were accepted.

    Raises:
        RuntimeError: the kernel would not take the arguments.
    """
    given = (input_tokens, sampled_token_ids, input_positions, seq_lens, slot_mapping, block_tables)
    for tensor in (*given, spec_token, accepted_num):
        if tensor is not None and tensor.dtype != torch.int64:
            refuse(_ADVANCE, f"a tensor is {tensor.dtype}; the kernel takes int64")
    if block_tables.dim() != 2 or num_seqs <= 0 or num_queries <= 0 or block_size <= 0:
        refuse(_ADVANCE, "block_tables must have 2 dimensions, and num_seqs, num_queries and block_size be positive")
    if (spec_token is None) != (accepted_num is None):
        refuse(_ADVANCE, "spec_token and accepted_num belong together")
    tokens = num_seqs if spec_token is None else num_seqs * (1 + spec_token.shape[1])
    for tensor in (input_tokens, input_positions, seq_lens, slot_mapping):
        if list(tensor.shape) != [tokens]:
            refuse(_ADVANCE, f"a tensor has the shape {list(tensor.shape)} instead of [{tokens}]")
    if spec_token is None and num_queries >= num_seqs:
        refuse(_ADVANCE, f"num_seqs, {num_seqs}, must be more than num_queries, {num_queries}")
    if not has_values(*given):
        return
    if spec_token is not None and accepted_num is not None:
        _advance_drafted(given, num_seqs, block_size, spec_token, accepted_num)
        return
    # The kernel's first core alone does so, and steps by the number of cores (advance_step.h of ops-nn).
    step = (chip().vector_cores if input_tokens.device.type == "npu" else None) or num_seqs
    input_tokens[num_queries::step] = 0
    input_positions[num_queries::step] = 0
    slot_mapping[num_queries::step] = -1
    positions = seq_lens[:num_queries].clone()
    input_tokens[:num_queries] = sampled_token_ids[:num_queries, 0]
    input_positions[:num_queries] = positions
    seq_lens[:num_queries] = positions + 1
    rows = torch.arange(num_queries, device=positions.device)
    # The kernel reads the first sequence's row and moves it by whole rows, as its page has it.
    block = block_tables.flatten()[positions // block_size] + block_tables.stride(0) * rows
    slot_mapping[:num_queries] = block * block_size + positions % block_size


def _advance_drafted(
    given: tuple[torch.Tensor, ...],
    num_seqs: int,
    block_size: int,
    spec_token: torch.Tensor,
    accepted_num: torch.Tensor,
) -> None:
    input_tokens, sampled, input_positions, seq_lens, slot_mapping, block_tables = given
    each = 1 + spec_token.shape[1]
    input_positions += accepted_num.repeat_interleave(each) + 1
    seq_lens.copy_(input_positions + 1)
    ended = torch.cat((sampled, sampled.new_full((num_seqs, 1), -1)), 1)
    last = sampled.gather(1, (ended.argmin(1, keepdim=True) - 1) % sampled.shape[1])
    input_tokens.copy_(torch.cat((last, spec_token), 1).flatten())
    rows = torch.arange(num_seqs, device=sampled.device).repeat_interleave(each)
    block = block_tables[rows, input_positions // block_size]
    slot_mapping.copy_(block * block_size + input_positions % block_size)
