"""Batches: several messages of an input joined into one, by number or by their own times.

For inputs with a `CountBatch` or `TimeBatch`: `worker.input_matching` gives it the messages. The attributes, when a
batch ends and the codes of refusals are those of CANN's dataflow API. A failed message passes by itself, so that the
others go on. Batching of whole requests is another thing: `worker.dynamic_batch`. Tests: tests/flow/test_flow_edge.py.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from typing import Any

from toprope.flow.exceptions import PARAM_INVALID, SHAPE_INVALID, DfException
from toprope.flow.stage.spec import EMPTY, EOS, FAILURE, SEG, CountBatch, Failure, Head, Message, TimeBatch

__all__ = ["Batcher", "CountBatcher", "TimeBatcher", "batcher", "check"]

_LONGEST_TIMEOUT = 2**32 - 1


def check(attrs: tuple[CountBatch | TimeBatch, ...]) -> None:
    """Check the batching attributes of an input.

    Raises:
        DfException: which, and why.
    """
    if len(attrs) > 1:
        raise DfException("an input can have one of CountBatch and TimeBatch, not both")
    for each in attrs:
        each.__post_init__()  # they may have been set since
        if isinstance(each, CountBatch):
            if each.batch_size <= 0 or not 0 <= each.slide_stride <= each.batch_size:
                raise DfException(f"{each}: batch_size must be more than 0, slide_stride from 0 to batch_size")
            if not 0 <= each.timeout <= _LONGEST_TIMEOUT:
                raise DfException(f"{each}: timeout must be from 0 to {_LONGEST_TIMEOUT} ms")
        elif each.time_window != -1 and each.time_window <= 0:
            raise DfException(f"{each}: time_window must be more than 0, or -1")


def batcher(attr: CountBatch | TimeBatch) -> Batcher:
    """Make the gatherer of the batches of an input."""
    return CountBatcher(attr) if isinstance(attr, CountBatch) else TimeBatcher(attr)


class Batcher(ABC):
    """Base of the two kinds of batches of messages: by number and by time.

    Attributes:
        out: batches that are ready.
    """

    def __init__(self) -> None:
        self.out: deque[Message] = deque()
        self._cached: list[Message] = []

    @property
    def is_clear(self) -> bool:
        """True if no message waits for others."""
        return not self._cached and not self.out

    def add(self, message: Message, now: float) -> None:
        """Take a message.

        Args:
            message: the message.
            now: seconds of a steady clock.
        """
        if message.failed:
            self.out.append(message)
            return
        if message.kind != EMPTY:
            self._gather(message, now)
        if message.head.flags & (EOS | SEG):
            self._end(message.head.flags)
        if message.kind == EMPTY and (message.head.flags & EOS or not message.head.flags):
            self.out.append(message)

    @abstractmethod
    def _gather(self, message: Message, now: float) -> None:
        """Take a message with data."""

    @abstractmethod
    def _end(self, flags: int) -> None:
        """The sequence or the segment ends."""

    def due(self) -> float | None:
        """Time at which `expire` has something to do; None for never."""
        return None

    def expire(self, now: float) -> None:  # noqa: B027 - most have nothing to do
        """Hand out batches that have waited long enough."""

    def _fail(self, text: str, code: int) -> None:
        head = self._cached[0].head
        self._cached = []
        self.out.append(Message(FAILURE, Failure(DfException(text, code), code=code), head, code))


class CountBatcher(Batcher):
    """Batches of a fixed number of messages."""

    def __init__(self, attr: CountBatch) -> None:
        super().__init__()
        self._attr = attr
        self._since = 0.0

    def _gather(self, message: Message, now: float) -> None:
        if not self._cached:
            self._since = now
        self._cached.append(message)
        if len(self._cached) == self._attr.batch_size:
            self._emit(self._cached)
            self._cached = self._cached[self._attr.slide_stride :] if self._attr.slide_stride else []
            self._since = now

    def _emit(self, messages: list[Message], pad: int = 0) -> None:
        try:
            self.out.append(_joined(messages, -1, pad))
        except DfException as error:
            self._fail(error.message, error.error_code)

    def _end(self, flags: int) -> None:
        if self._cached:
            self._flush()

    def _flush(self) -> None:
        cached = self._cached
        self._emit(cached, self._attr.batch_size - len(cached) if self._attr.padding else 0)
        self._cached = []

    def due(self) -> float | None:
        """Time at which the batch goes out as it is."""
        return self._since + self._attr.timeout / 1000 if self._cached and self._attr.timeout else None

    def expire(self, now: float) -> None:
        """Let the batch go out as it is where its time is over."""
        due = self.due()
        if due is not None and now >= due:
            self._flush()


class TimeBatcher(Batcher):
    """Batches of a window of the messages' own times."""

    def __init__(self, attr: TimeBatch) -> None:
        super().__init__()
        self._attr = attr

    def _gather(self, message: Message, now: float) -> None:
        before = self._cached[-1].head.end_time if self._cached else message.head.start_time
        self._cached.append(message)
        window, head = self._attr.time_window, message.head
        length = head.end_time - self._cached[0].head.start_time
        if window == -1:
            return
        if head.start_time < before or head.end_time < head.start_time:
            self._fail(f"times {head.start_time} to {head.end_time} ms begin before {before} ms", PARAM_INVALID)
        elif length > window:
            self._fail(f"the messages of a batch last {length} ms, more than its window of {window}", PARAM_INVALID)
        elif length == window:
            self._emit(0)

    def _emit(self, flags: int) -> None:
        try:
            batch = _joined(self._cached, self._attr.batch_dim, 0)
        except DfException as error:
            self._fail(error.message, error.error_code)
            return
        first, last = self._cached[0].head, self._cached[-1].head
        self._cached = []
        batch.head = replace(first, end_time=last.end_time, flags=last.flags | flags)
        self.out.append(batch)

    def _end(self, flags: int) -> None:
        if not self._cached:
            return
        if self._attr.drop_remainder and self._attr.time_window != -1:
            last = self._cached[-1].head
            self._cached = []
            if last.flags & EOS:
                self.out.append(Message(EMPTY, None, Head(last.transaction_id, flags=EOS)))
        else:
            self._emit(flags)


