"""Routing of tokens to experts and back, with their counts and quantisation: npu_moe_init_routing and its relatives.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_moe_routing.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Source: the operators' pages of op-plugin with their equivalent computations, and the C++ of op_plugin/ops/opapi for
shapes and checks; moe/moe_init_routing_v3, moe_init_routing_quant_v2 and moe_finalize_routing_v2 of
hicann/ops-transformer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from toprope.sim.npu._state import chip

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse, same_dtype
from .moe_checks import float_expected, int32_expected, known, require
from .registry import operator

__all__ = [
    "npu_moe_compute_expert_tokens",
    "npu_moe_finalize_routing",
    "npu_moe_init_routing",
    "npu_moe_init_routing_quant",
    "npu_moe_init_routing_v2",
    "npu_moe_re_routing",
    "npu_moe_update_expert",
]

_LAST = torch.iinfo(torch.int32).max
"""Sort key of a slot whose expert is not in the active range: it comes after all that are."""
_QUANT_MODES_OF_950 = (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17)


@dataclass(frozen=True)
class _Slots:
    """The N * K slots of the tokens, in the order of their experts.

    Attributes:
        order: (N * K,) slot of each place.
        experts: (N * K,) expert of each place, counted from the first active one; the last value + 1 is for inactive.
        counts: (E,) slots of each active expert.
        top_k: K.
    """

    order: torch.Tensor
    experts: torch.Tensor
    counts: torch.Tensor
    top_k: int

    def active(self) -> torch.Tensor:
        """True for the places whose slot has an active expert."""
        return self.experts < self.counts.shape[0]

    def inverse(self, values: torch.Tensor) -> torch.Tensor:
        """Values by slot, from values by place."""
        return torch.empty_like(values).index_copy(0, self.order, values)


def _slots(expert_idx: torch.Tensor, first: int, end: int) -> _Slots:
    flat = expert_idx.reshape(-1).long()
    key = torch.where(flat < first, _LAST, flat)
    order = torch.argsort(key, stable=True)
    ordered = key[order]
    experts = torch.where(ordered < end, ordered - first, end - first)
    counts = torch.zeros(end - first + 1, dtype=torch.int64, device=flat.device)
    counts = counts.scatter_add(0, experts, torch.ones_like(experts))[:-1]
    return _Slots(order, experts, counts, expert_idx.shape[1])


@operator("npu_moe_init_routing")
def npu_moe_init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy tokens to the rows of their experts, in the order of the experts.

    order = stable argsort(expert_idx); src = row_idx[order]; expanded_x[i] = x[src[i] % N];
    expanded_row_idx[src[i]] = i; expanded_expert_idx = expert_idx[order].

    Args:
        x: (N, H); float16, bfloat16 or float32.
        row_idx: (N, K) number of each slot, from npu_moe_gating_top_k_softmax; int32.
        expert_idx: (N, K); int32.
        active_num: of the rows, the first min(active_num, N) * K are given.

    Returns:
        (expanded_x, expanded_row_idx, expanded_expert_idx): (min(active_num, N) * K, H), and twice (N * K,) in int32.

    Raises:
        RuntimeError: the operator would not take the input.
    """
    require(x.dim() == 2, "The x should be 2D")
    float_expected(x, "float16、float32 or bfloat16")
    require(expert_idx.dim() == 2, "The expert_idx should be 2D")
    int32_expected(expert_idx)
    require(row_idx.dim() == 2, "The row_idx should be 2D")
    int32_expected(row_idx)
    require(active_num >= 0, "The active_num must be a non-negative number")
    require(x.shape[0] == expert_idx.shape[0], "Input rows shoud be same.")
    require(expert_idx.shape == row_idx.shape, "The shape of expert_idx and row_idx should be same.")
    count, top_k = expert_idx.shape
    experts = expert_idx.reshape(-1)
    order = torch.argsort(experts, stable=True)
    sources = row_idx.reshape(-1)[order]
    places = torch.arange(count * top_k, dtype=torch.int32, device=x.device)
    expanded_row_idx = torch.zeros_like(places).index_put((sources.long(),), places)
    taken = sources[: min(active_num, count) * top_k].long() % max(count, 1)
    return x[taken], expanded_row_idx, experts[order]


