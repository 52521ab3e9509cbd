"""Matrix products of groups of rows, one weight for each group: npu_grouped_matmul and npu_grouped_matmul_add.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_grouped_matmul.py and tests/sim/simulated/test_npu_matmul.py for
values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: torch_npu-npu_grouped_matmul.md, GroupedMatmulKernelNpuOpApi.cpp and GroupedMatmulAddNpuOpApi.cpp of
Ascend/op-plugin; test_npu_grouped_matmul.py there for the steps of the products with 4-bit weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .._error_codes import ErrCode, ops_error
from .activation import fast_gelu
from .checks import FLOATING, refuse
from .evaluation import has_values, on_950
from .integer_matmul import (
    Group,
    dequantised_weight,
    groups_of_rows,
    integer_matmul,
    integers_of,
    logical_columns,
    not_simulated,
    requantised,
    scaled_by_group,
    torch_dtype,
    unpacked_scale,
)
from .registry import operator

__all__ = ["msd_product", "npu_grouped_matmul", "npu_grouped_matmul_add", "npu_grouped_matmul_add_"]

_NAME = "npu_grouped_matmul"
_Tensors = Sequence[torch.Tensor] | None
_QUANTISED = ((torch.int8, torch.int8), (torch.int32, torch.int32), (torch.int8, torch.int32))
_MOST = 128
"""Tensors that the lists may have."""


def msd_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    assist: torch.Tensor | None,
    offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """Product of an int8 matrix and a 4-bit weight, as the card computes it with two 4-bit halves of the first.

    The halves are floor(x / 16) and (x mod 16) - 8, so that 16 times the one plus the other is x - 8: the product
    lacks 8 times the column sums of the scaled weight, which the caller passes as `assist`.

    Args:
        x: (m, k), int8.
        weight: (k, n), int8 values from -8 to 7.
        scale: (n,) or (groups, n): int64 with the bits of a float32, or float32.
        assist: (n,), added to each row; None for none.
        offset: (groups, n), of weights that are not symmetric: times the sum of a row's group, added.

    Returns:
        (m, n), float32.
    """
    factor, _ = unpacked_scale(scale, all_bits=True)
    factor = factor.reshape(-1, factor.shape[-1])
    total = scaled_by_group(x.to(torch.int16) - 8, weight, factor)
    if assist is not None:
        total = total + assist.to(torch.float32)
    if offset is not None:
        sums = x.to(torch.float32).reshape(x.shape[0], factor.shape[0], x.shape[1] // factor.shape[0]).sum(-1)
        total = total + sums @ offset.reshape(factor.shape).to(torch.float32)
    return total


@dataclass(frozen=True)
class _Arguments:
    """Arguments of npu_grouped_matmul for one group, taken from the lists."""

    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    antiquant_scale: torch.Tensor | None = None
    antiquant_offset: torch.Tensor | None = None
    per_token_scale: torch.Tensor | None = None


@dataclass(frozen=True)
class _Lists:
    """Weights and parameters of all groups.

    Attributes:
        weight: the list.
        stacked: whether it is one tensor of three dimensions, with one weight for each group.
        parameters: the optional lists, by name.
        act_type: number of the activation.
        dtype: of the results.
    """

    weight: Sequence[torch.Tensor]
    stacked: bool
    dtype: torch.dtype
    parameters: dict[str, _Tensors] = field(default_factory=dict)
    act_type: int = 0

    @property
    def count(self) -> int:
        """Number of weights."""
        return self.weight[0].shape[0] if self.stacked else len(self.weight)

    def weight_of(self, number: int) -> torch.Tensor:
        """Weight of a group, (k, n)."""
        return self.weight[0][number] if self.stacked else self.weight[number]

    def columns(self, number: int) -> int:
        """Columns of a group's result."""
        return logical_columns(self.weight_of(number))

    def of(self, number: int, rows: slice | None, source: int) -> _Arguments:
        """Parameters of a group.

        Args:
            number: of its weight.
            rows: its rows in `x`, or None for all.
            source: position of its `x` in the list.
        """
        by_weight = {name: tensors for name, tensors in self.parameters.items() if name != "per_token_scale"}
        found = {name: self._of_weight(tensors, number) for name, tensors in by_weight.items()}
        scales = self.parameters.get("per_token_scale")
        per_token = None
        if scales:
            per_token = scales[source if source < len(scales) else 0].reshape(-1)
            if rows is not None and per_token.shape[0] != 1:
                per_token = per_token[rows]
        return _Arguments(**{**found, "per_token_scale": per_token})

    def _of_weight(self, tensors: _Tensors, number: int) -> torch.Tensor | None:
        if not tensors or not tensors[0].numel():
            return None
        if not self.stacked or len(tensors) > 1:
            if len(tensors) != self.count:
                refuse(_NAME, f"a list of parameters has {len(tensors)} tensors, and there are {self.count} weights")
            return tensors[number]
        every = tensors[0]
        if every.shape[0] == self.count and (self.count > 1 or every.dim() > 1):
            return every[number]
        if self.count > 1:
            refuse(_NAME, f"a parameter has the shape {list(every.shape)}, and there are {self.count} weights")
        return every


