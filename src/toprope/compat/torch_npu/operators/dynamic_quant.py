"""Dynamic quantisation: scales are computed from the values, for each token, channel, tensor or block.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_dynamic_quant.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from ..dtype_numbers import CardDtype
from .checks import refuse
from .low_precision import FP8, LARGEST, group_rows, only_950, quantised_to, wanted_dtype
from .registry import operator

__all__ = [
    "dynamic_scale",
    "dynamic_tokens",
    "npu_dynamic_block_quant",
    "npu_dynamic_quant",
    "npu_dynamic_quant_asymmetric",
    "npu_grouped_dynamic_block_quant",
]

_QUINT4X2 = 16
"""torch's number of quint4x2, which stands for int4."""

_HALF = (torch.float16, torch.bfloat16)


def dynamic_scale(values: torch.Tensor, largest: float, axes: tuple[int, ...]) -> torch.Tensor:
    """max |values| / largest over the axes, which stay with size 1; float32."""
    if 0 in [values.shape[axis] for axis in axes]:
        return values.new_zeros([1 if at - values.dim() in axes else n for at, n in enumerate(values.shape)])
    return values.abs().amax(dim=axes, keepdim=True) / largest


def dynamic_tokens(values: torch.Tensor, dtype: CardDtype = CardDtype.int8) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise each row of float32 values by its own scale.

    Returns:
        the values in the dtype, and the scales in float32 without the last axis.
    """
    scale = dynamic_scale(values, LARGEST[dtype], (-1,))
    return quantised_to(values / scale, dtype), scale.squeeze(-1)


@operator("npu_dynamic_quant")
def npu_dynamic_quant(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric dynamic quantisation: scale = max |x| / largest, y = round(x / scale).

    Args:
        input: two or more dimensions; float16 or bfloat16.
        smooth_scales: factors of x, of its dtype: (H,) for the last axis, (E, H) with `group_index`, and for
            "perchannel" as many as the second axis from the end.
        group_index: (E,) int32, increasing: row i of `smooth_scales` is for the tokens before group_index[i].
        dst_type: int8 (None), or quint4x2 for int4; on the Ascend 950 also float8_e4m3fn, float8_e5m2 and hifloat8.
        quant_mode: "pertoken"; on the Ascend 950 also "perchannel" and "pertensor".
        dst_type_max: largest value for hifloat8, instead of its own.

    Returns:
        (y, scale): y like the input, int4 as int32 with eight values each; scale in float32, without the axis over
        which the largest value is taken, (1,) for "pertensor".

    Raises:
        RuntimeError: an input or mode that the kernel does not take.

    Source: aclnnDynamicQuantV2.md, V3 and V4 of ops-nn with the golden code; DynamicQuantKernelNpuOpApi.cpp.
    """
    name = "npu_dynamic_quant"
    dtype, values, axes = _prepared(name, input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max)
    scale = dynamic_scale(values, dst_type_max or LARGEST[dtype], axes)
    return quantised_to(values / scale, dtype), _without(scale, quant_mode)


