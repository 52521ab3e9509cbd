"""Operators that move elements: slices, strides, padding, permutations and broadcasts.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_vision_tensors.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

All give new, contiguous tensors. Sources: the vendor's pages, and SliceKernelNpu.cpp, IndexingKernelNpu(OpApi).cpp,
PadKernelNpu.cpp, TransposeKernelNpu.cpp, BroadcastKernelNpu.cpp, ReshapeKernelNpu.cpp, ConfusionTransposeKernelNpu.cpp,
AsStridedKernelNpu.cpp and StrideAddKernelNpu.cpp of Ascend/op-plugin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .evaluation import on_950
from .registry import operator

__all__ = [
    "npu_broadcast",
    "npu_broadcast_out",
    "npu_confusion_transpose",
    "npu_confusion_transpose_backward",
    "npu_indexing",
    "npu_indexing_out",
    "npu_pad",
    "npu_reshape",
    "npu_reshape_out",
    "npu_slice",
    "npu_slice_out",
    "npu_stride_add",
    "npu_stride_copy",
    "npu_stride_copy_out",
    "npu_transpose",
    "npu_transpose_out",
]

_MAX_DIMS = 8
_C0 = 16
"""Channels of a block of the card's formats."""


def _copy(view: torch.Tensor) -> torch.Tensor:
    return view.clone(memory_format=torch.contiguous_format)


