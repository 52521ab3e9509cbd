"""Part of `torch.npu`: streams, and the current stream of a card.

The C++ core runs their work (csrc/core/stream.h). Tests: tests/sim/simulated/test_streams.py and test_stream_kinds.py.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from types import TracebackType
from typing import Any, NoReturn

import torch

from toprope.sim.native import native
from toprope.sim.npu._state import (
    NOT_SUPPORTED,
    PARAMETER,
    SYNC_LAUNCH,
    VALUE,
    device_index,
    every_stream,
    is_stream_number,
    lazy_init,
    message,
    stream_key,
    vendor_error,
)
from toprope.sim.npu.devices import device as device_context
from toprope.sim.npu.events import Event, ExternalEvent
from toprope.sim.npu.trace_callbacks import fire

__all__ = [
    "Event",
    "ExternalEvent",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "SyncLaunchStream",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
    "stream_of_handle",
]


class _StreamOfCard(torch.Stream):
    """The part that all kinds of streams share."""

    @property
    def npu_stream(self) -> int:
        """The stream as a number that names it, like the handle on a card."""
        return int(self.native_handle)  # type: ignore[attr-defined]

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.npu_stream)

    def wait_event(self, event: Any) -> None:
        """Let work that is queued on this stream from now on wait for an event; the caller does not wait."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Let work that is queued on this stream from now on wait for all work on another so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        """Mark the end of the work queued so far.

        Args:
            event: the event to record, None for a new one.

        Returns:
            The event.
        """
        if event is None:
            event = Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Return True if all work on the stream is done."""
        return super().query()

    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
        super().synchronize()
        fire("stream_synchronization", self.native_handle)  # type: ignore[attr-defined]

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        """Mark the stream as one that prepares data; the simulated card treats all streams alike."""

    def __repr__(self) -> str:
        return f"<torch_npu.npu.{type(self).__name__} device={self.device} npu_stream={self.npu_stream:#x}>"


def _check_named(stream_id: int = 0, device_index: int = 0, device_type: int = 0, **others: Any) -> None:
    """Refuse numbers that no stream has.

    Raises:
        RuntimeError: there is no such card, or it has no such stream; or a number is negative.
    """
    if min(stream_id, device_index, device_type) < 0:
        raise RuntimeError(message("can't convert negative value to unsigned int", VALUE))
    count = native().device_count()
    if device_index >= count:
        raise RuntimeError(message(f"Invalid device index {device_index}, valid range is [0, {count})", VALUE))
    if not is_stream_number(stream_id):
        raise RuntimeError(message(f"Invalid stream index {stream_id} for NPU stream", PARAMETER))


_sync_launch_turns = itertools.count()


def _next_sync_launch(device: Any) -> dict[str, Any]:
    """Name the next of the streams whose work passes torch_npu's queue by: a card has four of them."""
    return stream_key(device_index(device), SYNC_LAUNCH[next(_sync_launch_turns) % len(SYNC_LAUNCH)])


class Stream(_StreamOfCard):
    """A queue of work on a card; work on different streams may overlap.

    Args:
        device: the card, None for the current one.
        priority: 0, or -1 for high.
        is_sync_launch: with this keyword, one of those that `SyncLaunchStream` makes.

    Raises:
        RuntimeError: stream_id, device_index and device_type name no stream.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Make a stream of the card's pool, or with keywords stream_id, device_index, device_type that very one."""
        lazy_init()
        if kwargs.pop("is_sync_launch", False):
            kwargs = _next_sync_launch(device)
        if kwargs:
            _check_named(**kwargs)
            return super().__new__(cls, priority=priority, **kwargs)
        made = super().__new__(cls, torch.device("npu", device_index(device)), priority=priority)
        fire("stream_creation", made.native_handle)  # type: ignore[attr-defined]
        return made

    @staticmethod
    def priority_range() -> NoReturn:
        """Refused, as torch_npu does.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(message("NPU does not support Stream.priority_range() currently.", NOT_SUPPORTED))


class SyncLaunchStream(_StreamOfCard):
    """A stream whose work goes to the card without torch_npu's queue in between; the simulated card has no such queue.

    Args:
        device: the card, None for the current one.
        priority: 0, or -1 for high.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> SyncLaunchStream:
        """Make a stream of the card's pool, or with keywords stream_id, device_index, device_type that very one."""
        lazy_init()
        kwargs = kwargs or _next_sync_launch(device)
        _check_named(**kwargs)
        return super().__new__(cls, priority=priority, **kwargs)