def _activated(value: torch.Tensor, act_type: int) -> torch.Tensor:
    if act_type == 1:
        return value.relu()
    if act_type == 2:
        return torch.nn.functional.gelu(value, approximate="tanh")
    if act_type == 4:
        return fast_gelu(value)
    return torch.nn.functional.silu(value) if act_type == 5 else value


def _product(x: torch.Tensor, weight: torch.Tensor, given: _Arguments, lists: _Lists) -> torch.Tensor:
    """Result of one group: the formulas of the vendor's page."""
    dtype = lists.dtype
    if x.dtype in FLOATING:
        values = weight
        if not weight.is_floating_point():
            assert given.antiquant_scale is not None
            values = dequantised_weight(integers_of(weight), given.antiquant_scale, given.antiquant_offset, x.dtype)
        result = x.to(torch.float32) @ values.to(torch.float32)
        return (result if given.bias is None else result + given.bias.to(torch.float32)).to(dtype)
    per_token = None if given.per_token_scale is None else given.per_token_scale.to(torch.float32).unsqueeze(-1)
    if x.dtype == torch.int8 and weight.dtype == torch.int8:
        total = integer_matmul(x, weight)
        if given.bias is not None and given.bias.dtype == torch.int32:
            total = total + given.bias
        if dtype == torch.int32:
            return total
        assert given.scale is not None
        scale, offset = unpacked_scale(given.scale)
        if dtype == torch.int8:
            return requantised(total, scale, offset)
        result = total.to(torch.float32) * scale
    else:
        assert given.scale is not None
        if x.dtype == torch.int32:
            factor, _ = unpacked_scale(given.scale, all_bits=True)
            result = scaled_by_group(integers_of(x), integers_of(weight), factor.reshape(-1, factor.shape[-1]))
        else:
            result = msd_product(x, integers_of(weight), given.scale, given.bias, given.offset)
    if per_token is not None:
        result = result * per_token
    if given.bias is not None and given.bias.is_floating_point() and weight.dtype == torch.int8:
        result = result + given.bias.to(torch.float32)
    return _activated(result, lists.act_type).to(dtype)


def _result_dtype(x: torch.Tensor, weight: torch.Tensor, number: int | None) -> torch.dtype:
    plain = x.dtype in FLOATING and x.dtype == weight.dtype
    anti = x.dtype in (torch.float16, torch.bfloat16) and weight.dtype in (torch.int8, torch.int32)
    if not (plain or anti or (x.dtype, weight.dtype) in _QUANTISED):
        refuse(_NAME, f"x is {x.dtype} and weight {weight.dtype}; the kernel does not take them together")
    if x.dtype in FLOATING:
        return torch_dtype(_NAME, number, x.dtype, (x.dtype,))
    if x.dtype == torch.int8 and weight.dtype == torch.int8:
        return torch_dtype(_NAME, number, torch.int8, (torch.int8, torch.float16, torch.bfloat16, torch.int32))
    return torch_dtype(_NAME, number, x.dtype, (torch.float16, torch.bfloat16))


