"""Part of `torch.npu`: events, including timing, events shared with others and a sleep of a stream.

The C++ core has the streams that they wait for (csrc/core/stream.h). Tests: tests/sim/simulated/test_streams.py.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from toprope.sim.native import TASK, native
from toprope.sim.npu._state import INTERNAL, PARAMETER, device_index, lazy_init, message, not_here, vendor_error
from toprope.sim.npu.trace_callbacks import fire

__all__ = ["Event", "ExternalEvent", "sleep", "waiting_replays"]

_BETWEEN_PROCESSES = "its events cannot be shared by processes, as with drivers that lack it"


def _stream_or_current(stream: torch.Stream | None, function: str) -> torch.Stream:
    """The stream an event is used on, checked: torch_npu refuses events on streams of others."""
    if stream is None:
        return torch.accelerator.current_stream()
    refuse = getattr(stream, "_refuse_event", None)
    if refuse is not None:
        refuse(function)
    return stream


@cache
def _beginning() -> tuple[Event, float]:
    """An event that has passed, and when it did, in microseconds of the system's steady clock."""
    event = Event()
    event.record(torch.Stream(torch.device("npu", device_index())))
    began = time.monotonic_ns() / 1000
    event.synchronize()
    return event, began


class Event(torch.Event):
    """A mark in a stream that others can wait for.

    Args:
        enable_timing: whether `elapsed_time` may be asked.
        blocking: accepted; waits never spin here.
        interprocess: not there; torch_npu has it with newer drivers only.

    Raises:
        NotImplementedError: the event is to be shared by processes.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        """An event of the current card."""
        if interprocess:
            raise not_here("Event(interprocess=True)", _BETWEEN_PROCESSES)
        lazy_init()
        device = torch.device("npu", device_index())
        made: Event = super().__new__(
            cls, device, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )
        return made

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        """Not there: an event of another process.

        Raises:
            NotImplementedError: always.
        """
        raise not_here("Event.from_ipc_handle", _BETWEEN_PROCESSES)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Mark the end of the work queued so far on a stream, None for the current one."""
        where = _stream_or_current(stream, "NPUEvent::record")
        super().record(where)
        fire("event_record", self.event_id, where.native_handle)  # type: ignore[attr-defined]
        if (capture := _capture()) is not None:
            capture.recorded(self, where.stream_id)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let work queued from now on on a stream, None for the current one, wait for the event."""
        where = _stream_or_current(stream, "NPUEvent::block")
        super().wait(where)
        if self.event_id:
            fire("event_wait", self.event_id, where.native_handle)  # type: ignore[attr-defined]
        if (capture := _capture()) is not None:
            capture.waited(self)

    def query(self) -> bool:
        """Return True if the event has passed, or was not recorded yet."""
        return super().query()

    def synchronize(self) -> None:
        """Wait until the event has passed."""
        super().synchronize()
        if self.event_id:
            fire("event_synchronization", self.event_id)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another, on the host's clock: the card's own time is not simulated.

        Waits for both, as torch_npu does (NPUEvent::elapsed_time).

        Raises:
            RuntimeError: one is not recorded, or they are of two cards.
        """
        if not self.event_id or not end_event.event_id:
            raise RuntimeError(message("Both events must be recorded before calculating elapsed time.", INTERNAL))
        self.synchronize()
        end_event.synchronize()
        if self.device != end_event.device:
            detail = f"The events are of {self.device} and {end_event.device}."
            raise vendor_error("elapsed_time", "aclrtEventElapsedTime(&time_ms, event_, other.event_)", 107000, detail)
        return float(native().elapsed_ms(self.event_id, end_event.event_id))

    def recorded_time(self) -> int:
        """Return the time at which the event passed, in microseconds of the system's steady clock; waits for it first.

        Raises:
            RuntimeError: the event was not recorded.
        """
        if not self.event_id:
            raise RuntimeError(message("Event must be recorded before getting recorded timestamp.", INTERNAL))
        self.synchronize()
        event, began = _beginning()
        return round(began + float(native().elapsed_ms(event.event_id, self.event_id)) * 1000)

    def ipc_handle(self) -> bytes:
        """Not there: a handle of the event for other processes.

        Raises:
            NotImplementedError: always.
        """
        raise not_here("Event.ipc_handle", _BETWEEN_PROCESSES)

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The card of the stream that it was recorded on; None before."""
        return super().device if self.event_id else None

    @property
    def npu_event(self) -> int:
        """The event as a number that names it, 0 before it is recorded."""
        return int(self.event_id)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_event)

    def __repr__(self) -> str:
        state = f"{self.npu_event:#x}" if self.npu_event else "uninitialized"
        return f"<torch_npu.npu.Event {state}>"


def _capture() -> Any:
    """The capture of a graph that is under way; None where graphs were not used."""
    module = sys.modules.get("toprope.sim.npu.graph_capture")
    return None if module is None else module.current()


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    return library


@cache
def _task(name: str) -> Any:
    """A function of the C library as work for a stream: it runs there without Python, and waits without its lock."""
    return TASK(ctypes.cast(getattr(_libc(), name), ctypes.c_void_p).value or 0)


waiting_replays: list[tuple[Callable[[], bool], Callable[[], None]]] = []
"""Replays of graphs that an event holds up: whether they may go on, and how."""


def sleep(cycles: int) -> None:
    """Keep the current stream busy for a number of cycles, of a nanosecond each.

    Raises:
        RuntimeError: the number is negative.
    """
    lazy_init()
    if cycles < 0:
        raise RuntimeError(message("cycles must be at least 0", PARAMETER))
    stream = torch.accelerator.current_stream()
    native().launch(stream.device_index, stream.stream_id, _task("usleep"), ctypes.c_void_p(-(-cycles // 1000)))


class ExternalEvent(torch.Event):
    """A mark that a stream, or a graph, can wait for before it is recorded. It stays passed until `reset`."""

    def __new__(cls) -> ExternalEvent:
        """An event of the current card."""
        lazy_init()
        made: ExternalEvent = super().__new__(cls, torch.device("npu", device_index()))
        return made

    def __init__(self) -> None:
        self._flag = 0
        self._is_recorded = False

    def _raised(self) -> int:
        """The address of a semaphore, more than 0 once the event has passed. Never freed: work may refer to it."""
        if not self._flag:
            self._flag = int(_libc().malloc(64))
            _libc().sem_init(ctypes.c_void_p(self._flag), 0, 0)
        return self._flag

    def record(self, stream: torch.Stream | None = None) -> None:
        """Let the event pass after the work queued so far on a stream, None for the current one."""
        self._launch(stream, "NPUEvent::record", "sem_post")
        self._is_recorded = True
        if waiting_replays:
            self.synchronize()
            for waiting in [*waiting_replays]:
                if waiting[0]():
                    waiting_replays.remove(waiting)
                    waiting[1]()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let work queued from now on on a stream, None for the current one, wait until the event has passed."""
        if (capture := _capture()) is not None:
            capture.note(lambda: None, ready=self._has_passed)
            return
        self._launch(stream, "NPUEvent::block", "sem_wait", "sem_post")  # what one waiter takes it hands to the next

    def reset(self, stream: torch.Stream | None = None) -> None:
        """Take back that the event has passed. Work that waits for it must be done by then, as on a card."""
        _stream_or_current(stream, "NPUEvent::reset")
        if (capture := _capture()) is not None:
            capture.note(self._forget)
            return
        self._forget()

    def _forget(self) -> None:
        self._flag = 0
        self._is_recorded = False

    def _has_passed(self) -> bool:
        """Return True if the event is recorded, and wait until it has passed."""
        if self._is_recorded:
            self.synchronize()
        return self._is_recorded

    def query(self) -> bool:
        """Return True if the event has passed."""
        value = ctypes.c_int()
        _libc().sem_getvalue(ctypes.c_void_p(self._raised()), ctypes.byref(value))
        return value.value > 0

    def synchronize(self) -> None:
        """Wait until the event has passed."""
        flag = ctypes.c_void_p(self._raised())
        while _libc().sem_wait(flag) != 0:  # a signal came in between
            pass
        _libc().sem_post(flag)

    def elapsed_time(self, end_event: Any) -> float:
        """Not there: these events carry no time.

        Raises:
            NotImplementedError: always.
        """
        raise not_here("ExternalEvent.elapsed_time", "these events carry no time")

    def _launch(self, stream: torch.Stream | None, function: str, *names: str) -> None:
        where = _stream_or_current(stream, function)
        for name in names:
            native().launch(where.device_index, where.stream_id, _task(name), ctypes.c_void_p(self._raised()))

    @property
    def npu_event(self) -> int:
        """The event as a number that names it, 0 before it is used."""
        return self._flag

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_event)

    def __repr__(self) -> str:
        state = f"{self.npu_event:#x}" if self.npu_event else "uninitialized"
        return f"<torch_npu.npu.ExternalEvent {state}>"
