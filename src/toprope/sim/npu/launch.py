"""Part of `torch.npu`: settings of how work gets to the card, and of waiting for it.

Names and texts of errors are torch_npu's; sim/npu/__init__.py and utils.py hand them out. Tests:
tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

import os

from toprope.sim.native import native
from toprope.sim.npu._state import PARAMETER, VALUE, message

__all__ = [
    "get_sync_debug_mode",
    "get_task_queue_enable",
    "set_op_timeout_ms",
    "set_sync_debug_mode",
    "set_task_queue_enable",
]

_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}
_sync_mode = 0
_task_queue = 1


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Set what happens when a call waits for the card by itself (item, copies, nonzero, ...).

    Args:
        debug_mode: 0 or "default", 1 or "warn", 2 or "error".

    Raises:
        RuntimeError: it is none of these.
    """
    global _sync_mode
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_MODES:
            raise RuntimeError(
                message("invalid value of debug_mode, expected one of `default`, `warn`, `error`", PARAMETER)
            )
        debug_mode = _SYNC_MODES[debug_mode]
    if not isinstance(debug_mode, int):
        raise RuntimeError(
            message("invalid argument to set_sync_debug_mode, debug_mode type must long", PARAMETER),
        )
    if not 0 <= debug_mode <= 2:
        raise RuntimeError(message("invalid value of debug_mode, expected one of 0,1,2", VALUE))
    native().set_sync_debug_mode(debug_mode)
    _sync_mode = debug_mode


def get_sync_debug_mode() -> int:
    """The mode that was set: 0, 1 (warn) or 2 (error)."""
    return _sync_mode


def set_task_queue_enable(mode: int | str) -> None:
    """Set torch_npu's queue on the host: 0 none, 1, 2 deeper. It is kept; the simulated card has no such queue.

    Raises:
        RuntimeError: it is none of these.
        ValueError: it is a str that is no number.
    """
    global _task_queue
    if isinstance(mode, str):
        mode = int(mode)
    if mode not in (0, 1, 2):
        raise RuntimeError(message(f"mode must be 0, 1, or 2, but got {mode}.", VALUE))
    _task_queue = int(mode)


def get_task_queue_enable() -> int:
    """The queue that was set; 0 where ASCEND_LAUNCH_BLOCKING=1 rules it out."""
    return 0 if os.environ.get("ASCEND_LAUNCH_BLOCKING", "0") == "1" else _task_queue


def set_op_timeout_ms(timeout: int) -> None:
    """Set the longest time that the host waits for work on a card; the wait then fails with 107019.

    Args:
        timeout: milliseconds, at least 1. It is 1091 s until it is set, as on A2 and A3 cards.

    Raises:
        RuntimeError: it is not a number of milliseconds.
    """
    if isinstance(timeout, int) and timeout < 0:
        raise RuntimeError(message("can't convert negative value to unsigned int", VALUE))
    if isinstance(timeout, int) and timeout >= 2**32:
        raise RuntimeError(message("Overflow when unpacking unsigned int", VALUE))
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout == 0:
        raise RuntimeError(message(f"timeout must be a number of milliseconds, but got {timeout!r}.", VALUE))
    native().set_wait_limit_ms(timeout)
