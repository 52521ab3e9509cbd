"""Dispatch of tokens to experts on other cards, and the way back: npu_moe_distribute_dispatch and _combine.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/sim/test_distributed.py, with the cases of tests/helpers/distributed_fused.py.

A process receives its tokens in the order of its experts, for each in the order of the processes that sent them, and of
their tokens. `ep_recv_counts` holds the running sums of the counts in that order. What the card keeps in `expand_idx`,
`assist_info_for_combine` and behind the counts differs between its kernels, and programs only hand it on; here,
combining needs none of it. Values that the card leaves as they are in memory are zero.

Shared experts on cards of their own, quantised communication and a second group (TP) are not simulated.

Source: the operators' pages of op-plugin, and the C++ of op_plugin/ops/opapi for shapes and checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from .._error_codes import ErrCode
from .checks import refuse
from .communicators import all_to_all, required_group
from .evaluation import has_values
from .moe_checks import known, require
from .norm import rms_norm
from .registry import operator

__all__ = [
    "npu_distribute_barrier",
    "npu_moe_distribute_combine",
    "npu_moe_distribute_combine_add_rms_norm",
    "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_dispatch",
    "npu_moe_distribute_dispatch_v2",
]

_Seven = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
]  # fmt: skip
_ALGORITHMS = ("", "fullmesh", "fullmesh_v1", "fullmesh_v2", "hierarchy")
_PROCESSES_OF_SERVER = 8


@dataclass(frozen=True)
class _Experts:
    """The experts of a group of processes.

    Attributes:
        operator: for the errors.
        group: name of the communicator.
        processes: number of processes.
        rank: rank of this process.
        count: experts of all processes; those with greater numbers compute nothing and are on no card.
    """

    operator: str
    group: str
    processes: int
    rank: int
    count: int

    @property
    def local(self) -> int:
        """Experts of each process."""
        return self.count // self.processes


@operator("npu_moe_distribute_dispatch")
def npu_moe_distribute_dispatch(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    scales: torch.Tensor | None = None,
    x_active_mask: torch.Tensor | None = None,
    expert_scales: torch.Tensor | None = None,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    expert_shard_type: int = 0,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
    expert_token_nums_type: int = 1,
) -> _Seven:
    """npu_moe_distribute_dispatch_v2 without its later arguments; the third result is (tokens * K,)."""
    experts = _Experts("npu_moe_distribute_dispatch", group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    _check_experts(experts, x, expert_ids, shared_expert_num, shared_expert_rank_num, expert_shard_type, tp_world_size)
    results = _dispatched(
        experts, x, expert_ids, scales, x_active_mask, expert_scales, tp_world_size, quant_mode, global_bs,
        expert_token_nums_type,
    )  # fmt: skip
    expand_idx = torch.zeros(expert_ids.numel(), dtype=torch.int32, device=x.device)
    return (*results[:2], expand_idx, *results[3:])


@operator("npu_moe_distribute_dispatch_v2")
def npu_moe_distribute_dispatch_v2(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    scales: torch.Tensor | None = None,
    x_active_mask: torch.Tensor | None = None,
    expert_scales: torch.Tensor | None = None,
    elastic_info: torch.Tensor | None = None,
    performance_info: torch.Tensor | None = None,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    expert_shard_type: int = 0,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    quant_mode: int = 0,
    global_bs: int = 0,
    expert_token_nums_type: int = 1,
    comm_alg: str = "",
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
    y_dtype: int | None = None,
    x_dtype: int | None = None,
    scales_dtype: int | None = None,
) -> _Seven:
    """Send each token to the processes of its K experts.

    With quant_mode 2, a token x * scales[expert] is sent as round(that * 127 / max|that|) in int8, with max / 127.

    Args:
        x: (N, H); float16, bfloat16, or int32 of packed int4 with `scales` (N,).
        expert_ids: (N, K), from 0 to the experts of all processes and those without a card; int32.
        group_ep: name of the communicator.
        ep_world_size: number of processes.
        ep_rank_id: rank of this process.
        moe_expert_num: experts of all processes; a multiple of their number.
        scales: (experts, H) float32 for quant_mode 2, or None; (N,) float32 sent with tokens of int32.
        x_active_mask: (N,) or (N, K) bool: what is sent; None for all.
        expert_scales: (N, K) float32, sent with the tokens; None for nothing.
        elastic_info: not simulated.
        performance_info: waiting times are added to it on a card; left as it is here.
        group_tp: not looked at.
        tp_world_size: 0 or 1.
        tp_rank_id: not looked at.
        expert_shard_type: 0.
        shared_expert_num: 0 or 1.
        shared_expert_rank_num: 0; others are not simulated.
        quant_mode: 0 for none, 2 for dynamic.
        global_bs: greatest N of a process times the number of processes; 0 where all have the same.
        expert_token_nums_type: 0 for running sums of `expert_token_nums`, 1 for counts.
        comm_alg: "", "fullmesh", "fullmesh_v1", "fullmesh_v2" or "hierarchy"; the values are the same.
        zero_expert_num: experts without a card that give 0, numbered after the others.
        copy_expert_num: experts without a card that give their input, numbered after those.
        const_expert_num: experts without a card that give a linear function of it, numbered after those.
        y_dtype: not simulated, as the dtypes after it.
        x_dtype: as `y_dtype`.
        scales_dtype: as `y_dtype`.

    Returns:
        (expand_x, dynamic_scales, assist_info_for_combine, expert_token_nums, ep_recv_counts, tp_recv_counts,
        expand_scales): (A, H), (A,) float32, (A * 128,) int32, (local experts,) int64, (experts,) int32 (with
        `expert_scales`, more after them), (tp_world_size,) int32, (A,) float32. A is the greatest number of tokens
        that can come; those after the last that came are zero.

    Raises:
        RuntimeError: the operator would not take the input, or it is not simulated.
    """
    experts = _Experts("npu_moe_distribute_dispatch_v2", group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    _check_experts(experts, x, expert_ids, shared_expert_num, shared_expert_rank_num, expert_shard_type, tp_world_size)
    known(experts.operator, "comm_alg", comm_alg, _ALGORITHMS)
    if any(each is not None for each in (elastic_info, y_dtype, x_dtype, scales_dtype)):
        refuse(experts.operator, "elastic_info, y_dtype, x_dtype and scales_dtype are not simulated")
    return _dispatched(
        experts, x, expert_ids, scales, x_active_mask, expert_scales, tp_world_size, quant_mode, global_bs,
        expert_token_nums_type,
    )  # fmt: skip


@operator("npu_moe_distribute_combine")
def npu_moe_distribute_combine(
    expand_x: torch.Tensor,
    expert_ids: torch.Tensor,
    expand_idx: torch.Tensor,
    ep_send_counts: torch.Tensor,
    expert_scales: torch.Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: torch.Tensor | None = None,
    x_active_mask: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
    group_list: torch.Tensor | None = None,
    expand_scales: torch.Tensor | None = None,
    shared_expert_x: torch.Tensor | None = None,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    expert_shard_type: int = 0,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    global_bs: int = 0,
    out_dtype: int = 0,
    comm_quant_mode: int = 0,
    group_list_type: int = 0,
) -> torch.Tensor:
    """npu_moe_distribute_combine_v2 without its later arguments; `expand_idx` is not looked at."""
    experts = _Experts("npu_moe_distribute_combine", group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    _check_experts(
        experts, expand_x, expert_ids, shared_expert_num, shared_expert_rank_num, expert_shard_type, tp_world_size
    )
    known(experts.operator, "comm_quant_mode", comm_quant_mode, (0,))
    return _combined(experts, expand_x, expert_ids, ep_send_counts, expert_scales, x_active_mask, shared_expert_x)


@operator("npu_moe_distribute_combine_v2")
def npu_moe_distribute_combine_v2(
    expand_x: torch.Tensor,
    expert_ids: torch.Tensor,
    assist_info_for_combine: torch.Tensor,
    ep_send_counts: torch.Tensor,
    expert_scales: torch.Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: torch.Tensor | None = None,
    x_active_mask: torch.Tensor | None = None,
    expand_scales: torch.Tensor | None = None,
    shared_expert_x: torch.Tensor | None = None,
    elastic_info: torch.Tensor | None = None,
    ori_x: torch.Tensor | None = None,
    const_expert_alpha_1: torch.Tensor | None = None,
    const_expert_alpha_2: torch.Tensor | None = None,
    const_expert_v: torch.Tensor | None = None,
    performance_info: torch.Tensor | None = None,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    expert_shard_type: int = 0,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    global_bs: int = 0,
    comm_quant_mode: int = 0,
    comm_alg: str = "",
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
) -> torch.Tensor:
    """Send the experts' results back to the processes of their tokens, and sum them with the tokens' weights.

    out[i] = sum over k of expert_scales[i, k] * result[i, k], plus `shared_expert_x`. The result of an expert without
    a card is 0, ori_x[i], or alpha_1 * ori_x[i] + alpha_2 * v.

    Args:
        expand_x: (A, H) results in the order of the dispatched tokens; float16 or bfloat16.
        expert_ids: (N, K) as for the dispatch; int32.
        assist_info_for_combine: from the dispatch; not looked at.
        ep_send_counts: `ep_recv_counts` of the dispatch.
        expert_scales: (N, K) float32.
        group_ep: name of the communicator.
        ep_world_size: number of processes.
        ep_rank_id: rank of this process.
        moe_expert_num: experts of all processes.
        tp_send_counts: not looked at.
        x_active_mask: as for the dispatch.
        expand_scales: from the dispatch; not looked at.
        shared_expert_x: (N, H) or (B, S, H), added.
        elastic_info: not simulated.
        ori_x: (N, H) the tokens before the experts; for experts that copy or are constant.
        const_expert_alpha_1: (constant experts, H).
        const_expert_alpha_2: (constant experts, H).
        const_expert_v: (constant experts, H).
        performance_info: waiting times are added to it on a card; left as it is here.
        group_tp: not looked at.
        tp_world_size: 0 or 1.
        tp_rank_id: not looked at.
        expert_shard_type: 0.
        shared_expert_num: 0 or 1.
        shared_expert_rank_num: 0; others are not simulated.
        global_bs: not needed here.
        comm_quant_mode: 0; quantised communication is not simulated.
        comm_alg: as for the dispatch.
        zero_expert_num: as for the dispatch.
        copy_expert_num: as for the dispatch.
        const_expert_num: as for the dispatch.

    Returns:
        (N, H) in the dtype of `expand_x`; zeros for tokens that take no part.

    Raises:
        RuntimeError: the operator would not take the input, or it is not simulated.
    """
    experts = _Experts("npu_moe_distribute_combine_v2", group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    _check_experts(
        experts, expand_x, expert_ids, shared_expert_num, shared_expert_rank_num, expert_shard_type, tp_world_size
    )
    _check_combine(experts.operator, comm_alg, comm_quant_mode, elastic_info)
    without = _Without(
        zero_expert_num, copy_expert_num, const_expert_num, ori_x, const_expert_alpha_1, const_expert_alpha_2,
        const_expert_v,
    )  # fmt: skip
    return _combined(
        experts, expand_x, expert_ids, ep_send_counts, expert_scales, x_active_mask, shared_expert_x, without
    )


@operator("npu_moe_distribute_combine_add_rms_norm")
def npu_moe_distribute_combine_add_rms_norm(
    expand_x: torch.Tensor,
    expert_ids: torch.Tensor,
    expand_idx: torch.Tensor,
    ep_send_counts: torch.Tensor,
    expert_scales: torch.Tensor,
    residual_x: torch.Tensor,
    gamma: torch.Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    *,
    tp_send_counts: torch.Tensor | None = None,
    x_active_mask: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
    group_list: torch.Tensor | None = None,
    expand_scales: torch.Tensor | None = None,
    shared_expert_x: torch.Tensor | None = None,
    elastic_info: torch.Tensor | None = None,
    ori_x: torch.Tensor | None = None,
    const_expert_alpha_1: torch.Tensor | None = None,
    const_expert_alpha_2: torch.Tensor | None = None,
    const_expert_v: torch.Tensor | None = None,
    group_tp: str = "",
    tp_world_size: int = 0,
    tp_rank_id: int = 0,
    expert_shard_type: int = 0,
    shared_expert_num: int = 1,
    shared_expert_rank_num: int = 0,
    global_bs: int = 0,
    out_dtype: int = 0,
    comm_quant_mode: int = 0,
    group_list_type: int = 0,
    comm_alg: str = "",
    norm_eps: float = 1e-06,
    zero_expert_num: int = 0,
    copy_expert_num: int = 0,
    const_expert_num: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_moe_distribute_combine_v2, then the sum with a residual and its root mean square normalisation.

    Args:
        expand_x: as for npu_moe_distribute_combine_v2, with the arguments that are not listed here.
        residual_x: (N, 1, H), added to the combined tokens.
        gamma: (H,) scale.
        norm_eps: added to the mean square.

    Returns:
        (y, rstd, x): (N, 1, H) normalised, (N, 1, 1) float32, (N, 1, H) the sum.

    Raises:
        RuntimeError: the operator would not take the input, or it is not simulated.
    """
    name = "npu_moe_distribute_combine_add_rms_norm"
    experts = _Experts(name, group_ep, ep_world_size, ep_rank_id, moe_expert_num)
    _check_experts(
        experts, expand_x, expert_ids, shared_expert_num, shared_expert_rank_num, expert_shard_type, tp_world_size
    )
    _check_combine(name, comm_alg, comm_quant_mode, elastic_info)
    shape = (expert_ids.shape[0], 1, expand_x.shape[1])
    if residual_x.shape != shape or gamma.shape != shape[2:]:
        found = f"{list(residual_x.shape)} and {list(gamma.shape)}"
        refuse(name, f"residual_x and gamma have the shapes {found}; wanted {list(shape)} and [{shape[2]}]")
    without = _Without(
        zero_expert_num, copy_expert_num, const_expert_num, ori_x, const_expert_alpha_1, const_expert_alpha_2,
        const_expert_v,
    )  # fmt: skip
    combined = _combined(
        experts, expand_x, expert_ids, ep_send_counts, expert_scales, x_active_mask, shared_expert_x, without
    )
    total = (combined.view(shape).float() + residual_x.float()).to(expand_x.dtype)
    y, rstd = rms_norm(total, gamma, norm_eps)
    return y, rstd, total


