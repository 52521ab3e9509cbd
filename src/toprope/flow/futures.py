"""Futures and streams of a graph's results: a thread fetches, and delivers each result to its input's receiver.

`FlowGraph.submit` and `stream`, and with them the HTTP service, are built on it; it calls the runner. Not in CANN's
dataflow API. A receiver that has given up must never stop the others: the user's code (callbacks, deserializers) runs
outside of the lock, and what it raises is caught. Tests: tests/flow/test_serve_graph.py,
tests/flow/test_serve_parts.py.
"""

from __future__ import annotations

import functools
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from toprope.flow.convert import info_of
from toprope.flow.exceptions import FAILED, INNER_ERROR, QUEUE_FULL, DfAbortException, DfException, as_exception
from toprope.flow.graph.nodes import Plan
from toprope.flow.result import FlowResult
from toprope.flow.stage.spec import END, MORE, Message
from toprope.flow.tensor import Tensor

if TYPE_CHECKING:
    from toprope.flow.executor.runner import Fetched, Runner

__all__ = ["DeadlineExceeded", "Futures", "QueueFull", "ResultStream", "size_of"]

_TURN_MS = 50
"""Time that the thread waits for a result before it checks deadlines, in milliseconds."""

_MOST_RESULTS, _MOST_BYTES = 65536, 64 * 2**20
"""Results of one stream that nobody has taken, and bytes of their tensors; a stream with more is cancelled."""

Decode = Callable[[list[Message], "Fetched"], FlowResult]


class DeadlineExceeded(TimeoutError):  # noqa: N818 - gRPC's name
    """There was no result within the deadline that the caller gave."""


class QueueFull(DfException):
    """The graph has no room for another input now."""

    def __init__(self) -> None:
        super().__init__("the graph has no room for another input now", QUEUE_FULL)


