"""Recording of torch_npu's operators that are composed of torch operators: a trace has each as one kernel.

Called by the registry of the torch_npu facade around each such operator, and by graphs when they replay one. The trace
is the C++ core's (csrc/core/trace.h), roles and forms of tensors are numbers of csrc/core/signatures.h; the work of a
call comes from toprope.estimate.cost. Tests: tests/sim/simulated/test_timing.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toprope.sim.dtypes import NUMBERS
from toprope.sim.native import native

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Kernel", "is_recorded", "recorded", "replayed", "unrecorded"]

_READ, _WRITTEN, _RESULT = range(3)
_STRIDED, _COLD = 1, 2

_OF_SEVERAL_KERNELS = ("matmul", "convolution", "other")
"""Kinds of operators whose gradients are several kernels on a card too, or whose work is not known."""


def is_recorded() -> bool:
    """Return True if a trace of this process is being written."""
    return bool(native().is_tracing())


def recorded(name: str, compute: Callable[[], Any], arguments: Mapping[str, Any], written: frozenset[str]) -> Any:
    """Compute an operator and record it as one, and its gradient as one whenever it is computed.

    Args:
        name: "npu::npu_rms_norm".
        compute: computes it.
        arguments: by the schema's names.
        written: names of the arguments that it writes.
    """
    import torch

    from toprope.estimate.cost.attention import work_of  # only a process that is traced needs it

    library = native()
    counts = not library.is_part()
    began = library.begin_composite()
    first = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    shapes: list[int] = []
    taken: list[tuple[Tensor, tuple[int, ...]]] = []
    count = 0
    device = -1
    operations = 0
    try:
        result = compute()
        work = work_of(name.rpartition("::")[2], arguments)
        operations = work.operations if work is not None else 0
        for argument, value in arguments.items():
            for tensor in _tensors(value):
                sizes = tuple(tensor.shape)
                if argument == "query" and work is not None:
                    sizes = work.rows, work.head
                taken.append((tensor, sizes))
                _add(shapes, _WRITTEN if argument in written else _READ, tensor, sizes, counts=counts)
                count, device = count + 1, tensor.device.index
        made = list(_tensors(result))
        for tensor in made:
            _add(shapes, _RESULT, tensor, tuple(tensor.shape), counts=counts)
            count, device = count + 1, tensor.device.index
        if not written:
            _record_gradient(name, taken, made, first, operations)
        return result
    finally:
        packed = (ctypes.c_int64 * len(shapes))(*shapes)
        library.end_composite(name.encode(), device, began, operations, packed, count)


def _record_gradient(
    name: str, taken: Sequence[tuple[Tensor, tuple[int, ...]]], made: Sequence[Tensor], first: int, operations: int
) -> None:
    """Record the gradient as the one kernel that a card has for it.

    It reads what the operator read and made, and a gradient for each result; it makes one for each operand. Fused
    attention computes five products for two, one of them again.
    """
    import torch

    from toprope.estimate.cost.costs import cost_of
    from toprope.estimate.record.calls import OperatorCall

    results = [tensor for tensor in made if tensor.requires_grad]
    kind = cost_of(OperatorCall(name, ())).kind
    if not results or kind in _OF_SEVERAL_KERNELS or (kind == "attention") != bool(operations):
        return
    shapes: list[int] = []
    for tensor, sizes in taken:
        _add(shapes, _READ, tensor, sizes)
    for tensor in (*made, *results):
        _add(shapes, _READ, tensor, tuple(tensor.shape))
    for tensor, sizes in taken:
        if tensor.requires_grad:
            _add(shapes, _RESULT, tensor, sizes)
    index = results[0].device.index
    record = torch.ops.toprope_sim.record_gradient
    record(results, first, f"{name}_backward", index, operations * 5 // 2, shapes)


class Kernel:
    """A kernel of a compiled graph, whose tensors are the card's as the host sees them; keeps their shapes alone.

    Args:
        name: "aten::mm".
        device: number of the card.
        read: what it reads.
    """

    def __init__(self, name: str, device: int, read: Iterable[Any]) -> None:
        self._name, self._device = name, device
        self._shapes: list[int] = []
        self._count = 0
        self._keep(_READ, read)

    def record(self, made: Iterable[Any]) -> None:
        """Record it with its results."""
        library = native()
        began = library.begin_composite()
        self._keep(_RESULT, made)
        packed = (ctypes.c_int64 * len(self._shapes))(*self._shapes)
        library.end_composite(self._name.encode(), self._device, began, 0, packed, self._count)

    def _keep(self, role: int, values: Iterable[Any]) -> None:
        import torch

        for value in values:
            if isinstance(value, torch.Tensor):
                _add(self._shapes, role, value, tuple(value.shape))
                self._count += 1


@contextmanager
def replayed() -> Iterator[None]:
    """Record that a graph replays the operators of the block."""
    library = native()
    library.replay_graph(1)
    try:
        yield
    finally:
        library.replay_graph(0)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Leave the operators of the block out of the time: a card does not run them."""
    library = native()
    library.begin_composite()
    try:
        yield
    finally:
        library.end_composite(b"", 0, 0, 0, None, 0)


def _add(shapes: list[int], role: int, tensor: Tensor, sizes: tuple[int, ...], *, counts: bool = False) -> None:
    """Add a tensor as the core takes it; `counts`: whether the operator touches it now, and is no part of another."""
    dtype = NUMBERS.get(str(tensor.dtype).removeprefix("torch."), -1)
    form = 0 if tensor.is_contiguous() else _STRIDED
    if counts:
        block = tensor.untyped_storage().data_ptr()
        if native().touch(tensor.device.index, block, tensor.nbytes) and role != _RESULT:
            form |= _COLD
    shapes += (role, dtype, form, tensor.nbytes, len(sizes), *sizes)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors on a card in an argument or a result; none of a trace, which have no memory."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.device.type == "npu":
            yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
