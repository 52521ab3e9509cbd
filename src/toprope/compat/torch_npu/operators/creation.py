"""New tensors: unsafe_empty_with_format, and empty_with_swapped_memory, whose memory is the host's.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's code; where the memory comes from is free. Tests:
tests/compat/test_torch_npu_contrib.py.

Source: torch_npu/csrc/aten/common/TensorFactories.cpp of Ascend/pytorch, and the page of empty_with_swapped_memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .._error_codes import ErrCode, pta_error
from .formats import base_format, empty_with_format
from .registry import operator

_deterministic: Any = torch.utils.deterministic  # its properties have no annotations

__all__ = ["empty_with_swapped_memory", "unsafe_empty_with_format"]


@operator("unsafe_empty_with_format", composite=True)
def unsafe_empty_with_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    acl_format: int = 2,
    keep_format: bool = False,
) -> torch.Tensor:
    """New tensor of a storage format, which it may keep where formats of the card are not allowed.

    Args:
        size: its shape.
        dtype: None for torch's default.
        layout: torch.strided.
        device: a card.
        pin_memory: not for a tensor on a card.
        acl_format: number of the format.
        keep_format: give the format also if torch.npu.config.allow_internal_format is False; otherwise the tensor gets
            the base format then.

    Raises:
        RuntimeError: as empty_with_format.
    """
    from toprope.sim.npu.npu_config import internal_format_is_allowed

    if not keep_format and not internal_format_is_allowed():
        acl_format = base_format(acl_format)
    return empty_with_format(
        size, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory, acl_format=acl_format
    )


@operator("empty_with_swapped_memory", composite=True)
def empty_with_swapped_memory(
    size: Sequence[int], *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """New tensor on the card whose memory is the host's: none of the card's memory is taken.

    On the card only some operators take such tensors (fill_, zero_, mul_, npu_apply_adam_w and the Hans codec); here
    all do.

    Args:
        size: its shape.
        dtype: None for torch's default.
        device: a card; None for the current one.

    Raises:
        RuntimeError: the device is no card, or a size is negative.
    """
    place = torch.device("npu") if device is None else torch.device(device)
    if place.type != "npu":
        raise RuntimeError(f"Expected a device of type npu, but got {place}." + pta_error(ErrCode.PARAM))
    if any(length < 0 for length in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")
    chosen = torch.get_default_dtype() if dtype is None else dtype
    tensor = torch.empty(0, dtype=chosen, device=place)
    if type(tensor) is not torch.Tensor:  # while a compiler traces
        return torch.empty(size, dtype=chosen, device=place)
    host = torch.empty(size, dtype=chosen)
    if torch.are_deterministic_algorithms_enabled() and _deterministic.fill_uninitialized_memory:
        floats = chosen.is_floating_point or chosen.is_complex
        host.fill_(math.nan if floats else True if chosen is torch.bool else torch.iinfo(chosen).max)
    if not host.numel():
        return tensor.resize_(tuple(size))
    memory = host.untyped_storage()
    construct: Any = torch._C._construct_storage_from_data_pointer  # its annotation names another class
    storage: torch.UntypedStorage = construct(memory.data_ptr(), tensor.device, memory.nbytes())
    storage._npu_memory = memory  # type: ignore[attr-defined]  # keeps it alive
    tensor.set_(storage, 0, tuple(size), host.stride())
    return tensor
