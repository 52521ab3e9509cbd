"""SwiGLU with a quantised result: npu_swiglu_quant, npu_dequant_swiglu_quant, npu_swiglu_mx_quant.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_swiglu_quant.py and tests/compat/operators/test_mx_quant.py for
values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

import math

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype
from .checks import floating, refuse
from .dynamic_quant import dynamic_scale
from .low_precision import FP4, FP8, LARGEST, group_rows, only_950, quantised_shape, quantised_to, wanted_dtype
from .mx_quant import check_mx, mx_grouped, mx_quantised
from .registry import operator

__all__ = [
    "npu_dequant_swiglu_quant",
    "npu_swiglu_mx_quant",
    "npu_swiglu_mx_quant_with_dual_axis",
    "npu_swiglu_quant",
]

_HALF = (torch.float16, torch.bfloat16)
_ROUND_MODES = ("rint", "round", "floor", "ceil", "trunc")


@operator("npu_swiglu_quant")
def npu_swiglu_quant(
    x: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
    dst_type: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SwiGLU over the last axis, quantised: static with given scales and offsets, or dynamic for each token.

    With z = SwiGLU(x) * smooth_scales, static: y = round(z + offsets); dynamic: scale = 127 / max |z| (7 for int4) and
    y = round(z * scale).

    Args:
        x: 2 or more dimensions, the last axis even and up to 8192; float16, bfloat16 or float32.
        smooth_scales: float32, (G, H / 2) or (G,) for G groups of rows; one group without `group_index`.
        offsets: as `smooth_scales`; needed for static.
        group_index: (G,) int32: the row after each group, or the rows of each (`group_list_type`).
        activate_left: whether SiLU is for the left half, else for the right one.
        quant_mode: 0 static, 1 dynamic.
        group_list_type: 0 for ends of groups, 1 for their sizes.
        dst_type: int8 (None), or quint4x2 for int4, two values in an int8.

    Returns:
        (y, scale): int8 with half of the last axis (a quarter for int4), and float32 without it, which holds 0 for
        static (the kernel leaves it). Rows after the last group hold 0.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnSwiGluQuantV2.md of ops-nn, SwigluquantKernelNpuOpApi.cpp.
    """
    name = "npu_swiglu_quant"
    if quant_mode not in (0, 1):
        text = f"quant_mode only support 0(static) or 1(dynamic), but got {quant_mode}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if group_list_type not in (0, 1):
        text = f"group_list_type only support 0(cumsum) or 1(count), but got {group_list_type}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if dst_type not in (None, torch.int8, torch.quint4x2):
        text = "dtype must be torch.int8 for int8 or torch.quint4x2 for int4"
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if quant_mode == 0 and (smooth_scales is None or offsets is None or smooth_scales.shape != offsets.shape):
        text = "smooth_scales and offsets should have the same shape when quant_mode is 0"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    last, packed = x.shape[-1], dst_type == torch.quint4x2
    if last > 8192:
        text = f"x last dim size should not be larger than 8192, but got {last}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if last % 2:
        raise RuntimeError("x last dim size should be even" + ops_error(ErrCode.PARAM))
    if packed and last % 4:
        text = f"x shape last dim must be divded by 4 when dst_type is torch.quint4x2, but got {last}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    floating(name, x=x, smooth_scales=smooth_scales, offsets=offsets)
    if x.dim() < 2:
        refuse(name, f"x has {x.dim()} dimensions; the kernel takes 2 or more")
    rows = x.shape[:-1].numel()
    flat = _swiglu(x.to(torch.float32).reshape(rows, last), activate_left)
    group, inside = _groups(name, x, group_index, is_count=group_list_type == 1)
    count = 1 if group_index is None else group_index.shape[0]
    if smooth_scales is not None:
        flat = flat * _by_group(name, smooth_scales, count, last // 2)[group]
    if quant_mode == 0:
        assert offsets is not None
        flat = flat + _by_group(name, offsets, count, last // 2)[group]
        scale = flat.new_zeros(rows)
    else:
        scale = (7.0 if packed else 127.0) / dynamic_scale(flat, 1.0, (-1,)).squeeze(-1)
        flat = flat * scale.unsqueeze(-1)
    if inside is not None:
        flat = torch.where(inside.unsqueeze(-1), flat, 0.0)
        scale = torch.where(inside, scale, 0.0)
    y = _nibbles(flat) if packed else quantised_to(flat, CardDtype.int8)
    return y.reshape(*x.shape[:-1], y.shape[-1]), scale.reshape(x.shape[:-1])


def _nibbles(values: torch.Tensor) -> torch.Tensor:
    """int4 values, two in an int8, the first in the low half."""
    whole = torch.where(torch.isnan(values), 0.0, values).round().clamp(-8, 7).to(torch.int32) & 15
    pairs = torch.unflatten(whole, -1, (-1, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8).view(torch.int8)


@operator("npu_dequant_swiglu_quant")
def npu_dequant_swiglu_quant(
    x: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    dst_type: int | None = None,
    round_mode: int | None = None,
    activate_dim: int | None = None,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of a product of integers, their SwiGLU, and its quantisation.

    z = x * weight_scale * activation_scale + bias (an integer bias is added to x). SwiGLU of z by `swiglu_mode`: 0 is
    SiLU of one half times the other; 1 and 2 are
    g * sigmoid(glu_alpha * g) * (limited l + glu_bias), where g, limited above, and l are the even and the odd places
    for 1 and the two halves for 2. Then static: round(s / quant_scale + quant_offset); dynamic: s * quant_scale with
    the scale max |s| / largest for each token.

    Args:
        x: (..., 2H) int32; or bfloat16 (on the Ascend 950 also float16), which is not scaled.
        weight_scale: float32, (2H,) or (G, 2H) for G groups of rows.
        activation_scale: float32, one for each row.
        bias: (2H,) or (G, 2H); float32, float16, bfloat16 or int32.
        quant_scale: float32, (1,), (H,), (G,) or (G, H).
        quant_offset: as `quant_scale`; for static.
        group_index: (G,) int64, rows of each group. Rows after them hold 0 (the kernel leaves them).
        activate_left: whether the left half is activated, for modes 0 and 2.
        quant_mode: 0 static, 1 dynamic.
        dst_type: int8 (None); on the Ascend 950 also hifloat8, FP8 and FP4.
        round_mode: 0 "rint" (None), 1 "round", 2 "floor", 3 "ceil", 4 "trunc"; those other than 0 for the Ascend 950.
        activate_dim: the last axis (None); on the Ascend 950 another one for static.
        swiglu_mode: 0, 1 or 2.
        clamp_limit: limit for modes 1 and 2.
        glu_alpha: factor of modes 1 and 2.
        glu_bias: added in modes 1 and 2.

    Returns:
        (y, scale): with half of the axis, FP4 with half of the last axis again in uint8; float32 without the last axis,
        which holds 0 for static.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnDequantSwigluQuantV2.md of ops-nn, DequantSwigluQuantOpApi.cpp and its test.
    """
    name = "npu_dequant_swiglu_quant"
    _check_modes(x, quant_mode, swiglu_mode, (0, 1, 2), (clamp_limit, glu_alpha, glu_bias))
    kinds = (CardDtype.int8, CardDtype.hifloat8, *FP8, *FP4)
    dtype = wanted_dtype(name, 1 if dst_type is None else dst_type, kinds)
    if dtype != CardDtype.int8:
        only_950(name, x, f"dst_type {dtype.name}")
    mode = 0 if round_mode is None else round_mode
    if not 0 <= mode <= 4:
        text = f"round_mode only support [0, 1, 2, 3, 4], but got{mode}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    rounding = _ROUND_MODES[mode]
    if rounding != "rint":
        only_950(name, x, f'round_mode "{rounding}"')
    if dtype not in FP4 and rounding != ("round" if dtype == CardDtype.hifloat8 else "rint"):
        refuse(name, f'round_mode {mode} ("{rounding}") is not for {dtype.name}')
    axis = -1 if activate_dim is None else activate_dim
    if not -x.dim() <= axis < x.dim():
        raise RuntimeError(f"activate_dim should less than {x.dim() - 1}" + ops_error(ErrCode.PARAM))
    axis %= x.dim()
    if x.shape[axis] % 2:
        raise RuntimeError("x last dim should be even" + ops_error(ErrCode.PARAM))
    is_last = axis == x.dim() - 1
    if not is_last:
        only_950(name, x, "activate_dim other than the last axis")
        if group_index is not None or quant_mode != 0 or swiglu_mode == 1:
            refuse(name, "activate_dim other than the last axis takes no group_index, and static quantisation")
    if swiglu_mode == 1 and not activate_left:
        refuse(name, "swiglu_mode 1 needs activate_left=True")
    group, inside = _groups(name, x, group_index, is_count=True)
    count = 1 if group_index is None else group_index.shape[0]
    wide = _dequantised(name, x, (weight_scale, activation_scale, bias), group, count).reshape(x.shape)
    out = _activated(wide, axis, activate_left, swiglu_mode, (clamp_limit, glu_alpha, glu_bias))
    width = out.shape[-1]
    shape = out.shape
    flat = out.reshape(-1, width)
    if not is_last:
        group = group.new_zeros(flat.shape[0])
    if quant_mode == 0:
        if quant_scale is not None:
            flat = flat / _by_group(name, quant_scale, count, width)[group]
        if quant_offset is not None:
            flat = flat + _by_group(name, quant_offset, count, width)[group]
        scale = flat.new_zeros(flat.shape[0])
    else:
        if quant_offset is not None:
            refuse(name, "dynamic quantisation takes no quant_offset")
        if quant_scale is not None:
            flat = flat * _by_group(name, quant_scale, count, width)[group]
        wide_scale = dynamic_scale(flat, LARGEST[dtype], (-1,))
        flat, scale = flat / wide_scale, wide_scale.squeeze(-1)
    if inside is not None:
        flat = torch.where(inside.unsqueeze(-1), flat, 0.0)
        scale = torch.where(inside, scale, 0.0)
    quantised_shape(shape, dtype)
    return quantised_to(flat.reshape(shape), dtype, rounding), scale.reshape(shape[:-1])


@operator("npu_swiglu_mx_quant")
def npu_swiglu_mx_quant(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    activate_dim: int = -1,
    activate_left: bool = False,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
    group_mode: int = 0,
    axis: int = -1,
    dst_type: int = 296,
    round_mode: str = "rint",
    scale_alg: int = 0,
    max_dtype_value: float = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SwiGLU, then npu_dynamic_mx_quant.

    Args:
        x: 2 to 7 dimensions; float16 or bfloat16.
        group_index: (G,) int64, groups of rows. Rows after them hold 0 (the kernel leaves them). Along an `axis` other
            than the last, of a matrix, blocks do not cross the end of a group.
        activate_dim: one of the last two axes, which is halved; the last one for mode 1.
        activate_left: whether SiLU is for the left half, else for the right one.
        swiglu_mode: 0 or 1, as npu_dequant_swiglu_quant.
        clamp_limit: limit for mode 1.
        glu_alpha: factor of mode 1.
        glu_bias: added in mode 1.
        group_mode: 0 for sizes of groups, 1 for their ends.
        axis: of the blocks, one of the last two.
        dst_type: as npu_dynamic_mx_quant.
        round_mode: as npu_dynamic_mx_quant.
        scale_alg: 0; 1 for FP8.
        max_dtype_value: only for an algorithm that the kernel does not have; 0.

    Returns:
        (y, mxscale): as npu_dynamic_mx_quant, or npu_grouped_dynamic_mx_quant for groups along the rows.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnSwigluMxQuant.md of ops-nn, SwigluMxQuantOpApi.cpp.
    """
    name = "npu_swiglu_mx_quant"
    _check_modes(x, 0, swiglu_mode, (0, 1), (clamp_limit, glu_alpha, glu_bias))
    dims = x.dim()
    for label, place in (("activate_dim", activate_dim), ("quant_dim", axis)):
        if not -dims <= place < dims:
            raise RuntimeError(f"{label} should be in range [0, x.dim()-1]" + ops_error(ErrCode.PARAM))
    split, along = activate_dim % dims, axis % dims
    if min(split, along) < dims - 2:
        refuse(name, f"activate_dim {activate_dim} and axis {axis} must each be one of the last two axes")
    if x.shape[split] % 2:
        refuse(name, f"x of shape {list(x.shape)} has an odd size on axis {activate_dim}")
    if swiglu_mode == 1 and split != dims - 1:
        refuse(name, "swiglu_mode 1 is for the last axis")
    if group_mode not in (0, 1) or max_dtype_value:
        refuse(name, f"group_mode {group_mode} or max_dtype_value {max_dtype_value} is not one that the kernel takes")
    algorithms: dict[CardDtype, tuple[int, ...]] = {FP4[0]: (0,), FP4[1]: (0,), FP8[0]: (0, 1), FP8[1]: (0, 1)}
    half = torch.Size((*x.shape[:split], x.shape[split] // 2, *x.shape[split + 1 :]))
    dtype = check_mx(name, x, dst_type, round_mode, scale_alg, algorithms)
    quantised_shape(half, dtype)
    if x.dtype not in _HALF:
        refuse(name, f"x is {x.dtype}; the kernel takes float16 and bfloat16")
    limits = (clamp_limit, glu_alpha, glu_bias)
    out = _activated(x.to(torch.float32), split, activate_left or swiglu_mode == 1, swiglu_mode, limits)
    if group_index is None:
        return mx_quantised(out, along, dtype, round_mode, scale_alg)
    if dims != 2 and dims - 1 not in (split, along):
        refuse(name, "with group_index, x must be a matrix unless both axes are the last")
    ends = group_index if group_mode == 1 else group_index.cumsum(0)
    rows = out.shape[:-1].numel()
    inside = (torch.arange(rows, device=out.device) < ends[-1]).reshape(*out.shape[:-1], 1)
    out = torch.where(inside, out, 0.0)
    if along == dims - 1:
        return mx_quantised(out, along, dtype, round_mode, scale_alg)
    if dims != 2:
        refuse(name, "groups along the rows are of a matrix")
    return mx_grouped(out, ends, dtype, round_mode, scale_alg)


@operator("npu_swiglu_mx_quant_with_dual_axis")
def npu_swiglu_mx_quant_with_dual_axis(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    activate_left: bool = True,
    round_mode: str = "rint",
    scale_alg: int = 1,
    dst_type: int = 24,
    dst_type_max: float = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """SwiGLU over the last axis, then npu_dynamic_mx_quant_with_dual_axis.

    Args:
        x: (M, 2N); float16 or bfloat16.
        group_index: (G,) int64, the row after each group; the last is M. Blocks of rows do not cross the end of a
            group.
        activate_left: whether SiLU is for the left half, else for the right one.
        round_mode: as npu_dynamic_mx_quant.
        scale_alg: 0; 1 for FP8.
        dst_type: as npu_dynamic_mx_quant.
        dst_type_max: 0.

    Returns:
        (y1, mxscale1, y2, mxscale2): of the last axis, then of the rows; the last as npu_grouped_dynamic_mx_quant lays
        it if there are groups.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnSwigluMxQuantWithDualAxis.md of ops-nn, SwigluMxQuantWithDualAxisOpApi.cpp.
    """
    name = "npu_swiglu_mx_quant_with_dual_axis"
    if x.dim() < 2:
        raise RuntimeError("The input x should be at least 2D" + ops_error(ErrCode.PARAM))
    if x.shape[-1] % 2:
        raise RuntimeError("The last dim of input must be divisible by 2" + ops_error(ErrCode.PARAM))
    algorithms: dict[CardDtype, tuple[int, ...]] = {FP4[0]: (0,), FP4[1]: (0,), FP8[0]: (0, 1), FP8[1]: (0, 1)}
    half = torch.Size((*x.shape[:-1], x.shape[-1] // 2))
    dtype = check_mx(name, x, dst_type, round_mode, scale_alg, algorithms)
    quantised_shape(half, dtype)
    if x.dim() != 2 or x.dtype not in _HALF or not x.numel() or dst_type_max:
        refuse(name, f"x is {x.dtype} {list(x.shape)} with dst_type_max {dst_type_max}; it must be half [M, 2N] with 0")
    out = _swiglu(x.to(torch.float32), activate_left)
    first = mx_quantised(out, -1, dtype, round_mode, scale_alg)
    if group_index is None:
        return (*first, *mx_quantised(out, 0, dtype, round_mode, scale_alg))
    if group_index.dtype != torch.int64 or group_index.dim() != 1:
        refuse(name, f"group_index is {group_index.dtype} {list(group_index.shape)}; it must be int64 [G]")
    return (*first, *mx_grouped(out, group_index, dtype, round_mode, scale_alg))


def _swiglu(wide: torch.Tensor, activate_left: bool) -> torch.Tensor:
    left, right = wide.chunk(2, dim=-1)
    return torch.nn.functional.silu(left) * right if activate_left else left * torch.nn.functional.silu(right)


def _activated(
    wide: torch.Tensor, axis: int, activate_left: bool, mode: int, limits: tuple[float, float, float]
) -> torch.Tensor:
    """SwiGLU of float32 values along an axis, by its mode."""
    clamp_limit, alpha, bias = limits
    if mode == 1:
        gate, linear = wide[..., ::2], wide[..., 1::2]
    else:
        left, right = wide.chunk(2, dim=axis)
        gate, linear = (left, right) if activate_left else (right, left)
    if mode == 0:
        return torch.nn.functional.silu(gate) * linear
    gate, linear = gate.clamp(max=clamp_limit), linear.clamp(-clamp_limit, clamp_limit)
    return gate * torch.sigmoid(alpha * gate) * (linear + bias)


def _check_modes(
    x: torch.Tensor, quant_mode: int, swiglu_mode: int, modes: tuple[int, ...], limits: tuple[float, float, float]
) -> None:
    clamp_limit, alpha, bias = limits
    if x.dim() < 2:
        label = "x dim should larger than 1"
        raise RuntimeError(label + ops_error(ErrCode.PARAM))
    if quant_mode not in (0, 1):
        raise RuntimeError(f"quant_mode only support 0 or 1, but got{quant_mode}" + ops_error(ErrCode.PARAM))
    if swiglu_mode not in modes:
        listed = "0, 1 or 2" if 2 in modes else "0 or 1"
        raise RuntimeError(f"swiglu_mode only support {listed}, but got {swiglu_mode}" + ops_error(ErrCode.PARAM))
    if not (math.isfinite(clamp_limit) and clamp_limit > 0):
        raise RuntimeError("clamp_limit should be positive finite" + ops_error(ErrCode.PARAM))
    if not math.isfinite(alpha):
        raise RuntimeError("glu_alpha should be finite" + ops_error(ErrCode.PARAM))
    if not math.isfinite(bias):
        raise RuntimeError("glu_bias should be finite" + ops_error(ErrCode.PARAM))


def _dequantised(
    operator: str,
    x: torch.Tensor,
    tensors: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    group: torch.Tensor,
    count: int,
) -> torch.Tensor:
    """float32 values (rows, 2H) of the input."""
    weight_scale, activation_scale, bias = tensors
    flat, columns = x.reshape(-1, x.shape[-1]), x.shape[-1]
    if x.dtype != torch.int32:
        if x.dtype not in _HALF:
            refuse(operator, f"x is {x.dtype}; the kernel takes int32 and bfloat16")
        if x.dtype == torch.float16:
            only_950(operator, x, "x of float16")
        if weight_scale is not None or activation_scale is not None or bias is not None:
            refuse(operator, "weight_scale, activation_scale and bias are only for an x of int32")
        return flat.to(torch.float32)
    if weight_scale is None:
        refuse(operator, "an x of int32 needs weight_scale")
    early = bias is not None and bias.dtype == torch.int32
    if early and bias is not None:
        table = bias.reshape(-1, columns)
        flat = flat + (table if table.shape[0] == 1 else table[group])
    wide = flat.to(torch.float32) * _by_group(operator, weight_scale, count, columns)[group]
    if activation_scale is not None:
        if activation_scale.numel() != flat.shape[0]:
            refuse(operator, f"activation_scale of shape {list(activation_scale.shape)} must have a value for each row")
        wide = wide * activation_scale.to(torch.float32).reshape(-1, 1)
    if bias is not None and not early:
        wide = wide + _by_group(operator, bias, count, columns)[group]
    return wide


def _groups(
    operator: str, x: torch.Tensor, group_index: torch.Tensor | None, *, is_count: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Group of each row, and whether it is in any; None where there are no groups."""
    rows = x.shape[:-1].numel()
    if group_index is None:
        return torch.zeros(rows, dtype=torch.int64, device=x.device), None
    if group_index.dim() != 1 or group_index.dtype not in (torch.int32, torch.int64):
        found = f"{group_index.dtype} {list(group_index.shape)}"
        refuse(operator, f"group_index is {found}; only int32 and int64 [G] are simulated")
    ends = group_index.cumsum(0) if is_count else group_index.to(torch.int64)
    return group_rows(ends, rows), torch.arange(rows, device=ends.device) < ends[-1]


def _by_group(operator: str, values: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """float32 values of each group: (G, width) or (G, 1)."""
    wide = values.to(torch.float32)
    if values.numel() == 1:
        return wide.reshape(1, 1).expand(count, 1)
    if count == 1 and values.numel() == width:
        return wide.reshape(1, width)
    if tuple(values.shape) in ((count,), (count, 1)):
        return wide.reshape(count, 1)
    if tuple(values.shape) == (width,):
        return wide.unsqueeze(0).expand(count, width)
    if tuple(values.shape) != (count, width):
        refuse(operator, f"a scale of shape {list(values.shape)} must be [{count}, {width}], [{width}] or [{count}]")
    return wide
