"""Small operators without arithmetic: prefetch, copies into views, fills, and the status flag of float overflow.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_torch_backward.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .registry import operator

__all__ = [
    "npu_alloc_float_status",
    "npu_clear_float_status",
    "npu_get_float_status",
    "npu_prefetch",
    "npu_view_copy",
    "one_",
]

_STATUS = 8  # elements of the status of overflow


@operator("npu_prefetch")
def npu_prefetch(self: torch.Tensor, dependency: torch.Tensor | None, max_size: int, offset: int = 0) -> None:
    """Load a weight into the L2 cache ahead of its use; here the arguments are checked and nothing is done.

    Args:
        self: the weight.
        dependency: tensor after which the prefetch may start, in a graph.
        max_size: bytes to load, above 0; cut to the size of the weight.
        offset: first byte.

    Raises:
        RuntimeError: the size is not positive, or the offset is negative or behind the weight.

    Source: torch_npu-npu_prefetch.md and PrefetchKernelNpuOpApi.cpp of op-plugin.
    """
    if max_size <= 0:
        reason = f"max_size should be greater than zero, but got {max_size}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    if offset < 0:
        reason = f"offset should not be smaller than zero, but got {offset}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    size = self.numel() * self.element_size()
    if size <= offset:
        reason = f"offset out of range of tensor size, tensor size: {size}, offset: {offset}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))


@operator("npu_view_copy")
def npu_view_copy(self: torch.Tensor, other: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    """Copy a tensor into another one, which may be a view with any strides."""
    return self.copy_(other, non_blocking)


@operator("one_")
def one_(self: torch.Tensor) -> torch.Tensor:
    """Fill a tensor with 1."""
    return self.fill_(1)


@operator("npu_alloc_float_status")
def npu_alloc_float_status(self: torch.Tensor) -> torch.Tensor:
    """Eight float32 zeros on the device of a tensor, for the status of overflow."""
    return torch.zeros(_STATUS, dtype=torch.float32, device=self.device)


def _check_mode(mode: int) -> None:
    if mode not in (0, 1):
        reason = f"mode only supported for ORIGINAL_MODE(0) DEBUG_MODE(1), but got mode:{mode}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))


@operator("npu_get_float_status")
def npu_get_float_status(self: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Status of overflow as eight int32 values: always 0, no overflow, since the simulated card keeps no such status.

    Args:
        self: gives the device.
        mode: 0, or 1 for the status of the debugger.

    Raises:
        RuntimeError: another mode.

    Source: FloatStatusKernelNpu.cpp of op-plugin, for chips from the 910B on.
    """
    _check_mode(mode)
    return torch.zeros(_STATUS, dtype=torch.int32, device=self.device)


@operator("npu_clear_float_status")
def npu_clear_float_status(self: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Clear the status of overflow; gives eight zeros in the dtype of the tensor.

    Args:
        self: gives the device and the dtype.
        mode: 0, or 1 for the status of the debugger.

    Raises:
        RuntimeError: another mode.
    """
    _check_mode(mode)
    return torch.zeros(_STATUS, dtype=self.dtype, device=self.device)
