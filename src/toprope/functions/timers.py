"""Delayed actions; cancelling one frees it at once.

`Timers` belong to a thread that runs them, such as the reactor of a local session; `Clock`, for sessions on Ray, has
a thread of its own. No action runs under the queue's lock: actions may add and cancel others. Tests:
tests/functions/test_functions_wire.py.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

__all__ = ["Clock", "Timer", "Timers"]

_log = logging.getLogger("toprope")

_FEW = 64


class Timer:
    """A delayed action."""

    __slots__ = ("_timers", "action")

    def __init__(self, timers: Timers, action: Callable[[], None]) -> None:
        self._timers = timers
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel it and release its action; no effect once it has run."""
        if self.action is not None:
            self.action = None
            self._timers.cancelled()


class Timers:
    """Queue of delayed actions. Any thread may add actions; one thread runs them.

    Args:
        wake: called when an action becomes the next one to run.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run an action after a number of seconds."""
        timer = Timer(self, action)
        with self._lock:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), timer))
            first = self._heap[0][2] is timer
        if first:
            self._wake()
        return timer

    def cancelled(self) -> None:
        """Count a cancelled action; many of them are removed from the queue together."""
        with self._lock:
            self._cancelled += 1
            if self._cancelled > max(_FEW, len(self._heap) // 2):
                self._heap = [each for each in self._heap if each[2].action is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    @property
    def due(self) -> float:
        """Seconds until the next action; one at most."""
        with self._lock:
            return min(1.0, max(0.0, self._heap[0][0] - time.monotonic())) if self._heap else 1.0

    def run(self) -> None:
        """Run the actions that are due."""
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > time.monotonic():
                    return
                timer = heapq.heappop(self._heap)[2]
                action, timer.action = timer.action, None
                if action is None:
                    self._cancelled -= 1
            if action is not None:
                action()

    def __len__(self) -> int:
        return len(self._heap)


class Clock:
    """Timers with their own thread, which starts with the first action."""

    def __init__(self) -> None:
        self._news = threading.Event()
        self._timers = Timers(self._news.set)
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run an action after a number of seconds; it may block briefly on Ray."""
        timer = self._timers.after(seconds, action)
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="toprope clock", daemon=True)
                self._thread.start()
        return timer

    def close(self) -> None:
        """Run no further actions."""
        self._closed = True
        self._news.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._closed:
            self._news.wait(self._timers.due)
            self._news.clear()
            try:
                self._timers.run()
            except Exception:
                _log.debug("an action of the clock failed", exc_info=True)  # such as Ray's end
