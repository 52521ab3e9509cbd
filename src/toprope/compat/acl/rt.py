"""Facade of `acl.rt`: number of cards, the current one, its memory. Each function's last result is an error code.

torch is imported by the first question, not by the import. Names, arguments and results are pyACL's; the answers are
those of `torch.npu`. Sources: the pages of pyACL of these names. Tests: tests/compat/test_acl.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from toprope.compat.missing import missing_from

__all__ = ["get_device", "get_device_count", "get_mem_info", "reset_device", "set_device", "synchronize_device"]

_INVALID_DEVICE, _NO_CONTEXT, _UNSUPPORTED = 107001, 107002, 207000

_HBM = 1
"""ACL_HBM_MEM, the only kind of memory that is simulated."""


def npu() -> Any:
    """`torch.npu`; None where torch has none."""
    return getattr(import_module("torch"), "npu", None)


def get_device_count() -> tuple[int, int]:
    """Return the number of cards that the process sees, and 0."""
    cards = npu()
    return (int(cards.device_count()) if cards is not None else 0), 0


def set_device(device_id: int) -> int:
    """Make a card the current one: 0, or 107001 where there is none of that number."""
    if not 0 <= device_id < get_device_count()[0]:
        return _INVALID_DEVICE
    npu().set_device(device_id)
    return 0


def get_device() -> tuple[int, int]:
    """Return the number of the current card, and 0; 107002 before a card was used."""
    if not get_device_count()[0] or not npu().is_initialized():
        return 0, _NO_CONTEXT
    return int(npu().current_device()), 0


def synchronize_device() -> int:
    """Wait for the current card: 0, or 107002 before a card was used."""
    _, code = get_device()
    if not code:
        npu().synchronize()
    return code


def reset_device(device_id: int) -> int:
    """Wait for a card's work: 0, or 107001. Nothing is given back: torch may still use the card."""
    if not 0 <= device_id < get_device_count()[0]:
        return _INVALID_DEVICE
    if npu().is_initialized():
        npu().synchronize(device_id)
    return 0


def get_mem_info(attr: int) -> tuple[int, int, int]:
    """Return free and total bytes of the current card, and 0; 107002 before a card was used, 207000 for other kinds.

    Args:
        attr: kind of memory, 1 for HBM.
    """
    if attr != _HBM:
        return 0, 0, _UNSUPPORTED
    _, code = get_device()
    free, total = npu().mem_get_info() if not code else (0, 0)
    return int(free), int(total), code


__getattr__ = missing_from(__name__)