def _check_mode(lists: _Lists, x: torch.Tensor) -> None:
    """Refuse dtypes that the kernel does not take together, and parameters that are missing."""
    weight, given = lists.weight[0], lists.parameters
    pair = (x.dtype, weight.dtype)
    anti = x.dtype in FLOATING and x.dtype != weight.dtype
    quantised = x.dtype not in FLOATING
    if anti and not given.get("antiquant_scale"):
        refuse(_NAME, f"a weight of {weight.dtype} with x of {x.dtype} needs antiquant_scale")
    if quantised and not given.get("scale") and lists.dtype != torch.int32:
        refuse(_NAME, f"x of {x.dtype} with an output of {lists.dtype} needs scale")
    if lists.dtype == torch.int8 and given["scale"] and given["scale"][0].dtype not in (torch.int64, torch.uint64):
        refuse(
            _NAME, f"an output of int8 takes a scale of int64 (npu_trans_quant_param), not {given['scale'][0].dtype}"
        )
    if lists.act_type and not (quantised and given.get("per_token_scale")):
        refuse(_NAME, f"act_type is {lists.act_type}; only int8 with per_token_scale takes an activation")
    bias = given.get("bias")
    if bias and bias[0].numel():
        wide = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        taken: tuple[torch.dtype, ...] = (wide,)
        if quantised:
            taken = (torch.int32, *FLOATING) if pair == (torch.int8, torch.int8) else (torch.float32,)
        if bias[0].dtype not in taken:
            names = ", ".join(str(each).removeprefix("torch.") for each in taken)
            refuse(_NAME, f"bias is {bias[0].dtype}; with x of {x.dtype} the kernel takes {names}")


def _check_counts(split_item: int, count_x: int, count_weight: int, count_groups: int) -> None:
    if count_x == 0 or count_weight == 0:
        raise RuntimeError("Invalid inputs: neither x nor weight could be empty." + ops_error(ErrCode.PARAM))
    if split_item not in (0, 1, 2, 3):
        text = f"Invalid value of split_item [{split_item}], which should only be one of 0/1/2/3."
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if split_item in (2, 3):
        return
    if count_groups and (count_x != 1 or count_weight != count_groups):
        raise RuntimeError(
            "Invalid inputs. When split_item = 0 or 1 and input group_list is not None, the following two conditions "
            "are supposed to be satisfied: (1) length of x equals 1; (2) length of weight equals that "
            "of group_list. "
            f"Actual lengths: x [{count_x}], weight [{count_weight}], group_list [{count_groups}]."
            + ops_error(ErrCode.PARAM)
        )
    if not count_groups and count_x != count_weight:
        raise RuntimeError(
            "When split_item = 0 or 1 and input group_list is None, the num of x tensors must equal the num of weight "
            f"tensors.Actual lengths: x [{count_x}], weight [{count_weight}]." + ops_error(ErrCode.PARAM)
        )


def _check_depth(x: torch.Tensor, weight: torch.Tensor) -> None:
    depth = x.shape[-1] * (8 if x.dtype == torch.int32 else 1)
    rows = weight.shape[-2] * (8 if weight.dtype == torch.int32 and logical_columns(weight) == weight.shape[-1] else 1)
    if depth != rows:
        refuse(_NAME, f"x of shape {list(x.shape)} and a weight of shape {list(weight.shape)} have different k")


def _one_each(x: Sequence[torch.Tensor], lists: _Lists, split_item: int) -> list[torch.Tensor]:
    """One `x` for each weight."""
    if len(x) != lists.count:
        refuse(_NAME, f"there are {len(x)} x and {lists.count} weights, and no group_list")
    results = []
    for number, matrix in enumerate(x):
        weight = lists.weight_of(number)
        _check_depth(matrix, weight)
        if has_values(matrix):
            results.append(_product(matrix, weight, lists.of(number, None, number), lists))
        else:
            results.append(matrix.new_empty((*matrix.shape[:-1], lists.columns(number)), dtype=lists.dtype))
    return results if split_item in (0, 1) else [torch.cat(results)]


def _rows(x: torch.Tensor, lists: _Lists, groups: list[Group], split_item: int) -> list[torch.Tensor]:
    """Groups of rows of one `x`. Rows behind the last group are not computed; they are 0 here."""
    results = []
    for group in groups:
        rows, weight = slice(group.begin, group.end), lists.weight_of(group.expert)
        results.append(_product(x[rows], weight, lists.of(group.expert, rows, 0), lists))
    if split_item in (0, 1):
        return results
    rest = x.shape[0] - (groups[-1].end if groups else 0)
    return [torch.cat([*results, x.new_zeros((rest, lists.columns(0)), dtype=lists.dtype)])]


