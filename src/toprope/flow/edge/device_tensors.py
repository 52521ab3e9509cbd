"""Device tensors between the processes of a graph: by reference where both see the card, never by way of the host.

A part of `edge.codec`. On simulated cards the receiver maps the sender's memory. The sender keeps a block from reuse
while a receiver holds it; the counts lie in the memory itself, and the C++ of the simulated card keeps them (`share`,
`references`, `map_share`). On CUDA and on real NPUs torch's own handles are passed, as torch.multiprocessing does it:
torch, and torch_npu, keep the memory until the receiver has released it. That branch needs a real device: no test here
runs it. Tests: tests/flow/test_flow_run.py.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
from collections import OrderedDict, deque
from typing import Any

import torch

__all__ = ["Cards"]

_SIMULATED, _BY_HANDLE = range(2)

_PIECES = 256
"""Pieces of others' memory whose files are kept open."""


class Cards:
    """The device memory that this process lends and borrows."""

    def __init__(self) -> None:
        from toprope.sim import installed

        self._is_simulated = installed() is not None
        self._out: deque[torch.Tensor] = deque()
        self._files: OrderedDict[tuple[int, int], int] = OrderedDict()  # by process and file: the piece opened here
        self._last: OrderedDict[tuple[int, int, int], torch.Tensor] = OrderedDict()
        self._indexes: dict[int, int] = {}

    # Out

    def lend(self, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, ...]]:
        """Share a tensor: return the tensor to keep, and its description for a receiver. Waits for its pending work.

        Raises:
            RuntimeError: the memory cannot be shared.
        """
        try:
            return tensor, self._lend(tensor)
        except RuntimeError:
            # a received tensor cannot be forwarded, neither here nor by the handles of CUDA: copy it on its card
            tensor = tensor.clone()
            return tensor, self._lend(tensor)

    def _lend(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        torch.get_device_module(tensor.device).synchronize(tensor.device)
        if not self._is_simulated or tensor.device.type != "npu":
            from multiprocessing.reduction import ForkingPickler

            stream = io.BytesIO()
            ForkingPickler(stream, 5).dump(tensor)
            return _BY_HANDLE, stream.getvalue()
        from toprope.sim.native import native

        self._collect()
        library, storage = native(), tensor.untyped_storage()
        meta = (str(tensor.dtype).removeprefix("torch."), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        index = tensor.device.index
        physical = library.physical_id(index)
        if not storage.nbytes():
            return _SIMULATED, physical, None, meta
        file, size, offset = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
        error = library.share(storage.data_ptr(), ctypes.byref(file), ctypes.byref(size), ctypes.byref(offset))
        if error:
            raise RuntimeError(f"device memory cannot be shared with another stage: {os.strerror(error)}")
        inode = os.fstat(file.value).st_ino
        memory = (os.getpid(), file.value, inode, size.value, offset.value, storage.nbytes())
        return _SIMULATED, physical, memory, meta

    def lent(self, tensor: torch.Tensor) -> None:
        """Keep a tensor until its receivers have released it."""
        if self._is_simulated and tensor.device.type == "npu":
            self._out.append(tensor)

    def _collect(self) -> None:
        from toprope.sim.native import native

        for _ in range(min(8, len(self._out))):
            tensor = self._out.popleft()
            if tensor.untyped_storage().nbytes() and native().references(tensor.untyped_storage().data_ptr()):
                self._out.append(tensor)

    # In

    def meet(self, form: tuple[Any, ...]) -> None:
        """Open the memory that a tensor lies in, so that it outlives its sender."""
        if form[0] == _SIMULATED and form[2] is not None:
            try:
                self._open(form[2])
            except OSError:
                pass  # the sender is gone; it is said where the tensor is needed

    def borrow(self, form: tuple[Any, ...]) -> tuple[torch.Tensor, int]:
        """The tensor, on the card that it is on, and whether that is another card than this process uses (1 or 0).

        Raises:
            OSError: the sender is gone, and its memory with it.
        """
        if form[0] == _BY_HANDLE:
            tensor = pickle.loads(form[1])
            module = torch.get_device_module(tensor.device)
            return tensor, int(tensor.device.index != module.current_device())
        from toprope.sim.native import native

        _, physical, memory, (dtype, offset, shape, stride) = form
        index = self._index(physical)
        if memory is None:
            tensor = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=f"npu:{index}")
        else:
            pid, _, inode, size, place, nbytes = memory
            opened = self._open(memory)
            flat = torch.ops.toprope_sim.map_share(index, opened, size, place, nbytes)
            self._keep_mapped((pid, inode, index), flat)
            tensor = torch.empty(0, dtype=getattr(torch, dtype), device=flat.device)
            tensor.set_(flat.untyped_storage(), offset, shape, stride)
        return tensor, int(index != native().current_device())

    def _open(self, memory: tuple[int, ...]) -> int:
        pid, file, inode = memory[:3]
        found = self._files.get((pid, inode))
        if found is not None:
            self._files.move_to_end((pid, inode))
            return found
        # by the sender's own descriptor: the file has no name
        opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(opened).st_ino != inode:
            os.close(opened)
            raise OSError("the stage that sent this tensor has ended, and its memory with it")
        self._files[pid, inode] = opened
        if len(self._files) > _PIECES:
            os.close(self._files.popitem(last=False)[1])
        return opened

    def _keep_mapped(self, piece: tuple[int, int, int], flat: torch.Tensor) -> None:
        """Hold the newest tensor of each piece, so that the piece stays mapped from one message to the next."""
        self._last[piece] = flat
        self._last.move_to_end(piece)
        if len(self._last) > 8:
            self._last.popitem(last=False)

    def _index(self, physical: int) -> int:
        found = self._indexes.get(physical)
        if found is None:
            from toprope.sim.native import native

            count = torch.get_device_module("npu").device_count()
            numbers = [native().physical_id(index) for index in range(count)]
            if physical not in numbers:
                raise OSError(f"card {physical} is not shown to this stage")
            found = self._indexes[physical] = numbers.index(physical)
        return found
