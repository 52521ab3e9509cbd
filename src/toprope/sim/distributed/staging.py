"""Host tensors for a collective: the bytes of device tensors in a form that gloo can carry, and the way back.

Used by collectives.py and kernels.py. A host tensor is a view wherever possible: gloo then works on the card's memory
itself. gloo takes contiguous tensors of nine types, so that

- a tensor that is only moved travels as a type of the same width, bit for bit (complex128 as pairs of float64);
- bool is reduced as bytes of 0 and 1, with SUM as MAX and PRODUCT as MIN, which equals "or" and "and" there;
- int16 is reduced in int32 and cut to 16 bits afterwards, which for whole numbers gives the same bits;
- PREMUL_SUM is a sum of products, which torch_npu makes in the tensors before HCCL gets them;
- AVG of whole numbers is their sum, divided afterwards towards zero, as torch_npu does;
- members of lists need not be contiguous: they are copied.

Tests: tests/sim/test_distributed.py, with cases of tests/helpers/distributed_moves.py and distributed_reductions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from toprope.sim.distributed import refusals
from toprope.sim.npu._state import message

__all__ = ["Staging", "divisor_of", "factor_of", "host", "reduce_operation"]

_CARRIED = frozenset((
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
))  # fmt: skip
_OF_WIDTH = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}
_MULTIPLIED = frozenset((torch.float16, torch.float32, torch.bfloat16, torch.float64))
_OF_BOOL = {ReduceOp.SUM: ReduceOp.MAX, ReduceOp.PRODUCT: ReduceOp.MIN}


def host(tensor: Tensor) -> Tensor:
    """A host tensor over the bytes of a device tensor, once the current stream of its card has done its work.

    Raises:
        RuntimeError: the tensor is not one of bytes on a card, or HCCL refuses its storage format.
    """
    if tensor.device.type != "npu" or tensor.layout is not torch.strided:
        raise RuntimeError(message("Tensors must be NPU and dense", "ERR02002 DIST invalid type"))
    refusals.check_layout(tensor)
    view: Tensor = torch.ops.toprope_sim.host_view(tensor)
    return view


def _single(tensor: Tensor) -> Tensor:
    """The host tensor of one that a collective takes as it lies in memory, which HCCL does not let have gaps.

    Raises:
        RuntimeError: torch_npu's, the tensor is not contiguous in any memory format.
    """
    view = host(tensor)
    if view.is_contiguous():
        return view
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if view.dim() in formats and view.is_contiguous(memory_format=formats[view.dim()]):
        return view.as_strided((view.numel(),), (1,))
    raise RuntimeError(message("Tensors must be contiguous", "ERR02002 DIST invalid type"))


def _carrier(view: Tensor) -> Tensor:
    """The same bytes under a type that gloo moves."""
    if view.dtype is torch.complex128:
        return torch.view_as_real(view)
    return view.view(_carrier_type(view.dtype))


def _carrier_type(dtype: torch.dtype) -> torch.dtype:
    if dtype in _CARRIED:
        return dtype
    return torch.float64 if dtype is torch.complex128 else _OF_WIDTH[dtype.itemsize]


def _widened(view: Tensor) -> Tensor:
    return view.to(torch.int32) if view.dtype is torch.int16 else view


def _summable(view: Tensor) -> Tensor:
    """The same bytes under a type that gloo reduces.

    Raises:
        RuntimeError: gloo reduces no such type; in torch_npu's words for what HCCL does not have.
    """
    if view.dtype is torch.bool:
        return view.view(torch.uint8)
    if view.dtype in _CARRIED or view.is_complex():
        return view
    raise RuntimeError(message("Unsupported data type for HCCL process group", "ERR02007 DIST feature not supported"))


class Staging:
    """The host tensors of one collective.

    Args:
        wait_for_all: waits for collectives under way; called before anything is read from the card at once, since gloo
            reads only when their turn comes.
        factor: what a tensor that is reduced is multiplied by before, None for nothing.
        divisor: what whole numbers that are reduced are divided by afterwards, None for nothing.
    """

    def __init__(
        self, wait_for_all: Callable[[], None], factor: float | Tensor | None = None, divisor: int | None = None
    ) -> None:
        self.wait_for_all, self.factor, self.divisor = wait_for_all, factor, divisor
        self._back: list[tuple[Tensor, Tensor]] = []
        self._divided: list[Tensor] = []

    def moved(self, tensor: Tensor) -> Tensor:
        """For a tensor that is read or written as it lies in memory."""
        return _carrier(_single(tensor))

    def read(self, tensor: Tensor) -> Tensor:
        """For a member of a list that is read."""
        view = host(tensor)
        if not view.is_contiguous():
            self.wait_for_all()
            view = view.contiguous()
        return _carrier(view)

    def written(self, tensor: Tensor) -> Tensor:
        """For a member of a list that is written."""
        view = host(tensor)
        if not view.is_contiguous():
            self._back.append((view, torch.empty_like(view, memory_format=torch.contiguous_format)))
            view = self._back[-1][1]
        return _carrier(view)

    def reduced(self, tensor: Tensor) -> Tensor:
        """For a tensor that is reduced in place."""
        view = _single(tensor)
        if view.dtype is torch.int16:
            self.wait_for_all()
            self._back.append((view, _widened(view)))
            view = self._back[-1][1]
        if self.factor is not None:
            self.wait_for_all()
        return self._multiplied(view)

    def kept(self, tensor: Tensor) -> Tensor:
        """For a tensor that is reduced in place, when it is to stay as it is: gloo has a copy."""
        self.wait_for_all()
        return self._multiplied(_widened(_single(tensor).clone()))

    def joined_to_reduce(self, tensors: Sequence[Tensor], length: int | None = None) -> tuple[Tensor, list[int]]:
        """For a list that is reduced as one row of numbers: the row, and how many of them each member has.

        Args:
            tensors: the list.
            length: of the row, which is cut, or filled with zeros; None for all numbers.
        """
        self.wait_for_all()
        rows = [_widened(host(tensor)).reshape(-1) for tensor in tensors]
        row = torch.cat(rows)
        if length is not None:
            row = torch.nn.functional.pad(row[:length], (0, max(0, length - row.numel())))
        return self._multiplied(row), [each.numel() for each in rows]

    def joined(self, tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """For a list that is read as one row of numbers: the row, and how many of them each member has."""
        self.wait_for_all()
        rows = [_carrier(host(tensor).contiguous()).reshape(-1) for tensor in tensors]
        return torch.cat(rows), [row.numel() for row in rows]

    def parted(self, tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """For a list that is written as one row of numbers: the row, and how many of them each member has."""
        views = [host(tensor) for tensor in tensors]
        kind = _carrier_type(views[0].dtype)
        sizes = [view.numel() * view.dtype.itemsize // kind.itemsize for view in views]
        row = torch.empty(sum(sizes), dtype=kind)
        for view, part in zip(views, row.split_with_sizes(sizes), strict=True):
            self._back.append((view, part.view(view.dtype).view(view.shape)))
        return row, sizes

    def take(self, tensor: Tensor, result: Tensor) -> None:
        """For a tensor that a piece of a host tensor is copied to when the collective is done."""
        self._back.append((_single(tensor).view(-1), result))

    def _multiplied(self, view: Tensor) -> Tensor:
        """A host tensor to reduce, ours to change, times the factor.

        Raises:
            RuntimeError: torch_npu's, there is a factor and the type is no floating one; or gloo reduces no such type.
        """
        if self.factor is not None:
            if view.dtype not in _MULTIPLIED:
                text = "PreMulSum Data type must be half, float, bfloat16 or double"
                raise RuntimeError(message(text, "ERR02002 DIST invalid type"))
            view.mul_(self.factor)
        if self.divisor is not None and _is_whole(view.dtype):
            self._divided.append(view)
        return _summable(view)

    def finish(self) -> Callable[[], None]:
        """A function that divides sums and copies results to the card where gloo did not write there itself.

        It holds no backend: gloo's thread runs it, and must not release a backend last, which ends that thread.
        """
        back, divided, divisor = self._back, self._divided, self.divisor

        def copy_back() -> None:
            for view in divided:
                view.div_(divisor or 1, rounding_mode="trunc")
            for target, source in back:
                target.copy_(source)

        return copy_back


def factor_of(options: Any) -> float | Tensor | None:
    """Return the factor of PREMUL_SUM in the options of a collective; None for other reductions."""
    operation = getattr(options, "reduceOp", None)
    if operation is None or operation.op != ReduceOp.PREMUL_SUM:
        return None
    factor = operation.__getstate__()[1]  # torch has no other name for it
    return factor.cpu() if isinstance(factor, Tensor) else float(factor)


def divisor_of(options: Any, size: int) -> int | None:
    """Return what the sums of AVG are divided by, the size of the group; None for other reductions."""
    operation = getattr(options, "reduceOp", None)
    return size if operation is not None and operation.op == ReduceOp.AVG else None


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def reduce_operation(operation: ReduceOp.RedOpType, dtype: torch.dtype) -> ReduceOp.RedOpType:
    """The operation that gloo is asked for."""
    if operation == ReduceOp.PREMUL_SUM or (operation == ReduceOp.AVG and _is_whole(dtype)):
        return ReduceOp.SUM
    return _OF_BOOL.get(operation, operation) if dtype is torch.bool else operation
