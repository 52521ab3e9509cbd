"""Grouped matrix products with what follows them: npu_grouped_matmul_swiglu_quant and ..._finalize_routing.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_grouped_matmul.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: torch_npu-npu_grouped_matmul_swiglu_quant_v2.md, torch_npu-npu_grouped_matmul_finalize_routing.md, and the C++
and the tests of these operators, in Ascend/op-plugin.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .evaluation import has_values
from .formats import Format, format_of
from .grouped_matmul import msd_product
from .integer_matmul import (
    groups_of_rows,
    integer_matmul,
    integers_of,
    logical_columns,
    not_simulated,
    scaled_by_group,
    unpacked_scale,
)
from .registry import operator

__all__ = [
    "npu_grouped_matmul_finalize_routing",
    "npu_grouped_matmul_swiglu_quant",
    "npu_grouped_matmul_swiglu_quant_v2",
]

_FLOAT32 = (None, 0, 6)
"""Numbers that stand for float32: the operator's default and torch's."""


def _experts_of(weight: torch.Tensor) -> torch.Tensor:
    """Weight as (experts, k, n), also of five dimensions: (experts, n / n0, k / 16, 16, n0), tile by tile.

    A view with five dimensions of a tensor that npu_format_cast made has its values in torch's order here.
    """
    if weight.dim() != 5:
        return integers_of(weight)
    experts, outer_n, outer_k, inner_k, inner_n = weight.shape
    if weight.device.type == "npu" and type(weight) is torch.Tensor and format_of(weight) is Format.FRACTAL_NZ:
        return integers_of(weight.reshape(experts, outer_k * inner_k, outer_n * inner_n))
    return integers_of(weight).permute(0, 2, 3, 1, 4).reshape(experts, outer_k * inner_k, -1)


def _quantised(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 of the rows of a matrix, and their scales: the largest absolute value over 127."""
    largest = value.abs().amax(dim=-1) if value.shape[-1] else value.new_zeros(value.shape[:-1])
    factor = torch.where(largest == 0, 0.0, 127 / largest)
    return torch.round(value * factor.unsqueeze(-1)).to(torch.int8), largest / 127


def _swiglu(value: torch.Tensor) -> torch.Tensor:
    activated, gate = value.chunk(2, dim=-1)
    return torch.nn.functional.silu(activated) * gate


