"""Scatter, gather and broadcast of torch.nn.DataParallel for simulated cards: torch has them for CUDA alone.

`toprope.compat.parallel_import` puts them in the place of torch's functions in torch.nn.parallel, whose names and
arguments they have, after the function that they replace (`own`), which also raises torch's own errors. torch_npu has
had its own since its release 6.0.rc2 (Ascend/pytorch 9e73e708, initCommMethods in torch_npu/csrc/npu/Module.cpp), and
the other errors are its words. Tests: tests/sim/simulated/test_data_parallel.py for values and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["broadcast", "broadcast_coalesced", "gather", "on_cards", "parallel_apply", "reduce_add", "scatter"]

# torch's own helpers, which are untyped
_utils: Any = torch._utils


def on_cards() -> bool:
    """True if the devices that numbers stand for in torch.nn.parallel are cards without functions of their own."""
    return bool(_utils._get_available_device_type() == "npu") and not hasattr(torch._C, "_scatter")


def _card(device: Any) -> torch.device:
    return torch.device("npu", _utils._get_device_index(device))


def broadcast(
    own: Callable[..., Any],
    tensor: Tensor,
    devices: Iterable[Any] | None = None,
    *,
    out: Sequence[Tensor] | None = None,
) -> Any:
    """Copies of a tensor on several cards; on its own card the tensor itself."""
    if (devices is None) == (out is None):
        return own(tensor, devices, out=out)  # raises
    tensor = _utils._handle_complex(tensor)
    if devices is not None:
        return tuple(tensor.to(_card(device), non_blocking=True) for device in devices)
    for place, target in enumerate(out or ()):
        _check_output(target, place)
        if target.shape != tensor.shape:
            raise _refusal(
                f"Expected all output tensors to have same shape as the source tensor {[*tensor.shape]}, but output"
                f" tensor at index {place} has shape {[*target.shape]}"
            )
    for target in out or ():
        target.copy_(tensor, non_blocking=True)
    return tuple(out or ())


def broadcast_coalesced(
    own: Callable[..., Any], tensors: Sequence[Tensor], devices: Iterable[Any], buffer_size: int = 10485760
) -> list[list[Tensor]]:
    """Copies of several tensors on several cards, small ones in one copy; on their own card the tensors themselves."""
    tensors = [_utils._handle_complex(tensor) for tensor in tensors]
    flat = [(group, _flattened(group)) for group in _utils._take_tensors(tensors, buffer_size)]
    everywhere = []
    for device in map(_card, devices):
        if all(tensor.device == device for tensor in tensors):
            everywhere.append(list(tensors))
            continue
        copies = []
        for group, rows in flat:
            parts = _unflattened([row.to(device, non_blocking=True) for row in rows], group)
            # each with a version of its own: to write to one is not to have written to all
            copies += [part.data for part in parts]
        everywhere.append(list(_utils._reorder_tensors_as(copies, tensors)))
    return everywhere


def _flattened(group: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of one type in one row, sparse ones in a row of indices and a row of values."""
    return [*_utils._flatten_sparse_tensors(group)] if group[0].is_sparse else [_utils._flatten_dense_tensors(group)]


def _unflattened(rows: list[Tensor], group: Sequence[Tensor]) -> Any:
    return (
        _utils._unflatten_sparse_tensors(rows, group)
        if group[0].is_sparse
        else _utils._unflatten_dense_tensors(rows[0], group)
    )


def reduce_add(own: Callable[..., Any], inputs: Sequence[Tensor], destination: int | None = None) -> Any:
    """The sum of tensors from several cards, on the card of one of them."""
    device = torch.device("npu", _utils._get_device_index(destination, optional=True))
    here = [tensor for tensor in inputs if tensor.device == device]
    if not here or any(tensor.device.type != "npu" or tensor.size() != inputs[0].size() for tensor in inputs):
        return own(inputs, destination)  # raises
    if len(inputs) == 1:
        return inputs[0]
    others = [tensor for tensor in inputs if tensor is not here[0]]
    total = here[0] + others[0].to(device, non_blocking=True)
    for tensor in others[1:]:
        total.add_(tensor.to(device, non_blocking=True))
    return total


def scatter(
    own: Callable[..., Any],
    tensor: Tensor,
    devices: Iterable[Any] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
    *,
    out: Sequence[Tensor] | None = None,
) -> Any:
    """The chunks of a tensor, each on a card of its own."""
    if devices is None or out is not None:
        return _scatter_out(own, tensor, devices, chunk_sizes, dim, out)
    tensor = _utils._handle_complex(tensor)
    cards = [_card(device) for device in devices]
    if not cards:
        raise _refusal("Expected at least one device to scatter to")
    if chunk_sizes is not None and len(chunk_sizes) != len(cards):
        raise _refusal(
            f"Expected devices and chunk_sizes to be of same length, but got len(devices) = {len(cards)} and"
            f" len(chunk_sizes) = {len(chunk_sizes)}"
        )
    chunks = tensor.chunk(len(cards), dim) if chunk_sizes is None else tensor.split_with_sizes(list(chunk_sizes), dim)
    placed = []
    for place, (chunk, card) in enumerate(zip(chunks, cards, strict=False)):
        stream = streams[place] if streams is not None else None
        if stream is None:
            placed.append(chunk.to(card, non_blocking=True))
        else:
            with torch.accelerator.device_index(card.index), stream:
                placed.append(chunk.to(card, non_blocking=True))
    return tuple(placed)