@operator("npu_dynamic_quant_asymmetric")
def npu_dynamic_quant_asymmetric(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Asymmetric dynamic quantisation: y = round(x / scale + offset).

    scale = (max x - min x) / (largest - smallest) and offset = largest - max x / scale, with 127 and -128 for int8 and
    7 and -8 for int4. The arguments and errors are those of npu_dynamic_quant.

    Returns:
        (y, scale, offset): as npu_dynamic_quant; the offset is float32 and of the shape of the scale.
    """
    name = "npu_dynamic_quant_asymmetric"
    dtype, values, axes = _prepared(name, input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max)
    largest = dst_type_max or LARGEST[dtype]
    width = 2 * largest + (1 if dtype in (CardDtype.int8, CardDtype.int4) else 0)
    if not values.numel():
        empty = dynamic_scale(values, largest, axes)
        scale = _without(empty, quant_mode)
        return quantised_to(values, dtype), scale, torch.full_like(scale, largest)
    top, bottom = values.amax(dim=axes, keepdim=True), values.amin(dim=axes, keepdim=True)
    scale = (top - bottom) / width
    offset = largest - top / scale
    y = quantised_to(values / scale + offset, dtype)
    return y, _without(scale, quant_mode), _without(offset, quant_mode)


def _prepared(
    operator: str,
    x: torch.Tensor,
    smooth: torch.Tensor | None,
    group_index: torch.Tensor | None,
    dst_type: int | None,
    mode: str,
    largest: float,
) -> tuple[CardDtype, torch.Tensor, tuple[int, ...]]:
    """Check the arguments; dtype of the result, values with the smooth scales in float32, and axes of the maximum."""
    if x.dim() < 2:
        raise RuntimeError("Input shape dim should be greater than 1" + ops_error(ErrCode.PARAM))
    if x.dtype not in _HALF:
        refuse(operator, f"input is {x.dtype}; the kernel takes float16 and bfloat16")
    dtype = _token_dtype(operator, x, dst_type)
    if mode not in ("pertoken", "perchannel", "pertensor"):
        refuse(operator, f'quant_mode is "{mode}"; the kernel takes "pertoken", "perchannel" and "pertensor"')
    if mode != "pertoken":
        only_950(operator, x, f'quant_mode "{mode}"')
        if group_index is not None:
            refuse(operator, f'quant_mode "{mode}" takes no group_index')
    if largest and dtype != CardDtype.hifloat8:
        refuse(operator, "dst_type_max is only for hifloat8")
    if not 0 <= largest <= LARGEST[CardDtype.hifloat8]:
        refuse(operator, f"dst_type_max is {largest}; the kernel takes 0 to 32768")
    wide = x.to(torch.float32)
    if group_index is not None and smooth is None:
        refuse(operator, "group_index needs smooth_scales")
    if smooth is not None:
        wide = wide * _factors(operator, x, smooth, group_index, mode)
    axes = {"pertoken": (-1,), "perchannel": (-2,)}.get(mode, tuple(range(-x.dim(), 0)))
    return dtype, wide, axes


def _token_dtype(operator: str, x: torch.Tensor, dst_type: int | None) -> CardDtype:
    if dst_type == _QUINT4X2:
        if x.shape[-1] % 8:
            text = "Input shape last dim must be divded by 8 when int4 quantization"  # spelled as torch_npu prints it
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
        return CardDtype.int4
    if dst_type is None:
        return CardDtype.int8
    dtype = wanted_dtype(operator, dst_type, (CardDtype.int8, CardDtype.hifloat8, *FP8))
    if dtype != CardDtype.int8:
        only_950(operator, x, f"dst_type {dtype.name}")
    return dtype


def _factors(
    operator: str, x: torch.Tensor, smooth: torch.Tensor, group_index: torch.Tensor | None, mode: str
) -> torch.Tensor:
    if smooth.dtype != x.dtype:
        refuse(operator, f"smooth_scales is {smooth.dtype} and the input {x.dtype}; they must have one dtype")
    wide, last = smooth.to(torch.float32), x.shape[-1]
    if mode == "perchannel":
        if tuple(smooth.shape) != (x.shape[-2],):
            refuse(operator, f"smooth_scales of shape {list(smooth.shape)} must be [{x.shape[-2]}] for perchannel")
        return wide.unsqueeze(-1)
    if group_index is None:
        if tuple(smooth.shape) != (last,):
            refuse(operator, f"smooth_scales of shape {list(smooth.shape)} must be [{last}], as the input's last axis")
        return wide
    if group_index.dtype != torch.int32 or group_index.dim() != 1:
        refuse(operator, f"group_index is {group_index.dtype} {list(group_index.shape)}; it must be int32 [E]")
    if tuple(smooth.shape) != (group_index.shape[0], last):
        expected = [group_index.shape[0], last]
        refuse(operator, f"smooth_scales of shape {list(smooth.shape)} must be {expected} with this group_index")
    rows = x.shape[:-1].numel()
    return wide[group_rows(group_index, rows)].reshape(x.shape)


def _without(scale: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "pertensor":
        return scale.reshape(1)
    return scale.squeeze(-1 if mode == "pertoken" else -2)


@operator("npu_dynamic_block_quant")
def npu_dynamic_block_quant(
    x: torch.Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: int = 1,
    row_block_size: int = 1,
    col_block_size: int = 128,
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dynamic quantisation by blocks of the last two axes: scale = min(max |x| / largest, 1 / min_scale).

    Args:
        x: (M, N) or (B, M, N); float16 or bfloat16, on the Ascend 950 also float32. Infinite values and NaN do not
            count for the scale.
        min_scale: 0 for no limit of the scale.
        round_mode: "rint"; "round" for hifloat8.
        dst_type: int8; on the Ascend 950 also hifloat8, float8_e5m2 and float8_e4m3fn.
        row_block_size: rows of a block: 1; on the Ascend 950 also 128, 256 and 512.
        col_block_size: columns of a block: 1 or 128; on the Ascend 950 64, 128, 192 or 256.
        dst_type_max: largest value for hifloat8 (15, 56, 224 or 32768), instead of its own.

    Returns:
        (y, scale): x / scale rounded, of the shape of x; scale in float32, one for each block.

    Raises:
        RuntimeError: an argument that the kernel does not take.

    Source: aclnnDynamicBlockQuantV2.md of ops-nn and its golden code.
    """
    name = "npu_dynamic_block_quant"
    if x.dim() not in (2, 3):
        raise RuntimeError("x must be 2 or 3 dimensional." + ops_error(ErrCode.NOT_SUPPORT))
    dtype = wanted_dtype(name, dst_type, (CardDtype.int8, CardDtype.hifloat8, *FP8))
    _check_blocks(name, x, dtype, round_mode, (row_block_size, col_block_size), min_scale)
    if dst_type_max and (dtype != CardDtype.hifloat8 or dst_type_max not in (15.0, 56.0, 224.0, 32768.0)):
        refuse(name, f"dst_type_max is {dst_type_max}; the kernel takes 15, 56, 224 and 32768, for hifloat8")
    clean = _finite(x)
    rows, columns = x.shape[-2:]
    padded = torch.nn.functional.pad(clean, (0, -columns % col_block_size, 0, -rows % row_block_size))
    blocks = torch.unflatten(torch.unflatten(padded, -1, (-1, col_block_size)), -3, (-1, row_block_size))
    scale = _limited(blocks.abs().amax(dim=(-3, -1)), dst_type_max or LARGEST[dtype], min_scale)
    wide = scale.repeat_interleave(row_block_size, -2).repeat_interleave(col_block_size, -1)
    return _divided(x, wide[..., :rows, :columns], dtype, round_mode), scale


@operator("npu_grouped_dynamic_block_quant")
def npu_grouped_dynamic_block_quant(
    x: torch.Tensor,
    group_list: torch.Tensor,
    *,
    min_scale: float = 0.0,
    round_mode: str = "rint",
    dst_type: int = 291,
    row_block_size: int = 1,
    col_block_size: int = 128,
    group_list_type: int = 0,
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_dynamic_block_quant within groups of rows: a block does not cross the end of its group.

    Args:
        x: (M, N) or (B, M, N); float16 or bfloat16.
        group_list: (G,) int32, the row after each group, increasing up to M.
        min_scale: 0 for no limit of the scale.
        round_mode: "rint"; "round" for hifloat8.
        dst_type: float8_e5m2, float8_e4m3fn or hifloat8.
        row_block_size: rows of a block: 1, 128, 256 or 512.
        col_block_size: columns of a block: 64, 128, 192 or 256.
        group_list_type: 0.
        dst_type_max: largest value for hifloat8, instead of its own.

    Returns:
        (y, scale): y of the shape of x; scale in float32 of M // row_block_size + G rows: block b of group i, which
        begins at row s, has row s // row_block_size + i + b. The rows between hold 0.

    Raises:
        RuntimeError: an argument that the kernel does not take, or another chip than the Ascend 950.

    Source: aclnnGroupedDynamicBlockQuantV2.md of ops-nn and its golden code.
    """
    name = "npu_grouped_dynamic_block_quant"
    only_950(name, x)
    if row_block_size == 0:
        text = "[npu_grouped_dynamic_block_quant]: row_block_size cannot be zero."
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if group_list.dim() != 1:
        raise RuntimeError(f"group_list must be 1D tensor, got dim = {group_list.dim()}")
    if group_list_type:
        refuse(name, f"group_list_type is {group_list_type}; the kernel takes 0")
    if x.dim() not in (2, 3):
        raise RuntimeError("x must be 2 or 3 dimensional." + ops_error(ErrCode.NOT_SUPPORT))
    dtype = wanted_dtype(name, dst_type, (CardDtype.hifloat8, *FP8))
    _check_blocks(name, x, dtype, round_mode, (row_block_size, col_block_size), min_scale)
    if x.dtype == torch.float32:
        refuse(name, "x is torch.float32; the kernel takes float16 and bfloat16")
    if dst_type_max and (dtype != CardDtype.hifloat8 or not 0 < dst_type_max <= 32768):
        refuse(name, f"dst_type_max is {dst_type_max}; the kernel takes up to 32768, for hifloat8")
    rows, columns = x.shape[-2:]
    slot = group_slots(group_list, rows, row_block_size, row_block_size)
    padded = torch.nn.functional.pad(_finite(x).abs(), (0, -columns % col_block_size))
    parts = torch.unflatten(padded, -1, (-1, col_block_size)).amax(dim=-1)
    slots = rows // row_block_size + group_list.shape[0]
    largest = parts.new_zeros((*parts.shape[:-2], slots, parts.shape[-1]))
    largest = largest.scatter_reduce(-2, slot.unsqueeze(-1).expand(parts.shape), parts, "amax")
    scale = _limited(largest, dst_type_max or LARGEST[dtype], min_scale)
    wide = scale.index_select(-2, slot).repeat_interleave(col_block_size, -1)[..., :columns]
    return _divided(x, wide, dtype, round_mode), scale


def group_slots(ends: torch.Tensor, rows: int, block: int, unit: int) -> torch.Tensor:
    """Place of the scale of each row, if each group begins at a new place.

    Args:
        ends: (G,) the row after each group.
        rows: of all groups.
        block: rows that share a scale.
        unit: rows for which places are kept; the multiple of `block` by which groups are aligned.

    Returns:
        (rows,) int64: (unit / block) * (start // unit + group) + (row - start) // block.
    """
    group = group_rows(ends, rows)
    starts = torch.cat((ends.new_zeros(1), ends))[:-1].to(torch.int64)
    start = starts[group]
    row = torch.arange(rows, device=ends.device)
    return (start // unit + group) * (unit // block) + (row - start) // block


def _check_blocks(
    operator: str, x: torch.Tensor, dtype: CardDtype, round_mode: str, sizes: tuple[int, int], min_scale: float
) -> None:
    if x.dtype not in (*_HALF, torch.float32):
        refuse(operator, f"x is {x.dtype}; the kernel takes float16, bfloat16 and float32")
    if min_scale < 0:
        refuse(operator, f"min_scale is {min_scale}; it cannot be negative")
    mode = "round" if dtype == CardDtype.hifloat8 else "rint"
    if round_mode != mode:
        refuse(operator, f'round_mode is "{round_mode}"; for {dtype.name} only "{mode}" is simulated')
    row_size, column_size = sizes
    if row_size not in (1, 128, 256, 512):
        refuse(operator, f"row_block_size is {row_size}; the kernel takes 1, 128, 256 and 512")
    if column_size not in (1, 64, 128, 192, 256):
        refuse(operator, f"col_block_size is {column_size}; the kernel takes 64, 128, 192 and 256")
    special = dtype != CardDtype.int8 or row_size != 1 or column_size not in (1, 128) or x.dtype == torch.float32
    if special:
        only_950(operator, x, f"{dtype.name} with blocks of {row_size} x {column_size} for {x.dtype}")
    if not x.numel():
        refuse(operator, "x is empty")


def _finite(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    return torch.where(torch.isfinite(wide), wide, 0.0)


def _limited(largest: torch.Tensor, top: float, min_scale: float) -> torch.Tensor:
    scale = largest / top
    return scale.clamp(max=1 / min_scale) if min_scale else scale


def _divided(x: torch.Tensor, scale: torch.Tensor, dtype: CardDtype, round_mode: str) -> torch.Tensor:
    wide = x.to(torch.float32)
    return quantised_to(torch.where(torch.isfinite(wide), wide / scale, wide), dtype, round_mode)
