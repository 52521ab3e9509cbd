"""MX quantisation (OCP Microscaling): blocks of values in FP8 or FP4 that share a power of two.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_mx_quant.py for values and refusals.

The scale of a block is a byte, float8_e8m0fnu: 2^(byte - 127), and 255 for a block with an infinite value or NaN, whose
values become 0. Scales lie in uint8 tensors of one more dimension: along the quantised axis there are half as many
places as blocks, rounded up, and the last axis holds the scales of two neighbouring blocks (0 where there is none).

Algorithms (`scale_alg`): 0 takes the exponent of the largest value, minus the dtype's own; 1 (FP8) and 2 (FP4) take the
smallest power of two by which the largest value still fits, for 2 into `dst_type_max`.

Source: aclnnDynamicMxQuantV3.md and the other documents of ops-nn with their golden code.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype, dtype_text
from .checks import refuse
from .dynamic_quant import group_slots
from .low_precision import (
    FP4,
    FP8,
    LARGEST,
    fp4_values,
    only_950,
    power_of_two,
    quantised_shape,
    quantised_to,
    wanted_dtype,
)
from .registry import operator

__all__ = [
    "check_mx",
    "mx_grouped",
    "mx_quantised",
    "npu_anti_mx_quant",
    "npu_dynamic_block_mx_quant",
    "npu_dynamic_dual_level_mx_quant",
    "npu_dynamic_mx_quant",
    "npu_dynamic_mx_quant_with_dual_axis",
    "npu_grouped_dynamic_mx_quant",
]

_BLOCK = 32
_E2M1, _E1M2 = FP4
_EXPONENT = {_E2M1: 2, _E1M2: 0, CardDtype.float8_e4m3fn: 8, CardDtype.float8_e5m2: 15}
"""Exponent of each dtype's largest value."""

_HALF = (torch.float16, torch.bfloat16)


def check_mx(
    operator: str,
    x: torch.Tensor,
    dst_type: int,
    round_mode: str,
    scale_alg: int | None,
    algorithms: dict[CardDtype, tuple[int, ...]],
) -> CardDtype:
    """Refuse what no kernel of MX quantisation takes.

    Args:
        operator: its name.
        x: the input.
        dst_type: number of the dtype.
        round_mode: "rint"; for FP4 also "floor" and "round".
        scale_alg: number of the algorithm; None is 0.
        algorithms: those that the kernel has for each dtype.

    Returns:
        the dtype.

    Raises:
        RuntimeError: an argument is not taken, or the simulated chip is not an Ascend 950.
    """
    only_950(operator, x)
    if x.dtype not in (*_HALF, torch.float32):
        refuse(operator, f"the input is {x.dtype}; the kernel takes float16 and bfloat16")
    dtype = wanted_dtype(operator, dst_type, (*FP8, *FP4))
    modes = ("rint", "floor", "round") if dtype in FP4 else ("rint",)
    if round_mode not in modes:
        refuse(operator, f'round_mode is "{round_mode}"; for {dtype.name} the kernel takes {", ".join(modes)}')
    if (scale_alg or 0) not in algorithms[dtype]:
        taken = " and ".join(str(number) for number in algorithms[dtype])
        refuse(operator, f"scale_alg is {scale_alg}; for {dtype.name} the kernel takes {taken}")
    quantised_shape(x.shape, dtype)
    return dtype


_ALGORITHMS: dict[CardDtype, tuple[int, ...]] = {_E2M1: (0, 2), _E1M2: (0,), FP8[0]: (0, 1), FP8[1]: (0, 1)}


