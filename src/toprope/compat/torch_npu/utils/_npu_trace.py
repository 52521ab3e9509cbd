"""Facade module: registration of callbacks for memory, streams and events, for torch_npu's sanitizer and other tools.

toprope.sim.npu.trace_callbacks keeps and calls them; the names and the printed line are torch_npu's, and the sanitizer
(toprope.sim.npu._sanitizer) registers here. A new event is a row of `_EVENTS` and a call of `fire`. Tests:
tests/sim/simulated/test_sanitizer.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from toprope.sim.npu.trace_callbacks import callbacks

__all__: list[str] = []

_EVENTS = (
    "acl_start_execution", "acl_finish_execution", "npu_event_creation", "npu_event_deletion", "npu_event_record",
    "npu_event_wait", "npu_memory_allocation", "npu_memory_deallocation", "npu_stream_creation",
    "npu_device_synchronization", "npu_stream_synchronization", "npu_event_synchronization", "npu_record_stream",
    "npu_erase_stream",
)  # fmt: skip


def print_check_msg(msg: str) -> None:
    """Print a line of the sanitizer."""
    print(f"[sanitizer]({os.getpid()}) {msg}")


def _registration(event: str) -> Callable[[Callable[..., Any], str], None]:
    def register(cb: Callable[..., Any], cb_name: str) -> None:
        callbacks[event.removeprefix("npu_")][cb_name] = cb

    register.__name__ = register.__qualname__ = f"register_callback_for_{event}"
    register.__doc__ = "Register a callback; a later one of the same name takes its place."
    return register


globals().update({f"register_callback_for_{event}": _registration(event) for event in _EVENTS})