def _columns(
    x: torch.Tensor, lists: _Lists, group_list: torch.Tensor, kind: int, split_item: int
) -> list[torch.Tensor]:
    """Groups of columns of one `x`, each with as many rows of the weight: the sums run over the group."""
    if x.dtype not in FLOATING or lists.weight[0].dtype != x.dtype:
        refuse(_NAME, "group_type 2 takes only x and weight of one floating dtype")
    count, width = group_list.shape[0], lists.weight[0].shape[-1]
    single = len(lists.weight) == 1 and not lists.stacked
    if not has_values(x) or not has_values(group_list):
        sizes = [lists.columns(number) for number in range(lists.count)]
        if split_item in (0, 1):
            return [x.new_empty((x.shape[0], size), dtype=lists.dtype) for size in sizes]
        return [x.new_empty((count, x.shape[0], width), dtype=lists.dtype)]
    if single and x.shape[1] != lists.weight[0].shape[0]:
        _check_depth(x, lists.weight[0])
    groups = groups_of_rows(_NAME, group_list, kind, count, x.shape[1])
    results = []
    for number, group in enumerate(groups):
        weight = lists.weight[0][group.begin : group.end] if single else lists.weight_of(number)
        part = x[:, group.begin : group.end]
        _check_depth(part, weight)
        results.append((part.to(torch.float32) @ weight.to(torch.float32)).to(lists.dtype))
    return results if split_item in (0, 1) else [torch.stack(results)]


def _lists_of(
    x: Sequence[torch.Tensor], weight: Sequence[torch.Tensor], output: int | None, act_type: int, **given: _Tensors
) -> _Lists:
    if len(x) > _MOST or len(weight) > _MOST:
        refuse(_NAME, f"x has {len(x)} tensors and weight {len(weight)}; the kernel takes up to {_MOST}")
    if act_type not in (0, 1, 2, 4, 5):
        refuse(_NAME, f"act_type is {act_type}; the kernel takes 0, 1, 2, 4 and 5")
    stacked = len(weight) == 1 and weight[0].dim() == 3
    if not stacked and any(each.dim() != 2 for each in weight):
        refuse(_NAME, "a weight must have 2 dimensions, or 3 where it is the only one")
    lists = _Lists(weight, stacked, _result_dtype(x[0], weight[0], output), given, act_type)
    _check_mode(lists, x[0])
    return lists


