"""Part of `torch.npu`: functions of the host that a stream calls, at their place among its operators.

Tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toprope.sim.npu._state import vendor_error
from toprope.sim.npu.graph_capture import current
from toprope.sim.npu.host_tensors import copied
from toprope.sim.npu.streams import Stream

__all__ = ["launch_host_func", "launch_host_func_pending", "subscribe_report", "unsubscribe_report"]

_subscribed: set[Stream] = set()


def launch_host_func_pending(op_stream: Stream, fn: Callable[..., Any], user_data: tuple[Any, ...]) -> None:
    """Call a function where the stream has come to it; in a captured graph at each replay.

    Args:
        op_stream: the stream. What is queued before has been computed when the function is called.
        fn: the function.
        user_data: its arguments. Tensors of the host that are named by their address (`host_tensors`) are copied.
    """
    _call(op_stream, lambda: fn(*copied(user_data)))


def launch_host_func(op_stream: Stream, fn: Callable[[Any], Any], user_data: Any) -> None:
    """Call a function with one argument where the stream has come to it; in a captured graph at each replay.

    Args:
        op_stream: the stream, which a thread serves: see `subscribe_report`. What is queued before has been computed
            when the function is called.
        fn: the function.
        user_data: its argument.

    Raises:
        RuntimeError: 107015, no thread serves the stream.
    """
    if op_stream not in _subscribed:
        detail = "call torch.npu._subscribe_report(stream) first."
        raise vendor_error("launch_callback", "aclrtLaunchCallback(func, data, blockType, stream)", 107015, detail)
    _call(op_stream, lambda: fn(user_data))


def _call(op_stream: Stream, call: Callable[[], Any]) -> None:
    capture = current()
    if capture is not None:
        capture.note(call)
        return
    op_stream.synchronize()
    call()


def subscribe_report(op_stream: Stream) -> None:
    """Let a thread serve the stream's functions. Here the thread that queues them does."""
    _subscribed.add(op_stream)


def unsubscribe_report(op_stream: Stream) -> None:
    """Wait for the stream, and end its service."""
    op_stream.synchronize()
    _subscribed.discard(op_stream)