def mx_quantised(
    x: torch.Tensor,
    axis: int,
    dtype: CardDtype,
    round_mode: str = "rint",
    scale_alg: int = 0,
    *,
    block: int = _BLOCK,
    largest: float = 0.0,
    low_bound: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise blocks along an axis.

    Args:
        x: float16, bfloat16 or float32.
        axis: the axis.
        dtype: FP8 or FP4.
        round_mode: as quantised_to.
        scale_alg: the algorithm.
        block: values in a block.
        largest: for algorithm 2, instead of the largest value of the dtype; 0 for that.
        low_bound: for algorithm 1, a largest value that is less counts as this.

    Returns:
        the quantised values and the scales, uint8.
    """
    axis %= x.dim()
    count = -(-x.shape[axis] // block)
    wide = torch.unflatten(_padded(x.to(torch.float32), axis, count * block), axis, (count, block))
    top = wide.abs().amax(dim=axis + 1, keepdim=True)
    if low_bound:
        top = top.clamp(min=low_bound)
    scale = _scale_bytes(top, dtype, scale_alg, largest)
    values = (wide * _reciprocal(scale)).flatten(axis, axis + 1).narrow(axis, 0, x.shape[axis])
    return quantised_to(values, dtype, round_mode), _pairs(scale.squeeze(axis + 1), axis)


def mx_grouped(
    x: torch.Tensor,
    ends: torch.Tensor,
    dtype: CardDtype,
    round_mode: str,
    scale_alg: int,
    largest: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise blocks of 32 rows that do not cross the ends of groups.

    Args:
        x: (M, N).
        ends: (G,) the row after each group.
        dtype: FP8 or FP4.
        round_mode: as quantised_to.
        scale_alg: the algorithm.
        largest: as mx_quantised.

    Returns:
        the quantised values, and the scales (M // 64 + G, N, 2) in uint8: those of group i, which begins at row s, from
        place s // 64 + i.
    """
    rows, columns = x.shape
    wide = x.to(torch.float32)
    slot = group_slots(ends, rows, _BLOCK, 2 * _BLOCK)
    places = rows // (2 * _BLOCK) + ends.shape[0]
    top = wide.new_zeros((2 * places, columns))
    top = top.scatter_reduce(0, slot.unsqueeze(-1).expand(rows, columns), wide.abs(), "amax")
    scale = _scale_bytes(top, dtype, scale_alg, largest)
    y = quantised_to(wide * _reciprocal(scale).index_select(0, slot), dtype, round_mode)
    return y, _pairs(scale, 0)


def _scale_bytes(top: torch.Tensor, dtype: CardDtype, scale_alg: int, largest: float) -> torch.Tensor:
    """Byte of the scale (int32) for the largest value of each block."""
    if scale_alg == 0:
        byte = torch.frexp(top).exponent.to(torch.int32) + (126 - _EXPONENT[dtype])
        byte = byte.clamp(0, 254).masked_fill(top == 0, 0)
    else:
        bits = (top / (largest or LARGEST[dtype])).view(torch.int32)
        byte, rest = bits >> 23, bits & 0x7FFFFF
        up = (byte > 0) & (byte < 254) & (rest > 0)
        if scale_alg == 1:
            up = up | (byte == 0) & (rest > 0x400000)
        byte = byte + up.to(torch.int32)
    return byte.masked_fill(~torch.isfinite(top), 255)


def _reciprocal(byte: torch.Tensor) -> torch.Tensor:
    """1 / scale in float32; 0 for the scale of a block with an infinite value or NaN."""
    power = power_of_two((127 - byte).clamp(min=-126))
    power = torch.where(byte == 254, 2.0**-127, power)
    return power.masked_fill(byte == 255, 0.0)


def _padded(x: torch.Tensor, axis: int, length: int) -> torch.Tensor:
    if x.shape[axis] == length:
        return x
    shape = list(x.shape)
    shape[axis] = length - shape[axis]
    return torch.cat((x, x.new_zeros(shape)), dim=axis)


def _pairs(scale: torch.Tensor, axis: int) -> torch.Tensor:
    """Scales as the kernels lay them: those of two neighbouring blocks in a new last axis."""
    count = scale.shape[axis]
    even = torch.unflatten(_padded(scale, axis, count + count % 2), axis, (-(-count // 2), 2))
    return even.movedim(axis + 1, -1).to(torch.uint8).contiguous()


@operator("npu_dynamic_mx_quant")
def npu_dynamic_mx_quant(
    input: torch.Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: int = 296,
    block_size: int = 32,
    scale_alg: int | None = 0,
    dst_type_max: float = 0.0,
    max_low_bound: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """MX quantisation along an axis.

    Args:
        input: 1 to 7 dimensions; float16, bfloat16, or float32 with blocks of 32 and at least 32 values on the axis.
        axis: along which blocks lie.
        round_mode: "rint"; for FP4 also "floor" and "round" (ties away from zero).
        dst_type: float4_e2m1fn_x2, float4_e1m2fn_x2, float8_e4m3fn or float8_e5m2.
        block_size: a multiple of 32 up to 1024; 32 for algorithm 2.
        scale_alg: 0; 1 for FP8; 2 for float4_e2m1fn_x2.
        dst_type_max: for algorithm 2, 6 to 12: the value that the largest of a block becomes at most; 0 for 6.
        max_low_bound: for algorithm 1, a block whose largest value is less is scaled as if it were this.

    Returns:
        (y, mxscale): y like the input, FP4 in uint8 with half of the last axis; mxscale in uint8.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.
    """
    name, dims = "npu_dynamic_mx_quant", input.dim()
    if not -dims <= axis < dims:
        raise RuntimeError("Param (axis) is out of input dimension range" + ops_error(ErrCode.PARAM))
    if block_size <= 0 or block_size % _BLOCK or block_size > 1024:
        text = "Param (block_size) must be divisible by 32 and no greater than 1024, greater than 0"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    dtype = check_mx(name, input, dst_type, round_mode, scale_alg, _ALGORITHMS)
    algorithm = scale_alg or 0
    if input.dtype == torch.float32 and (block_size != _BLOCK or input.shape[axis] < _BLOCK):
        refuse(name, "float32 takes block_size 32 and at least 32 values on the axis")
    if algorithm == 2 and block_size != _BLOCK:
        refuse(name, f"block_size is {block_size}; scale_alg 2 takes 32")
    if max_low_bound < 0 or (max_low_bound and algorithm != 1):
        refuse(name, f"max_low_bound is {max_low_bound}; only scale_alg 1 takes it, and it is not negative")
    _check_largest(name, dtype, algorithm, dst_type_max, (6.0, 12.0))
    return mx_quantised(
        input, axis, dtype, round_mode, algorithm, block=block_size, largest=dst_type_max, low_bound=max_low_bound
    )


@operator("npu_dynamic_mx_quant_with_dual_axis")
def npu_dynamic_mx_quant_with_dual_axis(
    input: torch.Tensor,
    *,
    round_mode: str = "rint",
    dst_type: int = 296,
    scale_alg: int = 0,
    dst_type_max: float | None = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_dynamic_mx_quant along the last axis and along the one before it.

    Args:
        input: 2 to 7 dimensions; float16 or bfloat16.
        round_mode: as npu_dynamic_mx_quant, and so the arguments that follow.
        dst_type: the dtype.
        scale_alg: the algorithm.
        dst_type_max: for algorithm 2.

    Returns:
        (y1, mxscale1, y2, mxscale2): of the last axis, then of the one before it.

    Raises:
        RuntimeError: as npu_dynamic_mx_quant.
    """
    name = "npu_dynamic_mx_quant_with_dual_axis"
    if input.dim() < 2:
        raise RuntimeError("The input should be at least 2D" + ops_error(ErrCode.PARAM))
    dtype = check_mx(name, input, dst_type, round_mode, scale_alg, _ALGORITHMS)
    _refuse_float32(name, input)
    largest = dst_type_max or 0.0
    _check_largest(name, dtype, scale_alg, largest, (6.0, 12.0))
    first = mx_quantised(input, -1, dtype, round_mode, scale_alg, largest=largest)
    return (*first, *mx_quantised(input, -2, dtype, round_mode, scale_alg, largest=largest))


@operator("npu_dynamic_block_mx_quant")
def npu_dynamic_block_mx_quant(
    input: torch.Tensor,
    *,
    round_mode: str = "rint",
    dst_type: int = 296,
    scale_alg: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """MX quantisation of blocks of 32 x 32 values, with the scales for both axes.

    Args:
        input: (M, N) or (B, M, N); float16 or bfloat16.
        round_mode: as npu_dynamic_mx_quant.
        dst_type: as npu_dynamic_mx_quant.
        scale_alg: 0; 2 for float4_e2m1fn_x2.
        dst_type_max: for algorithm 2: 0, 6 or 7.

    Returns:
        (y, scale1, scale2): the values, and the scale of each block once for every row of it, along the last axis, and
        once for every column, along the axis before it. Both lie as those of npu_dynamic_mx_quant.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnDynamicBlockMxQuant.md of ops-nn and its golden code.
    """
    name = "npu_dynamic_block_mx_quant"
    if input.dim() < 2:
        raise RuntimeError("The input should be at least 2D" + ops_error(ErrCode.PARAM))
    algorithms = {**_ALGORITHMS, FP8[0]: (0,), FP8[1]: (0,)}
    dtype = check_mx(name, input, dst_type, round_mode, scale_alg, algorithms)
    _refuse_float32(name, input)
    if input.dim() > 3 or not input.numel():
        refuse(name, f"the input of shape {list(input.shape)} must have 2 or 3 dimensions, and values")
    if dst_type_max not in (0.0, 6.0, 7.0) or (dst_type_max and scale_alg != 2):
        refuse(name, f"dst_type_max is {dst_type_max}; the kernel takes 0, and 6 and 7 for scale_alg 2")
    rows, columns = input.shape[-2:]
    down, across = -(-rows // _BLOCK), -(-columns // _BLOCK)
    wide = torch.nn.functional.pad(input.to(torch.float32), (0, -columns % _BLOCK, 0, -rows % _BLOCK))
    blocks = torch.unflatten(torch.unflatten(wide, -1, (across, _BLOCK)), -3, (down, _BLOCK))
    scale = _scale_bytes(blocks.abs().amax(dim=(-3, -1)), dtype, scale_alg, dst_type_max)
    values = (blocks * _reciprocal(scale)[..., :, None, :, None]).flatten(-2).flatten(-3, -2)
    by_row = scale.repeat_interleave(_BLOCK, -2)[..., :rows, :]
    by_column = scale.repeat_interleave(_BLOCK, -1)[..., :columns]
    last = input.dim() - 1
    y = quantised_to(values[..., :rows, :columns], dtype, round_mode)
    return y, _pairs(by_row, last), _pairs(by_column, last - 1)


@operator("npu_dynamic_dual_level_mx_quant")
def npu_dynamic_dual_level_mx_quant(
    input: torch.Tensor, *, smooth_scale: torch.Tensor | None = None, round_mode: str = "rint"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantisation to float4_e2m1fn_x2 in two levels along the last axis.

    Blocks of 512 values are divided by level0_scale = max |x| / 6 and rounded to the dtype of the input; the quotients
    are quantised as by npu_dynamic_mx_quant.

    Args:
        input: 1 to 7 dimensions, the last axis even; float16 or bfloat16.
        smooth_scale: factors of the last axis, of the input's dtype.
        round_mode: "rint", "round" or "floor".

    Returns:
        (y, level0_scale, level1_scale): y in uint8 with half of the last axis, level0_scale in float32, level1_scale in
        uint8 as the mxscale of npu_dynamic_mx_quant.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnDynamicDualLevelMxQuant.md of ops-nn.
    """
    name, size = "npu_dynamic_dual_level_mx_quant", 512
    number = 256 + _E2M1.value
    check_mx(name, input, number, round_mode, 0, _ALGORITHMS)
    _refuse_float32(name, input)
    if not input.numel():
        refuse(name, "the input is empty")
    wide, length = input.to(torch.float32), input.shape[-1]
    if smooth_scale is not None:
        if smooth_scale.dtype != input.dtype or tuple(smooth_scale.shape) != (length,):
            found = f"{smooth_scale.dtype} {list(smooth_scale.shape)}"
            refuse(name, f"smooth_scale is {found}; it must be {input.dtype} [{length}]")
        wide = wide * smooth_scale.to(torch.float32)
    count = -(-length // size)
    blocks = torch.unflatten(_padded(wide, input.dim() - 1, count * size), -1, (count, size))
    level0 = blocks.abs().amax(dim=-1, keepdim=True) / LARGEST[_E2M1]
    quotient = torch.where(level0 == 0, 0.0, blocks / level0).flatten(-2)[..., :length].to(input.dtype)
    y, level1 = mx_quantised(quotient, -1, _E2M1, round_mode)
    return y, level0.squeeze(-1), level1


@operator("npu_grouped_dynamic_mx_quant")
def npu_grouped_dynamic_mx_quant(
    x: torch.Tensor,
    group_index: torch.Tensor,
    *,
    round_mode: str = "rint",
    dst_type: int = 23,
    blocksize: int = 32,
    scale_alg: int | None = 0,
    dst_type_max: float | None = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """MX quantisation along the rows, within groups of rows: a block does not cross the end of its group.

    Args:
        x: (M, N); float16 or bfloat16.
        group_index: (G,) int32, the row after each group, increasing up to M.
        round_mode: as npu_dynamic_mx_quant.
        dst_type: as npu_dynamic_mx_quant.
        blocksize: 32.
        scale_alg: 0; 1 for FP8; 2 for FP4.
        dst_type_max: for algorithm 2: 6 to 12 for float4_e2m1fn_x2, 1.75 to 3.5 for float4_e1m2fn_x2; 0 for the least.

    Returns:
        (y, mxscale): y like x, FP4 in uint8 with half of the last axis; mxscale (M // 64 + G, N, 2) in uint8, as
        mx_grouped lays it.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnGroupedDynamicMxQuantV2.md of ops-nn.
    """
    name = "npu_grouped_dynamic_mx_quant"
    only_950(name, x)
    if x.dim() != 2:
        raise RuntimeError(f"X dimNum should be 2, got {x.dim()}" + ops_error(ErrCode.VALUE))
    if group_index.dim() != 1:
        raise RuntimeError(f"Group_index dimNum should be 1, got {group_index.dim()}" + ops_error(ErrCode.VALUE))
    if blocksize != _BLOCK:
        raise RuntimeError(f"Parameter blocksize must be 32, got {blocksize}" + ops_error(ErrCode.PARAM))
    algorithm = scale_alg or 0
    if algorithm not in (0, 1, 2):
        raise RuntimeError(f"Parameter scale_alg must be 0, 1 or 2, got {scale_alg}" + ops_error(ErrCode.PARAM))
    dtype = check_mx(name, x, dst_type, round_mode, scale_alg, {**_ALGORITHMS, _E1M2: (0, 2)})
    _refuse_float32(name, x)
    if group_index.dtype != torch.int32:
        refuse(name, f"group_index is {group_index.dtype}; the kernel takes int32")
    largest = dst_type_max or 0.0
    _check_largest(name, dtype, algorithm, largest, (1.75, 3.5) if dtype == _E1M2 else (6.0, 12.0))
    return mx_grouped(x, group_index, dtype, round_mode, algorithm, largest)


@operator("npu_anti_mx_quant")
def npu_anti_mx_quant(
    x: torch.Tensor,
    mxscale: torch.Tensor,
    *,
    axis: int | None = -1,
    dst_type: int | None = 15,
    src_type: int | None = 292,
) -> torch.Tensor:
    """Values of npu_dynamic_mx_quant: x * 2^(mxscale - 127).

    Args:
        x: float8_e4m3fn, float8_e5m2, or uint8 with FP4.
        mxscale: uint8 or float8_e8m0fnu, as npu_dynamic_mx_quant gives it.
        axis: that was quantised.
        dst_type: bfloat16, float16 or float32.
        src_type: dtype of the values in uint8.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnAntiMxQuant.md of ops-nn.
    """
    name, dims, place = "npu_anti_mx_quant", x.dim(), -1 if axis is None else axis
    only_950(name, x)
    if not -dims <= place < dims:
        text = f"Parameter axis is out of input dimension range [{-dims}, {dims - 1}]"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    place %= dims
    floats = (CardDtype.bfloat16, CardDtype.float16, CardDtype.float32)
    wanted = wanted_dtype(name, 15 if dst_type is None else dst_type, floats)
    if x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        values = x.to(torch.float32)
    elif x.dtype == torch.uint8 or str(x.dtype) == "torch.float4_e2m1fn_x2":
        kind = _E2M1 if x.dtype != torch.uint8 else wanted_dtype(name, src_type or 0, FP4, "src_type")
        values = fp4_values(x.view(torch.uint8), kind)
    else:
        refuse(name, f"x is {x.dtype}; the kernel takes FP8, and FP4 in uint8 ({dtype_text(296)})")
    blocks = -(-values.shape[place] // _BLOCK)
    expected = [*values.shape, 2]
    expected[place] = -(-blocks // 2)
    if list(mxscale.shape) != expected:
        refuse(name, f"mxscale of shape {list(mxscale.shape)} must be {expected}")
    codes = mxscale if mxscale.dtype == torch.uint8 else mxscale.view(torch.uint8)
    byte = codes.to(torch.int32).movedim(-1, place + 1).flatten(place, place + 1)
    scale = power_of_two((byte - 127).clamp(min=-126))
    scale = torch.where(byte == 0, 2.0**-127, scale).masked_fill(byte == 255, float("nan"))
    wide = scale.repeat_interleave(_BLOCK, place).narrow(place, 0, values.shape[place])
    return (values * wide).to(getattr(torch, wanted.name))


def _refuse_float32(operator: str, x: torch.Tensor) -> None:
    if x.dtype == torch.float32:
        refuse(operator, "the input is torch.float32; the kernel takes float16 and bfloat16")


def _check_largest(
    operator: str, dtype: CardDtype, scale_alg: int, largest: float, limits: tuple[float, float]
) -> None:
    low, high = limits
    if largest and (scale_alg != 2 or not low <= largest <= high):
        refuse(
            operator, f"dst_type_max is {largest}; the kernel takes {low} to {high} for scale_alg 2 and {dtype.name}"
        )
