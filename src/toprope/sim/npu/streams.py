"""`torch.npu`: streams and events."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.npu._state import device_index, lazy_init
from toprope.sim.npu.devices import device as device_context

__all__ = ["Event", "Stream", "StreamContext", "current_stream", "default_stream", "set_stream", "stream"]


class Stream(torch.Stream):
    """A queue of work on a card; work on different streams may overlap.

    Args:
        device: the card, None for the current one.
        priority: 0, or -1 for high.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        """A stream from the card's pool, or with keywords stream_id, device_index, device_type that very one."""
        lazy_init()
        if kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, torch.device("npu", device_index(device)), priority=priority)

    @property
    def npu_stream(self) -> int:
        """The stream as a number that names it, like the handle on a card."""
        return int(self.native_handle)  # type: ignore[attr-defined]

    @property
    def _as_parameter_(self) -> Any:
        import ctypes

        return ctypes.c_void_p(self.npu_stream)

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        """Marks the stream as one that prepares data; the simulated card treats all streams alike."""

    def __repr__(self) -> str:
        return f"<torch_npu.npu.Stream device={self.device} npu_stream={self.npu_stream:#x}>"


class Event(torch.Event):
    """A mark in a stream that others can wait for.

    Args:
        enable_timing: whether `elapsed_time` may be asked.
        blocking: accepted; waits never spin here.
        interprocess: not supported by torch_npu's events either.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        """An event of the current card."""
        lazy_init()
        device = torch.device("npu", device_index())
        made: Event = super().__new__(
            cls, device, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )
        return made

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another, on the host's clock: the card's own time is not simulated."""
        if not self.event_id or not end_event.event_id:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not self.query() or not end_event.query():
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return float(native().elapsed_ms(self.event_id, end_event.event_id))

    @property
    def npu_event(self) -> int:
        """The event as a number that names it, 0 before it is recorded."""
        return int(self.event_id)

    def __repr__(self) -> str:
        state = f"{self.npu_event:#x}" if self.npu_event else "uninitialized"
        return f"<torch_npu.npu.Event {state}>"


def _as_stream(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device: Any = None) -> Stream:
    """The stream that work of this thread goes to on a card."""
    lazy_init()
    return _as_stream(torch.accelerator.current_stream(torch.device("npu", device_index(device))))


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes to on a card unless another is chosen."""
    current = current_stream(device)
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream the current one of its card in this thread; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context in which a stream is the current one, and its card the current card; None changes nothing."""

    def __init__(self, stream_ctx: Stream | None) -> None:
        self.stream = stream_ctx
        self._device: device_context | None = None
        self._before: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._device = device_context(self.stream.device)
        self._device.__enter__()
        self._before = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device is None:
            return
        set_stream(self._before)
        self._device.__exit__(kind, error, trace)


def stream(stream: Stream | None) -> StreamContext:
    """Context in which a stream is the current one."""
    return StreamContext(stream)
