"""Products of quantised matrices for the matrix operators: exact integer sums, packed scales, groups of rows.

Used by quant_matmul.py, grouped_matmul.py and the other modules for matrix products. Sums must be exact (float32 adds
up `_EXACT` products of int8 without rounding), and a packed scale has the bits of the kernel; how the sums are made is
free. Tests: tests/compat/operators/test_quant_matmul.py, tests/compat/operators/test_grouped_matmul.py,
tests/sim/simulated/test_npu_matmul.py (families).

Sources: the formulas of aclnnQuantMatmulV5 and of its golden code (matmul_quant_util.py) in ops-nn of CANN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..dtype_numbers import card_dtype, dtype_text, kept_dtype
from .checks import refuse
from .int4 import unpack_int4

__all__ = [
    "Group",
    "coarse_scale",
    "dequantised_weight",
    "groups_of_rows",
    "integer_matmul",
    "integers_of",
    "is_transposed",
    "listed",
    "logical_columns",
    "not_simulated",
    "only_on",
    "requantised",
    "scaled_by_group",
    "torch_dtype",
    "unpacked_scale",
]

_EXACT = 1024
"""Products of two int8 that float32 adds up without rounding, in any order: 2^24 / 2^14."""

_KEPT_BITS = -8192
"""Sign, exponent and the upper 10 bits of the mantissa: what the card multiplies by where it leaves the matrix unit."""


@dataclass(frozen=True)
class Group:
    """Rows of one expert.

    Attributes:
        expert: its number.
        begin: its first row.
        end: the row after its last one.
    """

    expert: int
    begin: int
    end: int


def listed(tensor: torch.Tensor) -> list[int]:
    """Integers of a tensor. The card's kernel reads them itself, so this is no copy from the card."""
    if tensor.device.type == "npu":
        tensor = torch.ops.toprope_sim.host_view(tensor.detach())
    return [int(value) for value in tensor.reshape(-1).tolist()]


def groups_of_rows(operator: str, group_list: torch.Tensor, kind: int, experts: int, rows: int) -> list[Group]:
    """Rows of every expert.

    Args:
        operator: its name, for errors.
        group_list: int64 on any device; must hold values.
        kind: 0 for the running total after each expert, 1 for the number of rows of each, 2 for pairs of an expert
            and its number of rows, (experts, 2).
        experts: number of experts.
        rows: number of rows.

    Raises:
        RuntimeError: the list has another length, decreases, or names rows or experts that are not there.
    """
    if kind not in (0, 1, 2):
        refuse(operator, f"group_list_type is {kind}; the kernel takes 0, 1 and 2")
    if group_list.dtype != torch.int64:
        refuse(operator, f"group_list is {group_list.dtype}; the kernel takes int64")
    wanted = (2, "(groups, 2)") if kind == 2 else (1, "(groups,)")
    if group_list.dim() != wanted[0] or (kind == 2 and group_list.shape[1] != 2):
        refuse(operator, f"group_list has the shape {list(group_list.shape)}; group_list_type {kind} takes {wanted[1]}")
    if group_list.shape[0] > experts:
        refuse(operator, f"group_list has {group_list.shape[0]} groups, and there are {experts} experts")
    values = listed(group_list)
    numbers = values[::2] if kind == 2 else list(range(len(values)))
    sizes = values[1::2] if kind == 2 else values
    if kind == 0:
        sizes = [end - begin for begin, end in zip([0, *values[:-1]], values, strict=True)]
    found, begin = [], 0
    for number, size in zip(numbers, sizes, strict=True):
        if size < 0 or not 0 <= number < experts:
            refuse(operator, f"group_list {values} (group_list_type {kind}) has a negative size or an unknown expert")
        found.append(Group(number, begin, begin + size))
        begin += size
    if begin > rows:
        refuse(operator, f"group_list {values} (group_list_type {kind}) counts {begin} rows of {rows}")
    return found


def is_transposed(tensor: torch.Tensor) -> bool:
    """Test whether the last two axes lie in memory the other way round: values are packed along the contiguous one."""
    if tensor.dim() < 2:
        return False
    rows, columns = tensor.shape[-2:]
    return tensor.stride(-2) == 1 and tensor.stride(-1) == rows and not (rows == 1 and columns == 1)


