"""Object `torch.npu.npurt()`: the few functions of CANN's runtime that torch_npu gives to programs.

They return the runtime's code: 0, or 107000 for a parameter that is not valid. Tests:
tests/sim/simulated/test_stream_kinds.py.
"""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType

import torch

from toprope.sim.native import native
from toprope.sim.npu._state import EXTERNAL, INVALID, device_index, lazy_init, stream_key

__all__ = ["npuHostRegister", "npuHostUnregister", "npuStreamCreate", "npuStreamDestroy", "npurt"]

_registered: dict[int, int] = {}
_streams: dict[int, tuple[int, int]] = {}


def npurt() -> ModuleType:
    """The module of these functions; initialises the cards."""
    lazy_init()
    return sys.modules[__name__]


def npuHostRegister(ptr: int, size: int, flags: int) -> int:  # noqa: N802 - torch_npu's own name
    """Let cards read a range of the host's memory, which simulated ones can in any case.

    Args:
        ptr: its address.
        size: its bytes.
        flags: how it is registered (pinned, mapped).
    """
    if not ptr or size <= 0 or ptr in _registered:
        return INVALID
    _registered[ptr] = size
    return 0


def npuHostUnregister(ptr: int) -> int:  # noqa: N802 - torch_npu's own name
    """Take back that a range is registered."""
    return INVALID if _registered.pop(ptr, None) is None else 0


def npuStreamCreate(ptr: int) -> int:  # noqa: N802 - torch_npu's own name
    """Make a stream of the current card, for `ExternalStream`.

    Args:
        ptr: address of a pointer, into which the stream's handle is written.
    """
    if not ptr:
        return INVALID
    device = device_index()
    taken = {number for card, number in _streams.values() if card == device}
    number = next((each for each in EXTERNAL if each not in taken), None)
    if number is None:
        return INVALID
    made = torch.Stream(**stream_key(device, number))
    handle = int(made.native_handle)  # type: ignore[attr-defined]
    _streams[handle] = device, number
    ctypes.c_void_p.from_address(ptr).value = handle
    return 0


def npuStreamDestroy(ptr: int) -> int:  # noqa: N802 - torch_npu's own name
    """Give back a stream that `npuStreamCreate` made, once its work is done."""
    if ptr not in _streams:
        return INVALID
    device, number = _streams.pop(ptr)
    torch.Stream(**stream_key(device, number)).synchronize()
    if native().current_device() == device and torch.accelerator.current_stream().stream_id == number:
        torch.accelerator.set_stream(torch.Stream(**stream_key(device, 0)))
    return 0
