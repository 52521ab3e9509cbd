"""Futures of what comes out of a graph: a thread fetches, and gives each result to the future of its input."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from toprope.flow.exceptions import FAILED, QUEUE_FULL, DfAbortException, DfException
from toprope.flow.graph import Plan
from toprope.flow.result import FlowResult
from toprope.flow.stage_spec import Message

if TYPE_CHECKING:
    from toprope.flow.run import Fetched, Runner

__all__ = ["Futures"]

_TURN_MS = 50
"""How long the thread waits for a result before it looks at deadlines."""

Decode = Callable[[list[Message], "Fetched"], FlowResult]


class Futures:
    """The futures of a graph.

    Args:
        runner: the graph.
        plan: what it runs.
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
        self._waiting: dict[int, tuple[Future[list[Any]], float | None]] = {}
        self._early: dict[int, FlowResult] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._collect, name="flow futures", daemon=True)
        self._thread.start()

    def submit(self, messages: dict[int, Message], deadline: float | None) -> Future[list[Any]]:
        """Feed, and have a future. It waits for room, no longer than the deadline.

        Raises:
            DfException: the graph cannot be fed.
        """
        future: Future[list[Any]] = Future()
        until = None if deadline is None else time.monotonic() + deadline
        with self._feeding:
            code = QUEUE_FULL
            while code == QUEUE_FULL and not self._closed:
                if until is not None and time.monotonic() >= until:
                    _settle(future, TimeoutError(f"there was no room for the input within {deadline} s"))
                    return future
                code = self._runner.feed(messages, 100)
            if code or self._closed:
                raise DfException("the graph has ended" if self._closed else "the graph cannot be fed", code or FAILED)
            transaction = messages[0].head.transaction_id
            with self._changed:
                early = self._early.pop(transaction, None)
                if early is None:
                    self._waiting[transaction] = future, until
        if early is not None:
            _give(future, early)
        return future

    def _collect(self) -> None:
        while not self._closed:
            fetched = self._runner.fetch(None, _TURN_MS, aligned=False)
            if fetched.messages or fetched.errors or fetched.head.transaction_id:
                messages = [fetched.messages[place] for place in self._plan.order] if fetched.messages else []
                self._take(self._decode(messages, fetched))
            elif fetched.code == FAILED:
                broken = self._runner.error
                why = broken.error if broken is not None else DfAbortException("the graph has ended")
                self._fail_all(why)
                if not self._closed:
                    time.sleep(_TURN_MS / 1000)
            self._expire()

    def _take(self, result: FlowResult) -> None:
        transaction = result.info.transaction_id
        with self._changed:
            found = self._waiting.pop(transaction, None)
            if found is None and self._feeding.locked():
                self._early[transaction] = result  # it came before its feed call was done
            passed_over = [id for id in self._waiting if id < transaction] if self._is_ordered else []
            lost = [self._waiting.pop(id)[0] for id in passed_over]
            self._changed.notify_all()
        for each in lost:
            _settle(each, DfException("a stage has made nothing of the input, or a full edge has lost it"))
        if found is not None:
            _give(found[0], result)

    def _expire(self) -> None:
        now = time.monotonic()
        with self._changed:
            late = [id for id, (future, until) in self._waiting.items() if until is not None and now >= until]
            futures = [self._waiting.pop(id)[0] for id in late]
            self._changed.notify_all()
        for each in futures:
            _settle(each, TimeoutError("there was no result within the deadline"))

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            futures = [future for future, _ in self._waiting.values()]
            self._waiting.clear()
            self._changed.notify_all()
        for each in futures:
            _settle(each, error)

    def drain(self, timeout: float | None) -> bool:
        """Wait until no future is open.

        Args:
            timeout: seconds; None for ever.

        Returns:
            Whether none is.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def close(self) -> None:
        """Fail what is open."""
        self._closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._fail_all(DfAbortException("the graph has ended"))


def _give(future: Future[list[Any]], result: FlowResult) -> None:
    try:
        values = result.get()
    except BaseException as error:
        _settle(future, error)
        return
    try:
        future.set_result(values)
    except InvalidStateError:
        pass  # it was cancelled


def _settle(future: Future[list[Any]], error: BaseException) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        pass  # it was cancelled