class ResultStream:
    """The results of one input, in their order: each a list of values. An iterator.

    The user's own exception, or `DeadlineExceeded`, ends the iteration. Close one that is left before its end: with
    `close`, with `with`, or by dropping it, as `break` does with a stream that has no name. Its generators stop then.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[list[Any], int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self._listener: Callable[[], None] | None = None
        self._on_cancel: Callable[[], None] = lambda: None

    def __iter__(self) -> ResultStream:
        return self

    def __next__(self) -> list[Any]:
        while True:
            found = self.take()
            if found is not None:
                return found
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended)

    def take(self) -> list[Any] | None:
        """The next result; None where there is none yet.

        Raises:
            StopIteration: there are no more.
            The user's own exception, DeadlineExceeded, DfException.
        """
        with self._changed:
            if self._items:
                values, size = self._items.popleft()
                self._bytes -= size
                return values
            if not self._ended:
                return None
            if self._error is not None:
                raise self._error
        raise StopIteration

    def listen(self, listener: Callable[[], None]) -> None:
        """Have a function called after each change, in another thread."""
        with self._changed:
            self._listener = listener
        listener()

    def cancel(self) -> None:
        """Drop the results that are still to come; stages that have not begun leave the input out."""
        self.end(DfAbortException("the stream was cancelled"))
        self._on_cancel()

    def close(self) -> None:
        """`cancel`, under the name that generators and files have."""
        self.cancel()

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, values: list[Any]) -> bool:
        """Add a result; whether there was room for it."""
        size = size_of(values)
        with self._changed:
            if self._ended:
                return True
            if self._items and (len(self._items) >= _MOST_RESULTS or self._bytes + size > _MOST_BYTES):
                return False
            self._items.append((values, size))
            self._bytes += size
            self._changed.notify_all()
            listener = self._listener
        if listener is not None:
            listener()
        return True

    def end(self, error: BaseException | None = None) -> None:
        """End the results, with an error or without."""
        with self._changed:
            if self._ended:
                return
            self._ended, self._error = True, error
            self._changed.notify_all()
            listener = self._listener
        if listener is not None:
            listener()


_Receiver = Future[list[Any]] | weakref.ref[ResultStream]
"""Only callers hold strong references to streams, so that an abandoned stream is detected."""


class Futures:
    """The futures and streams of a graph.

    Args:
        runner: the graph.
        plan: its plan.
        decode: makes a result of messages.
        is_ordered: whether results come in the order of their inputs, so that one that is passed over is lost.
    """

    def __init__(self, runner: Runner, plan: Plan, decode: Decode, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        self._runner = runner
        self._plan = plan
        self._decode = decode
        self._changed = threading.Condition()
        self._feeding = threading.Lock()
        self._waiting: dict[int, tuple[_Receiver, float | None]] = {}
        self._early: dict[int, list[tuple[FlowResult, int]]] = {}
        self._newest = 0
        self._left: deque[int] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._collect, name="flow futures", daemon=True)
        self._thread.start()

    def submit(self, messages: dict[int, Message], deadline: float | None, *, wait: bool = True) -> Future[list[Any]]:
        """Feed, and have a future.

        Args:
            messages: by place in `Plan.inputs`.
            deadline: seconds; None for none.
            wait: whether to wait for room, no longer than the deadline.

        Raises:
            QueueFull: there is no room, and it is not waited for.
            DfException: the graph cannot be fed.
        """
        future: Future[list[Any]] = Future()
        transaction = self._feed(future, messages, deadline, wait=wait)
        if transaction:
            future.add_done_callback(lambda done: self._abandon(transaction) if done.cancelled() else None)
        return future

    def stream(self, messages: dict[int, Message], deadline: float | None, *, wait: bool = True) -> ResultStream:
        """Feed, and have all results of the input as they come. Args and errors as of `submit`."""
        stream = ResultStream()
        fed: list[int] = []
        # no lock may be taken where objects go, so the thread of `_collect` does the rest
        receiver = weakref.ref(stream, lambda _: self._left.extend(fed))
        fed.append(self._feed(receiver, messages, deadline, wait=wait))
        stream._on_cancel = lambda: self._abandon(fed[0])
        return stream

    def _feed(self, receiver: _Receiver, messages: dict[int, Message], deadline: float | None, *, wait: bool) -> int:
        """Feed: the transaction, 0 where there was no room within the deadline, which the receiver is given."""
        until = None if deadline is None else time.monotonic() + deadline
        with self._feeding:
            code = QUEUE_FULL
            while code == QUEUE_FULL and not self._closed:
                if until is not None and time.monotonic() >= until:
                    _fail(receiver, DeadlineExceeded(f"there was no room for the input within {deadline} s"))
                    return 0
                code = self._runner.feed(messages, 100 if wait else 0)
                if code == QUEUE_FULL and not wait:
                    raise QueueFull
            if code or self._closed:
                broken = self._runner.error
                why = "the graph has ended" if self._closed else "the graph cannot be fed"
                if broken is not None and not self._closed:
                    why += f": {getattr(broken.error, 'message', broken.error)}"
                raise DfException(why, code or FAILED)
            transaction = messages[0].head.transaction_id
            with self._changed:
                self._newest = transaction
                self._waiting[transaction] = receiver, until
                found = [self._given(result, flags) for result, flags in self._early.pop(transaction, [])]
                self._early.clear()  # of inputs that came by feed()
        for each in found:
            each()
        return transaction

    def _collect(self) -> None:
        looked = 0.0
        while not self._closed:
            fetched = self._runner.fetch(None, _TURN_MS, aligned=False)
            if fetched.messages or fetched.head.transaction_id:
                messages = [fetched.messages[place] for place in self._plan.order] if fetched.messages else []
                self._take(self._decoded(messages, fetched), fetched.head.flags)
            elif fetched.code == FAILED:
                broken = self._runner.error
                why = broken.error if broken is not None else DfAbortException("the graph has ended")
                self._fail_all(why)
                if not self._closed:
                    time.sleep(_TURN_MS / 1000)
            while self._left:
                self._abandon(self._left.popleft())
            now = time.monotonic()
            if now - looked > _TURN_MS / 2000:
                looked = now
                self._expire(now)

    def _decoded(self, messages: list[Message], fetched: Fetched) -> FlowResult:
        try:
            return self._decode(messages, fetched)
        except BaseException as error:  # of a deserializer: this thread has other results to give
            return FlowResult([], info_of(fetched.head), INNER_ERROR, as_exception(error))

    def _take(self, result: FlowResult, flags: int) -> None:
        transaction = result.info.transaction_id
        with self._changed:
            if transaction > self._newest:
                self._early.setdefault(transaction, []).append((result, flags))  # its feed call is not done yet
                give = _nothing
            else:
                give = self._given(result, flags)
            passed_over = [id for id in self._waiting if id < transaction] if self._is_ordered else []
            lost = [self._waiting.pop(id)[0] for id in passed_over]
            self._changed.notify_all()
        for each in lost:
            _fail(each, DfException("a stage made no result of the input, or a full edge dropped it"))
        give()

    def _given(self, result: FlowResult, flags: int) -> Callable[[], None]:
        """Give a result to its receiver, under the lock; what may run the user's code is left to the caller."""
        transaction = result.info.transaction_id
        receiver, until = self._waiting.pop(transaction, (None, None))
        if receiver is None:
            return _nothing  # its receiver has given up
        if isinstance(receiver, Future):
            return functools.partial(_set_result, receiver, result)
        stream = receiver()
        if stream is None:
            self._waiting[transaction] = receiver, until  # `_left` has it
            return _nothing
        is_end, is_last = bool(flags & END), not flags & MORE or result.error is not None or bool(result.code)
        if not is_last:
            self._waiting[transaction] = receiver, until
        if is_end and is_last and not result.code:
            return stream.end
        try:
            values = result.get()
        except BaseException as error:
            return functools.partial(_fail, receiver, error)
        if not stream.put(values):
            self._waiting.pop(transaction, None)
            self._runner.cancel(transaction)
            return functools.partial(stream.end, DfAbortException("too many results were not taken in time"))
        return stream.end if is_last else _nothing

    def _abandon(self, transaction: int) -> None:
        """Cancel a transaction whose receiver has given up."""
        with self._changed:
            found = self._waiting.pop(transaction, None)
            self._changed.notify_all()
        if found is not None and not self._closed:
            self._runner.cancel(transaction)

    def _expire(self, now: float) -> None:
        with self._changed:
            late = [id for id, (_, until) in self._waiting.items() if until is not None and now >= until]
            receivers = [self._waiting.pop(id)[0] for id in late]
            if late:
                self._changed.notify_all()
        at_work = self._runner.explain() if late else ""
        for transaction, each in zip(late, receivers, strict=True):
            _fail(each, DeadlineExceeded(f"there was no result within the deadline: {at_work}"))
            self._runner.cancel(transaction)

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            receivers = [receiver for receiver, _ in self._waiting.values()]
            self._waiting.clear()
            self._changed.notify_all()
        for each in receivers:
            _fail(each, error)

    @property
    def open(self) -> int:
        """Inputs whose results are waited for."""
        return len(self._waiting)

    def drain(self, timeout: float | None) -> bool:
        """Wait until no future and no stream is open.

        Args:
            timeout: seconds; None for ever.

        Returns:
            Whether none is.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def close(self) -> None:
        """Fail the open futures and streams."""
        self._closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._fail_all(DfAbortException("the graph has ended"))


def size_of(values: list[Any]) -> int:
    """Bytes of the tensors, arrays, bytes and texts among values."""
    return sum(_size(each) for each in values)


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.get_data_size()
    return len(value) if isinstance(value, bytes | str) else int(getattr(value, "nbytes", 0))


def _nothing() -> None:
    """Do nothing."""


def _set_result(future: Future[list[Any]], result: FlowResult) -> None:
    try:
        values = result.get()
    except BaseException as error:
        _fail(future, error)
        return
    try:
        future.set_result(values)
    except InvalidStateError:
        pass  # it was cancelled
    except BaseException:  # of a callback, whose Exceptions the future catches itself
        traceback.print_exc()


def _fail(receiver: _Receiver, error: BaseException) -> None:
    error = as_exception(error)
    if isinstance(error, StopIteration):  # neither a future of asyncio nor an iteration can end with it (PEP 479)
        error = RuntimeError(f"a stage raised {error!r}")
    if not isinstance(receiver, Future):
        stream = receiver()
        if stream is not None:
            stream.end(error)
        return
    try:
        receiver.set_exception(error)
    except InvalidStateError:
        pass  # it was cancelled
    except BaseException:  # as above
        traceback.print_exc()