@operator("_npu_distribute_barrier")
def npu_distribute_barrier(
    x_ref: torch.Tensor,
    group: str,
    world_size: int,
    *,
    time_out: torch.Tensor | None = None,
    elastic_info: torch.Tensor | None = None,
) -> torch.Tensor:
    """Wait for all processes of a group.

    Args:
        x_ref: any tensor; it orders the barrier between operators of a graph.
        group: name of the communicator.
        world_size: number of processes.
        time_out: not looked at: the group has a time-out of its own.
        elastic_info: not simulated.

    Returns:
        A copy of `x_ref`.

    Raises:
        RuntimeError: there is no such group.
    """
    name = "_npu_distribute_barrier"
    if elastic_info is not None:
        refuse(name, "elastic_info is not simulated")
    if has_values(x_ref):
        dist.barrier(group=required_group(name, group, world_size))
    return x_ref.clone()


@dataclass(frozen=True)
class _Without:
    """Experts without a card: their numbers follow those of the others, in this order.

    Attributes:
        zero: number of experts that give 0.
        copy: number of experts that give their input.
        const: number of experts that give alpha_1 * input + alpha_2 * v.
        x: (N, H) the input.
        alpha_1: (const, H).
        alpha_2: (const, H).
        v: (const, H).
    """

    zero: int
    copy: int
    const: int
    x: torch.Tensor | None
    alpha_1: torch.Tensor | None
    alpha_2: torch.Tensor | None
    v: torch.Tensor | None

    def add(self, operator: str, out: torch.Tensor, numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Add what these experts give to the sums of the tokens.

        Args:
            operator: for the errors.
            out: (N, H) float32.
            numbers: (N, K) experts, counted from the first without a card.
            weights: (N, K) float32; 0 for those that take no part.
        """
        if not self.copy and not self.const:
            return out
        if self.x is None:
            refuse(operator, "experts that copy or are constant need ori_x")
        copied = (numbers >= self.zero) & (numbers < self.zero + self.copy)
        out = out + (weights * copied).sum(-1, keepdim=True) * self.x.float()
        if not self.const:
            return out
        if self.alpha_1 is None or self.alpha_2 is None or self.v is None:
            refuse(operator, "constant experts need const_expert_alpha_1, const_expert_alpha_2 and const_expert_v")
        first = self.zero + self.copy
        for index in range(self.const):
            weight = (weights * (numbers == first + index)).sum(-1, keepdim=True)
            added = self.alpha_2[index].float() * self.v[index].float()
            out = out + weight * (self.alpha_1[index].float() * self.x.float() + added)
        return out


def _dispatched(
    experts: _Experts,
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    scales: torch.Tensor | None,
    mask: torch.Tensor | None,
    expert_scales: torch.Tensor | None,
    tp_world_size: int,
    quant_mode: int,
    global_bs: int,
    nums_type: int,
) -> _Seven:
    name = experts.operator
    require(nums_type in (0, 1), "The expert_token_nums_type should be 0 or 1.", ErrCode.PARAM)
    known(name, "quant_mode", quant_mode, (0, 2))
    if x.dtype not in (torch.float16, torch.bfloat16, torch.int32):
        refuse(name, f"x is {x.dtype}; the kernel takes float16, bfloat16 and int32")
    packed = x.dtype == torch.int32
    if packed and (quant_mode or scales is None or scales.shape != x.shape[:1]):
        refuse(name, "x of int32 takes quant_mode 0 and scales of the shape [tokens]")
    if not packed and scales is not None and (not quant_mode or scales.shape != (experts.count, x.shape[1])):
        refuse(name, f"scales is {list(scales.shape)}; quant_mode 2 takes [{experts.count}, {x.shape[1]}], others none")
    count, top_k = expert_ids.shape
    total = (global_bs or count * experts.processes) * min(experts.local, top_k)
    device, width = x.device, x.shape[1]
    received = torch.zeros((total, width), dtype=torch.int8 if quant_mode else x.dtype, device=device)
    dynamic = torch.zeros(total, dtype=torch.float32, device=device)
    assist = torch.zeros(max(count * top_k, total * 128), dtype=torch.int32, device=device)
    more = 0
    if expert_scales is not None:  # room for the plan of a hierarchical exchange
        batch = global_bs or count * experts.processes
        more = 2 * batch * top_k * (experts.processes // _PROCESSES_OF_SERVER)
    recv_counts = torch.zeros(experts.count + more, dtype=torch.int32, device=device)
    tp_counts = torch.zeros(tp_world_size, dtype=torch.int32, device=device)
    weights = torch.zeros(total, dtype=torch.float32, device=device)
    nums = torch.zeros(experts.local, dtype=torch.int64, device=device)
    if not has_values(x):
        return received, dynamic, assist, nums, recv_counts, tp_counts, weights

    group = required_group(name, experts.group, experts.processes, experts.rank)
    order, sent = _sent(experts, expert_ids, mask)
    counts = torch.empty_like(sent)
    dist.all_to_all_single(counts, sent, group=group)  # (processes, local experts)
    ins, outs = counts.sum(1).tolist(), sent.sum(1).tolist()
    if sum(ins) > total:
        refuse(name, f"{sum(ins)} tokens came, but global_bs {global_bs} leaves room for {total}")
    tokens = x[order // max(top_k, 1)]
    factors: torch.Tensor | None = None
    if quant_mode:
        wide = tokens.float()
        if scales is not None:
            wide = wide * scales[expert_ids.reshape(-1)[order].long()]
        largest = wide.abs().amax(-1)
        factors = largest / 127
        quotient = torch.where(largest > 0, 127 / largest, 0).unsqueeze(-1)
        tokens = (wide * quotient).round().to(torch.int8)
    elif packed and scales is not None:
        factors = scales.float()[order // max(top_k, 1)]
    by_expert = _by_expert(counts)
    here = by_expert.shape[0]
    received[:here] = all_to_all(tokens, ins, outs, group)[by_expert]
    if factors is not None:
        dynamic[:here] = all_to_all(factors, ins, outs, group)[by_expert]
    if expert_scales is not None:
        weights[:here] = all_to_all(expert_scales.float().reshape(-1)[order], ins, outs, group)[by_expert]
    recv_counts[: experts.count] = counts.T.reshape(-1).cumsum(0)
    nums.copy_(counts.sum(0) if nums_type else counts.sum(0).cumsum(0))
    return received, dynamic, assist, nums, recv_counts, tp_counts, weights


def _combined(
    experts: _Experts,
    rows: torch.Tensor,
    expert_ids: torch.Tensor,
    ep_send_counts: torch.Tensor,
    expert_scales: torch.Tensor,
    mask: torch.Tensor | None,
    shared: torch.Tensor | None,
    without: _Without | None = None,
) -> torch.Tensor:
    name = experts.operator
    if rows.dtype == torch.int32:
        refuse(name, "expand_x of int32 is not simulated")
    right = rows.dtype in (torch.float16, torch.bfloat16)
    text = f"dtype of expand_x should be BFloat16, Float16 or Int, but got {rows.dtype}"
    require(right, text, ErrCode.PARAM)
    text = f"dtype of expert_ids should be Int, but got {expert_ids.dtype}"
    require(expert_ids.dtype == torch.int32, text, ErrCode.PARAM)
    if expert_scales.dtype != torch.float32 or expert_scales.shape != expert_ids.shape:
        found = f"{list(expert_scales.shape)} {expert_scales.dtype}"
        refuse(name, f"expert_scales is {found}; the kernel takes {list(expert_ids.shape)} torch.float32")
    count, top_k = expert_ids.shape
    if not has_values(rows):
        return rows.new_empty((count, rows.shape[1]))
    group = required_group(name, experts.group, experts.processes, experts.rank)
    sums = ep_send_counts[: experts.count].long()
    counts = torch.diff(sums, prepend=sums.new_zeros(1)).view(experts.local, experts.processes).T
    order, sent = _sent(experts, expert_ids, mask)
    by_expert = _by_expert(counts)
    by_process = torch.empty_like(by_expert).index_copy(
        0, by_expert, torch.arange(by_expert.shape[0], device=rows.device)
    )
    back = all_to_all(rows[by_process], sent.sum(1).tolist(), counts.sum(1).tolist(), group)
    values = rows.new_zeros((count * top_k, rows.shape[1])).index_copy(0, order, back).view(count, top_k, -1)
    weights = expert_scales if mask is None else expert_scales * _mask(expert_ids, mask)
    out = (values.float() * weights.unsqueeze(-1)).sum(1)
    if without is not None:
        out = without.add(name, out, expert_ids - experts.count, weights)
    if shared is not None:
        out = out + shared.reshape(count, -1).float()
    return out.to(rows.dtype)


def _sent(experts: _Experts, expert_ids: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of this process that are sent, in the order of their experts; and (processes, local experts) counts."""
    flat = expert_ids.reshape(-1).long()
    if mask is not None:
        flat = torch.where(_mask(expert_ids, mask).reshape(-1), flat, experts.count)
    flat = flat.clamp(max=experts.count)
    counts = torch.zeros(experts.count + 1, dtype=torch.int64, device=flat.device)
    counts = counts.scatter_add(0, flat, torch.ones_like(flat))[:-1]
    order = torch.argsort(flat, stable=True)[: int(counts.sum())]
    return order, counts.view(experts.processes, experts.local)


def _by_expert(counts: torch.Tensor) -> torch.Tensor:
    """Row of each place, where rows lie process by process and places expert by expert.

    Args:
        counts: (processes, local experts).
    """
    processes, local = counts.shape
    numbers = torch.arange(local, device=counts.device).repeat(processes)
    return torch.argsort(numbers.repeat_interleave(counts.reshape(-1)), stable=True)


def _mask(expert_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return mask if mask.dim() == 2 else mask.unsqueeze(-1).expand(expert_ids.shape)


def _check_experts(
    experts: _Experts,
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    shared_num: int,
    shared_ranks: int,
    shard_type: int,
    tp_world_size: int,
) -> None:
    name = experts.operator
    require(x.dim() == 2 and expert_ids.dim() == 2, "The x and expert_ids should be 2D", ErrCode.PARAM)
    sizes = f" ep_world_size: {experts.processes}, ep_rank_id: {experts.rank}. "
    right = 0 <= experts.rank < experts.processes
    require(right, "ep_rank_id should be in [0, ep_world_size), but got" + sizes, ErrCode.PARAM)
    if shared_ranks or shared_num not in (0, 1):
        refuse(name, "shared experts on cards of their own are not simulated; shared_expert_rank_num must be 0")
    known(name, "expert_shard_type", shard_type, (0,))
    if tp_world_size not in (0, 1):
        refuse(name, f"tp_world_size is {tp_world_size}; a second group (TP) is not simulated")
    if experts.count < 1 or experts.count % experts.processes:
        refuse(name, f"moe_expert_num {experts.count} is not a multiple of the {experts.processes} processes")


def _check_combine(name: str, comm_alg: str, comm_quant_mode: int, elastic_info: torch.Tensor | None) -> None:
    known(name, "comm_alg", comm_alg, _ALGORITHMS)
    known(name, "comm_quant_mode", comm_quant_mode, (0,))
    if elastic_info is not None:
        refuse(name, "elastic_info is not simulated")