class ExternalStream(Stream):
    """A stream that another library made, to send work to. torch_npu neither waits for it nor uses events on it.

    Args:
        stream_ptr: the stream's number, such as `npu_stream` of one.
        device: the card, None for the current one.

    Raises:
        RuntimeError: 107003, there is no such stream on the card; or an argument of `Stream` is given, too.
    """

    def __new__(cls, stream_ptr: int, device: Any = None, **kwargs: Any) -> ExternalStream:
        """The stream of that number."""
        if not stream_ptr:
            raise RuntimeError(message("External NPU stream does not support nullptr.", PARAMETER))
        for name, text in (("priority", "Priority"), ("is_sync_launch", "is_sync_launch")):
            if kwargs.pop(name, 0):
                raise RuntimeError(message(f"{text} was explicitly set for an external stream", PARAMETER))
        lazy_init()
        found = stream_of_handle(stream_ptr, device_index(device))
        made = super().__new__(
            cls, stream_id=found.stream_id, device_index=found.device_index, device_type=found.device_type, **kwargs
        )
        assert isinstance(made, cls)
        return made

    @property
    def npu_stream(self) -> int:
        """The stream's number.

        Raises:
            RuntimeError: torch_npu has a queue for each stream, which one of another library cannot have.
        """
        blocking = os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1" or os.environ.get("TASK_QUEUE_ENABLE") == "0"
        if os.environ.get("PER_STREAM_QUEUE") == "1" and not blocking:
            self._refuse("External NPU stream is not supported in NPUStream::stream() when PER_STREAM_QUEUE is on.")
        return super().npu_stream

    def query(self) -> bool:
        """Refused.

        Raises:
            RuntimeError: always; who made the stream knows.
        """
        self._refuse(
            "Cannot query external NPU stream status. The caller must track stream completion externally.",
        )

    def synchronize(self) -> None:
        """Refused.

        Raises:
            RuntimeError: always; who made the stream waits for it.
        """
        self._refuse(
            "External NPU stream is not supported in NPUStream::synchronize. The caller is responsible for"
            " synchronization of external streams."
        )

    def _refuse_event(self, function: str) -> None:
        """Say that events cannot be used with the stream; `Event` and `ExternalEvent` ask."""
        self._refuse(
            f"External NPU stream is not supported in {function}. This path requires a torch_npu-managed stream."
        )

    @staticmethod
    def _refuse(text: str) -> NoReturn:
        raise RuntimeError(message(text, NOT_SUPPORTED))


def _as_stream(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def stream_of_handle(handle: int, device: int) -> Stream:
    """The stream of a card that `npu_stream` names.

    Raises:
        RuntimeError: 107003, there is none.
    """
    for each in every_stream(device):
        if each.native_handle == handle:  # type: ignore[attr-defined]
            return _as_stream(each)
    raise vendor_error("getStreamFromExternal", "stream", 107003, f"No stream of card {device} is at {handle:#x}.")


def current_stream(device: Any = None) -> Stream:
    """The stream that work of this thread goes to on a card."""
    lazy_init()
    return _as_stream(torch.accelerator.current_stream(torch.device("npu", device_index(device))))


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes to on a card unless another is chosen."""
    current = current_stream(device)
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream the current one of its card in this thread; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context in which a stream is the current one, and its card the current card; None changes nothing."""

    def __init__(self, stream_ctx: torch.Stream | None) -> None:
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


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context in which a stream is the current one."""
    return StreamContext(stream)
