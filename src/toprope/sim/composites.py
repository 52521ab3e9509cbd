"""Operators of torch_npu that torch operators compute here: each is recorded as the one that a card runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from toprope.estimate.attention import work_of
from toprope.sim.dtypes import NUMBERS
from toprope.sim.native import native

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["is_recorded", "recorded", "replayed", "unrecorded"]

_READ, _WRITTEN, _RESULT = range(3)


def is_recorded() -> bool:
    """Return True if a trace of this process is being written."""
    return bool(native().is_tracing())


def recorded(name: str, compute: Callable[[], Any], arguments: Mapping[str, Any], written: frozenset[str]) -> Any:
    """Compute an operator and record it as one.

    Args:
        name: "npu::npu_rms_norm".
        compute: computes it.
        arguments: by the schema's names.
        written: names of the arguments that it writes.
    """
    library = native()
    began = library.begin_composite()
    shapes: list[int] = []
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
                _add(shapes, _WRITTEN if argument in written else _READ, tensor, sizes)
                count, device = count + 1, tensor.device.index
        for tensor in _tensors(result):
            _add(shapes, _RESULT, tensor, tuple(tensor.shape))
            count, device = count + 1, tensor.device.index
        return result
    finally:
        packed = (ctypes.c_int64 * len(shapes))(*shapes)
        library.end_composite(name.encode(), device, began, operations, packed, count)


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


def _add(shapes: list[int], role: int, tensor: Tensor, sizes: tuple[int, ...]) -> None:
    dtype = NUMBERS.get(str(tensor.dtype).removeprefix("torch."), -1)
    shapes += (role, dtype, not tensor.is_contiguous(), tensor.nbytes, len(sizes), *sizes)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors on a card in an argument or a result; none of a trace, which have no memory."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.device.type == "npu":
            yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
