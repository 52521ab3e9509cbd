"""Memory of tensors: its size, raw copies, and tensors that share another tensor's memory.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's code. Tests: tests/compat/test_torch_npu_formats.py,
tests/compat/test_torch_npu_utils.py (`npu_change_data_ptr`), tests/sim/simulated/test_stream_memory.py
(`erase_stream`).
"""

from __future__ import annotations

from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.npu.trace_callbacks import fire

from .._error_codes import ErrCode, ops_error, pta_error
from .._facade import current_npu
from .formats import check_on_card, format_of, share_format
from .registry import operator

__all__ = ["copy_memory_", "empty_strided", "erase_stream", "get_storage_size", "npu_change_data_ptr", "weak_ref"]

_MOVABLE = (torch.float16, torch.float32, torch.bfloat16)


@operator("get_storage_size", composite=True)
def get_storage_size(self: torch.Tensor) -> int:
    """Number of elements of the tensor's dtype that its storage holds.

    On a card formats such as FRACTAL_NZ pad the storage; here they do not.

    Raises:
        RuntimeError: the tensor is not on the card.
    """
    check_on_card(self)
    return self.untyped_storage().nbytes() // self.element_size()


@operator("copy_memory_", composite=True)
def copy_memory_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy as many elements as this tensor has from the memory behind another one, whatever the strides are.

    Args:
        self: target.
        src: source, of the same dtype on the same card.
        non_blocking: whether to return before the copy is done.

    Raises:
        RuntimeError: the source is not as above, or its storage ends before.
    """
    check_on_card(src)
    if src.dtype != self.dtype:
        raise RuntimeError("input tensors of copy_memory_ should have same dtype" + ops_error(ErrCode.PARAM))
    if src.device != self.device:
        raise RuntimeError("input tensors of copy_memory_ should have same device index" + ops_error(ErrCode.PARAM))
    count = min(self.numel(), get_storage_size(self))
    with torch.no_grad():
        _flat(self, count).copy_(_flat(src, count), non_blocking=True)
    if not non_blocking:
        torch.accelerator.current_stream(src.device).synchronize()
    return self


@operator("npu_change_data_ptr", composite=True)
def npu_change_data_ptr(dst: torch.Tensor, src: torch.Tensor, index: int) -> int:
    """Move a tensor into the memory of another one. Its values are then those that lie there.

    Views of the tensor that were made before stay in the old memory; on a card they move with it.

    Args:
        dst: tensor that moves, with its whole storage.
        src: tensor in whose memory it lies afterwards; the memory lives as long as either of them.
        index: first element there.

    Returns:
        0.

    Raises:
        RuntimeError: the tensors are not of one dtype, float16, bfloat16 or float32, or the memory ends before.
    """
    check_on_card(dst)
    check_on_card(src)
    if index < 0:
        raise RuntimeError(f"The offset {index} is below 0." + pta_error(ErrCode.VALUE))
    if src.dtype != dst.dtype or src.dtype not in _MOVABLE:
        found = f"src is {src.dtype} and dst is {dst.dtype}"
        raise RuntimeError(
            f"src and dst must have one dtype, float16, bfloat16 or float32, but {found}." + pta_error(ErrCode.TYPE)
        )
    size, room = get_storage_size(dst), get_storage_size(src)
    if index + size > room:
        raise RuntimeError(
            f"Offsets overflow: {size} elements at {index} do not fit into {room}." + pta_error(ErrCode.PARAM)
        )
    _move(dst, src, index * src.element_size())
    return 0


def weak_ref(tensor: torch.Tensor) -> torch.Tensor:
    """Second tensor in the same memory, which does not keep the memory alive.

    Raises:
        RuntimeError: the tensor is not on the card.
    """
    check_on_card(tensor)
    storage = _borrowed(tensor.untyped_storage(), 0, tensor.untyped_storage().nbytes())
    result = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    result.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    share_format(result, tensor)
    return result


def erase_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Take back `Tensor.record_stream`: the memory can be used again as soon as the tensor is freed.

    The program must have let the tensor's own stream wait for the other one. On another stream than the tensor's own
    nothing changes, as on a card.

    Args:
        tensor: on the card.
        stream: the stream that was recorded.

    Raises:
        TypeError: one of them is something else.

    Source: torch_npu-erase_stream.md of Ascend/op-plugin and torch_npu/npu/utils.py of Ascend/pytorch.
    """
    for name, value, wanted, kind in (
        ("tensor", tensor, "torch.Tensor", torch.Tensor),
        ("stream", stream, "torch_npu.npu.Stream", current_npu().Stream),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} should be {wanted}, could not be {type(value)}" + pta_error(ErrCode.TYPE))
    native().erase_stream(tensor.untyped_storage().data_ptr(), stream.stream_id)
    fire("erase_stream", tensor.untyped_storage().data_ptr(), stream.npu_stream)


def empty_strided(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """New tensor on the current card."""
    return torch.empty_strided(sizes, strides, dtype=dtype, device="npu")


def _move(dst: torch.Tensor, src: torch.Tensor, start: int) -> None:
    kept = format_of(dst)
    memory, size = src.untyped_storage(), dst.untyped_storage().nbytes()
    last = sum((length - 1) * step for length, step in zip(dst.size(), dst.stride(), strict=True))
    spanned = int(dst.storage_offset() + last + 1) * dst.element_size() if dst.numel() else 0
    storage = _borrowed(memory, start, max(size, spanned))
    storage._npu_memory = memory  # type: ignore[attr-defined]  # keeps it alive
    storage._npu_format = int(kept)  # type: ignore[attr-defined]
    moved = torch.empty(0, dtype=dst.dtype, device=dst.device)
    moved.set_(storage, dst.storage_offset(), dst.size(), dst.stride())
    if size < spanned:  # its storage was shrunk before; torch makes no such tensor, torch_npu keeps it
        native().shrink_storage(storage._cdata, size)
    dst.data = moved


def _borrowed(memory: torch.UntypedStorage, start: int, size: int) -> torch.UntypedStorage:
    """Storage in the memory of another one, which it does not own."""
    address = memory.data_ptr() + start
    construct: Any = torch._C._construct_storage_from_data_pointer  # its annotation names another class
    made: torch.UntypedStorage = construct(address, memory.device, size)
    return made


def _flat(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return tensor.detach().as_strided((count,), (1,), tensor.storage_offset())