def _joined(messages: list[Message], dim: int, pad: int) -> Message:
    """Messages joined along an axis; -1 for a new first one.

    Raises:
        DfException: they do not fit together (145021), or are no tensors (145000).
    """
    values = [each.payload for each in messages]
    torch = sys.modules.get("torch")
    library: Any
    if torch is not None and all(isinstance(each, torch.Tensor) for each in values):
        library, axis = torch, "dim"
    else:
        import numpy

        library, axis = numpy, "axis"
        if not all(isinstance(each, numpy.ndarray | int | float) for each in values):
            raise DfException(f"only tensors can be batched, got {type(values[0]).__name__}")
        values = [numpy.asarray(each) for each in values]
    first = values[0]
    same = slice(None) if dim == -1 else slice(dim + 1, None)
    for each in values[1:]:
        fits = tuple(each.shape[same]) == tuple(first.shape[same]) and (
            dim == -1 or (each.ndim == first.ndim and tuple(each.shape[:dim]) == tuple(first.shape[:dim]))
        )
        if each.dtype != first.dtype or not fits:
            raise DfException(
                f"a batch needs tensors of one shape and dtype, got {tuple(first.shape)} {first.dtype} and "
                f"{tuple(each.shape)} {each.dtype}", SHAPE_INVALID
            )  # fmt: skip
    values += [library.zeros_like(first)] * pad
    joined = library.stack(values, **{axis: 0}) if dim == -1 else library.concatenate(values, **{axis: dim})
    return Message(messages[0].kind, joined, replace(messages[0].head))