def _into(name: str, out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Write a result into `out`, which must have its shape, and return that."""
    if out.shape != value.shape:
        refuse(name, f"out has shape {list(out.shape)}; the result has {list(value.shape)}")
    return out.copy_(value)


def _slice(tensor: torch.Tensor, offsets: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    if not len(offsets) == len(size) == tensor.dim():
        dims = f"{len(offsets)} offsets and {len(size)} sizes for {tensor.dim()} dimensions"
        refuse("npu_slice", f"{dims}; there must be one of each for every dimension")
    for axis, (offset, length) in enumerate(zip(offsets, size, strict=True)):
        if not 0 <= offset <= offset + length <= tensor.shape[axis]:
            asked = f"{length} elements from {offset}"
            refuse("npu_slice", f"{asked} are not in dimension {axis} of {tensor.shape[axis]} elements")
        tensor = tensor.narrow(axis, offset, length)
    return tensor


@operator("npu_slice")
def npu_slice(self: torch.Tensor, offsets: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """The part of a tensor that starts at the offsets and has the size.

    Args:
        self: any tensor.
        offsets: the first element in each dimension.
        size: the number of elements in each dimension.

    Returns:
        a copy of the part, without a gradient.

    Raises:
        RuntimeError: another number of offsets or sizes, or a part that is not in the tensor.
    """
    return _copy(_slice(self, offsets, size))


@operator("npu_slice.out")
def npu_slice_out(
    self: torch.Tensor, offsets: Sequence[int], size: Sequence[int], *, out: torch.Tensor
) -> torch.Tensor:
    """npu_slice into a tensor, which is returned."""
    return _into("npu_slice", out, _slice(self, offsets, size))


def _indexed(
    tensor: torch.Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    begin_mask: int,
    end_mask: int,
    ellipsis_mask: int,
    new_axis_mask: int,
    shrink_axis_mask: int,
) -> torch.Tensor:
    """A view, or a copy, of the elements that StridedSlice of TensorFlow selects."""
    count = len(strides)
    if not len(begin) == len(end) == count:
        shapes = f"[{len(begin)}], [{len(end)}], [{count}]"
        text = "Expected begin, end, and strides to be 1D equal size tensors, but got shapes"
        raise ValueError(f"{text} {shapes} instead.")
    if not all(strides):
        raise RuntimeError("stride should not be 0" + ops_error(ErrCode.VALUE))
    if ellipsis_mask & (ellipsis_mask - 1):
        raise ValueError("Multiple ellipses in slice spec not allowed.")
    bits = [1 << place for place in range(count)]
    taken = sum(1 for bit in bits if not bit & (ellipsis_mask | new_axis_mask))
    if taken > tensor.dim():
        raise IndexError(f"Index out of range using input dim {tensor.dim()}; input has only {tensor.dim()} dims.")
    axis = 0
    for bit, first, last, stride in zip(bits, begin, end, strides, strict=True):
        if bit & ellipsis_mask:
            rest = sum(1 for later in bits if later > bit and not later & new_axis_mask)
            axis = max(axis, tensor.dim() - rest)
        elif bit & new_axis_mask:
            tensor, axis = tensor.unsqueeze(axis), axis + 1
        elif bit & shrink_axis_mask:
            tensor = _one(tensor, axis, first, stride)
        else:
            span = slice(None if bit & begin_mask else first, None if bit & end_mask else last, stride)
            tensor, axis = _range(tensor, axis, span), axis + 1
    if tensor.dim() > _MAX_DIMS:
        raise ValueError(f"The output tensor cannot be larger than {_MAX_DIMS} dimensions")
    return tensor


def _one(tensor: torch.Tensor, axis: int, index: int, stride: int) -> torch.Tensor:
    if stride <= 0:
        raise ValueError("only stride 1 allowed on non-range indexing.")
    place = index + tensor.shape[axis] if index < 0 else index
    if not 0 <= place < tensor.shape[axis]:
        raise IndexError(f"slice index {place} of dimension {axis} out of bounds.")
    return tensor.select(axis, place)


def _range(tensor: torch.Tensor, axis: int, span: slice) -> torch.Tensor:
    places = range(*span.indices(tensor.shape[axis]))
    if places.step > 0:
        return tensor[(slice(None),) * axis + (slice(places.start, max(places.start, places.stop), places.step),)]
    return tensor.index_select(axis, torch.tensor(list(places), dtype=torch.int64, device=tensor.device))


def _check_before_950(
    tensor: torch.Tensor, result: torch.Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> None:
    """Refuse masks where op-plugin would give the kernel a result of another size; before the 950 it ignores masks."""
    if tensor.device.type != "npu" or on_950(tensor):
        return
    spans = list(zip(begin, end, strides, strict=True))[: tensor.dim()]
    size = [int((last + step - 1 - first) / step) for first, last, step in spans]  # as C++ divides
    if list(result.shape) != size:
        shapes = f"the result has the shape {list(result.shape)}, but op-plugin takes it for {size}"
        reason = "before the Ascend 950 it does not look at masks, negative numbers and missing dimensions"
        refuse("npu_indexing", f"{shapes}: {reason}")


@operator("npu_indexing")
def npu_indexing(
    self: torch.Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> torch.Tensor:
    """Elements from `begin` to before `end` in steps of `strides`, in each dimension: StridedSlice of TensorFlow.

    In the masks, bit i is about element i of the lists: where several are set the ellipsis counts, then the new
    dimension, then the index.

    Args:
        self: any tensor.
        begin: the first index of each dimension; negative ones count from the end.
        end: the index after the last.
        strides: steps, not 0.
        begin_mask: begin at the first element (or the last, for a negative step).
        end_mask: end after the last element (or the first).
        ellipsis_mask: all dimensions that no other element is about.
        new_axis_mask: a new dimension of size 1.
        shrink_axis_mask: only the element at `begin`, without the dimension.

    Returns:
        a copy of the elements, without a gradient.

    Raises:
        RuntimeError: a step of 0; or, before the Ascend 950, a result whose size op-plugin does not foresee.
        ValueError: lists of different lengths, two ellipses, an index with a negative step, or more than 8 dimensions.
        IndexError: more elements than dimensions, or an index that is not there.
    """
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    found = _indexed(self, begin, end, strides, *masks)
    _check_before_950(self, found, begin, end, strides)
    return _copy(found)


@operator("npu_indexing.out")
def npu_indexing_out(
    self: torch.Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """npu_indexing into a tensor, which is returned."""
    masks = (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)
    return _into("npu_indexing", out, _indexed(self, begin, end, strides, *masks))


@operator("npu_pad")
def npu_pad(input: torch.Tensor, paddings: Sequence[int]) -> torch.Tensor:
    """Zeros before and after the elements of each dimension.

    Args:
        input: any tensor.
        paddings: numbers of zeros before and after, of the first dimension first; those that are missing are 0.

    Returns:
        the padded tensor, without a gradient.

    Raises:
        RuntimeError: a negative number.
    """
    numbers = [*paddings, *[0] * (2 * input.dim())][: 2 * input.dim()]
    if any(number < 0 for number in numbers):
        refuse("npu_pad", f"paddings {list(paddings)} must not be negative")
    # torch takes the last dimension first, with before and after in the same order
    pairs = [numbers[place : place + 2] for place in range(0, len(numbers), 2)]
    return _copy(torch.nn.functional.pad(input, [number for pair in reversed(pairs) for number in pair]))


@operator("npu_transpose")
def npu_transpose(self: torch.Tensor, perm: Sequence[int], require_contiguous: bool = True) -> torch.Tensor:
    """Permutation of the dimensions.

    Args:
        self: any tensor.
        perm: the dimensions in their new order.
        require_contiguous: whether a card copies the input first; without effect on the result.

    Returns:
        a contiguous tensor, without a gradient.
    """
    return _copy(self.permute(*perm))


@operator("npu_transpose.out")
def npu_transpose_out(
    self: torch.Tensor, perm: Sequence[int], require_contiguous: bool = True, *, out: torch.Tensor
) -> torch.Tensor:
    """npu_transpose into a tensor, which is returned."""
    return _into("npu_transpose", out, self.permute(*perm))


@operator("npu_broadcast")
def npu_broadcast(self: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The tensor repeated along its dimensions of size 1, and along new ones in front.

    Args:
        self: any tensor.
        size: shape of the result.

    Returns:
        a contiguous tensor, without a gradient.
    """
    return _copy(self.expand(*size))


@operator("npu_broadcast.out")
def npu_broadcast_out(self: torch.Tensor, size: Sequence[int], *, out: torch.Tensor) -> torch.Tensor:
    """npu_broadcast into a tensor, which is returned."""
    return _into("npu_broadcast", out, self.expand(*size))


def _reshaped(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if any(size < 0 for size in shape) or math.prod(shape) != tensor.numel():
        refuse("npu_reshape", f"{tensor.numel()} elements do not fit the shape {list(shape)}")
    return tensor.reshape(tuple(shape))


@operator("npu_reshape")
def npu_reshape(self: torch.Tensor, shape: Sequence[int], can_refresh: bool = False) -> torch.Tensor:
    """The elements in another shape.

    Args:
        self: any tensor.
        shape: of the result; all numbers are given, none is -1.
        can_refresh: lets a card change the description of the tensor rather than copy it; without effect here.

    Returns:
        a new tensor, without a gradient.

    Raises:
        RuntimeError: a shape of another number of elements.
    """
    return _copy(_reshaped(self, shape))


@operator("npu_reshape.out")
def npu_reshape_out(
    self: torch.Tensor, shape: Sequence[int], can_refresh: bool = False, *, out: torch.Tensor
) -> torch.Tensor:
    """npu_reshape into a tensor, which is returned."""
    return _into("npu_reshape", out, _reshaped(self, shape))


@operator("npu_confusion_transpose")
def npu_confusion_transpose(
    self: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """A permutation and a reshape in one.

    Args:
        self: any tensor.
        perm: the dimensions in their new order: those of `self` if `transpose_first`, else those of `shape`.
        shape: shape of the reshape.
        transpose_first: whether the permutation comes before the reshape.

    Returns:
        a contiguous tensor.

    Raises:
        RuntimeError: `perm` names a dimension that `shape` does not have.
    """
    if transpose_first:
        return _copy(self.permute(*perm)).reshape(tuple(shape))
    for dim in perm:
        if dim >= len(shape):
            text = f"npu_confusion_transpose input invalid, shape has size {len(shape)} but perm[i] is, {dim}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
    return _copy(self.reshape(tuple(shape)).permute(*perm))


@operator("npu_confusion_transpose_backward")
def npu_confusion_transpose_backward(
    grad: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """Gradient of npu_confusion_transpose.

    Args:
        grad: gradient of its result.
        perm: as for npu_confusion_transpose.
        shape: shape of its input.
        transpose_first: not the value that npu_confusion_transpose was given.

    Returns:
        the gradient, of the shape `shape`.

    Raises:
        RuntimeError: `perm` is no permutation of the dimensions of `shape` where it must be one.
    """
    if not transpose_first:
        if len(perm) != len(shape):
            text = "The length of perm should be the same as shape."
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
        if len({dim % len(shape) for dim in perm}) != len(perm):
            raise RuntimeError("Repeated dim in perm" + ops_error(ErrCode.PARAM))
    for dim in perm:
        if not 0 <= dim < len(perm):
            raise RuntimeError(f"perm value out of range: {dim}" + ops_error(ErrCode.PARAM))
    inverse = sorted(range(len(perm)), key=lambda place: perm[place])
    if transpose_first:
        return _copy(grad.permute(*inverse)).reshape(tuple(shape))
    return _copy(grad.reshape([shape[dim] for dim in perm]).permute(*inverse))


@operator("npu_stride_copy")
def npu_stride_copy(
    self: torch.Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: float
) -> torch.Tensor:
    """Copy of a view of the storage: torch.as_strided, contiguous.

    Args:
        self: any tensor.
        shape: shape of the result.
        stride: steps in the storage.
        storage_offset: the first element, from the start of the storage.

    Returns:
        a new tensor, without a gradient.
    """
    return _copy(self.as_strided(tuple(shape), tuple(stride), int(storage_offset)))


@operator("npu_stride_copy.out")
def npu_stride_copy_out(
    self: torch.Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: float, *, out: torch.Tensor
) -> torch.Tensor:
    """npu_stride_copy into a tensor, which is returned."""
    return _into("npu_stride_copy", out, self.as_strided(tuple(shape), tuple(stride), int(storage_offset)))


def _blocks(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Channels of blocks of 16, from block `first`; those that the tensor does not have are 0."""
    part = tensor[:, first * _C0 : (first + count) * _C0]
    missing = count * _C0 - part.shape[1]
    return torch.cat([part, part.new_zeros(part.shape[0], missing, *part.shape[2:])], dim=1)


@operator("npu_stride_add")
def npu_stride_add(
    self: torch.Tensor, other: torch.Tensor, offset1: float, offset2: float, c1_len: float
) -> torch.Tensor:
    """Sum of blocks of 16 channels of two tensors.

    Args:
        self: (N, C, ...).
        other: (N, C, ...); the other dimensions broadcast.
        offset1: the first block of `self`.
        offset2: the first block of `other`.
        c1_len: number of blocks.

    Returns:
        (N, 16 * c1_len, ...), of the dtype of `self`, without a gradient; channels that a tensor does not have count
        as 0.

    Raises:
        RuntimeError: fewer than 2 dimensions, or a negative number.
    """
    numbers = (int(offset1), int(offset2), int(c1_len))
    if self.dim() < 2 or other.dim() < 2 or min(numbers) < 0:
        dims = f"tensors of {self.dim()} and {other.dim()} dimensions"
        refuse("npu_stride_add", f"{dims}, and {list(numbers)}; there must be at least 2, and no negative number")
    total = _blocks(self, numbers[0], numbers[2]) + _blocks(other, numbers[1], numbers[2])
    return total.to(self.dtype)