@operator("npu_grouped_matmul")
def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: _Tensors = None,
    scale: _Tensors = None,
    offset: _Tensors = None,
    antiquant_scale: _Tensors = None,
    antiquant_offset: _Tensors = None,
    per_token_scale: _Tensors = None,
    group_list: torch.Tensor | None = None,
    activation_input: _Tensors = None,
    activation_quant_scale: _Tensors = None,
    activation_quant_offset: _Tensors = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[torch.Tensor]:
    """Products of groups of rows (or columns) of `x`, each with a weight of its own.

    For each group, with y in the output dtype, by the dtypes of x and weight:

    - both float16, bfloat16 or float32: y = x @ weight + bias
    - float16 or bfloat16 with int8 or int4: y = x @ ((weight + antiquant_offset) * antiquant_scale) + bias
    - both int8, bias int32: y = (x @ weight + bias) * scale * per_token_scale; a floating bias is added at the end
    - both int4: y = x @ (weight * scale) * per_token_scale
    - int8 with int4: y = ((x - 8) @ (weight * scale) + bias) * per_token_scale; bias has 8 times the column sums of
      weight * scale, since the kernel computes with halves of 4 bits

    Args:
        x: matrices (m, k); one, or as many as weights. Without groups also with more dimensions. int32 holds eight
            4-bit values each.
        weight: matrices (k, n), or one tensor (groups, k, n).
        bias: for each weight (n,), or one tensor (groups, n).
        scale: as `bias`; int64 (from npu_trans_quant_param) for an int8 output, else float32, bfloat16 or int64. For
            4-bit weights int64 with the bits of float32, (groups, parts of k, n) or (groups, n).
        offset: of 4-bit weights with int8 x, (groups, parts of k, n).
        antiquant_scale: (n,) or (parts of k, n) for each weight, or one tensor with an axis of groups.
        antiquant_offset: of the same shape.
        per_token_scale: (m,) float32 for each x.
        group_list: int64; see `group_list_type`.
        activation_input: None.
        activation_quant_scale: None.
        activation_quant_offset: None.
        split_item: 0 or 1 for one result for each group, 2 or 3 for one result.
        group_type: -1 without groups, 0 for groups of rows, 2 for groups of columns of x, with as many rows of the
            weight.
        group_list_type: 0 for running totals, 1 for sizes, 2 for pairs of a group's number and its size.
        act_type: with per_token_scale: 0 none, 1 ReLU, 2 GELU (tanh), 4 fast GELU, 5 SiLU.
        tuning_config: has no effect on values.
        output_dtype: None for the dtype of x.
        x_dtype: for the Ascend 950; not simulated, like the three after it.
        weight_dtype: see x_dtype.
        scale_dtype: see x_dtype.
        per_token_scale_dtype: see x_dtype.

    Returns:
        the results. Rows behind the last group are 0 (on a card they are left as they are).

    Raises:
        RuntimeError: the operator does not take the input.
    """
    if group_type is None:
        raise RuntimeError("Requires manual passing group_type, current is None." + ops_error(ErrCode.VALUE))
    if group_type not in (-1, 0, 2):
        raise RuntimeError(
            "Use Tensor input with current cann version, The group type must be -1, 0 or 2, but now is "
            f"[{group_type}]" + ops_error(ErrCode.VALUE)
        )
    not_simulated(
        _NAME,
        x_dtype=x_dtype,
        weight_dtype=weight_dtype,
        scale_dtype=scale_dtype,
        per_token_scale_dtype=per_token_scale_dtype,
    )
    if activation_input or activation_quant_scale or activation_quant_offset:
        refuse(_NAME, "activation_input, activation_quant_scale and activation_quant_offset must be None")
    split_item, kind = split_item or 0, group_list_type or 0
    stacked = len(weight) == 1 and weight[0].dim() == 3
    count = weight[0].shape[0] if stacked else len(weight)
    _check_counts(split_item, len(x), count, 0 if group_list is None else group_list.shape[0])
    lists = _lists_of(
        x,
        weight,
        output_dtype,
        act_type or 0,
        bias=bias,
        scale=scale,
        offset=offset,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        per_token_scale=per_token_scale,
    )
    if group_type == -1:
        if group_list is not None:
            refuse(_NAME, "group_type -1 has no groups, but group_list is given")
        return _one_each(x, lists, split_item)
    if kind == 2 and (group_type != 0 or x[0].dtype != torch.int8 or weight[0].dtype != torch.int8):
        refuse(_NAME, "group_list_type 2 takes only int8 and group_type 0")
    if group_type == 2:
        if split_item in (2, 3) and count != 1 and not stacked:
            raise RuntimeError(
                "When group_list is 2(K_SPLIT) and split_item is 2/3, the length of weight must equal x."
            )
        if group_list is None:
            refuse(_NAME, "group_type 2 needs group_list")
        return _columns(x[0], lists, group_list, kind, split_item)
    if len(x) > 1:
        return _one_each(x, lists, split_item)
    if group_list is None:
        refuse(_NAME, "group_type 0 with one x needs group_list")
    matrix = x[0]
    if matrix.dim() != 2:
        refuse(_NAME, f"x has {matrix.dim()} dimensions; with groups the kernel takes 2")
    _check_depth(matrix, lists.weight_of(0))
    if has_values(matrix) and has_values(group_list):
        return _rows(matrix, lists, groups_of_rows(_NAME, group_list, kind, lists.count, matrix.shape[0]), split_item)
    if split_item in (0, 1):
        refuse(_NAME, "shapes that depend on the values of group_list are not inferred; take split_item 2 or 3")
    return [matrix.new_empty((matrix.shape[0], lists.columns(0)), dtype=lists.dtype)]


