"""Host tensors among the arguments of a function that a stream calls later.

Used by graphs.py and host_functions.py. When the call is queued they are named by their address, since they are still
to be written; when the function is called their bytes are copied for it. Source: torch_npu/npu/graphs.py and
csrc/npu/Graph.cpp of Ascend/pytorch. Tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

__all__ = ["ADDRESS", "BUFFER", "by_address", "copied", "restored"]

ADDRESS = "host_tensor_ptr"
"""Begins a tuple that names a tensor: address, bytes, shape, dtype."""

BUFFER = "host_tensor_buffer"
"""Begins a tuple that holds a copy of a tensor: bytes, shape, dtype."""


def by_address(tensor: torch.Tensor) -> tuple[str, int, int, tuple[int, ...], torch.dtype]:
    """Name a tensor of the host by its address. The caller keeps it alive until the function was called."""
    size = tensor.numel() * tensor.element_size()
    return ADDRESS, tensor.data_ptr(), size, tuple(tensor.shape), tensor.dtype


def copied(value: Any) -> Any:
    """Replace the names of tensors in tuples and lists by copies of what the tensors hold now."""
    if isinstance(value, tuple) and len(value) == 5 and isinstance(value[0], str) and value[0] == ADDRESS:
        _, address, size, shape, dtype = value
        return BUFFER, bytearray(ctypes.string_at(address, size)), shape, dtype
    if isinstance(value, tuple | list):
        return type(value)(map(copied, value))
    return value


def restored(value: Any) -> Any:
    """Make a tensor of a copy, and tensors of the copies in a list; other values stay as they are."""
    if isinstance(value, tuple) and len(value) == 4 and isinstance(value[0], str) and value[0] == BUFFER:
        _, buffer, shape, dtype = value
        if len(buffer) == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(buffer, dtype=dtype).reshape(shape)
    if isinstance(value, list):
        return [restored(each) for each in value]
    return value