def _swiglu_quant(
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    kind: int,
    assist: torch.Tensor | None,
    smooth: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    pair = (x.dtype, weight.dtype)
    if pair not in ((torch.int8, torch.int8), (torch.int8, torch.int32), (torch.int32, torch.int32)):
        refuse(name, f"x is {x.dtype} and weight {weight.dtype}; int8, and int32 of 4-bit values, are simulated")
    if x.dim() != 2 or weight.dim() not in (3, 5):
        refuse(name, f"x has {x.dim()} dimensions and weight {weight.dim()}; the kernel takes 2, and 3 or 5")
    four_bit = pair == (torch.int8, torch.int32)
    if (assist is not None) != four_bit:
        refuse(name, "an x of int8 with 4-bit weights, and nothing else, takes the assist matrix of the weight")
    if smooth is not None and pair != (torch.int32, torch.int32):
        refuse(name, "smooth_scale takes an x and a weight of 4-bit values")
    if weight_scale.dim() not in (2, 3) or weight_scale.shape[0] != weight.shape[0]:
        refuse(name, f"weight_scale has the shape {list(weight_scale.shape)}, and there are {weight.shape[0]} experts")
    rows, columns = x.shape[0], weight_scale.shape[-1]
    result = x.new_zeros((rows, columns // 2), dtype=torch.int8)
    scales = x.new_zeros((rows,), dtype=torch.float32)
    if not (has_values(x) and has_values(group_list)):
        return result, scales
    first, second = integers_of(x), _experts_of(weight)
    if second.shape[1:] != (first.shape[1], columns):
        shapes = f"x {list(x.shape)}, weight {list(weight.shape)} and weight_scale {list(weight_scale.shape)}"
        refuse(name, f"{shapes} do not fit together")
    for group in groups_of_rows(name, group_list, kind, second.shape[0], rows):
        part, number = slice(group.begin, group.end), group.expert
        if group.begin == group.end:
            continue
        factor, _ = unpacked_scale(weight_scale[number], all_bits=True)
        if four_bit:
            assert assist is not None
            value = msd_product(first[part], second[number], weight_scale[number], assist[number])
        elif factor.dim() == 1:
            value = integer_matmul(first[part], second[number]).to(torch.float32) * factor
        else:
            value = scaled_by_group(first[part], second[number], factor)
        value = _swiglu(value * x_scale[part].to(torch.float32).unsqueeze(-1))
        if smooth is not None:
            value = value * smooth[number]
        result[part], scales[part] = _quantised(value)
    return result, scales


@operator("npu_grouped_matmul_swiglu_quant")
def npu_grouped_matmul_swiglu_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    weight_scale: torch.Tensor,
    x_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """SwiGLU of a grouped product of quantised matrices, quantised again.

    For each group, c = x @ weight * weight_scale * x_scale; s = silu(first half of c) * second half; the scale is the
    largest absolute value of a row of s over 127, and the result s over that, rounded.

    Args:
        x: (m, k), int8.
        weight: (experts, k, n), int8, or tile by tile (experts, n / 32, k / 16, 16, 32); or int32 of eight 4-bit values
            each.
        group_list: (experts,) int64: running totals of the rows.
        weight_scale: (experts, n), float32; int64 with the bits of float32 for 4-bit weights, also
            (experts, parts of k, n).
        x_scale: (m,), float32.
        bias: (experts, n), float32: for 4-bit weights, 8 times the column sums of weight * weight_scale.
        offset: None.

    Returns:
        (m, n / 2) int8, (m,) float32, and an empty third one. Rows behind the last group are 0.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_grouped_matmul_swiglu_quant"
    if offset is not None:
        refuse(name, "offset must be None")
    result, scale = _swiglu_quant(name, x, weight, weight_scale, x_scale, group_list, 0, bias, None)
    return result, scale, x.new_zeros((), dtype=torch.float32)


@operator("npu_grouped_matmul_swiglu_quant_v2")
def npu_grouped_matmul_swiglu_quant_v2(
    x: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_scale: Sequence[torch.Tensor],
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    smooth_scale: torch.Tensor | None = None,
    weight_assist_matrix: Sequence[torch.Tensor] | None = None,
    bias: torch.Tensor | None = None,
    dequant_mode: int | None = 0,
    dequant_dtype: int | None = 6,
    quant_mode: int | None = 0,
    quant_dtype: int | None = 1,
    group_list_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    weight_scale_dtype: int | None = None,
    x_scale_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`npu_grouped_matmul_swiglu_quant` with lists, and for an x of 4-bit values.

    Args:
        x: (m, k) int8, or int32 of eight 4-bit values each.
        weight: one tensor, as for npu_grouped_matmul_swiglu_quant.
        weight_scale: one tensor, as for npu_grouped_matmul_swiglu_quant.
        x_scale: (m,), float32.
        group_list: (experts,) int64.
        smooth_scale: (experts, n / 2) or (experts,), for an x of 4-bit values: multiplies what is quantised.
        weight_assist_matrix: one tensor (experts, n) float32, for an x of int8 and 4-bit weights: 8 times the column
            sums of weight * weight_scale.
        bias: None.
        dequant_mode: 0 for scales by columns, 1 by groups of k.
        dequant_dtype: float32.
        quant_mode: 0.
        quant_dtype: int8.
        group_list_type: 0 for running totals, 1 for sizes.
        tuning_config: has no effect on values.
        x_dtype: for the Ascend 950; not simulated, like the three after it.
        weight_dtype: see x_dtype.
        weight_scale_dtype: see x_dtype.
        x_scale_dtype: see x_dtype.

    Returns:
        (m, n / 2) int8 and (m,) float32. Rows behind the last group are 0.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_grouped_matmul_swiglu_quant_v2"
    not_simulated(
        name,
        x_dtype=x_dtype,
        weight_dtype=weight_dtype,
        weight_scale_dtype=weight_scale_dtype,
        x_scale_dtype=x_scale_dtype,
    )
    for label, tensors in (("weight", weight), ("weight_scale", weight_scale)):
        if len(tensors) != 1:
            text = f"The size of {label} should be 1, current size is {len(tensors)}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if bias is not None:
        refuse(name, "bias must be None")
    if dequant_mode not in (None, 0, 1) or quant_mode not in (None, 0):
        refuse(name, f"dequant_mode {dequant_mode} and quant_mode {quant_mode} are not simulated; 0 or 1, and 0 are")
    if dequant_dtype not in _FLOAT32 or quant_dtype not in (None, 0, 1):
        refuse(name, "the kernel takes a dequant_dtype of float32 and a quant_dtype of int8")
    if (dequant_mode == 1) != (weight_scale[0].dim() == 3):
        refuse(name, f"dequant_mode {dequant_mode} does not go with weight_scale {list(weight_scale[0].shape)}")
    smooth = smooth_scale
    if smooth is not None and smooth.dim() == 1:
        smooth = smooth.unsqueeze(-1)
    kind = group_list_type or 0
    if kind not in (0, 1):
        refuse(name, f"group_list_type is {kind}; the kernel takes 0 and 1")
    assist = weight_assist_matrix[0] if weight_assist_matrix else None
    return _swiglu_quant(name, x, weight[0], weight_scale[0], x_scale, group_list, kind, assist, smooth)


@operator("npu_grouped_matmul_finalize_routing")
def npu_grouped_matmul_finalize_routing(
    x: torch.Tensor,
    w: torch.Tensor,
    group_list: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    shared_input: torch.Tensor | None = None,
    logit: torch.Tensor | None = None,
    row_index: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    shared_input_weight: float | None = 1.0,
    shared_input_offset: int | None = 0,
    output_bs: int | None = 0,
    group_list_type: int | None = 1,
    tuning_config: Sequence[int] | None = None,
    x_dtype: int | None = None,
    w_dtype: int | None = None,
    scale_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
) -> torch.Tensor:
    """Grouped product of quantised matrices, of which the rows are added up by token.

    Row i of x @ w * scale * pertoken_scale, times logit[i], is added to row row_index[i] of the result; the rows of
    shared_input times shared_input_weight are added from row shared_input_offset on.

    Args:
        x: (m, k), int8.
        w: (experts, k, n), int8, or int32 of eight 4-bit values each.
        group_list: (experts,) int64.
        scale: (experts, n), float32; for 4-bit weights (experts, parts of k, n), int64 with the bits of float32.
        bias: (experts, n), float32: for 4-bit weights, 8 times the column sums of w * scale.
        offset: (experts, parts of k, n), float32, of 4-bit weights that are not symmetric.
        pertoken_scale: (m,), float32.
        shared_input: (rows, n), bfloat16.
        logit: (m,), float32.
        row_index: (m,), int64 or int32.
        dtype: float32 (None).
        shared_input_weight: factor of shared_input.
        shared_input_offset: first row that shared_input is added to.
        output_bs: rows of the result; 0 for m.
        group_list_type: 1 for sizes, 0 for running totals.
        tuning_config: has no effect on values.
        x_dtype: for the Ascend 950; not simulated, like the three after it.
        w_dtype: see x_dtype.
        scale_dtype: see x_dtype.
        pertoken_scale_dtype: see x_dtype.

    Returns:
        (output_bs, n), float32.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_grouped_matmul_finalize_routing"
    if group_list_type not in (0, 1):
        raise RuntimeError("only support group_list_type's value 0 or 1." + ops_error(ErrCode.PARAM))
    if x.dim() != 2 or w.dim() != 3:
        raise RuntimeError("x dim is 2 weight dim is 3" + ops_error(ErrCode.PARAM))
    not_simulated(
        name, x_dtype=x_dtype, w_dtype=w_dtype, scale_dtype=scale_dtype, pertoken_scale_dtype=pertoken_scale_dtype
    )
    if dtype not in (None, torch.float32):
        raise RuntimeError("The dtype should be float" + ops_error(ErrCode.PARAM))
    if x.dtype != torch.int8 or w.dtype not in (torch.int8, torch.int32):
        refuse(name, f"x is {x.dtype} and w {w.dtype}; int8 with int8, or with int32 of 4-bit values, is simulated")
    four_bit = w.dtype == torch.int32
    if scale is None or row_index is None:
        refuse(name, "scale and row_index are needed")
    if four_bit != (bias is not None) or (offset is not None and not four_bit):
        refuse(name, "4-bit weights need a bias; int8 weights take no bias and no offset")
    if row_index.dtype not in (torch.int32, torch.int64) or row_index.shape[0] != x.shape[0]:
        refuse(
            name, f"row_index is {row_index.dtype} {list(row_index.shape)}; it must be int32 or int64 [{x.shape[0]}]"
        )
    rows, columns = output_bs or x.shape[0], logical_columns(w)
    result = x.new_zeros((rows, columns), dtype=torch.float32)
    if not (has_values(x) and has_values(group_list)):
        return result
    weight = integers_of(w)
    if weight.shape[1] != x.shape[1]:
        refuse(name, f"x of shape {list(x.shape)} and w of shape {list(w.shape)} have different k")
    for group in groups_of_rows(name, group_list, group_list_type, w.shape[0], x.shape[0]):
        part, number = slice(group.begin, group.end), group.expert
        if four_bit:
            assert bias is not None
            shift = None if offset is None else offset[number]
            value = msd_product(x[part], weight[number], scale[number], bias[number], shift)
        else:
            factor, _ = unpacked_scale(scale[number])
            value = integer_matmul(x[part], weight[number]).to(torch.float32) * factor
        if pertoken_scale is not None:
            value = value * pertoken_scale[part].to(torch.float32).reshape(-1, 1)
        if logit is not None:
            value = value * logit[part].to(torch.float32).reshape(-1, 1)
        result.index_add_(0, row_index[part].to(torch.int64), value)
    if shared_input is not None:
        begin, end = shared_input_offset or 0, (shared_input_offset or 0) + shared_input.shape[0]
        if end > rows or shared_input.shape[1] != columns:
            refuse(name, f"shared_input {list(shared_input.shape)} from row {begin} does not fit {[rows, columns]}")
        share = 1.0 if shared_input_weight is None else shared_input_weight
        result[begin:end] += shared_input.to(torch.float32) * share
    return result