@operator("npu_grouped_matmul.List")
def npu_grouped_matmul_list(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: _Tensors = None,
    scale: _Tensors = None,
    offset: _Tensors = None,
    antiquant_scale: _Tensors = None,
    antiquant_offset: _Tensors = None,
    per_token_scale: _Tensors = None,
    group_list: Sequence[int] | None = None,
    activation_input: _Tensors = None,
    activation_quant_scale: _Tensors = None,
    activation_quant_offset: _Tensors = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    output_dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """`npu_grouped_matmul` with the groups as a list of running totals.

    The weights are matrices, one for each group; group_type, group_list_type, act_type and per_token_scale are not
    taken. The other arguments, the results and the errors are those of `npu_grouped_matmul`.
    """
    ends = list(group_list or ())
    split_item = split_item or 0
    _check_counts(split_item, len(x), len(weight), len(ends))
    for number, (before, end) in enumerate(itertools.pairwise([0, *ends])):
        if end < before:
            name = f"group_list[{number}]" + (f" - group_list[{number - 1}]" if number else "")
            text = f"{name} should be larger than or equal to 0, but now is {end - before}."
            raise RuntimeError(text + ops_error(ErrCode.VALUE))
    if per_token_scale:
        refuse(_NAME, "per_token_scale takes group_list as a tensor")
    if act_type:
        refuse(_NAME, "act_type takes group_list as a tensor")
    if any(each.dim() != 2 for each in weight):
        refuse(_NAME, "with group_list as a list, a weight must have 2 dimensions")
    given = {
        "bias": bias,
        "scale": scale,
        "offset": offset,
        "antiquant_scale": antiquant_scale,
        "antiquant_offset": antiquant_offset,
    }
    lists = _lists_of(x, weight, None, 0, **given)
    if output_dtype is not None and output_dtype != lists.dtype:
        refuse(_NAME, f"the output dtype is {output_dtype}; with group_list as a list it is {lists.dtype} here")
    if len(x) > 1 or not ends:
        return _one_each(x, lists, split_item)
    if len(ends) != len(weight) or ends[-1] != x[0].shape[0]:
        refuse(_NAME, f"group_list {ends} does not fit {len(weight)} weights and {x[0].shape[0]} rows")
    groups = [Group(number, begin, end) for number, (begin, end) in enumerate(itertools.pairwise([0, *ends]))]
    return _rows(x[0], lists, groups, split_item)


def _added(
    name: str,
    self: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    transposes: tuple[bool, bool],
    group_type: int,
    kind: int,
) -> torch.Tensor:
    if group_type != 2:
        refuse(name, f"group_type only supports 2, but got {group_type}")
    if transposes != (True, False):
        refuse(name, "the kernel takes transpose_x=True and transpose_weight=False")
    if x.dtype not in (torch.float16, torch.bfloat16) or weight.dtype != x.dtype or self.dtype != torch.float32:
        dtypes = f"x {x.dtype}, weight {weight.dtype}, self {self.dtype}"
        refuse(name, f"{dtypes}; the kernel takes x and weight of float16 or bfloat16 and a self of float32")
    shape = (group_list.shape[0] * x.shape[-1], weight.shape[-1])
    if x.dim() != 2 or weight.dim() != 2 or x.shape[0] != weight.shape[0] or self.numel() != shape[0] * shape[1]:
        shapes = f"x {list(x.shape)}, weight {list(weight.shape)}, self {list(self.shape)}"
        refuse(name, f"{shapes}; the kernel takes (k, m), (k, n) and (groups * m, n)")
    if not (has_values(self) and has_values(group_list)):
        return self
    if kind != 0 and not (kind == 1 and on_950(self)):
        refuse(name, f"group_list_type is {kind}; the kernel reads running totals, and sizes only on the Ascend 950")
    groups = groups_of_rows(name, group_list, kind, group_list.shape[0], x.shape[0])
    parts = []
    for group in groups:
        rows = slice(group.begin, group.end)
        parts.append(x[rows].to(torch.float32).t() @ weight[rows].to(torch.float32))
    return self + torch.cat(parts).reshape(self.shape)


@operator("npu_grouped_matmul_add_")
def npu_grouped_matmul_add_(
    self: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> torch.Tensor:
    """Add to a tensor the products of groups: for each group of rows, x^T @ weight. For gradients of weights.

    Args:
        self: (groups * m, n), float32; written.
        x: (k, m), float16 or bfloat16.
        weight: (k, n), of the same dtype.
        group_list: (groups,) int64.
        transpose_x: True.
        transpose_weight: False.
        group_type: 2.
        group_list_type: 0 for running totals; 1, for sizes, only on the Ascend 950.

    Returns:
        `self`.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: aclnnGroupedMatmulAdd of ops-transformer.
    """
    kind = group_list_type or 0
    result = _added(
        "npu_grouped_matmul_add_", self, x, weight, group_list, (transpose_x, transpose_weight), group_type, kind
    )
    return self.copy_(result)


@operator("npu_grouped_matmul_add")
def npu_grouped_matmul_add(
    self: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> torch.Tensor:
    """`npu_grouped_matmul_add_` whose result is a new tensor.

    On a card this operator writes into `self`, too, although its schema has no such mark; here `self` stays.
    """
    kind = group_list_type or 0
    name = "npu_grouped_matmul_add"
    return _added(name, self, x, weight, group_list, (transpose_x, transpose_weight), group_type, kind).clone()