def integers_of(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix as int8; int32 holds eight values of 4 bits each, along the axis that is contiguous."""
    if matrix.dtype != torch.int32:
        return matrix
    if is_transposed(matrix):
        return unpack_int4(matrix.transpose(-2, -1)).transpose(-2, -1)
    return unpack_int4(matrix)


def logical_columns(matrix: torch.Tensor) -> int:
    """Number of columns of a matrix once it is unpacked."""
    packed = matrix.dtype == torch.int32 and not is_transposed(matrix)
    return matrix.shape[-1] * 8 if packed else matrix.shape[-1]


def integer_matmul(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """Product of two matrices of int8 values, exact, as int32; batches are broadcast."""
    depth = x1.shape[-1]
    total = None
    for begin in range(0, max(depth, 1), _EXACT):
        end = min(begin + _EXACT, depth)
        part = x1[..., begin:end].to(torch.float32) @ x2[..., begin:end, :].to(torch.float32)
        total = part.to(torch.int32) if total is None else total + part.to(torch.int32)
    assert total is not None
    return total


def scaled_by_group(x1: torch.Tensor, x2: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Sum over groups of rows of `x2` of the product with those rows, each times its scale.

    Args:
        x1: (m, k), int8 values.
        x2: (k, n), int8 values.
        scale: (groups, n), float32; the groups divide k.

    Returns:
        (m, n), float32.
    """
    size = x1.shape[-1] // scale.shape[0]
    total = x1.new_zeros((x1.shape[0], x2.shape[-1]), dtype=torch.float32)
    for number in range(scale.shape[0]):
        part = slice(number * size, (number + 1) * size)
        total = total + integer_matmul(x1[:, part], x2[part]).to(torch.float32) * scale[number]
    return total


def unpacked_scale(scale: torch.Tensor, *, all_bits: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scale as float32, and the offset that npu_trans_quant_param packs with it.

    Args:
        scale: float32, bfloat16, or int64 (uint64): the bits of the float32 scale, and the offset from -256 to 255 in
            bits 37 to 45.
        all_bits: every bit of the mantissa counts, as where the scale is multiplied by the vector unit.

    Returns:
        (scale, offset); offset is None for a scale that is not packed.
    """
    if scale.dtype not in (torch.int64, torch.uint64):
        return scale.to(torch.float32), None
    bits = scale.view(torch.int64) if scale.dtype == torch.uint64 else scale
    low = bits.to(torch.int32)
    offset = ((bits >> 37 & 0x1FF) ^ 0x100) - 0x100
    return (low if all_bits else low & _KEPT_BITS).view(torch.float32), offset.to(torch.float32)


def coarse_scale(scale: torch.Tensor) -> torch.Tensor:
    """A float32 scale as npu_trans_quant_param packs it: without the lower 13 bits of its mantissa."""
    return (scale.to(torch.float32).contiguous().view(torch.int32) & _KEPT_BITS).view(torch.float32)


def requantised(total: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
    """int8 of sums times a scale plus an offset, in the steps of the card: 9 bits before the offset is added."""
    value = torch.round(total.to(torch.float32) * scale).clamp(-256, 255)
    if offset is not None:
        value = value + torch.round(offset).clamp(-256, 255)
    return value.clamp(-128, 127).to(torch.int8)


def dequantised_weight(
    weight: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """(weight + offset) * scale in the dtype of the other matrix, as float32.

    The card does it in float16 for float16, and in float32, rounded at the end, for bfloat16.

    Args:
        weight: (..., k, n), int8 values.
        scale: (), (n,) or (groups, n); float16, bfloat16 or float32.
        offset: of the same shape, or None.
        dtype: float16 or bfloat16.
    """
    work = torch.float16 if dtype == torch.float16 and scale.dtype == torch.float16 else torch.float32
    depth = weight.shape[-2]

    def fitted(parameter: torch.Tensor) -> torch.Tensor:
        parameter = parameter.to(work)
        if parameter.dim() >= 2 and parameter.shape[-2] not in (1, depth):
            size = -(-depth // parameter.shape[-2])
            parameter = parameter.repeat_interleave(size, dim=-2)[..., :depth, :]
        return parameter

    value = weight.to(work)
    if offset is not None:
        value = value + fitted(offset)
    return (value * fitted(scale)).to(dtype).to(torch.float32)


def torch_dtype(operator: str, number: int | None, default: torch.dtype, allowed: Sequence[torch.dtype]) -> torch.dtype:
    """Torch's dtype of a dtype number.

    Raises:
        RuntimeError: it is none of the allowed ones.
    """
    found: torch.dtype | None = default
    if number is not None:
        dtype = card_dtype(number)
        found = None if dtype is None else kept_dtype(dtype)
    if found is None or found not in allowed:
        name = f"{found}" if number is None else dtype_text(number)
        names = ", ".join(str(each).removeprefix("torch.") for each in allowed)
        refuse(operator, f"the output dtype is {name}; the kernel takes {names} here")
    return found


def not_simulated(operator: str, **arguments: object) -> None:
    """Refuse arguments of modes that are not simulated, unless they are None."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        refuse(operator, f"{', '.join(given)}: the dtypes of the Ascend 950 that this is for are not simulated here")


def only_on(operator: str, tensor: torch.Tensor, family: str) -> None:
    """Refuse a simulated card of another family: the vendor has the kernel for this one alone.

    Args:
        operator: its name.
        tensor: one of its arguments.
        family: begin of the family's name, such as "Ascend 950".
    """
    if tensor.device.type != "npu":
        return
    from toprope.sim.npu._state import chip

    if not (found := chip().family).startswith(family):
        refuse(operator, f"the vendor has this kernel for the {family}, not for {found}")