def _scatter_out(
    own: Callable[..., Any],
    tensor: Tensor,
    devices: Any,
    chunk_sizes: Any,
    dim: int,
    out: Sequence[Tensor] | None,
) -> Any:
    if out is None or devices is not None or chunk_sizes is not None:
        return own(tensor, devices, chunk_sizes, dim, out=out)  # raises
    tensor = _utils._handle_complex(tensor)
    if not out:
        raise _refusal("Expected at least one output tensor to scatter to")
    dim = range(tensor.dim())[dim]
    for place, target in enumerate(out):
        _check_output(target, place)
        if target.dim() != tensor.dim() or _without(target, dim) != _without(tensor, dim):
            raise _refusal(
                f"Output tensor at index {place} has incorrect shape: {[*target.shape]}. Expected same shape except for"
                f" scatter dim {dim} as the source tensor: {[*tensor.shape]}"
            )
    sizes = [target.size(dim) for target in out]
    if sum(sizes) != tensor.size(dim):
        raise _refusal(
            f"Total size for output tensors along scatter dim {dim} does not match the source tensor size at dim {dim}."
            f" Expected {tensor.size(dim)}, but got total size {sum(sizes)}"
        )
    for target, chunk in zip(out, tensor.split_with_sizes(sizes, dim), strict=True):
        target.copy_(chunk, non_blocking=True)
    return tuple(out)


def gather(
    own: Callable[..., Any],
    tensors: Iterable[Tensor],
    dim: int = 0,
    destination: Any = None,
    *,
    out: Tensor | None = None,
) -> Any:
    """Tensors from several cards joined on one, or on the host."""
    tensors = [_utils._handle_complex(tensor) for tensor in tensors]
    if out is not None:
        if destination is not None:
            return own(tensors, dim, destination, out=out)  # raises
        expected = _check_gathered(tensors, dim)
        if [*out.shape] != expected:
            raise _refusal(f"Expected out tensor to have shape {expected}, but got {[*out.shape]}")
        return out.copy_(torch.cat([tensor.to(out.device) for tensor in tensors], dim))
    _check_gathered(tensors, dim)
    index = _utils._get_device_index(destination, allow_cpu=True, optional=True)
    device = torch.device("npu", index) if index >= 0 else torch.device("cpu")
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


def _check_gathered(tensors: Sequence[Tensor], dim: int) -> list[int]:
    """Check the tensors to be joined, and return the shape of the whole."""
    if not tensors:
        raise _refusal("Expected at least one tensor to gather from")
    expected = [*tensors[0].shape]
    for place, tensor in enumerate(tensors):
        if tensor.device.type != "npu":
            raise _refusal(
                f"Expected all input tensors to be NPU tensors, but tensor at index {place} has device {tensor.device}",
                of_type=True,
            )
        if tensor.dim() != len(expected):
            raise _refusal(
                f"Expected all input tensors to have the same number of dimensions, but tensor at index {place} has"
                f" {tensor.dim()} dimensions, (expected {len(expected)})"
            )
        expected[dim] = tensor.size(dim)
        if [*tensor.shape] != expected:
            raise _refusal(
                f"Input tensor at index {place} has invalid shape {[*tensor.shape]}, but expected {expected}"
            )
    expected[dim] = sum(tensor.size(dim) for tensor in tensors)
    return expected


def _check_output(tensor: Tensor, place: int) -> None:
    if tensor.device.type != "npu":
        raise _refusal(
            f"Expected all output tensors to be NPU tensors, but output tensor at index {place} has device"
            f" '{tensor.device}'",
            of_type=True,
        )


def _without(tensor: Tensor, dim: int) -> list[int]:
    """Sizes of a tensor, apart from one dimension."""
    return [size for place, size in enumerate(tensor.shape) if place != dim]


def _refusal(text: str, of_type: bool = False) -> RuntimeError:
    """Make an error as torch_npu words it (Ascend/pytorch 9e73e708, torch_npu/csrc/npu/DataParallelComm.cpp)."""
    from toprope.sim.npu._state import TYPE, VALUE, message

    return RuntimeError(message(text, TYPE if of_type else VALUE))


def parallel_apply(
    own: Callable[..., Any],
    modules: Sequence[Any],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> Any:
    """Call modules, each on its card in a thread of its own; torch's, which forgets autocast on all but CUDA."""
    if torch.is_autocast_enabled("npu"):
        dtype = torch.get_autocast_dtype("npu")
        modules = [torch.autocast("npu", dtype)(module) for module in modules]
    return own(modules, inputs, kwargs_tup, devices)