@operator("npu_moe_init_routing_v2")
def npu_moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = [],
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copy tokens to the rows of their experts, in the order of the experts; count the rows; quantise them.

    Values that the card leaves as they are in memory are zero here: rows after the last of the active experts, and
    outputs that were not asked for.

    Args:
        x: (N, H); float16, bfloat16, float32, or int8 without quantisation.
        expert_idx: (N, K); int32.
        scale: float32. Without quantisation (N,), given back for each row. For static quantisation (1,). For dynamic
            quantisation (experts in the range, H) or (1, H), a factor before it.
        offset: (1,) float32, for static quantisation.
        active_num: greatest number of rows without `drop_pad_mode`; -1 and 0 for all.
        expert_capacity: rows of each expert with `drop_pad_mode`.
        expert_num: number of experts.
        drop_pad_mode: 0 for one row per slot; 1 for `expert_capacity` rows for each expert, first slots first, with
            zeros where there are fewer.
        expert_tokens_num_type: 0 for the running sum of the counts, 1 for the counts, 2 for pairs of expert and count,
            of experts that have rows.
        expert_tokens_num_flag: whether counts are wanted.
        quant_mode: -1 for none; 0 for static, round(x * scale + offset) in float16; 1 for dynamic,
            s = max|x * scale| / 127 of each row and round(x * scale / s). The others are not simulated.
        active_expert_range: [first, end) of the experts that count; empty for all.
        row_idx_type: of `expanded_row_idx`: 0 for the row of each slot, -1 where it has none; 1 for the slot of each
            row.
        x_dtype: for dtypes that torch lacks; not simulated.

    Returns:
        (expanded_x, expanded_row_idx, expert_token_cumsum_or_count, expanded_scale): (rows, H), or (expert_num,
        expert_capacity, H) with `drop_pad_mode`, in the dtype of x or int8; (N * K,) int32; (experts in the range,) or
        (expert_num, 2) int64; (rows,) float32. On an Ascend 310P the third is always the running sum, in int32, and
        the fourth is (expert_num,) int32.

    Raises:
        RuntimeError: the operator would not take the input, or the mode is not simulated.
    """
    name = "npu_moe_init_routing_v2"
    _in_dims(x, "x")
    _in_dims(expert_idx, "expert_idx")
    first, end = (0, expert_num) if not len(active_expert_range) else _range(active_expert_range, expert_num)
    if x.shape[0] != expert_idx.shape[0]:
        raise RuntimeError("the first dim of expert_idx and x should be the same" + ops_error(ErrCode.VALUE))
    if expert_idx.dtype != torch.int32:
        refuse(name, f"expert_idx is {expert_idx.dtype}; the kernel takes int32")
    old = x.device.type == "npu" and chip().family.startswith("Ascend 310P")
    if old:  # its kernel knows neither, whatever is asked for
        drop_pad_mode, expert_tokens_num_type, expert_tokens_num_flag = 0, 0, True
    known(name, "drop_pad_mode", drop_pad_mode, (0, 1))
    known(name, "expert_tokens_num_type", expert_tokens_num_type, (0, 1, 2))
    known(name, "row_idx_type", row_idx_type, (0, 1))
    if quant_mode in _QUANT_MODES_OF_950 or x_dtype is not None:
        refuse(name, f"quant_mode {quant_mode} with x_dtype {x_dtype} is not simulated; -1, 0 and 1 without it are")
    known(name, "quant_mode", quant_mode, (-1, 0, 1))
    if x.dtype != torch.int8:
        floating(name, x=x)
    if x.shape[0]:  # without tokens no kernel runs
        _check_scales(name, x, scale, offset, quant_mode, end - first)
    if drop_pad_mode and not expert_capacity > 0:
        refuse(name, f"expert_capacity is {expert_capacity}; with drop_pad_mode 1 it must be greater than 0")

    slots = _slots(expert_idx, first, end)
    if drop_pad_mode:
        sources, rows_of_places = _with_capacity(slots, expert_num, expert_capacity)
    else:
        total = expert_idx.numel()
        rows = total if active_num <= 0 else min(active_num, total)
        active = slots.active()
        sources = torch.where(active, slots.order, -1)[:rows]
        places = torch.arange(total, device=x.device)
        rows_of_places = torch.where(active, places, -1)
    expanded, scales = _expanded(x, slots, sources, scale, offset, quant_mode, expert_capacity if drop_pad_mode else 0)
    if drop_pad_mode:
        expanded = expanded.view(expert_num, expert_capacity, x.shape[1])
    indices = slots.order if row_idx_type and not drop_pad_mode else slots.inverse(rows_of_places)
    if old:
        counts = slots.counts.cumsum(0).to(torch.int32)
        return expanded, indices.to(torch.int32), counts, torch.zeros(expert_num, dtype=torch.int32, device=x.device)
    counts = slots.counts
    if expert_tokens_num_type == 2:
        counts = _pairs(counts, first, expert_num)
    elif expert_tokens_num_type == 0 and not drop_pad_mode:
        counts = counts.cumsum(0)
    if not expert_tokens_num_flag:
        counts = torch.zeros_like(counts)
    return expanded, indices.to(torch.int32), counts, scales


@operator("npu_moe_init_routing_quant")
def npu_moe_init_routing_quant(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = 1024,
    expert_capacity: int = 0,
    expert_num: int = 256,
    drop_pad_mode: int = 0,
    expert_tokens_num_mode: int = 0,
    expert_tokens_before_capacity_flag: bool = False,
    quant_mode: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """npu_moe_init_routing_v2 with quantisation over all experts, and with counts in int32.

    Args:
        x: (N, H); float16, bfloat16 or float32.
        expert_idx: (N, K); int32.
        scale: as for npu_moe_init_routing_v2.
        offset: as for npu_moe_init_routing_v2.
        active_num: greatest number of rows without `drop_pad_mode`; 0 for all.
        expert_capacity: rows of each expert with `drop_pad_mode`.
        expert_num: number of experts.
        drop_pad_mode: 0 or 1, as for npu_moe_init_routing_v2.
        expert_tokens_num_mode: without `drop_pad_mode`: 0 for no counts, 1 for their running sum, 2 for the counts.
        expert_tokens_before_capacity_flag: with `drop_pad_mode`, whether counts before the drop are wanted.
        quant_mode: 0 for static, 1 for dynamic.

    Returns:
        (expanded_x, expanded_row_idx, counts, counts before the drop, expanded_scale): int8; int32; (expert_num,)
        int32 or None, twice; (rows,) float32, None for static quantisation.

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_moe_init_routing_quant"
    for key, tensor in (("x", x), ("expert_idx", expert_idx)):
        text = f"Input tensor '{key}' must be 2-dimensional, but got dimension {tensor.dim()}"
        require(tensor.dim() == 2, text, ErrCode.PARAM)
    found = f"({x.shape[0]}) must match the number of rows in 'expert_idx' ({expert_idx.shape[0]})."
    require(x.shape[0] == expert_idx.shape[0], f"The number of rows in input 'x' {found}", ErrCode.PARAM)
    for key, value, choices in (
        ("drop_pad_mode", drop_pad_mode, "0 or 1"),
        ("quant_mode", quant_mode, "0 or 1"),
        ("expert_tokens_num_mode", expert_tokens_num_mode, "0, 1, or 2"),
    ):
        right = value in ((0, 1, 2) if choices.endswith("2") else (0, 1))
        require(right, f"Parameter '{key}' must be {choices}, but got: {value}", ErrCode.VALUE)
    floating(name, x=x)
    _check_scales(name, x, scale, offset, quant_mode, expert_num)
    if drop_pad_mode and not expert_capacity > 0:
        refuse(name, f"expert_capacity is {expert_capacity}; with drop_pad_mode 1 it must be greater than 0")
    slots = _slots(expert_idx, 0, expert_num)
    if drop_pad_mode:
        sources, rows_of_places = _with_capacity(slots, expert_num, expert_capacity)
    else:
        total = expert_idx.numel()
        rows = min(active_num, total) if active_num > 0 else total
        sources, rows_of_places = slots.order[:rows], torch.arange(total, device=x.device)
    expanded, scales = _expanded(x, slots, sources, scale, offset, quant_mode, expert_capacity if drop_pad_mode else 0)
    if drop_pad_mode:
        expanded = expanded.view(expert_num, expert_capacity, x.shape[1])
    counts = slots.counts.to(torch.int32)
    after = None
    if not drop_pad_mode and expert_tokens_num_mode:
        after = counts.cumsum(0, dtype=torch.int32) if expert_tokens_num_mode == 1 else counts.clone()
    before = counts if drop_pad_mode and expert_tokens_before_capacity_flag else None
    indices = slots.inverse(rows_of_places).to(torch.int32)
    return expanded, indices, after, before, scales if quant_mode == 1 else None


