"""Callbacks for what a program does with streams and events: kept here, and called by streams, events and devices.

`torch_npu.utils._npu_trace` registers them. Tests: tests/sim/simulated/test_sanitizer.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

__all__ = ["callbacks", "fire"]

callbacks: dict[str, dict[str, Callable[..., None]]] = defaultdict(dict)
"""Callbacks by event ("event_record", "stream_creation", ...), then by their name."""


def fire(event: str, *values: Any) -> None:
    """Call all callbacks of an event."""
    if callbacks:
        for callback in [*callbacks.get(event, {}).values()]:
            callback(*values)
