"""Device tensors handed from process to process: the receiver sees the sender's memory, nothing is copied.

Registered with torch.multiprocessing when the card is installed; the memory work is csrc/core/sharing.h. A piece of
device memory moves into a file without a name when it is first shared; the receiver opens that file by the sender's
process and number, and maps it. The sender does not reuse a block while a receiver holds it. A receiver keeps its view
when the sender ends. The pickled form has torch_npu's layout, since programs that send it themselves replace the device
in it (`torch_npu/multiprocessing/reductions.py`). toprope.flow shares the tensors of its edges by the same calls.
Tests: tests/sim/simulated/test_sharing.py.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.spec import SimSpec
from toprope.sim.state import installed

__all__ = ["collect", "map_storage", "rebuild_npu_tensor", "reduce", "release_counter", "share_storage"]

_kept: list[torch.UntypedStorage] = []
"""Storages that receivers hold, or are still to receive."""

_lock = threading.Lock()


def collect() -> None:
    """Release storages that no receiver holds any more; `torch.npu.ipc_collect`."""
    with _lock:
        _kept[:] = [storage for storage in _kept if native().references(storage.data_ptr())]


def reduce(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Stand-in of a tensor on a card in a pickle for another process."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support"
            " crossing process boundaries. If you just want to transfer the data, call detach() on the tensor before"
            " serializing (e.g., putting it on the queue)."
        )
    torch.utils.hooks.warn_if_has_hooks(tensor)
    device, handle, nbytes, place, *counters_and_event = share_storage(tensor.untyped_storage())
    shape = (type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset())
    memory = (torch.UntypedStorage, tensor.dtype, device, handle, nbytes, place)
    return rebuild_npu_tensor, (*shape, *memory, tensor.requires_grad, *counters_and_event)


def share_storage(storage: torch.UntypedStorage) -> tuple[int, bytes | None, int, int, bytes, int, bytes, bool]:
    """Share a storage on a card, until one receiver has released it: `UntypedStorage._share_npu_`.

    Returns:
        The device; what `map_storage` finds the memory by, None for a storage without bytes; the bytes of the storage;
        its first byte's place in that memory; what `release_counter` takes, twice; an event's handle, and whether the
        receiver waits for it, which it never has to.

    Raises:
        RuntimeError: the storage is not on a card, or the system does not let its memory be shared.
    """
    if storage.device.type != "npu":
        raise RuntimeError("_share_npu_: only available on NPU.")
    collect()
    torch.npu.synchronize(storage.device)  # type: ignore[attr-defined]
    if storage.nbytes() == 0:
        return storage.device.index, None, 0, 0, b"", 0, b"", False
    file, size, offset = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    error = native().share(storage.data_ptr(), ctypes.byref(file), ctypes.byref(size), ctypes.byref(offset))
    if error:
        raise RuntimeError(f"device memory cannot be shared with another process: {os.strerror(error)}")
    with _lock:
        _kept.append(storage)
    cards = installed()
    assert cards is not None
    inode = os.fstat(file.value).st_ino
    handle = f"{os.getpid()} {file.value} {inode} {size.value} {cards.format()}".encode()
    return storage.device.index, handle, storage.nbytes(), offset.value, handle, offset.value, b"", False


def map_storage(
    device: int | str | torch.device,
    handle: bytes,
    nbytes: int,
    place: int,
    ref_counter_handle: bytes,
    ref_counter_offset: int,
    event_handle: bytes,
    event_sync_required: bool,
) -> torch.UntypedStorage:
    """Map the memory of another process's storage: `UntypedStorage._new_shared_npu`, with what `_share_npu_` returned.

    Raises:
        RuntimeError: the sender has ended, or its memory can be neither opened nor mapped.
    """
    process, number, inode, piece, _ = handle.decode().split(" ", 4)
    _install(handle)
    try:
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _not_there(process, os.strerror(error.errno or 0)) from None
    try:
        if os.fstat(file).st_ino != int(inode):  # another process or file by now
            raise _not_there(process, "it has freed the memory")
        return torch.ops.toprope_sim.map_share(_index(device), file, int(piece), place, nbytes).untyped_storage()  # type: ignore[no-any-return]
    finally:
        os.close(file)


def release_counter(ref_counter_handle: bytes, ref_counter_offset: int, device: int | str | torch.device) -> None:
    """Release a storage that was sent and is not received: `UntypedStorage._release_ipc_counter_npu`."""
    map_storage(device, ref_counter_handle, 1, ref_counter_offset, b"", 0, b"", False)  # its end counts as a receiver's


def rebuild_npu_tensor(
    tensor_cls: type,
    tensor_size: tuple[int, ...],
    tensor_stride: tuple[int, ...],
    tensor_offset: int,
    storage_cls: Any,
    dtype: torch.dtype,
    storage_device: int | str | torch.device,
    storage_handle: bytes | None,
    storage_size_bytes: int,
    storage_offset_bytes: int,
    requires_grad: bool,
    ref_counter_handle: bytes,
    ref_counter_offset: int,
    event_handle: bytes,
    event_sync_required: bool,
) -> torch.Tensor:
    """Make a received tensor from what `reduce` gave, in torch_npu's order."""
    if storage_handle is None or storage_size_bytes == 0:
        tensor = torch.empty_strided(tensor_size, tensor_stride, dtype=dtype, device=f"npu:{_index(storage_device)}")
    else:
        _install(storage_handle)  # gives the storages of a process that has no cards yet their methods
        storage = storage_cls._new_shared_npu(
            storage_device, storage_handle, storage_size_bytes, storage_offset_bytes,
            ref_counter_handle, ref_counter_offset, event_handle, event_sync_required,
        )  # fmt: skip
        flat = torch.empty(0, dtype=dtype, device=storage.device)
        tensor = flat.set_(storage, tensor_offset, tensor_size, tensor_stride)
    if tensor_cls is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _index(device: int | str | torch.device) -> int:
    index = device if isinstance(device, int) else torch.device(device).index
    return torch.npu.current_device() if index is None else index


def _install(handle: bytes) -> None:
    """Install the sender's cards, if it did so itself and left no TOPROPE_SIM for its children."""
    if installed() is None:
        import toprope.sim

        toprope.sim.install(**vars(SimSpec.parse(handle.decode().split(" ", 4)[4])))


def _not_there(process: str, why: str) -> RuntimeError:
    return RuntimeError(
        f"device memory that process {process} shared cannot be mapped: {why}; the sender must keep the tensor, and"
        " run, until the receiver has it"
    )