@operator("npu_moe_finalize_routing")
def npu_moe_finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> torch.Tensor:
    """Sum the experts' results of each token.

    out[i] = skip1[i] + skip2[i] + sum over k of scales[i, k] * (rows[r] + bias[expert[i, k]]), where r is element
    k * N + i of `expanded_src_to_dst_row`, or i * K + k, and rows[-1] counts as zero.

    Args:
        expanded_permuted_rows: (N * K, H), or (E, C, H) for modes 1 and 3; float16, bfloat16 or float32.
        skip1: (N, H), or None.
        skip2: (N, H), or None; only with `skip1`.
        bias: (E, H), or None.
        scales: (N, K), or None for 1.
        expanded_src_to_dst_row: (N * K,) row of each slot; int32.
        export_for_source_row: (N, K) expert of each slot, int32; needed with `bias`.
        drop_pad_mode: 0 and 1 for slots k * N + i, 2 and 3 for slots i * K + k; 1 and 3 for rows with capacity.
        k: K where `scales` is None.

    Returns:
        (N, H) in the dtype of the rows.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_moe_finalize_routing"
    rows, mode = expanded_permuted_rows, drop_pad_mode or 0
    known(name, "drop_pad_mode", mode, (0, 1, 2, 3))
    floating(name, expanded_permuted_rows=rows)
    same_dtype(name, expanded_permuted_rows=rows, skip1=skip1, skip2=skip2, bias=bias)
    floating(name, scales=scales)
    if rows.dim() != (3 if mode in (1, 3) else 2):
        refuse(name, f"expanded_permuted_rows has {rows.dim()} dimensions; drop_pad_mode {mode} takes another number")
    if skip1 is None and skip2 is not None:
        refuse(name, "skip2 is given without skip1")
    if bias is not None and export_for_source_row is None:
        refuse(name, "bias is given without expert_for_source_row")
    index = expanded_src_to_dst_row.reshape(-1).long()
    top_k = scales.shape[1] if scales is not None else max(k or 1, 1)
    count = scales.shape[0] if scales is not None else index.shape[0] // top_k
    if count * top_k != index.shape[0]:
        refuse(name, f"expanded_src_to_dst_row has {index.shape[0]} elements for {count} tokens of {top_k} experts")
    if mode in (0, 1):
        index = index.view(top_k, count).T
    index = index.reshape(count, top_k)
    dtype = compute_dtype(rows)
    flat = rows.reshape(-1, rows.shape[-1]).to(dtype)
    padded = torch.cat([flat, flat.new_zeros((1, flat.shape[1]))])
    values = padded[torch.where(index < 0, flat.shape[0], index)]
    if bias is not None and export_for_source_row is not None:
        values = values + bias.to(dtype)[export_for_source_row.reshape(count, top_k).long()]
    if scales is not None:
        values = values * scales.to(dtype).unsqueeze(-1)
    out = values.sum(1)
    for skip in (skip2, skip1):
        if skip is not None:
            out = skip.to(dtype) + out
    return out.to(rows.dtype)


@operator("npu_moe_compute_expert_tokens")
def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: torch.Tensor, num_expert: int) -> torch.Tensor:
    """Number of rows of the experts 0 to i, for each expert i, by binary search.

    Args:
        sorted_expert_for_source_row: expert of each row, in rising order; 1 dimension, int32.
        num_expert: number of experts; 1 to 2048.

    Returns:
        (num_expert,) in the same dtype.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name, experts = "npu_moe_compute_expert_tokens", sorted_expert_for_source_row
    if experts.dim() != 1 or experts.dtype != torch.int32:
        refuse(name, f"the input has {experts.dim()} dimensions and {experts.dtype}; the kernel takes 1 and int32")
    if not 0 < num_expert <= 2048:
        refuse(name, f"num_expert is {num_expert}; the kernel takes 1 to 2048")
    wanted = torch.arange(num_expert, dtype=experts.dtype, device=experts.device)
    return torch.searchsorted(experts.contiguous(), wanted, right=True).to(experts.dtype)


