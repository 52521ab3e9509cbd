"""Quantisation with given scales, and dequantisation: npu_quantize, npu_group_quant, npu_anti_quant and others.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_static_quant.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype, card_dtype, kept_dtype
from .checks import floating, refuse
from .dynamic_quant import dynamic_tokens
from .int4 import unpack_int4
from .low_precision import FP4, FP8, group_rows, hifloat8_values, only_950, quantised_to, wanted_dtype
from .mx_quant import check_mx, mx_quantised
from .registry import operator

__all__ = [
    "npu_anti_quant",
    "npu_dequant_bias",
    "npu_gelu_quant",
    "npu_group_quant",
    "npu_kronecker_quant",
    "npu_quant_max",
    "npu_quant_scatter",
    "npu_quant_scatter_",
    "npu_quantize",
    "npu_quantize_per_tensor",
    "npu_rotate_quant",
    "npu_trans_quant_param",
]

_QINT8, _QUINT8, _QINT32, _QUINT4X2 = 12, 13, 14, 16
"""torch's numbers of its quantised dtypes."""

_HALF = (torch.float16, torch.bfloat16)


@operator("npu_quantize")
def npu_quantize(
    self: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """Quantise with given scales: round(x / scales + zero_points), or round(x * scales + zero_points).

    Args:
        self: 1 to 8 dimensions; float16, bfloat16 or float32.
        scales: one, or one for each place on `axis`. Without `div_mode` also of as many dimensions as `self`, with size
            1 on all axes but one.
        zero_points: like `scales`; None for 0.
        dtype: with `div_mode` int8, uint8 or int32 (or qint8, quint8, qint32); without it int8 or qint8, or quint4x2
            for int4, eight values in an int32. The Ascend 950 also gives float8_e4m3fn, float8_e5m2 and hifloat8.
        axis: of the scales. Without `div_mode` it is -1 or less; others count as -1.
        div_mode: whether the scales divide.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnQuantize.md and ascend_quant_v2 of ops-nn with their golden code, QuantizeKernelNpuOpApi.cpp.
    """
    name = "npu_quantize"
    floating(name, self=self, scales=scales)
    wide = self.to(torch.float32)
    if div_mode:
        kinds = {_QINT8: 1, _QUINT8: 0, _QINT32: 3}
        wanted = card_dtype(kinds.get(dtype, dtype))
        integers = (CardDtype.int8, CardDtype.uint8, CardDtype.int32)
        if wanted not in (*integers, CardDtype.hifloat8, *FP8):
            text = "Param (dtype) must be Int8, UInt8, Int32, HiFloat8, Float8_e4m3fn, Float8_e5m2"
            raise RuntimeError(text + ops_error(ErrCode.TYPE))
        if wanted not in integers:
            only_950(name, self, f"dtype {wanted.name}")
        scaled = wide / _on_axis(name, self, scales, axis, "scales")
    else:
        if dtype == _QUINT4X2 or card_dtype(dtype) == CardDtype.int32:
            if self.shape[-1] % 8:
                text = "Input shape last dim must be divded by 8"  # spelled as torch_npu prints it
                raise RuntimeError(text + ops_error(ErrCode.PARAM))
            wanted = CardDtype.int4
        else:
            number = 1 if dtype == _QINT8 else dtype
            wanted = wanted_dtype(name, number, (CardDtype.int8, CardDtype.hifloat8, *FP8), "dtype")
            if wanted != CardDtype.int8:
                only_950(name, self, f"dtype {wanted.name}")
        axis = axis if axis < -1 else -1
        scaled = wide * _on_axis(name, self, scales, axis, "scales")
    if zero_points is not None:
        if zero_points.numel() != scales.numel():
            refuse(name, f"zero_points {list(zero_points.shape)} and scales {list(scales.shape)} differ in size")
        scaled = scaled + _on_axis(name, self, zero_points, axis, "zero_points")
    return quantised_to(scaled, wanted)


def _on_axis(operator: str, x: torch.Tensor, values: torch.Tensor, axis: int, label: str) -> torch.Tensor:
    """float32 values that broadcast along an axis of x."""
    wide = values.to(torch.float32)
    if values.numel() == 1:
        return wide.reshape(())
    if not -x.dim() <= axis < x.dim():
        refuse(operator, f"axis {axis} is out of range for {x.dim()} dimensions")
    length = x.shape[axis]
    shape = [1] * x.dim()
    shape[axis] = length
    if values.numel() != length or (values.dim() > 1 and list(values.shape) != shape):
        refuse(operator, f"{label} of shape {list(values.shape)} must have 1 or {length} values, for axis {axis}")
    return wide.reshape(shape)


@operator("npu_group_quant")
def npu_group_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    group_index: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    dst_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Quantise groups of rows, each with its scales: round(x * scale[group] + offset).

    Args:
        x: (S, H); float16, bfloat16 or float32.
        scale: (E, H).
        group_index: (E,) int32 or int64, the row after each group, increasing up to S.
        offset: one value of the dtype of `scale`.
        dst_dtype: int8 or qint8 (None), or quint4x2 for int4, eight values in an int32.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnGroupQuant.md of ops-nn.
    """
    name = "npu_group_quant"
    floating(name, x=x, scale=scale, offset=offset)
    if dst_dtype not in (None, torch.int8, torch.qint8, torch.quint4x2):
        refuse(name, f"dst_dtype is {dst_dtype}; the kernel takes qint8 and quint4x2")
    if x.dim() != 2 or scale.dim() != 2 or scale.shape[1] != x.shape[1]:
        refuse(name, f"x {list(x.shape)} and scale {list(scale.shape)} must be [S, H] and [E, H]")
    if group_index.dtype not in (torch.int32, torch.int64) or tuple(group_index.shape) != (scale.shape[0],):
        refuse(name, f"group_index is {group_index.dtype} {list(group_index.shape)}; it must be int32 [E]")
    if offset is not None and (offset.numel() != 1 or offset.dtype != scale.dtype):
        refuse(name, f"offset is {offset.dtype} {list(offset.shape)}; it must be one value of {scale.dtype}")
    packed = dst_dtype == torch.quint4x2
    if packed and x.shape[1] % 8:
        raise RuntimeError("If dst_dtype is quint4x2, last dim must be divisible by 8" + ops_error(ErrCode.NOT_SUPPORT))
    scaled = x.to(torch.float32) * scale.to(torch.float32)[group_rows(group_index, x.shape[0])]
    if offset is not None:
        scaled = scaled + offset.to(torch.float32).reshape(())
    return quantised_to(scaled, CardDtype.int4 if packed else CardDtype.int8)


@operator("npu_anti_quant")
def npu_anti_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    dst_dtype: int | None = None,
    src_dtype: int | None = None,
) -> torch.Tensor:
    """Values of quantised data: (x + offset) * scale.

    Args:
        x: int8, or int32 with eight int4 each; on the Ascend 950 also uint8 with hifloat8, float8_e5m2 and
            float8_e4m3fn.
        scale: float32 or bfloat16: one, or one for each place on the last axis of the result. On the Ascend 950 also
            for the axis before it, and with all axes, size 1 but on one of the last two.
        offset: like `scale`.
        dst_dtype: float16 (None) or bfloat16.
        src_dtype: dtype of the values of `x`; it must fit the dtype of `x`.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnAscendAntiQuant.md of ops-nn, AntiQuantKernelNpuOpApi.cpp.
    """
    name = "npu_anti_quant"
    sources = {
        torch.uint8: CardDtype.hifloat8,
        torch.int8: CardDtype.int8,
        torch.int32: CardDtype.int4,
        torch.float8_e4m3fn: CardDtype.float8_e4m3fn,
        torch.float8_e5m2: CardDtype.float8_e5m2,
    }
    if x.dtype not in sources:
        text = "Input x must be int8, int32, hifloat8, float8_e5m2 or float8_e4m3fn "
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    source = sources[x.dtype]
    is_packed = source == CardDtype.int4
    if src_dtype is not None and card_dtype(src_dtype) != source and not (is_packed and src_dtype == _QUINT4X2):
        packed = "The datatype of x is int32, src_dtype must be int4 "
        text = packed if is_packed else "The datatype of x must match src_dtype "
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if source not in (CardDtype.int8, CardDtype.int4):
        if scale.dtype != torch.float32 or (offset is not None and offset.dtype != torch.float32):
            text = (
                "When x datatype is hifloat8, float8_e5m2 or float8_e4m3fn, scale_dtype and offset_dtype is only "
                "support float "
            )
            raise RuntimeError(text + ops_error(ErrCode.TYPE))
        only_950(name, x, f"x of {source.name}")
    if dst_dtype is not None and card_dtype(dst_dtype) is None:
        raise RuntimeError("Input dst_type must be valid, but got UNKNOWN_SCALAR" + ops_error(ErrCode.TYPE))
    wanted = wanted_dtype(name, 5 if dst_dtype is None else dst_dtype, (CardDtype.float16, CardDtype.bfloat16))
    if source == CardDtype.int4:
        if not x.dim():
            text = "No supported for x is scalar when x dtype is int32 "
            raise RuntimeError(text + ops_error(ErrCode.TYPE))
        values = unpack_int4(x).to(torch.float32)
    else:
        values = hifloat8_values(x) if source == CardDtype.hifloat8 else x.to(torch.float32)
    if offset is not None:
        if offset.shape != scale.shape or offset.dtype != scale.dtype:
            found, expected = f"{offset.dtype} {list(offset.shape)}", f"{scale.dtype} {list(scale.shape)}"
            refuse(name, f"offset is {found}; it must be like scale, {expected}")
        values = values + _along(name, values, offset)
    return (values * _along(name, values, scale)).to(kept_dtype(wanted))


def _along(operator: str, values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """float32 factors that broadcast along one of the last two axes."""
    if factor.dtype not in (torch.float32, torch.bfloat16):
        refuse(operator, f"scale and offset are {factor.dtype}; the kernel takes float32 and bfloat16")
    wide = factor.to(torch.float32)
    if factor.numel() == 1:
        return wide.reshape(())
    last = values.shape[-1] if values.dim() else 1
    if factor.dim() == 1 and factor.shape[0] == last:
        return wide
    if factor.dim() == 1 and values.dim() > 1 and factor.shape[0] == values.shape[-2]:
        only_950(operator, values, "a scale for each place on the axis before the last")
        return wide.unsqueeze(-1)
    fits = factor.dim() == values.dim() > 1 and factor.numel() == max(factor.shape[-2:])
    if not fits or factor.numel() not in (last, values.shape[-2]):
        shapes = f"{list(factor.shape)} fits neither of the last two axes of {list(values.shape)}"
        refuse(operator, f"scale of shape {shapes}")
    only_950(operator, values, "a scale of more than one dimension")
    return wide


@operator("npu_trans_quant_param")
def npu_trans_quant_param(
    scale: torch.Tensor, offset: torch.Tensor | None = None, round_mode: int | None = 0
) -> torch.Tensor:
    """Scales as the matrix unit reads them, in int64.

    Bits 13 to 31 hold the upper 19 bits of the scale as float32, bit 46 is set, and bits 37 to 45 hold the offset,
    rounded and limited to -256 to 255.

    Args:
        scale: float32, (n,) or (1, n).
        offset: float32 of the shape of `scale`; one of two (n,) may be (1,).
        round_mode: 0 cuts the lower bits off, 1 rounds to the nearest.

    Raises:
        RuntimeError: an argument that the operator does not take.

    Source: aclnnTransQuantParamV3.md of ops-nn, TransQuantParamKernelNpuOpApi.cpp and the registration for FakeTensor.
    """
    name, mode = "npu_trans_quant_param", round_mode or 0
    if mode not in (0, 1):
        raise RuntimeError(f"round_mode must be 0 or 1. but now is {mode}")
    for label, tensor in (("scale", scale), ("offset", offset)):
        if tensor is not None and tensor.dtype != torch.float32:
            refuse(name, f"{label} is {tensor.dtype}; the kernel takes float32")
    shape, one = scale.shape, (scale.dim() == 1)
    if not one and not (scale.dim() == 2 and shape[0] == 1):
        raise RuntimeError("the scale shape support only (1, ) and (1, n)" + ops_error(ErrCode.VALUE))
    if offset is not None:
        if not one and offset.shape != shape:
            text = "when the input shape of scale is (1, n), shape of scale and offset should be equal"
            raise RuntimeError(text + ops_error(ErrCode.VALUE))
        if one and offset.dim() != 1:
            refuse(name, f"offset of shape {list(offset.shape)} must have one dimension, as scale has")
        if one and 1 not in (shape[0], offset.shape[0]) and shape[0] != offset.shape[0]:
            text = "offset first dim should be equal to scale first dim if none of them are equal to one"
            raise RuntimeError(text + ops_error(ErrCode.VALUE))
    bits = scale.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    if mode:
        bits = bits + 0x1000
    result = bits & 0xFFFFE000 | 1 << 46
    if offset is None:
        return result
    limited = offset.round().clamp(-256, 255).to(torch.int64)
    return result | (limited & 0x1FF) << 37


@operator("npu_dequant_bias")
def npu_dequant_bias(
    x: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Values of a product of integers: x * weight_scale * activation_scale + bias; an integer bias is added to x.

    Args:
        x: (M, N) int32.
        weight_scale: (N,) float32 or bfloat16.
        activation_scale: (M,) float32.
        bias: (N,) float32, float16, bfloat16 or int32.
        output_dtype: float16 (None) with a float32 `weight_scale`, bfloat16 with one of bfloat16.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnDequantBias.md of ops-nn, DequantBiasNpuOpApi.cpp.
    """
    name, wanted = "npu_dequant_bias", output_dtype or torch.float16
    if wanted not in _HALF:
        raise RuntimeError("The dtype should be half or bfloat16" + ops_error(ErrCode.PARAM))
    if x.dtype != torch.int32 or x.dim() != 2:
        refuse(name, f"x is {x.dtype} {list(x.shape)}; it must be int32 [M, N]")
    rows, columns = x.shape
    matching = torch.float32 if wanted == torch.float16 else torch.bfloat16
    if weight_scale.dtype != matching or tuple(weight_scale.shape) != (columns,):
        found = f"{weight_scale.dtype} {list(weight_scale.shape)}"
        refuse(name, f"weight_scale is {found}; for {wanted} it must be {matching} [{columns}]")
    if activation_scale is not None and (
        activation_scale.dtype != torch.float32 or tuple(activation_scale.shape) != (rows,)
    ):
        found = f"{activation_scale.dtype} {list(activation_scale.shape)}"
        refuse(name, f"activation_scale is {found}; it must be float32 [{rows}]")
    if bias is not None and tuple(bias.shape) != (columns,):
        refuse(name, f"bias of shape {list(bias.shape)} must be [{columns}]")
    early = bias is not None and bias.dtype == torch.int32
    wide = (x + bias if early and bias is not None else x).to(torch.float32) * weight_scale.to(torch.float32)
    if activation_scale is not None:
        wide = wide * activation_scale.unsqueeze(-1)
    if bias is not None and not early:
        floating(name, bias=bias)
        wide = wide + bias.to(torch.float32)
    return wide.to(wanted)


@operator("npu_quant_scatter")
def npu_quant_scatter(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    quant_scales: torch.Tensor,
    quant_zero_points: torch.Tensor | None = None,
    axis: int = -2,
    quant_axis: int = -1,
    reduce: str = "update",
    dst_type: int | None = None,
    round_mode: str | None = "rint",
) -> torch.Tensor:
    """`self` with a slice of each row replaced by quantised updates: round(updates / quant_scales + zero_points).

    Args:
        self: 3 to 8 dimensions; int8; on the Ascend 950 also float8_e4m3fn, float8_e5m2, and uint8 for hifloat8.
        indices: (n,) where the slice of row i begins on `axis`, or (n, 2) with the row first; int32, on the Ascend 950
            also int64.
        updates: as many dimensions as `self`, n rows; float16 or bfloat16.
        quant_scales: as many values as the last axis has; bfloat16 or float32.
        quant_zero_points: like `quant_scales`; bfloat16 or int32.
        axis: of the slices; neither the first axis nor the last.
        quant_axis: the last axis.
        reduce: "update".
        dst_type: dtype of `self` on the Ascend 950; int8 (None) elsewhere.
        round_mode: "rint"; "round" for hifloat8.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnInplaceQuantScatterV2.md of ops-nn, QuantScatterKernelNpuOpApi.cpp.
    """
    result = self.clone()
    args = (indices, updates, quant_scales, quant_zero_points)
    _scatter("npu_quant_scatter", result, args, (axis, quant_axis), (reduce, dst_type, round_mode))
    return result


@operator("npu_quant_scatter_")
def npu_quant_scatter_(
    self: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    quant_scales: torch.Tensor,
    quant_zero_points: torch.Tensor | None = None,
    axis: int = -2,
    quant_axis: int = -1,
    reduce: str = "update",
    dst_type: int | None = None,
    round_mode: str | None = "rint",
) -> torch.Tensor:
    """npu_quant_scatter in place. The arguments and errors are the same."""
    args = (indices, updates, quant_scales, quant_zero_points)
    _scatter("npu_quant_scatter_", self, args, (axis, quant_axis), (reduce, dst_type, round_mode))
    return self


def _scatter(
    operator: str,
    cache: torch.Tensor,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    axes: tuple[int, int],
    mode: tuple[str, int | None, str | None],
) -> None:
    indices, updates, scales, zero_points = tensors
    dims, (axis, quant_axis), (reduce, dst_type, round_mode) = cache.dim(), axes, mode
    kinds = {torch.int8: CardDtype.int8, torch.uint8: CardDtype.hifloat8}
    kinds |= {torch.float8_e4m3fn: CardDtype.float8_e4m3fn, torch.float8_e5m2: CardDtype.float8_e5m2}
    if cache.dtype not in kinds:
        refuse(operator, f"self is {cache.dtype}; the kernel takes int8")
    dtype = kinds[cache.dtype]
    if dtype != CardDtype.int8:
        only_950(operator, cache, f"self of {dtype.name}")
    if dst_type is not None and wanted_dtype(operator, dst_type, tuple(kinds.values())) != dtype:
        refuse(operator, f"dst_type does not fit self, {dtype.name}")
    if (round_mode or "rint") != ("round" if dtype == CardDtype.hifloat8 else "rint"):
        refuse(operator, f'round_mode is "{round_mode}"; for {dtype.name} it is not simulated')
    if reduce != "update":
        refuse(operator, f'reduce is "{reduce}"; the kernel takes "update"')
    if not 3 <= dims <= 8 or updates.dim() != dims:
        refuse(operator, f"self has {dims} and updates {updates.dim()} dimensions; they must both have 3 to 8")
    if quant_axis not in (-1, dims - 1):
        refuse(operator, f"quant_axis is {quant_axis}; the kernel takes the last axis")
    if axis % dims in (0, dims - 1) or not -dims <= axis < dims:
        refuse(operator, f"axis is {axis}; the kernel takes the axes between the first and the last")
    if updates.dtype not in _HALF:
        refuse(operator, f"updates is {updates.dtype}; the kernel takes float16 and bfloat16")
    pairs = indices.dim() == 2 and indices.shape[1] == 2
    if (indices.dim() != 1 and not pairs) or indices.dtype not in (torch.int32, torch.int64):
        refuse(operator, f"indices is {indices.dtype} {list(indices.shape)}; it must be int32 [n] or [n, 2]")
    count, length = updates.shape[0], updates.shape[axis]
    if indices.shape[0] != count or length > cache.shape[axis]:
        refuse(operator, f"updates of shape {list(updates.shape)} fits neither indices nor self {list(cache.shape)}")
    scaled = updates.to(torch.float32) / _on_axis(operator, updates, scales, -1, "quant_scales")
    if zero_points is not None:
        scaled = scaled + _on_axis(operator, updates, zero_points, -1, "quant_zero_points")
    values = quantised_to(scaled, dtype).view(torch.uint8).movedim(axis, 1)
    where = indices.to(torch.int64)
    rows = where[:, 0] if pairs else torch.arange(count, device=indices.device)
    begin = where[:, 1] if pairs else where
    places = begin.unsqueeze(1) + torch.arange(length, device=indices.device)
    cache.view(torch.uint8).movedim(axis, 1)[rows.unsqueeze(1), places] = values


@operator("npu_kronecker_quant")
def npu_kronecker_quant(
    x: torch.Tensor,
    kronecker_p1: torch.Tensor,
    kronecker_p2: torch.Tensor,
    clip_ratio: float | None = None,
    dst_dtype: int | None = None,
    dst_type_max: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise kronecker_p1 @ x @ kronecker_p2, by tokens to int4 or by blocks to FP4.

    Args:
        x: (M, N1, N2); float16 or bfloat16.
        kronecker_p1: (N1, N1), of the dtype of `x`.
        kronecker_p2: (N2, N2), of the dtype of `x`.
        clip_ratio: part of the largest value that counts for the scale, more than 0 and up to 1 (None).
        dst_dtype: int32 (None) for int4, eight values each; on the Ascend 950 also float4_e2m1fn_x2.
        dst_type_max: for FP4: 6 to 12, as npu_dynamic_mx_quant with algorithm 2; 0 for algorithm 0.

    Returns:
        (out, quant_scale): int32 (M, N1, N2 / 8) and float32 (M,), max |x| * clip_ratio / 7, or for FP4 uint8 (M, N1 *
        N2 / 2) and uint8 (M, ceil(N1 * N2 / 64), 2).

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnFlatQuantV2.md and flat_quant_high.h of ops-nn, KroneckerQuantKernelNpuOpApi.cpp.
    """
    name, ratio, largest = "npu_kronecker_quant", 1.0 if clip_ratio is None else clip_ratio, dst_type_max or 0.0
    wanted = CardDtype.int32 if dst_dtype is None else wanted_dtype(name, dst_dtype, (CardDtype.int32, FP4[0]))
    if x.dtype not in _HALF or kronecker_p1.dtype != x.dtype or kronecker_p2.dtype != x.dtype:
        found = f"{x.dtype}, {kronecker_p1.dtype} and {kronecker_p2.dtype}"
        refuse(name, f"the inputs are {found}; the kernel takes float16 or bfloat16 for all")
    if x.dim() != 3 or 0 in x.shape or max(x.shape[1:]) > 256:
        refuse(name, f"x of shape {list(x.shape)} must be [M, N1, N2], with N1 and N2 from 1 to 256")
    _, first, second = x.shape
    if tuple(kronecker_p1.shape) != (first, first) or tuple(kronecker_p2.shape) != (second, second):
        shapes = f"{list(kronecker_p1.shape)} and {list(kronecker_p2.shape)}"
        refuse(name, f"the factors of shape {shapes} must be [{first}, {first}] and [{second}, {second}]")
    if not 0 < ratio <= 1:
        refuse(name, f"clip_ratio is {ratio}; it must be more than 0 and up to 1")
    if wanted == CardDtype.int32 and second % 8:
        raise RuntimeError("input shape last dim must be divded by 8" + ops_error(ErrCode.PARAM))
    if wanted != CardDtype.int32 and second % 2:
        text = "The last dim input shape must be divisible by 2 if output dtype is torch_npu.float4_e2m1"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if largest and (wanted == CardDtype.int32 or not 6.0 <= largest <= 12.0):
        refuse(name, f"dst_type_max is {largest}; the kernel takes 6 to 12, for float4_e2m1fn_x2")
    right = torch.matmul(x.to(torch.float32), kronecker_p2.to(torch.float32)).to(x.dtype).to(torch.float32)
    product = torch.matmul(kronecker_p1.to(torch.float32), right)
    if wanted != CardDtype.int32:
        only_950(name, x, "dst_dtype float4_e2m1fn_x2")
        y, block_scale = mx_quantised(product.flatten(1), -1, FP4[0], "rint", 2 if largest else 0, largest=largest)
        return y.view(torch.float4_e2m1fn_x2), block_scale.view(torch.float8_e8m0fnu)
    product = product.to(torch.float16).to(torch.float32)  # as the kernel does before it looks for the largest value
    largest_of = product.abs().amax(dim=(1, 2))
    factor = torch.where(largest_of == 0, 7.0, 7.0 / ratio / largest_of)
    return quantised_to(product * factor[:, None, None], CardDtype.int4), largest_of * (ratio / 7.0)


@operator("npu_gelu_quant")
def npu_gelu_quant(
    self: torch.Tensor,
    *,
    input_scale: torch.Tensor | None = None,
    input_offset: torch.Tensor | None = None,
    approximate: str = "none",
    quant_mode: str = "dynamic",
    dst_type: int | None = None,
    round_mode: str = "rint",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """GELU, quantised: gelu(x) * input_scale + input_offset rounded, or by a scale for each token.

    Args:
        self: float16, bfloat16 or float32; 1 to 8 dimensions, at least 2 for "dynamic".
        input_scale: one, or one for each place on the last axis; needed for "static".
        input_offset: like `input_scale`; only for "static".
        approximate: "none" or "tanh".
        quant_mode: "dynamic" or "static".
        dst_type: int8 (None), hifloat8, float8_e5m2 or float8_e4m3fn.
        round_mode: "rint"; "round" for hifloat8.

    Returns:
        (y, scale): of the shape of the input; the scales in float32 without the last axis, None for "static".

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnGeluQuant.md of ops-nn and its golden code, GeluQuantKernelNpuOpApi.cpp.
    """
    name = "npu_gelu_quant"
    only_950(name, self)
    floating(name, self=self, input_scale=input_scale, input_offset=input_offset)
    if quant_mode not in ("dynamic", "static"):
        text = f"Parameter quant_mode must be 'dynamic' or 'static', got: {quant_mode}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if approximate not in ("none", "tanh"):
        refuse(name, f'approximate is "{approximate}"; the kernel takes "none" and "tanh"')
    kinds = (CardDtype.int8, CardDtype.hifloat8, *FP8)
    dtype = wanted_dtype(name, 1 if dst_type is None else dst_type, kinds)
    if round_mode != ("round" if dtype == CardDtype.hifloat8 else "rint"):
        refuse(name, f'round_mode is "{round_mode}"; for {dtype.name} it is not simulated')
    wide = torch.nn.functional.gelu(self.to(torch.float32), approximate=approximate)
    if input_scale is not None:
        wide = wide * _on_axis(name, self, input_scale, -1, "input_scale")
    if quant_mode == "dynamic":
        if input_offset is not None and self.dim() < 2:
            refuse(name, "dynamic needs two dimensions")
        return dynamic_tokens(wide, dtype)
    if input_scale is None:
        refuse(name, "static needs input_scale")
    if input_offset is not None:
        wide = wide + _on_axis(name, self, input_offset, -1, "input_offset")
    return quantised_to(wide, dtype), None  # torch makes an undefined tensor of it, as torch_npu returns


@operator("npu_quant_max")
def npu_quant_max(
    x: torch.Tensor,
    scale: torch.Tensor,
    *,
    round_mode: str = "rint",
    dst_dtype: int = 291,
    group_list: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with one scale, or one for each group of rows, and tell the largest absolute values.

    Args:
        x: float16, bfloat16 or float32.
        scale: float32, (1,) or one for each group: x is divided by it.
        round_mode: "rint"; "round" for hifloat8.
        dst_dtype: float8_e5m2, float8_e4m3fn or hifloat8.
        group_list: (G,) int64, the row after each group.

    Returns:
        (y, amax): of the shape of `x`; the largest absolute value of each group, in the dtype of `x`.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: test_npu_quant_max.py and QuantMaxKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_quant_max"
    only_950(name, x)
    floating(name, x=x)
    dtype = wanted_dtype(name, dst_dtype, (CardDtype.hifloat8, *FP8), "dst_dtype")
    if round_mode != ("round" if dtype == CardDtype.hifloat8 else "rint"):
        refuse(name, f'round_mode is "{round_mode}"; for {dtype.name} it is not simulated')
    count = 1 if group_list is None else group_list.shape[0]
    if scale.dtype != torch.float32 or scale.numel() != count:
        refuse(name, f"scale is {scale.dtype} {list(scale.shape)}; it must be float32 [{count}]")
    wide = x.to(torch.float32)
    flat = wide.reshape(x.shape[0], -1).abs()
    row_top = flat.amax(dim=1) if flat.shape[1] else flat.new_zeros(x.shape[0])
    group = row_top.new_zeros(x.shape[0], dtype=torch.int64)
    if group_list is not None and count > 1:
        group = group_rows(group_list, x.shape[0])
    amax = row_top.new_zeros(count).scatter_reduce(0, group, row_top, "amax")
    factor = scale.reshape(-1)[group].reshape(-1, *[1] * (x.dim() - 1))
    return quantised_to(wide / factor, dtype), amax.to(x.dtype)


@operator("npu_rotate_quant")
def npu_rotate_quant(
    x: torch.Tensor,
    rotation: torch.Tensor,
    *,
    alpha: torch.Tensor | None = None,
    dst_dtype: int | None = None,
    axis: int | None = -1,
    round_mode: str | None = "rint",
    scale_alg: int | None = 0,
    dst_type_max: float | None = 0.0,
    transpose_y: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply pieces of K values by a K x K matrix, then quantise: by tokens, or by blocks on the Ascend 950.

    Args:
        x: (M, N), N divisible by K and from 128 to 16000, or on the Ascend 950 (..., N); float16 or bfloat16.
        rotation: (K, K) of the dtype of `x`, K from 16 to 1024; on the Ascend 950 K is 32, 64 or 128, and (N / K, K, K)
            is one matrix for each piece.
        alpha: on the Ascend 950: (1,) bfloat16 between 0 and 1, part of the largest value of 32 at which they are
            limited.
        dst_dtype: int8 (None), or quint4x2 for int4, eight values in an int32; on the Ascend 950 float4_e2m1fn_x2 and
            FP8.
        axis: the last one.
        round_mode: "rint"; for FP4 also "round" and "floor".
        scale_alg: 0; on the Ascend 950 also 1 and 2 as npu_dynamic_mx_quant.
        dst_type_max: 0; 6 to 12 for algorithm 2.
        transpose_y: False.

    Returns:
        (y, scale): int8 (M, N) or int32 (M, N / 8), and float32 (M,); or as npu_dynamic_mx_quant, with the scale as
        float8_e8m0fnu.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnRotateQuant.md of ops-nn, RotateQuantKernelNpuOpApi.cpp.
    """
    name, largest, algorithm = "npu_rotate_quant", dst_type_max or 0.0, scale_alg or 0
    if transpose_y:
        text = (
            "In the current CANN version, for aclnnRotateQuant, the parameter transpose_y only supports False. "
            "Please set transpose_y=False."
        )
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    place = -1 if axis is None else axis
    if not -x.dim() <= place < x.dim():
        raise RuntimeError("Param (axis) is out of input dimension range" + ops_error(ErrCode.PARAM))
    if place % x.dim() != x.dim() - 1:
        refuse(name, f"axis is {axis}; the kernel takes the last one")
    if x.dtype not in _HALF or rotation.dtype != x.dtype or not x.numel():
        refuse(name, f"x is {x.dtype} {list(x.shape)} and rotation {rotation.dtype}; both must be half of one dtype")
    length, size = x.shape[-1], rotation.shape[-1]
    if rotation.dim() not in (2, 3) or rotation.shape[-2] != size or length % size:
        refuse(name, f"rotation of shape {list(rotation.shape)} must be [K, K] with K a divisor of {length}")
    is_int4 = dst_dtype == _QUINT4X2
    if is_int4 and length % 8:
        text = "Input shape last dim must be divisible by 8 when int4 quantization"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    pieces = torch.unflatten(x.to(torch.float32), -1, (length // size, 1, size))
    turned = torch.matmul(pieces, rotation.to(torch.float32)).flatten(-3)
    if is_int4 or dst_dtype is None or card_dtype(dst_dtype) == CardDtype.int8:
        if x.dim() != 2 or rotation.dim() != 2 or alpha is not None or algorithm or largest or round_mode != "rint":
            refuse(name, "int8 and int4 take x [M, N], rotation [K, K], no alpha, scale_alg 0 and round_mode rint")
        if length % 8 or not 128 <= length <= 16000 or not 16 <= size <= 1024:
            refuse(name, f"x has {length} columns and rotation {size}; N is 128 to 16000 in steps of 8, K 16 to 1024")
        return dynamic_tokens(turned, CardDtype.int4 if is_int4 else CardDtype.int8)
    kinds: dict[CardDtype, tuple[int, ...]] = {FP4[0]: (0, 2), FP4[1]: (), FP8[0]: (0, 1), FP8[1]: (0, 1)}
    dtype = check_mx(name, x, dst_dtype, round_mode or "rint", algorithm, kinds)
    if size not in (32, 64, 128) or (rotation.dim() == 3 and rotation.shape[0] != length // size):
        refuse(name, f"rotation of shape {list(rotation.shape)} must be [K, K] or [N / K, K, K] with K 32, 64 or 128")
    if (algorithm == 2) != (6.0 <= largest <= 12.0) or (algorithm != 2 and largest):
        refuse(name, f"dst_type_max is {largest}; the kernel takes 6 to 12 for scale_alg 2, else 0")
    if alpha is not None:
        groups = torch.unflatten(turned, -1, (length // 32, 32))
        top = groups.abs().amax(dim=-1, keepdim=True)
        part = alpha.to(torch.float32).reshape(())
        limit = torch.where((part > 0) & (part < 1), part * top, top)
        turned = groups.clamp(-limit, limit).flatten(-2)
    y, scale = mx_quantised(turned, -1, dtype, round_mode or "rint", algorithm, largest=largest)
    return y, scale.view(torch.float8_e8m0fnu)


@operator("_npu_quantize_per_tensor")
def npu_quantize_per_tensor(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, y: torch.Tensor) -> None:
    """Quantise into int8: round(x / scale) + zero_point, limited to -128 to 127.

    Args:
        x: float16 or bfloat16.
        scale: of the dtype of `x`; it broadcasts to `x`.
        zero_point: int8, of the shape of `scale`, or empty for 0.
        y: int8, of the shape of `x`; the result is written into it.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: QuantPerTensorAtb.cpp and test_atb_quant_per_tensor.py of op-plugin.
    """
    name = "_npu_quantize_per_tensor"
    for tensor in (x, scale, zero_point, y):
        if tensor.dim() > 8:
            raise RuntimeError(f"ATB tensor supports at most 8 dimensions, but got {tensor.dim()}")
    if x.dtype not in _HALF or scale.dtype != x.dtype:
        refuse(name, f"x is {x.dtype} and scale {scale.dtype}; the kernel takes float16 or bfloat16 for both")
    if y.dtype != torch.int8 or y.shape != x.shape:
        refuse(name, f"y is {y.dtype} {list(y.shape)}; it must be int8 {list(x.shape)}")
    if zero_point.dtype != torch.int8:
        refuse(name, f"zero_point is {zero_point.dtype}; the kernel takes int8")
    whole = (x.to(torch.float32) / scale.to(torch.float32)).round()
    if zero_point.numel():
        whole = whole + zero_point.to(torch.float32)
    y.copy_(quantised_to(whole, CardDtype.int8))
