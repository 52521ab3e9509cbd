"""Operators on values of tensors, mostly of vision models: extremes, scatters, one-hot, sign bits.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_vision_tensors.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

Sources: the vendor's pages, and MaxV1KernelNpu.cpp, MinV1KernelNpu.cpp, ScatterV1KernelNpu.cpp,
SortWithoutIndicesKernelNpu.cpp, OnehotNpu.cpp, OneHotKernelNpuOpApi.cpp, MaskedFillRangeKernelNpu.cpp,
NormalizeBatchKernelNpu.cpp, SignBits*KernelNpu.cpp and Gather*KernelNpuOpApi.cpp of Ascend/op-plugin with their tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from toprope.sim.dtypes import scalar_name

from .._error_codes import ErrCode, ops_error
from .checks import floating, refuse
from .evaluation import has_values, on_950
from .registry import operator

__all__ = [
    "npu_gather_backward",
    "npu_gather_sparse_index",
    "npu_gather_sparse_index_backward",
    "npu_masked_fill_range",
    "npu_max",
    "npu_max_backward",
    "npu_min",
    "npu_min_backward",
    "npu_normalize_batch",
    "npu_one_hot",
    "npu_scatter",
    "npu_sign_bits_pack",
    "npu_sign_bits_unpack",
    "npu_sort_v2",
    "npu_sort_v2_out",
]

_MAX_DIMS = 8
_EPS = 1e-5
_FLOAT_MAX = torch.finfo(torch.float32).max


@operator("npu_max.dim")
def npu_max(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest values along a dimension, and where they are.

    Args:
        self: any tensor.
        dim: the dimension.
        keepdim: whether the results have it, with size 1.

    Returns:
        the values, and their indices in int32.
    """
    values, indices = torch.max(self, dim, keepdim)
    return values, indices.to(torch.int32)


