"""What a process of a session on Ray does later, in one thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from toprope.functions.local.timers import Timer, Timers

__all__ = ["Clock"]

_log = logging.getLogger("toprope")


class Clock:
    """Runs actions when their time has come. Its thread begins with the first action."""

    def __init__(self) -> None:
        self._news = threading.Event()
        self._timers = Timers(self._news.set)
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Do something in so many seconds; it may ask Ray, and so wait for a moment."""
        timer = self._timers.after(seconds, action)
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="toprope clock", daemon=True)
                self._thread.start()
        return timer

    def close(self) -> None:
        """Nothing is done any more."""
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
