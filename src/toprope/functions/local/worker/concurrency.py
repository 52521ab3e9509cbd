"""Concurrent calls in a worker: in threads, or in an event loop.

`worker_process` uses it for instances that run several calls at once, or that have coroutine methods. The hook's name
`__yr_shutdown__`, threads for plain classes and one event loop for those with coroutines are openYuanrong's. SIGTERM
comes in the main thread: what it must not interrupt goes by `Worker.undisturbed`. Tests:
tests/functions/test_functions_semantics.py, tests/functions/test_functions_objects.py.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from toprope.functions.transport.wire import Channel, Closed, Kind, Message

__all__ = ["HOOK", "AnswerSignal", "Loop", "Threads"]

HOOK = "__yr_shutdown__"
"""The method of an instance that is called before its end."""


class Worker(Protocol):
    """The part of `worker_process.Worker` that runs calls.

    Attributes:
        channel: the socket to the driver.
        instance: the user's object; None in a worker for functions.
        leaving: whether a call has requested the end: no other call starts.
        stopped: whether no more messages are run.
    """

    channel: Channel
    instance: Any
    leaving: bool
    stopped: bool

    def run_here(self, message: Message) -> None:
        """Run a message in this thread, and send the result."""

    def prepare(self, message: Message) -> tuple[Any, tuple[Any, ...], dict[str, Any], int | None]:
        """Return the callable of a message, its arguments, and the expected number of values."""

    def answer(self, number: int, result: Any, returns: int | None) -> None:
        """Send the result of a call."""

    def send_values(self, kind: int, number: int, values: list[Any]) -> None:
        """Send values for the driver to store."""

    def fail(self, number: int, error: BaseException) -> None:
        """Send the error of a call."""

    def is_unwanted(self, number: int) -> bool:
        """True if the generator of a call was closed."""

    def send_releases(self) -> None:
        """Send the releases to the driver."""

    def undisturbed(self, action: Callable[[], object]) -> None:
        """Run an action that SIGTERM must not interrupt."""


class Threads:
    """Runs calls in threads.

    Args:
        worker: whose calls.
        at_once: number of threads.
        ahead: whether all threads start now, and not each with the first call that needs it.
    """

    def __init__(self, worker: Worker, at_once: int, *, ahead: bool = False) -> None:
        self._worker = worker
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="yr")
        if ahead:
            all_there = threading.Barrier(at_once)
            for _ in range(at_once):
                self._pool.submit(all_there.wait)

    def run(self, message: Message) -> None:
        """Run a message in a thread; the end in this one."""
        if message.kind == Kind.STOP:
            self._worker.run_here(message)
        else:
            # a thread that has started and is not registered yet would never learn of the end
            self._worker.undisturbed(lambda: self._pool.submit(self._run, message))

    def _run(self, message: Message) -> None:
        if self._worker.leaving:
            return
        try:
            self._worker.run_here(message)
            self._worker.send_releases()
        except Closed:
            os._exit(1)
        except SystemExit as exit:
            _leave(exit)


class Loop:
    """Runs calls of coroutine methods in one event loop, in a thread of its own."""

    def __init__(self, worker: Worker, at_once: int) -> None:
        self._worker = worker
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Semaphore(at_once)
        threading.Thread(target=self._loop.run_forever, daemon=True, name="yr event loop").start()

    def run(self, message: Message) -> None:
        """Run a message in the event loop; the end in this thread."""
        if message.kind == Kind.STOP:
            hook = getattr(self._worker.instance, HOOK, None)
            if inspect.iscoroutinefunction(hook):
                self._worker.stopped = True
                try:
                    asyncio.run_coroutine_threadsafe(hook(message.meta), self._loop).result(message.meta + 1)
                except Exception:
                    traceback.print_exc()
            else:
                self._worker.run_here(message)
        else:
            self._worker.undisturbed(lambda: asyncio.run_coroutine_threadsafe(self._run(message), self._loop))

    async def _run(self, message: Message) -> None:
        worker = self._worker
        try:
            async with self._room:
                if worker.leaving:
                    return
                function, arguments, keywords, returns = worker.prepare(message)
                result = function(*arguments, **keywords)
                if inspect.isawaitable(result):
                    result = await result
                if inspect.isasyncgen(result):
                    count = 0
                    async for each in result:
                        worker.send_values(Kind.ITEM, message.number, [each])
                        count += 1
                        if worker.is_unwanted(message.number):
                            break
                    await result.aclose()
                    worker.channel.send(Kind.END, message.number, count)
                else:
                    worker.answer(message.number, result, returns)
            worker.send_releases()
        except Closed:
            os._exit(1)
        except BaseException as error:
            worker.leaving = worker.leaving or isinstance(error, SystemExit)
            worker.fail(message.number, error)
            if isinstance(error, SystemExit):
                _leave(error)


class AnswerSignal:
    """Wakes the threads that wait for an answer while another one reads."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting = 0

    def wait(self, done: Callable[[], bool], timeout: float) -> None:
        """Wait until an answer has arrived or no thread reads, unless it is done."""
        with self._condition:
            self._waiting += 1
            try:
                if not done():
                    self._condition.wait(timeout)
            finally:
                self._waiting -= 1

    def notify(self) -> None:
        """Wake the waiting threads: an answer has arrived, or no thread reads now."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()


def _leave(exit: SystemExit) -> None:
    """End this process from a thread that is not its main one."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1)