@operator("npu_min.dim")
def npu_min(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest values along a dimension, and where they are.

    Args:
        self: any tensor.
        dim: the dimension.
        keepdim: whether the results have it, with size 1.

    Returns:
        the values, and their indices in int32.
    """
    values, indices = torch.min(self, dim, keepdim)
    return values, indices.to(torch.int32)


def _scatter(tensor: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, dim: int) -> torch.Tensor:
    if not tensor.dim():
        return updates.clone()
    return tensor.scatter(dim, indices.long().unsqueeze(dim), updates.unsqueeze(dim))


def _extreme_backward(
    grad: torch.Tensor, dim: int, indices: torch.Tensor, sizes: Sequence[int], keepdim: bool
) -> torch.Tensor:
    if keepdim and sizes:
        grad, indices = grad.squeeze(dim), indices.squeeze(dim)
    return _scatter(grad.new_zeros(tuple(sizes)), indices, grad, dim)


@operator("npu_max_backward")
def npu_max_backward(
    grad: torch.Tensor, dim: int, indices: torch.Tensor, sizes: Sequence[int], keepdim: bool
) -> torch.Tensor:
    """Gradient of the values of npu_max.

    Args:
        grad: gradient of the values.
        dim: as for npu_max.
        indices: its second result.
        sizes: shape of its input.
        keepdim: as for npu_max.

    Returns:
        the gradient, of the shape `sizes`.
    """
    return _extreme_backward(grad, dim, indices, sizes, keepdim)


@operator("npu_min_backward")
def npu_min_backward(
    grad: torch.Tensor, dim: int, indices: torch.Tensor, sizes: Sequence[int], keepdim: bool
) -> torch.Tensor:
    """Gradient of the values of npu_min.

    Args:
        grad: gradient of the values.
        dim: as for npu_min.
        indices: its second result.
        sizes: shape of its input.
        keepdim: as for npu_min.

    Returns:
        the gradient, of the shape `sizes`.
    """
    return _extreme_backward(grad, dim, indices, sizes, keepdim)


@operator("npu_scatter")
def npu_scatter(self: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, dim: int) -> torch.Tensor:
    """A tensor in which one element along a dimension is replaced, everywhere in the others.

    Args:
        self: any tensor.
        indices: of the shape of `self` without `dim`: which element.
        updates: of the same shape: the new values.
        dim: the dimension.

    Returns:
        a new tensor, without a gradient.

    Raises:
        RuntimeError: other shapes.
    """
    rest = list(self.shape)
    if rest:
        del rest[dim]
    if list(indices.shape) != rest or list(updates.shape) != rest:
        shapes = f"{list(indices.shape)} and {list(updates.shape)}"
        refuse("npu_scatter", f"indices and updates must have shape {rest}, but got {shapes}")
    return _scatter(self, indices, updates, dim)


@operator("npu_sort_v2")
def npu_sort_v2(self: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """Values in order along a dimension, without their indices.

    Args:
        self: any tensor.
        dim: the dimension.
        descending: largest first.

    Returns:
        a new tensor, without a gradient.
    """
    return torch.sort(self, dim=dim, descending=descending).values


@operator("npu_sort_v2.out")
def npu_sort_v2_out(self: torch.Tensor, dim: int = -1, descending: bool = False, *, out: torch.Tensor) -> torch.Tensor:
    """npu_sort_v2 into a tensor, which is returned."""
    if out.shape != self.shape:
        refuse("npu_sort_v2", f"out has shape {list(out.shape)}; the result has {list(self.shape)}")
    return out.copy_(torch.sort(self, dim=dim, descending=descending).values)


@operator("npu_one_hot")
def npu_one_hot(
    self: torch.Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0
) -> torch.Tensor:
    """One-hot encoding in a new dimension.

    Args:
        self: class numbers, any shape; those that are negative or not less than `depth` have no place.
        num_classes: the axis of the new dimension; -1 for the last.
        depth: its size; on an Ascend 950 -1 for the largest number plus 1.
        on_value: value at the class number.
        off_value: value elsewhere.

    Returns:
        float32 before the Ascend 950, and there of the dtype of `on_value`. Before the Ascend 950 it has the shape of
        `self` with `depth` at the end, whatever the axis: op-plugin does not change it, and the kernel orders the
        elements by the axis.

    Raises:
        RuntimeError: an axis or depth that is not there; on an Ascend 950 also values of two dtypes.
    """
    newest = on_950(self)
    if newest and isinstance(on_value, float) != isinstance(off_value, float):
        names = ["Double" if isinstance(value, float) else "Long" for value in (on_value, off_value)]
        text = f"on_value and off_value must have the same dtype, but got {names[0]} and {names[1]}"
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if newest and max(abs(on_value), abs(off_value)) > _FLOAT_MAX:
        text = (
            "npu_one_hot: double type on_value/off_value are out of float range, "
            "which is not supported by NPU operator. Please use float values instead."
        )
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if not -1 <= num_classes <= self.dim():
        refuse("npu_one_hot", f"the axis num_classes is {num_classes}; it must be -1 to {self.dim()}")
    if newest and depth == -1:
        if not self.numel():
            text = "NPU error, can not infer total number of classes from empty tensor."
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
        if not has_values(self):
            raise RuntimeError("FakeTensorMode does not support depth == -1.")
        depth = max(int(self.max()) + 1, 1)
    if depth < 0:
        refuse("npu_one_hot", f"depth is {depth}; it must not be negative")
    dtype = torch.int64 if newest and not isinstance(on_value, float) else torch.float32
    axis = self.dim() if num_classes == -1 else num_classes
    numbers = torch.arange(depth, device=self.device)
    hot = self.long().unsqueeze(axis) == numbers.reshape(-1, *[1] * (self.dim() - axis))
    on, off = (torch.tensor(value, dtype=dtype, device=self.device) for value in (on_value, off_value))
    found = torch.where(hot, on, off)
    return found if newest else found.reshape(*self.shape, depth)


@operator("npu_masked_fill_range")
def npu_masked_fill_range(
    self: torch.Tensor, start: torch.Tensor, end: torch.Tensor, value: torch.Tensor, axis: int = -1
) -> torch.Tensor:
    """A tensor in which ranges along an axis have one value.

    Range i, j is from start[i, j] to before end[i, j] and gets value[i]. Along the last axis of several, it is about
    element j of the first dimension; along any other, about all of them. A later range replaces an earlier one. Source:
    test_masked_fill_range.py of op-plugin.

    Args:
        self: 1 to 3 dimensions.
        start: (L, N), the first element of the ranges.
        end: (L, N), the element after the last.
        value: (L,), of the dtype of `self`.
        axis: along which the ranges are.

    Returns:
        a new tensor, without a gradient.

    Raises:
        RuntimeError: an axis that is not there, other shapes or another dtype of the values.
    """
    dims = self.dim()
    if not -dims <= axis < dims:
        text = f"axis overfloaw the range, expected in range [{-dims} {dims - 1}] "
        raise RuntimeError(text + ops_error(ErrCode.VALUE))
    if start.dim() != 2 or start.shape != end.shape:
        text = "Expected noempty 2D start tensor and start' sizes() should be equal end's sizes() "
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if start.shape[0] != value.shape[0]:
        raise RuntimeError("Expected value.length equal start loop num " + ops_error(ErrCode.VALUE))
    if self.dtype != value.dtype:
        names = f"value dtype is {scalar_name(value.dtype)} and self dtype is {scalar_name(self.dtype)}"
        raise RuntimeError(f"value dtype should be equal self dtype !, but {names}" + ops_error(ErrCode.TYPE))
    axis %= dims
    each = dims > 1 and axis == dims - 1
    if each and start.shape[1] != self.shape[0]:
        sizes = f"{start.shape[1]} ranges for {self.shape[0]} elements of the first dimension"
        refuse("npu_masked_fill_range", f"{sizes}; along the last axis there must be as many")
    place = torch.arange(self.shape[axis], device=self.device)
    within = (place >= start[..., None]) & (place < end[..., None])  # (L, N, elements)
    within = within if each else within.any(dim=1, keepdim=True)
    shape = [1] * dims
    shape[axis] = self.shape[axis]
    if each:
        shape[0] = self.shape[0]
    result = self.clone()
    for row in range(start.shape[0]):
        result = torch.where(within[row].reshape(shape), value[row], result)
    return result


@operator("npu_normalize_batch")
def npu_normalize_batch(self: torch.Tensor, seq_len: torch.Tensor, normalize_type: int = 0) -> torch.Tensor:
    """Normalisation by the mean and deviation of the first elements of each sample.

    (x - mean) / (deviation + 1e-5), with the deviation of a sample of n elements (divided by n - 1). All elements are
    normalised, also those that the statistics leave out.

    Args:
        self: (N, C, D); float16, bfloat16 or float32.
        seq_len: (N,), the number of elements of D that count.
        normalize_type: 0 for statistics of each channel, 1 for those of all channels.

    Returns:
        of the shape and dtype of `self`; computed in float32.

    Raises:
        RuntimeError: another shape, dtype or type.
    """
    if seq_len.dim() != 1:
        text = f"Non-empty 1D seq_len tensor expected but got a tensor with sizes {list(seq_len.shape)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if seq_len.shape[0] != self.shape[0]:
        text = f"seq_len's length should be equal self' num, but got seq_len length {seq_len.shape[0]}"
        raise RuntimeError(f"{text}self num {self.shape[0]}" + ops_error(ErrCode.PARAM))
    if normalize_type not in (0, 1):
        text = f"normalize_type expected to be in range [0, 1], but got {normalize_type}"
        raise RuntimeError(text + ops_error(ErrCode.VALUE))
    floating("npu_normalize_batch", self=self)
    if self.dim() != 3:
        refuse("npu_normalize_batch", f"the input must have 3 dimensions, but got {self.dim()}")
    wide, length = self.float(), seq_len[:, None, None]
    counts = (torch.arange(self.shape[2], device=self.device) < length).float()
    axes = (2,) if normalize_type == 0 else (1, 2)
    number = length.float() * (1 if normalize_type == 0 else self.shape[1])
    mean = (wide * counts).sum(dim=axes, keepdim=True) / number
    variance = ((wide - mean).square() * counts).sum(dim=axes, keepdim=True) / (number - 1)
    return ((wide - mean) / (variance.sqrt() + _EPS)).to(self.dtype)


@operator("npu_sign_bits_pack")
def npu_sign_bits_pack(self: torch.Tensor, size: int) -> torch.Tensor:
    """Signs as bits, eight in a byte, the first in the lowest bit: 1 for a number that is not negative.

    Args:
        self: (N,); float16 or float32. What is missing to a multiple of 8 counts as negative.
        size: rows of the result.

    Returns:
        (size, bytes / size), uint8.

    Raises:
        RuntimeError: another dtype or number of dimensions, or a number of bytes that `size` does not divide.
    """
    if self.dim() != 1:
        raise RuntimeError("input must be one-dimensional" + ops_error(ErrCode.PARAM))
    if self.dtype not in (torch.float16, torch.float32):
        raise RuntimeError("all only supports torch.float16 and torch.float32 dtypes" + ops_error(ErrCode.TYPE))
    count = (self.shape[0] + 7) // 8
    if size == 0 or count % size:
        raise RuntimeError("all must be divisible by size" + ops_error(ErrCode.PARAM))
    bits = torch.nn.functional.pad((~(self < 0)).to(torch.uint8), [0, count * 8 - self.shape[0]])
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=self.device)
    return (bits.reshape(count, 8) * weights).sum(dim=1, dtype=torch.int32).to(torch.uint8).reshape(size, -1)


@operator("npu_sign_bits_unpack")
def npu_sign_bits_unpack(input: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of which the bits are the signs: 1 for a bit that is set, -1 for another.

    Args:
        input: (N,), uint8; the lowest bit of a byte comes first.
        size: rows of the result.
        dtype: float16 or float32.

    Returns:
        (size, 8 * N / size).

    Raises:
        RuntimeError: another dtype or number of dimensions, or a number of bits that `size` does not divide.
    """
    if input.dim() != 1:
        raise RuntimeError("input value should be a 1-dimensional tensor" + ops_error(ErrCode.PARAM))
    if input.dtype is not torch.uint8:
        raise RuntimeError("sign_bits_unpack input only supports torch.uint8 " + ops_error(ErrCode.TYPE))
    if size <= 0:
        text = "The argument 'size' is not valid because it is less than or equal to zero"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if input.shape[0] * 8 % size:
        raise RuntimeError("input value length*8 must be multiple of size" + ops_error(ErrCode.PARAM))
    if dtype not in (torch.float16, torch.float32):
        text = "The argument 'dtype'  must be torch.float32 or torch.float16"
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=input.device)
    bits = (input[:, None] & weights) != 0
    return (bits.to(dtype) * 2 - 1).reshape(size, input.shape[0] * 8 // size)


@operator("npu_gather_backward")
def npu_gather_backward(
    grad: torch.Tensor, self_size: Sequence[int], dim: int, index: torch.Tensor, sparse_grad: bool
) -> torch.Tensor:
    """Gradient of torch.gather.

    Args:
        grad: gradient of its result.
        self_size: shape of its input.
        dim: as for torch.gather.
        index: as for torch.gather.
        sparse_grad: a sparse tensor rather than a dense one.

    Returns:
        the gradient, of the shape `self_size`.
    """
    if sparse_grad:
        whole = grad.new_empty(()).expand(tuple(self_size))
        sparse: torch.Tensor = torch.ops.aten._gather_sparse_backward(whole, dim, index, grad)
        return sparse
    return grad.new_zeros(tuple(self_size)).scatter_add(dim, index, grad)


def _index_dtype(name: str, index: torch.Tensor) -> None:
    if index.dtype not in (torch.int32, torch.int64):
        refuse(name, f"index is {index.dtype}; the kernel takes int32 and int64")


@operator("npu_gather_sparse_index")
def npu_gather_sparse_index(input: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor: input[index].

    Args:
        input: any tensor; one of 0 dimensions is returned as it is.
        index: numbers of rows, int32 or int64, none negative.

    Returns:
        the shape of `index`, then the shape of a row.

    Raises:
        RuntimeError: another dtype of `index`, or more than 8 dimensions.
    """
    _index_dtype("npu_gather_sparse_index", index)
    if not input.dim():
        return input.clone()
    if input.dim() + index.dim() - 1 > _MAX_DIMS:
        text = "input.dim() + index.dim() - 1 must not greater than 8."
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    return input.index_select(0, index.flatten()).reshape(*index.shape, *input.shape[1:])


@operator("npu_gather_sparse_index_backward")
def npu_gather_sparse_index_backward(
    grad: torch.Tensor, self_sizes: Sequence[int], index: torch.Tensor
) -> torch.Tensor:
    """Gradient of npu_gather_sparse_index.

    Args:
        grad: gradient of its result.
        self_sizes: shape of its input.
        index: as for npu_gather_sparse_index.

    Returns:
        the gradient, of the shape `self_sizes`.

    Raises:
        RuntimeError: another dtype of `index`.
    """
    _index_dtype("npu_gather_sparse_index_backward", index)
    if not self_sizes:
        return grad.clone()
    rows = grad.reshape(index.numel(), *self_sizes[1:])
    return grad.new_zeros(tuple(self_sizes)).index_add(0, index.flatten(), rows)
