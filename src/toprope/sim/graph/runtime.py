"""Functions that compiled graphs call while they run: streams by name, events between them, and core limits.

lowering.py puts the calls into a graph; streams and limits are those of torch.npu (toprope.sim.npu). Tests:
tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from toprope.sim.npu.events import Event
from toprope.sim.npu.streams import Stream

__all__ = [
    "current",
    "held",
    "limits_of",
    "named_stream",
    "record",
    "restored_on_failure",
    "stream_of_label",
    "switch",
    "wait",
]

_lock = threading.Lock()
_of_label: dict[tuple[int, str], Stream] = {}


def current() -> Stream:
    """The current stream."""
    stream: Stream = torch.npu.current_stream()  # type: ignore[attr-defined]
    return stream


def stream_of_label(label: str) -> Stream:
    """The stream of the current card that scopes of this name share; made when it is first asked for."""
    device = current().device_index
    with _lock:
        if (device, label) not in _of_label:
            _of_label[device, label] = Stream()
        return _of_label[device, label]


def named_stream(stream_id: int, device_index: int, device_type: int) -> Stream:
    """A stream by its numbers."""
    return Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def switch(label: str) -> Stream:
    """Make the stream of that name the current one, and return it."""
    stream = stream_of_label(label)
    torch.npu.set_stream(stream)  # type: ignore[attr-defined]
    return stream


def record() -> Event:
    """An event at the end of the current stream's work."""
    event: Event = current().record_event()
    return event


def wait(event: Event) -> None:
    """Let the current stream wait for an event."""
    current().wait_event(event)


def limits_of(stream: Stream) -> dict[str, int]:
    """The limits that count for work on a stream."""
    limits: dict[str, int] = torch.npu.get_stream_limit(stream)  # type: ignore[attr-defined]
    return limits


def _set(stream: Stream, limits: dict[str, int]) -> None:
    torch.npu.set_stream_limit(stream, limits["cube_core_num"], limits["vector_core_num"])  # type: ignore[attr-defined]


@contextmanager
def held(stream: Stream, limits: dict[str, int]) -> Iterator[None]:
    """Give a stream these limits inside; where it has them anyway, nothing is set."""
    before = limits_of(stream)
    if before == limits:
        yield
        return
    _set(stream, limits)
    try:
        yield
    finally:
        _set(stream, before)


@contextmanager
def restored_on_failure(others: Sequence[Stream]) -> Iterator[None]:
    """Put the current stream, its limits and those of other streams back as they were, where the work inside fails."""
    before = current()
    limits = [(each, limits_of(each)) for each in (before, *others)]
    try:
        yield
    except BaseException:
        torch.npu.set_stream(before)  # type: ignore[attr-defined]
        for stream, was in limits:
            if limits_of(stream) != was:
                _set(stream, was)
        raise