@operator("npu_moe_re_routing")
def npu_moe_re_routing(
    tokens: torch.Tensor,
    expert_token_num_per_rank: torch.Tensor,
    *,
    per_token_scales: torch.Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put tokens that came from all ranks, rank by rank, in the order of the experts.

    Args:
        tokens: (A, H), for each rank the tokens of each expert; float16, bfloat16 or int8.
        expert_token_num_per_rank: (ranks, E) number of tokens; int32 or int64.
        per_token_scales: (A,) or (A, S), put in the same order, or None.
        expert_token_num_type: the kernel takes only 1, counts.
        idx_type: the kernel takes only 0, the old row of each new row.
        tokens_dtype: for dtypes that torch lacks; not simulated.

    Returns:
        (permute_tokens, permute_per_token_scales, permute_token_idx, expert_token_num): like the inputs (zeros for
        scales that were not given), (A,) int32, and (E,) the tokens of each expert.

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name, counts = "npu_moe_re_routing", expert_token_num_per_rank
    require(tokens.dim() > 1, "tokens dim should larger than 1", ErrCode.PARAM)
    require(counts.dim() > 1, "expert_token_num_per_rank dim should larger than 1", ErrCode.PARAM)
    if tokens_dtype is not None:
        refuse(name, f"tokens_dtype {tokens_dtype} is not simulated")
    if tokens.dtype not in (torch.float16, torch.bfloat16, torch.int8):
        refuse(name, f"tokens is {tokens.dtype}; the kernel takes float16, bfloat16 and int8")
    if counts.dtype not in (torch.int32, torch.int64):
        refuse(name, f"expert_token_num_per_rank is {counts.dtype}; the kernel takes int32 and int64")
    known(name, "expert_token_num_type", expert_token_num_type, (1,))
    known(name, "idx_type", idx_type, (0,))
    total, wide = tokens.shape[0], counts.long()
    begins = (wide.reshape(-1).cumsum(0) - wide.reshape(-1)).view(wide.shape).T.reshape(-1)
    sizes = wide.T.reshape(-1)
    ends = sizes.cumsum(0)
    places = torch.arange(total, device=tokens.device)
    part = torch.searchsorted(ends, places, right=True).clamp(max=max(sizes.shape[0] - 1, 0))
    index = (begins[part] + places - (ends - sizes)[part]).clamp(0, max(total - 1, 0))
    if per_token_scales is None:
        scales = torch.zeros(total, dtype=torch.float32, device=tokens.device)
    else:
        scales = per_token_scales[index]
    return tokens[index], scales, index.to(torch.int32), wide.sum(0).to(counts.dtype)


@operator("npu_moe_update_expert")
def npu_moe_update_expert(
    expert_ids: torch.Tensor,
    eplb_table: torch.Tensor,
    *,
    expert_scales: torch.Tensor | None = None,
    pruning_threshold: torch.Tensor | None = None,
    active_mask: torch.Tensor | None = None,
    local_rank_id: int = -1,
    world_size: int = -1,
    balance_mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one of the instances of each logical expert, and drop experts of little weight.

    With n = table[e, 0] instances, the one in column 1 + rank // ceil(world_size / n) (mode 0) or 1 + token % n
    (mode 1) is taken. An expert stays where its scale is greater than threshold[k] * (sum of the token's scales).

    Args:
        expert_ids: (N, K); int32 or int64.
        eplb_table: (logical experts, F): the number of instances, then where they are; int32.
        expert_scales: (N, K); float16, bfloat16 or float32.
        pruning_threshold: (K,) or (1, K); float32.
        active_mask: (N,) bool, or None for all.
        local_rank_id: rank of this process; needed for mode 0.
        world_size: number of processes; needed for mode 0.
        balance_mode: 0 or 1.

    Returns:
        (balanced_expert_ids, balanced_active_mask): (N, K) like `expert_ids`, and (N, K) bool, which holds nothing
        without scales.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_moe_update_expert"
    known(name, "balance_mode", balance_mode, (0, 1))
    if expert_ids.dim() != 2 or expert_ids.dtype not in (torch.int32, torch.int64):
        refuse(name, f"expert_ids has {expert_ids.dim()} dimensions and {expert_ids.dtype}; wanted 2, int32 or int64")
    if eplb_table.dim() != 2 or eplb_table.dtype != torch.int32:
        refuse(name, f"eplb_table has {eplb_table.dim()} dimensions and {eplb_table.dtype}; wanted 2 and int32")
    if (expert_scales is None) != (pruning_threshold is None):
        refuse(name, "expert_scales and pruning_threshold go together")
    if active_mask is not None and expert_scales is None:
        refuse(name, "active_mask is given without expert_scales and pruning_threshold")
    ids, table = expert_ids.long(), eplb_table.long()
    instances = table[:, 0][ids].clamp(min=1)
    if balance_mode == 0:
        if not 2 <= world_size <= 768 or not 0 <= local_rank_id < world_size:
            refuse(name, f"with balance_mode 0, rank {local_rank_id} of {world_size} is not in a world of 2 to 768")
        column = local_rank_id // ((world_size + instances - 1) // instances)
    else:
        column = torch.arange(ids.shape[0], device=ids.device).unsqueeze(1) % instances
    column = torch.where(instances == 1, 0, column) + 1
    balanced = table[ids, column].to(expert_ids.dtype)
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    if expert_scales is not None and pruning_threshold is not None:
        wide = expert_scales.float()
        mask = wide.sum(-1, keepdim=True) * pruning_threshold.float().reshape(1, -1) < wide
        if active_mask is not None:
            mask = mask & active_mask.unsqueeze(-1)
    return balanced, mask


def _with_capacity(slots: _Slots, experts: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slot of each row of (experts, capacity), and row of each place; -1 where there is none."""
    begins = slots.counts.cumsum(0) - slots.counts
    places = torch.arange(slots.order.shape[0], device=slots.order.device)
    number = places - torch.cat([begins, begins.new_zeros(1)])[slots.experts]
    kept = slots.active() & (number < capacity)
    rows = torch.where(kept, slots.experts * capacity + number, -1)
    sources = torch.full((experts * capacity + 1,), -1, dtype=torch.int64, device=rows.device)
    sources = sources.index_put((torch.where(kept, rows, experts * capacity),), slots.order)
    return sources[:-1], rows


def _expanded(
    x: torch.Tensor,
    slots: _Slots,
    sources: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    quant_mode: int,
    capacity: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the tokens of slots, quantised, and their scales; zeros where there is no slot.

    Args:
        x: the tokens.
        slots: all slots.
        sources: slot of each row, -1 for none.
        scale: as the operator takes it.
        offset: as the operator takes it.
        quant_mode: -1, 0 or 1.
        capacity: rows of each expert; 0 where they follow each other.
    """
    if not x.shape[0]:
        dtype = x.dtype if quant_mode == -1 else torch.int8
        return x.new_zeros((sources.shape[0], x.shape[1]), dtype=dtype), x.new_zeros(sources.shape, dtype=torch.float32)
    there = sources >= 0
    tokens = sources.clamp(min=0) // max(slots.top_k, 1)
    rows = torch.where(there.unsqueeze(-1), x[tokens], 0)
    none = torch.zeros(sources.shape, dtype=torch.float32, device=x.device)
    if quant_mode == -1:
        return rows, none if scale is None else torch.where(there, scale[tokens], 0)
    if quant_mode == 0:
        exact = rows.half()
        if scale is not None and offset is not None:
            exact = exact * scale.half() + offset.half()
        whole = exact.round().clamp(-128, 127).to(torch.int8)
        return torch.where(there.unsqueeze(-1), whole, 0), none
    wide = rows.float()
    if scale is not None:
        if scale.shape[0] == 1:
            factors = scale
        elif capacity:
            factors = scale.repeat_interleave(capacity, 0)
        else:
            factors = scale[slots.experts[: sources.shape[0]].clamp(max=max(scale.shape[0] - 1, 0))]
        wide = wide * factors
    scales = wide.abs().amax(-1) / 127 if wide.shape[-1] else none
    whole = torch.where(scales.unsqueeze(-1) > 0, wide / scales.unsqueeze(-1), 0).round().to(torch.int8)
    return whole, scales


def _pairs(counts: torch.Tensor, first: int, experts: int) -> torch.Tensor:
    """(experts, 2): the experts that have rows, with their counts; zeros after them."""
    order = torch.argsort((counts == 0).to(torch.int8), stable=True)
    ordered = counts[order]
    pairs = torch.stack([torch.where(ordered > 0, order + first, 0), ordered], 1)
    return torch.cat([pairs, pairs.new_zeros((max(experts - pairs.shape[0], 0), 2))])


def _range(active: Sequence[int], experts: int) -> tuple[int, int]:
    text = f"The length of list active_expert_range should be 2, current is {len(active)}."
    require(len(active) == 2, text, ErrCode.PARAM)
    first, end = active
    require(end > first, "active_expert_range is invalid. must be increasing")
    require(first >= 0 and end <= 10240, "active_expert_range must be within [0, 10240]")
    return first, end


def _check_scales(
    name: str, x: torch.Tensor, scale: torch.Tensor | None, offset: torch.Tensor | None, mode: int, experts: int
) -> None:
    for key, tensor in (("scale", scale), ("offset", offset)):
        if tensor is not None and tensor.dtype != torch.float32:
            refuse(name, f"{key} is {tensor.dtype}; the kernel takes float32")
    if mode == 0:
        if scale is None or offset is None:
            refuse(name, "static quantisation (quant_mode 0) needs scale and offset")
        if tuple(scale.shape) != (1,) or tuple(offset.shape) != (1,):
            refuse(name, f"scale {list(scale.shape)} and offset {list(offset.shape)} must have the shape [1]")
        return
    if scale is None:
        return
    if mode == -1 and (scale.dim() != 1 or scale.shape[0] != x.shape[0]):
        refuse(name, f"scale {list(scale.shape)} must have the shape [{x.shape[0]}] without quantisation")
    if mode == 1 and (scale.dim() != 2 or scale.shape[0] not in (1, experts) or scale.shape[1] != x.shape[1]):
        refuse(name, f"scale {list(scale.shape)} must have the shape [{experts}, {x.shape[1]}] or [1, {x.shape[1]}]")


def _in_dims(tensor: torch.Tensor, key: str) -> None:
    text = f"The {key} should be 2-Dimension, current is {tensor.dim()}-Dimension."
    require(tensor.dim() == 2, text, ErrCode.PARAM)
