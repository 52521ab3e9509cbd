"""Matrix products fused with collectives: with all-reduce, reduce-scatter, all-gather and all-to-all.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/sim/test_distributed.py, with the cases of tests/helpers/distributed_fused.py.

A product is torch's own where nothing is added to it; else it is computed in float32 (exactly for int8) and rounded to
the dtype of the result, in which it is sent.

Source: the operators' pages of op-plugin; the C++ of op_plugin/ops/opapi for shapes and checks; mc2 of
hicann/ops-transformer for the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from .._error_codes import ErrCode
from .checks import compute_dtype, floating, refuse, same_dtype
from .communicators import all_to_all, required_group
from .evaluation import has_values
from .moe_checks import known, require
from .registry import operator

__all__ = [
    "npu_all_gather_base_mm",
    "npu_all_to_all_matmul",
    "npu_alltoallv_gmm",
    "npu_gmm_alltoallv",
    "npu_matmul_all_to_all",
    "npu_mm_all_reduce_base",
    "npu_mm_reduce_scatter_base",
]

_HALF = (torch.float16, torch.bfloat16)
_CHUNK = 1024
"""Products of int8 that float32 sums exactly: 128 * 128 * 1024 = 2^24."""


@operator("npu_mm_all_reduce_base")
def npu_mm_all_reduce_base(
    x1: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    *,
    reduce_op: str = "sum",
    bias: torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    x3: torch.Tensor | None = None,
    dequant_scale: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    comm_quant_scale_1: torch.Tensor | None = None,
    comm_quant_scale_2: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    comm_turn: int = 0,
    group_sizes: Sequence[int] | None = None,
    y_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    dequant_scale_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    comm_quant_mode: int = 0,
    comm_mode: str | None = None,
) -> torch.Tensor:
    """Sum over all processes of x1 @ x2 + bias + x3.

    An int8 weight with float activations is (x2 + antiquant_offset) * antiquant_scale; int8 on both sides is
    (x1 @ x2 + bias) * dequant_scale * pertoken_scale.

    Args:
        x1: (M, K) or (B, S, K); float16, bfloat16 or int8.
        x2: (K, N); the dtype of `x1`, or int8.
        hcom: name of the communicator.
        reduce_op: "sum".
        bias: (N,) in the dtype of x1, int32 for int8 on both sides.
        antiquant_scale: [1], (N,), (1, N) or (groups, N) in the dtype of `x1`.
        antiquant_offset: like `antiquant_scale`.
        x3: like the result.
        dequant_scale: [1], (N,) or (1, N); bfloat16, float32, or int64 of npu_trans_quant_param.
        pertoken_scale: (rows of x1,) float32.
        comm_quant_scale_1: quantised communication is not simulated.
        comm_quant_scale_2: as `comm_quant_scale_1`.
        antiquant_group_size: rows of x2 for each row of a grouped `antiquant_scale`.
        comm_turn: 0.
        group_sizes: not simulated.
        y_dtype: not simulated, as the dtypes after it.
        x1_dtype: as `y_dtype`.
        x2_dtype: as `y_dtype`.
        dequant_scale_dtype: as `y_dtype`.
        pertoken_scale_dtype: as `y_dtype`.
        comm_quant_mode: 0.
        comm_mode: None or "ai_cpu" or "aiv", which give the same values.

    Returns:
        x1's shape with N for K; in x1's dtype, for int8 in float16, or bfloat16 with a `dequant_scale` of bfloat16.

    Raises:
        RuntimeError: the operator would not take the input, or it is not simulated.
    """
    name = "npu_mm_all_reduce_base"
    require(x2.dim() == 2, f"x2 needs to be 2D, but got: {x2.dim()}D", ErrCode.VALUE)
    sizes = f"x1_k: {x1.shape[-1]}, x2_k: {x2.shape[0]}"
    require(x1.shape[-1] == x2.shape[0], f"K of x1 and x2 should be same, but they are {sizes}", ErrCode.VALUE)
    text = f"x1 must have at least 2 dimensions, but got: {x1.dim()} dimensions."
    require(x1.dim() > 1, text, ErrCode.VALUE)
    _check_quantised(x1, x2, antiquant_scale, antiquant_offset, dequant_scale)
    dtype = torch.float16 if x1.dtype == torch.int8 else x1.dtype
    if dequant_scale is not None and dequant_scale.dtype == torch.bfloat16:
        dtype = torch.bfloat16
    shape = (*x1.shape[:-1], x2.shape[1])
    if x3 is not None:
        text = f"x3 with shape {list(x3.shape)} doesn't match the output shape {list(shape)}"
        require(x3.shape == torch.Size(shape), text, ErrCode.PARAM)
        require(x3.dtype == dtype, f"x3 with dtype {x3.dtype} doesn't match the output dtype {dtype}", ErrCode.PARAM)
    if pertoken_scale is not None:
        text = "when has pertoken_scale, dequantScale shoulden't be null"
        require(dequant_scale is not None, text, ErrCode.TYPE)
        rows = x1.numel() // max(x1.shape[-1], 1)
        if pertoken_scale.shape != (rows,) or pertoken_scale.dtype != torch.float32:
            refuse(
                name, f"pertoken_scale is {list(pertoken_scale.shape)} {pertoken_scale.dtype}; wanted [{rows}] float32"
            )
    both = (comm_quant_scale_1 is None) == (comm_quant_scale_2 is None)
    text = "comm_quant_scale_1 and comm_quant_scale_2 should both be null or not null"
    require(both, text, ErrCode.TYPE)
    if comm_quant_scale_1 is not None or comm_quant_mode:
        refuse(name, "quantised communication is not simulated")
    asked = (group_sizes, y_dtype, x1_dtype, x2_dtype, dequant_scale_dtype, pertoken_scale_dtype)
    if any(each is not None for each in asked):
        refuse(name, "group_sizes and dtypes that torch lacks are not simulated")
    known(name, "reduce_op", reduce_op, ("sum",))
    known(name, "comm_mode", comm_mode, (None, "ai_cpu", "aiv"))
    if not has_values(x1):
        return x1.new_empty(shape, dtype=dtype)
    group = required_group(name, hcom, 0)
    if x1.dtype == torch.int8:
        product = _product(x1, x2)
        if bias is not None:
            product = product + bias
        wide = product.float()
        if dequant_scale is not None:
            wide = wide * _scale(dequant_scale)
        if pertoken_scale is not None:
            wide = wide * pertoken_scale.view(*x1.shape[:-1], 1)
    else:
        weight = x2
        if x2.dtype == torch.int8:
            weight = _weight(name, x1, x2, antiquant_scale, antiquant_offset, antiquant_group_size)
        wide = _product(x1, weight, alone=bias is None and x3 is None)
        if bias is not None:
            wide = wide + bias.to(wide.dtype)
    if x3 is not None:
        wide = wide + x3.to(wide.dtype)
    result = wide.to(dtype)
    dist.all_reduce(result, group=group)
    return result


@operator("npu_mm_reduce_scatter_base")
def npu_mm_reduce_scatter_base(
    self: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    world_size: int,
    *,
    reduce_op: str = "sum",
    bias: torch.Tensor | None = None,
    x1_scale: torch.Tensor | None = None,
    x2_scale: torch.Tensor | None = None,
    comm_turn: int = 0,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
) -> torch.Tensor:
    """Sum over all processes of self @ x2 + bias, of which each process keeps its part of the rows.

    Args:
        self: (M, K); float16 or bfloat16, or int8 with scales and the mode "aiv". M is a multiple of `world_size`.
        x2: (K, N) in the same dtype.
        hcom: name of the communicator.
        world_size: number of processes: 2, 4, 8, 16 or 32.
        reduce_op: "sum".
        bias: (N,).
        x1_scale: (M, 1) float32 factor of the rows.
        x2_scale: (1, N) factor of the columns; float32, or int64 of npu_trans_quant_param.
        comm_turn: 0.
        output_dtype: for int8 with scales of float32: bfloat16 (None) or float16.
        comm_mode: "ai_cpu" (None) or "aiv".

    Returns:
        (M / world_size, N).

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_mm_reduce_scatter_base"
    _check_product(self, x2, world_size, ErrCode.VALUE)
    text = "The M-axis in input of Matmul should be be divisible by world_size."
    require(self.shape[0] % world_size == 0, text, ErrCode.PARAM)
    dtype = _checked_dtype(name, self, x2, bias, x1_scale, x2_scale, output_dtype, comm_mode)
    known(name, "reduce_op", reduce_op, ("sum",))
    result = self.new_empty((self.shape[0] // world_size, x2.shape[1]), dtype=dtype)
    if not has_values(self):
        return result
    group = required_group(name, hcom, world_size)
    product = _scaled(self, x2, bias, x1_scale, x2_scale).to(dtype)
    dist.reduce_scatter_tensor(result, product, group=group)
    return result


@operator("npu_all_gather_base_mm")
def npu_all_gather_base_mm(
    self: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: torch.Tensor | None = None,
    x1_scale: torch.Tensor | None = None,
    x2_scale: torch.Tensor | None = None,
    gather_index: int = 0,
    gather_output: bool = True,
    comm_turn: int = 0,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Product of the rows of all processes with x2.

    Args:
        self: (M, K) rows of this process; float16 or bfloat16, or int8 with scales and the mode "aiv".
        x2: (K, N) in the same dtype.
        hcom: name of the communicator.
        world_size: number of processes: 2, 4, 8, 16 or 32.
        bias: (N,).
        x1_scale: (M, 1) float32 factor of the rows of this process.
        x2_scale: (1, N) factor of the columns; float32, or int64 of npu_trans_quant_param.
        gather_index: the kernel takes only 0, rows of `self`.
        gather_output: whether the gathered rows are wanted; the mode "aiv" takes only True.
        comm_turn: 0.
        output_dtype: for int8 with scales of float32: bfloat16 (None) or float16.
        comm_mode: "ai_cpu" (None) or "aiv".

    Returns:
        (product, gathered): (M * world_size, N), and (M * world_size, K) or [0].

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_all_gather_base_mm"
    _check_product(self, x2, world_size, ErrCode.PARAM)
    dtype = _checked_dtype(name, self, x2, bias, x1_scale, x2_scale, output_dtype, comm_mode)
    known(name, "gather_index", gather_index, (0,))
    if comm_mode == "aiv" and not gather_output:
        refuse(name, "gather_output is False; the mode aiv takes only True")
    rows = self.shape[0] * world_size
    gathered = self.new_empty((rows, self.shape[1]))
    if not has_values(self):
        return self.new_empty((rows, x2.shape[1]), dtype=dtype), gathered if gather_output else self.new_empty(0)
    group = required_group(name, hcom, world_size)
    dist.all_gather_into_tensor(gathered, self.contiguous(), group=group)
    scales = None
    if x1_scale is not None:
        scales = x1_scale.new_empty((rows, 1))
        dist.all_gather_into_tensor(scales, x1_scale.reshape(-1, 1).contiguous(), group=group)
    product = _scaled(gathered, x2, bias, scales, x2_scale).to(dtype)
    return product, gathered if gather_output else self.new_empty(0)


@operator("npu_all_to_all_matmul")
def npu_all_to_all_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    world_size: int,
    bias: torch.Tensor | None = None,
    all2all_axes: Sequence[int] | None = None,
    all2all_out_flag: bool = True,
    comm_mode: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Exchange parts of the rows for parts of the columns, then multiply.

    Args:
        x1: (M, H), of which process r gets rows r * M / world_size and the following; float16 or bfloat16.
        x2: (H * world_size, N) in the same dtype.
        hcom: name of the communicator.
        world_size: number of processes: 2, 4, 8 or 16.
        bias: (N,); float16 for float16, float32 for bfloat16.
        all2all_axes: None or [-2, -1].
        all2all_out_flag: whether the exchanged rows are wanted.
        comm_mode: None, "ai_cpu" or "aiv".

    Returns:
        (product, rows): (M / world_size, N), and (M / world_size, H * world_size) or None.

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_all_to_all_matmul"
    _check_exchange(name, x1, x2, world_size, bias, all2all_axes, (-2, -1), comm_mode)
    require(x1.shape[0] % world_size == 0, "The x1 first-axis should be divisible by world_size.", ErrCode.PARAM)
    rows, width = x1.shape[0] // world_size, x1.shape[1]
    if x2.shape[0] != width * world_size:
        refuse(name, f"x2 has {x2.shape[0]} rows; {width} columns of {world_size} processes need {width * world_size}")
    if not has_values(x1):
        moved = x1.new_empty((rows, width * world_size)) if all2all_out_flag else None
        return x1.new_empty((rows, x2.shape[1])), moved
    group = required_group(name, hcom, world_size)
    parts = torch.empty_like(x1, memory_format=torch.contiguous_format)
    dist.all_to_all_single(parts, x1.contiguous(), group=group)
    moved = parts.view(world_size, rows, width).permute(1, 0, 2).reshape(rows, world_size * width)
    product = _scaled(moved, x2, bias, None, None).to(x1.dtype)
    return product, moved if all2all_out_flag else None


@operator("npu_matmul_all_to_all")
def npu_matmul_all_to_all(
    x1: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    world_size: int,
    bias: torch.Tensor | None = None,
    all2all_axes: Sequence[int] | None = None,
    comm_mode: str | None = None,
) -> torch.Tensor:
    """Multiply, then exchange parts of the columns for parts of the rows.

    Args:
        x1: (M, K); float16 or bfloat16.
        x2: (K, N), of which process r gets columns r * N / world_size and the following; in the same dtype.
        hcom: name of the communicator.
        world_size: number of processes: 2, 4, 8 or 16.
        bias: (N,); float16 for float16, float32 for bfloat16.
        all2all_axes: None or [-1, -2].
        comm_mode: None, "ai_cpu" or "aiv".

    Returns:
        (M * world_size, N / world_size): the rows of process 0, then of process 1, and so on.

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_matmul_all_to_all"
    _check_exchange(name, x1, x2, world_size, bias, all2all_axes, (-1, -2), comm_mode)
    require(x2.shape[1] % world_size == 0, "The x2 second-axis should be divisible by world_size.", ErrCode.PARAM)
    if x2.shape[0] != x1.shape[1]:
        refuse(name, f"x1 has {x1.shape[1]} columns and x2 {x2.shape[0]} rows")
    rows, width = x1.shape[0], x2.shape[1] // world_size
    result = x1.new_empty((rows * world_size, width))
    if not has_values(x1):
        return result
    group = required_group(name, hcom, world_size)
    product = _scaled(x1, x2, bias, None, None).to(x1.dtype)
    parts = product.view(rows, world_size, width).permute(1, 0, 2).reshape(rows * world_size, width)
    dist.all_to_all_single(result, parts, group=group)
    return result


@operator("npu_alltoallv_gmm")
def npu_alltoallv_gmm(
    gmm_x: torch.Tensor,
    gmm_weight: torch.Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    *,
    send_counts_tensor: torch.Tensor | None = None,
    recv_counts_tensor: torch.Tensor | None = None,
    mm_x: torch.Tensor | None = None,
    mm_weight: torch.Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out_flag: bool = False,
    comm_mode: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Send tokens to the processes of their experts, put them in the order of the experts, and multiply.

    The kernel takes 8, 16, 32, 64 or 128 processes; a rehearsal takes fewer.

    Args:
        gmm_x: (rows, H) in the order of `send_counts`; float16 or bfloat16.
        gmm_weight: (e, H, N) of this process's experts, or (e, N, H) with `trans_gmm_weight`.
        hcom: name of the communicator.
        ep_world_size: number of processes.
        send_counts: rows for expert j of process r, at r * e + j.
        recv_counts: rows of process r for expert j of this process, at r * e + j.
        send_counts_tensor: the kernel takes only None.
        recv_counts_tensor: the kernel takes only None.
        mm_x: (M, H2) input of a shared expert, or None.
        mm_weight: (H2, N2) its weight, or (N2, H2) with `trans_mm_weight`.
        trans_gmm_weight: see above.
        trans_mm_weight: see above.
        permute_out_flag: whether the received rows are wanted.
        comm_mode: None, "ai_cpu" or "aiv".

    Returns:
        (product, product of the shared expert or None, received rows in the order of the experts or None).

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_alltoallv_gmm"
    experts = _check_grouped(name, gmm_x, gmm_weight, ep_world_size, send_counts, recv_counts, trans_gmm_weight)
    _check_shared(name, mm_x, mm_weight, (send_counts_tensor, recv_counts_tensor), comm_mode)
    if sum(send_counts) != gmm_x.shape[0]:
        refuse(name, f"gmm_x has {gmm_x.shape[0]} rows, but send_counts gives {sum(send_counts)}")
    weight = gmm_weight.transpose(1, 2) if trans_gmm_weight else gmm_weight
    if not has_values(gmm_x):
        rows = sum(recv_counts)
        permuted = gmm_x.new_empty((rows, gmm_x.shape[1])) if permute_out_flag else None
        return gmm_x.new_empty((rows, weight.shape[2])), _shared(mm_x, mm_weight, trans_mm_weight), permuted
    group = required_group(name, hcom, ep_world_size)
    received = all_to_all(gmm_x, _of_processes(recv_counts, experts), _of_processes(send_counts, experts), group)
    parts = torch.split(received, list(recv_counts))
    ordered = torch.cat([parts[r * experts + j] for j in range(experts) for r in range(ep_world_size)])
    counts = [sum(recv_counts[j::experts]) for j in range(experts)]
    product = _grouped(ordered, weight, counts)
    return product, _shared(mm_x, mm_weight, trans_mm_weight), ordered if permute_out_flag else None


@operator("npu_gmm_alltoallv")
def npu_gmm_alltoallv(
    gmm_x: torch.Tensor,
    gmm_weight: torch.Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    *,
    send_counts_tensor: torch.Tensor | None = None,
    recv_counts_tensor: torch.Tensor | None = None,
    mm_x: torch.Tensor | None = None,
    mm_weight: torch.Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    comm_mode: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Multiply the rows of each expert, and send them to the processes that they came from.

    The kernel takes 8, 16, 32, 64 or 128 processes; a rehearsal takes fewer.

    Args:
        gmm_x: (rows, H) in the order of the experts, and of the processes for each; float16 or bfloat16.
        gmm_weight: (e, H, N) of this process's experts, or (e, N, H) with `trans_gmm_weight`.
        hcom: name of the communicator.
        ep_world_size: number of processes.
        send_counts: rows of expert j for process r, at r * e + j.
        recv_counts: rows of expert j of process r for this process, at r * e + j.
        send_counts_tensor: the kernel takes only None.
        recv_counts_tensor: the kernel takes only None.
        mm_x: (M, H2) input of a shared expert, or None.
        mm_weight: (H2, N2) its weight, or (N2, H2) with `trans_mm_weight`.
        trans_gmm_weight: see above.
        trans_mm_weight: see above.
        comm_mode: None, "ai_cpu" or "aiv".

    Returns:
        (product in the order of `recv_counts`, product of the shared expert or None).

    Raises:
        RuntimeError: the operator would not take the input.
    """
    name = "npu_gmm_alltoallv"
    experts = _check_grouped(name, gmm_x, gmm_weight, ep_world_size, send_counts, recv_counts, trans_gmm_weight)
    _check_shared(name, mm_x, mm_weight, (send_counts_tensor, recv_counts_tensor), comm_mode)
    if sum(send_counts) != gmm_x.shape[0]:
        refuse(name, f"gmm_x has {gmm_x.shape[0]} rows, but send_counts gives {sum(send_counts)}")
    weight = gmm_weight.transpose(1, 2) if trans_gmm_weight else gmm_weight
    if not has_values(gmm_x):
        result = gmm_x.new_empty((sum(recv_counts), weight.shape[2]))
        return result, _shared(mm_x, mm_weight, trans_mm_weight)
    group = required_group(name, hcom, ep_world_size)
    product = _grouped(gmm_x, weight, [sum(send_counts[j::experts]) for j in range(experts)])
    by_expert = [send_counts[r * experts + j] for j in range(experts) for r in range(ep_world_size)]
    parts = torch.split(product, by_expert)
    ordered = torch.cat([parts[j * ep_world_size + r] for r in range(ep_world_size) for j in range(experts)])
    result = all_to_all(ordered, _of_processes(recv_counts, experts), _of_processes(send_counts, experts), group)
    return result, _shared(mm_x, mm_weight, trans_mm_weight)


def _product(x1: torch.Tensor, x2: torch.Tensor, *, alone: bool = False) -> torch.Tensor:
    """x1 @ x2 in float32, exact and in int32 for int8; where nothing is added, torch's own product in its dtype."""
    if alone and x1.dtype != torch.int8:
        return x1 @ x2
    if x1.dtype != torch.int8:
        wide = compute_dtype(x1)
        return x1.to(wide) @ x2.to(wide)
    total = torch.zeros((*x1.shape[:-1], x2.shape[1]), dtype=torch.int32, device=x1.device)
    for begin in range(0, x2.shape[0], _CHUNK):
        part = x1[..., begin : begin + _CHUNK].float() @ x2[begin : begin + _CHUNK].float()
        total = total + part.to(torch.int32)
    return total


def _scaled(
    x1: torch.Tensor,
    x2: torch.Tensor,
    bias: torch.Tensor | None,
    x1_scale: torch.Tensor | None,
    x2_scale: torch.Tensor | None,
) -> torch.Tensor:
    """x1_scale * x2_scale * (x1 @ x2 + bias), in float32 where there is more than the product."""
    wide = _product(x1, x2, alone=bias is None)
    if wide.dtype == torch.int32:
        wide = wide.float()
    if bias is not None:
        wide = wide + bias.to(wide.dtype)
    if x2_scale is not None:
        wide = wide * _scale(x2_scale)
    return wide if x1_scale is None else wide * x1_scale.reshape(-1, 1)


def _scale(scale: torch.Tensor) -> torch.Tensor:
    """A scale in float32; npu_trans_quant_param keeps its bits in the lower half of an int64."""
    if scale.dtype == torch.int64:
        return scale.to(torch.int32).view(torch.float32)
    return scale.float()


def _weight(
    name: str,
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    group_size: int,
) -> torch.Tensor:
    """An int8 weight in the dtype of the activations."""
    if scale is None:
        refuse(name, "an int8 weight needs antiquant_scale")
    same_dtype(name, x1=x1, antiquant_scale=scale, antiquant_offset=offset)

    def spread(factors: torch.Tensor) -> torch.Tensor:
        if not group_size:
            return factors.float()
        return factors.float().repeat_interleave(group_size, 0)[: x2.shape[0]]

    wide = x2.float() if offset is None else x2.float() + spread(offset)
    return (wide * spread(scale)).to(x1.dtype)


def _grouped(rows: torch.Tensor, weight: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Rows of each expert, one after the other, times its weight."""
    parts = torch.split(rows, list(counts))
    return torch.cat([_product(part, each).to(rows.dtype) for part, each in zip(parts, weight, strict=True)])


def _shared(mm_x: torch.Tensor | None, mm_weight: torch.Tensor | None, transposed: bool) -> torch.Tensor | None:
    if mm_x is None or mm_weight is None:
        return None
    return _product(mm_x, mm_weight.T if transposed else mm_weight, alone=True)


def _of_processes(counts: Sequence[int], experts: int) -> list[int]:
    return [sum(counts[begin : begin + experts]) for begin in range(0, len(counts), experts)]


def _check_product(x1: torch.Tensor, x2: torch.Tensor, world_size: int, code: ErrCode) -> None:
    text = f"world_size should be in [2, 4, 8, 16, 32], but the actual value is {world_size}."
    require(world_size in (2, 4, 8, 16, 32), text, code)
    text = f"Both inputs of mm are required to be 2D, but the actual inputs are {x1.dim()}D and {x2.dim()}D."
    require(x1.dim() == 2 and x2.dim() == 2, text, ErrCode.PARAM)
    text = "The K-axis in the two inputs of Matmul must be equal, but in reality, the K-axis of x1 is "
    text += f"{x1.shape[1]} and the K-axis of x2 is {x2.shape[0]}."
    require(x1.shape[1] == x2.shape[0], text, ErrCode.PARAM)


def _checked_dtype(
    name: str,
    x1: torch.Tensor,
    x2: torch.Tensor,
    bias: torch.Tensor | None,
    x1_scale: torch.Tensor | None,
    x2_scale: torch.Tensor | None,
    output_dtype: torch.dtype | None,
    comm_mode: str | None,
) -> torch.dtype:
    """Dtype of the product, after the checks of dtypes and modes."""
    known(name, "comm_mode", comm_mode, (None, "ai_cpu", "aiv"))
    same_dtype(name, x1=x1, x2=x2)
    if comm_mode != "aiv":
        require(x2_scale is None, "When comm_mode is ai_cpu, quantization not supported.", ErrCode.PARAM)
    if x1.dtype == torch.int8:
        if x2_scale is None:
            refuse(name, "int8 needs x2_scale, and comm_mode aiv")
        if x2_scale.dtype not in (torch.float32, torch.int64):
            refuse(name, f"x2_scale is {x2_scale.dtype}; the kernel takes float32 and int64")
        if output_dtype not in (None, *_HALF):
            refuse(name, f"output_dtype is {output_dtype}; the kernel takes float16 and bfloat16")
        return torch.float16 if x2_scale.dtype == torch.int64 else output_dtype or torch.bfloat16
    if x1.dtype not in _HALF:
        refuse(name, f"the inputs are {x1.dtype}; the kernel takes float16, bfloat16 and int8")
    if x1_scale is not None or x2_scale is not None:
        refuse(name, f"scales are for int8, not for {x1.dtype}")
    same_dtype(name, x1=x1, bias=bias)
    return x1.dtype


def _check_quantised(
    x1: torch.Tensor,
    x2: torch.Tensor,
    antiquant_scale: torch.Tensor | None,
    antiquant_offset: torch.Tensor | None,
    dequant_scale: torch.Tensor | None,
) -> None:
    whole = not x1.dtype.is_floating_point, not x2.dtype.is_floating_point
    anti = antiquant_scale is not None or antiquant_offset is not None
    if whole == (True, True):
        require(x1.dtype == torch.int8, "x1 must be an int8 tensor for quant.", ErrCode.TYPE)
        require(x2.dtype == torch.int8, "x2 must be an int8 tensor for quant.", ErrCode.TYPE)
        text = "when both dtype of x1 and dtype of x2 are equal to int8, "
        require(not anti, text + "antiquantScale, antiquantOffset should both be null", ErrCode.TYPE)
    elif whole == (False, True):
        require(x2.dtype == torch.int8, "x2 must be an int8 tensor for weight quant.", ErrCode.TYPE)
        text = "when only dtype of x2 is equal to int8, dequantScale should be null"
        require(dequant_scale is None, text, ErrCode.TYPE)
    elif whole == (False, False):
        text = "when neither dtype of x1 or dtype of x2 is equal to int8, "
        text += "antiquantScale, antiquantOffset and dequantScale should all be null"
        require(not anti and dequant_scale is None, text, ErrCode.TYPE)
        same_dtype("npu_mm_all_reduce_base", x1=x1, x2=x2)
    else:
        require(False, "when neither dtype of x1 or dtype of x2 is valid. ", ErrCode.TYPE)
    if x1.dtype.is_floating_point and x1.dtype not in _HALF:
        refuse("npu_mm_all_reduce_base", f"x1 is {x1.dtype}; the kernel takes float16, bfloat16 and int8")


def _check_exchange(
    name: str,
    x1: torch.Tensor,
    x2: torch.Tensor,
    world_size: int,
    bias: torch.Tensor | None,
    axes: Sequence[int] | None,
    wanted: tuple[int, int],
    comm_mode: str | None,
) -> None:
    for key, tensor in (("x1", x1), ("x2", x2)):
        require(tensor.dim() == 2, f"{key}_dim should be 2, but now it is {tensor.dim()}.", ErrCode.VALUE)
    known(name, "world_size", world_size, (2, 4, 8, 16))
    known(name, "comm_mode", comm_mode, (None, "ai_cpu", "aiv"))
    known(name, "all2all_axes", None if axes is None else tuple(axes), (None, (), wanted))
    if x1.dtype not in _HALF:
        refuse(name, f"x1 is {x1.dtype}; the kernel takes float16 and bfloat16")
    same_dtype(name, x1=x1, x2=x2)
    for_bias = torch.float32 if x1.dtype == torch.bfloat16 else torch.float16
    if bias is not None and (bias.dtype != for_bias or bias.shape != (x2.shape[1],)):
        refuse(name, f"bias is {list(bias.shape)} {bias.dtype}; the kernel takes [{x2.shape[1]}] {for_bias}")


def _check_grouped(
    name: str,
    rows: torch.Tensor,
    weight: torch.Tensor,
    world_size: int,
    sent: Sequence[int],
    received: Sequence[int],
    transposed: bool,
) -> int:
    """Number of experts of a process, after the checks of shapes and dtypes."""
    if rows.dim() != 2 or weight.dim() != 3 or rows.dtype not in _HALF:
        found = f"{rows.dim()} and {weight.dim()} dimensions of {rows.dtype}"
        refuse(name, f"gmm_x and gmm_weight have {found}; the kernel takes 2 and 3 of float16 or bfloat16")
    same_dtype(name, gmm_x=rows, gmm_weight=weight)
    experts, width = weight.shape[0], weight.shape[2 if transposed else 1]
    if width != rows.shape[1]:
        refuse(name, f"gmm_x has {rows.shape[1]} columns; gmm_weight takes {width}")
    if len(sent) != experts * world_size or len(received) != experts * world_size:
        refuse(name, f"send_counts and recv_counts must have {experts * world_size} elements")
    return int(experts)


def _check_shared(
    name: str,
    mm_x: torch.Tensor | None,
    mm_weight: torch.Tensor | None,
    counts: tuple[torch.Tensor | None, torch.Tensor | None],
    comm_mode: str | None,
) -> None:
    if any(each is not None for each in counts):
        refuse(name, "send_counts_tensor and recv_counts_tensor are given; the kernel takes only None")
    if (mm_x is None) != (mm_weight is None):
        refuse(name, "mm_x and mm_weight go together")
    if mm_x is not None:
        floating(name, mm_x=mm_x)
        same_dtype(name, mm_x=mm_x, mm_weight=mm_weight)
    known(name, "comm_mode", comm_mode, (None, "ai_cpu", "aiv"))
