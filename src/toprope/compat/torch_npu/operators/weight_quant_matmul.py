"""Matrix product with a quantised weight: npu_weight_quant_batchmatmul.

Part of the torch_npu facade: programs call `torch_npu.npu_weight_quant_batchmatmul`. Name and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_quant_matmul.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: torch_npu-npu_weight_quant_batchmatmul.md and WeightQuantBatchMatmulV2KernelNpuOpApi.cpp of Ascend/op-plugin.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .formats import Format, format_of
from .integer_matmul import (
    coarse_scale,
    dequantised_weight,
    integers_of,
    is_transposed,
    not_simulated,
    requantised,
    unpacked_scale,
)
from .registry import operator

__all__ = ["npu_weight_quant_batchmatmul"]

_NAME = "npu_weight_quant_batchmatmul"


def _check_shapes(x: torch.Tensor, weight: torch.Tensor, group_size: int) -> None:
    for label, tensor in (("x", x), ("weight", weight)):
        if tensor.dim() < 2:
            text = f"{label} shape do not support dim num less than 2, but it is {tensor.dim()}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if min(x.dim(), weight.dim()) > 2 and x.dim() != weight.dim():
        raise RuntimeError("x dim is not the same as weight dim" + ops_error(ErrCode.PARAM))
    rows = weight.shape[-2] * (8 if weight.dtype == torch.int32 and is_transposed(weight) else 1)
    if x.shape[-1] != rows:
        text = f"The k of x and weight should be equal. but x_k_dim is {x.shape[-1]}, weight_k_dim is {rows}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if x.dim() == weight.dim() and x.shape[:-2] != weight.shape[:-2]:
        raise RuntimeError("batch of x is diff from batch of weight" + ops_error(ErrCode.PARAM))
    if group_size != 0 and not (32 <= group_size <= rows - 1 and group_size % 32 == 0):
        raise RuntimeError(
            "antiquant_group_size can be either 0 or a multiple of 32 within the range 32 to weight_k_dim - 1."
            + ops_error(ErrCode.PARAM)
        )


def _check_parameters(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, bias: torch.Tensor | None
) -> None:
    if x.dtype not in (torch.float16, torch.bfloat16):
        refuse(_NAME, f"x is {x.dtype}; the kernel takes float16 and bfloat16")
    if weight.dtype not in (torch.int8, torch.int32):
        refuse(_NAME, f"weight is {weight.dtype}; the kernel takes int8, and int32 of 4-bit values")
    packed = scale.dtype == torch.int64
    if packed and (x.dtype != torch.float16 or weight.dtype != torch.int8 or not is_transposed(weight)):
        refuse(_NAME, "an antiquant_scale of int64 takes an x of float16 and a transposed weight of int8")
    if not packed and scale.dtype != x.dtype:
        refuse(_NAME, f"antiquant_scale is {scale.dtype} and x {x.dtype}; they must have one dtype")
    if offset is not None:
        wanted = torch.int32 if packed else scale.dtype
        if offset.dtype != wanted:
            refuse(_NAME, f"antiquant_offset is {offset.dtype}; with this antiquant_scale it must be {wanted}")
        if offset.numel() != scale.numel():
            refuse(_NAME, f"antiquant_offset {list(offset.shape)} and antiquant_scale {list(scale.shape)} differ")
    if bias is not None:
        wanted = torch.float16 if x.dtype == torch.float16 else torch.float32
        if bias.dtype != wanted:
            refuse(_NAME, f"bias is {bias.dtype}; with an x of {x.dtype} it must be {wanted}")


@operator("npu_weight_quant_batchmatmul")
def npu_weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> torch.Tensor:
    """x @ ((weight + antiquant_offset) * antiquant_scale) + bias; with quant_scale, rounded to int8.

    The weight is scaled in float16 for an x of float16, and in float32, rounded to bfloat16, for one of bfloat16.

    Args:
        x: (m, k), float16 or bfloat16.
        weight: (k, n) int8; or int32 of eight 4-bit values each, as (k, n / 8) or as the transpose of (n, k / 8).
        antiquant_scale: (1,), (n,), (1, n), or (groups of k, n); the dtype of x, or int64 (npu_trans_quant_param).
        antiquant_offset: of the same shape and dtype; int32 for a scale of int64.
        quant_scale: (1,), (n,) or (1, n), float32 or int64, for a result of int8.
        quant_offset: of the same shape, float32.
        bias: (n,) or (1, n), float16 for an x of float16, float32 for bfloat16.
        antiquant_group_size: rows of the weight that share a scale; 0 if no groups.
        inner_precise: 0, or 1 for a faster mode of the card with the same formula.
        weight_dtype: for the Ascend 950; not simulated.

    Returns:
        (m, n) in the dtype of x, or int8 with `quant_scale`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    not_simulated(_NAME, weight_dtype=weight_dtype)
    _check_shapes(x, weight, antiquant_group_size)
    in_nz = weight.device.type == "npu" and format_of(weight) == Format.FRACTAL_NZ
    if in_nz and weight.dtype == torch.int32 and antiquant_group_size not in (64, 128):
        # weight_quant_batch_matmul_v2_tiling.cpp of ops-nn; vllm-ascend #5603 has its text
        refuse(
            _NAME,
            f"with 4-bit weights in FRACTAL_NZ antiquant_group_size should be 128 or 64, not {antiquant_group_size}",
        )
    if quant_scale is None and quant_offset is not None:
        raise RuntimeError(
            "Quantization parameters are incorrectly set, quant_offset cannot exist in isolation from quant_scale"
            + ops_error(ErrCode.PARAM)
        )
    if inner_precise not in (0, 1):
        raise RuntimeError(f"inner_precise only support 0 or 1. but is:{inner_precise}" + ops_error(ErrCode.PARAM))
    _check_parameters(x, weight, antiquant_scale, antiquant_offset, bias)
    values = integers_of(weight)
    depth, columns = values.shape[-2:]
    groups = -(-depth // antiquant_group_size) if antiquant_group_size else 1
    if antiquant_scale.numel() not in ((groups * columns,) if antiquant_group_size else (1, columns)):
        wanted = f"[{groups}, {columns}]" if antiquant_group_size else f"1 or {columns} elements"
        refuse(_NAME, f"antiquant_scale has the shape {list(antiquant_scale.shape)}; the kernel takes {wanted} here")
    scale = antiquant_scale
    if scale.dtype == torch.int64:
        scale, _ = unpacked_scale(scale)
    if antiquant_group_size:
        # the last group may be shorter than the others
        rows = torch.arange(depth, device=x.device) // antiquant_group_size
        scale = scale.reshape(groups, columns)[rows]
        offset = None if antiquant_offset is None else antiquant_offset.reshape(groups, columns)[rows]
    else:
        scale = scale.reshape(-1)
        offset = None if antiquant_offset is None else antiquant_offset.reshape(-1)
    result = x.to(torch.float32) @ dequantised_weight(values, scale, offset, x.dtype)
    if bias is not None:
        result = result + bias.reshape(-1).to(torch.float32)
    if quant_scale is None:
        return result.to(x.dtype)
    if quant_scale.dtype not in (torch.float32, torch.int64) or quant_scale.numel() not in (1, columns):
        refuse(_NAME, f"quant_scale is {quant_scale.dtype} {list(quant_scale.shape)}; it must be float32 or int64")
    factor, packed = unpacked_scale(quant_scale.reshape(-1))
    if packed is None:
        factor = coarse_scale(factor)
        packed = None if quant_offset is None else quant_offset.reshape(-1)
    return requantised(result, factor, packed)
