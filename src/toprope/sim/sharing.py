"""Device tensors handed from process to process: the receiver sees the sender's memory, nothing is copied.

A piece of device memory moves into a file without a name when it is first shared; the receiver maps that file. The
sender keeps a block from reuse while a receiver holds it. A receiver keeps its view when the sender ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch.multiprocessing import reductions

from toprope.sim.native import native
from toprope.sim.spec import SimSpec
from toprope.sim.state import installed

__all__ = ["collect", "reduce"]

_kept: list[torch.UntypedStorage] = []
"""Storages that receivers hold, or are still to receive."""

_lock = threading.Lock()


def collect() -> None:
    """Releases storages that no receiver holds any more; `torch.npu.ipc_collect`."""
    _twins.close()
    with _lock:
        _kept[:] = [storage for storage in _kept if native().references(storage.data_ptr())]


def reduce(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Stand-in of a tensor in a pickle for another process."""
    if tensor.device.type != "npu":
        reduced: tuple[Callable[..., Any], tuple[Any, ...]] = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        return reduced
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support"
            " crossing process boundaries. If you just want to transfer the data, call detach() on the tensor before"
            " serializing (e.g., putting it on the queue)."
        )
    collect()
    torch.npu.synchronize(tensor.device)  # type: ignore[attr-defined]
    storage = tensor.untyped_storage()
    memory = _share(storage)
    meta = (tensor.dtype, tensor.storage_offset(), tuple(tensor.size()), tensor.stride(), tensor.requires_grad)
    cards = installed()
    assert cards is not None
    return _rebuild, (type(tensor), cards.format(), tensor.device.index, memory, meta)


def _share(storage: torch.UntypedStorage) -> tuple[Any, int, int, int] | None:
    """The file, its piece's bytes, the place and the bytes of a storage; None for one without bytes."""
    if storage.nbytes() == 0:
        return None
    file, size, offset = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    error = native().share(storage.data_ptr(), ctypes.byref(file), ctypes.byref(size), ctypes.byref(offset))
    if error:
        raise RuntimeError(f"device memory cannot be shared with another process: {os.strerror(error)}")
    with _lock:
        _kept.append(storage)
    return _for_another(file.value), size.value, offset.value, storage.nbytes()


def _for_another(file: int) -> Any:
    """The file in a form that a pickle carries; small tensors lie in one file."""
    if get_spawning_popen() is not None:
        # A process about to be spawned takes a list of files that may name none twice.
        file = os.dup(file)
        _twins.files.append(file)
    return DupFd(file)


class _Twins(threading.local):
    """Duplicates that this thread made for processes it was spawning; these have them by now when it is not."""

    def __init__(self) -> None:
        self.files: list[int] = []

    def close(self) -> None:
        if get_spawning_popen() is None:
            while self.files:
                os.close(self.files.pop())


_twins = _Twins()


def _rebuild(
    kind: type, cards: str, device: int, memory: tuple[Any, int, int, int] | None, meta: tuple[Any, ...]
) -> torch.Tensor:
    if installed() is None:  # the sender installed them itself, and left no TOPROPE_SIM for its children
        import toprope.sim

        spec = SimSpec.parse(cards)
        toprope.sim.install(spec.chip, spec.count, spec.hbm, force=spec.force, refuse=spec.refuse)
    dtype, offset, size, stride, requires_grad = meta
    if memory is None:
        tensor = torch.empty_strided(size, stride, dtype=dtype, device=f"npu:{device}")
    else:
        handle, piece_bytes, place, nbytes = memory
        file = handle.detach()
        try:
            flat = torch.ops.toprope_sim.map_share(device, file, piece_bytes, place, nbytes)
        finally:
            os.close(file)
        tensor = torch.empty(0, dtype=dtype, device=flat.device).set_(flat.untyped_storage(), offset, size, stride)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
