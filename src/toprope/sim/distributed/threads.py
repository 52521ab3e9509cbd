"""Threads that complete the futures of collectives: a callback on a future may itself wait for a collective.

Used by work.py. gloo's own thread must not run callbacks, since the collective that one waits for would have to run
there. One further thread is not enough, for the same reason: another is started whenever all are busy. Tests:
tests/sim/test_distributed.py.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["run_elsewhere", "wait_for_all"]

_tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_idle = threading.Semaphore(0)
_change = threading.Condition()
_open = [0]
"""Functions that have not ended."""


def run_elsewhere(function: Callable[[], None]) -> None:
    """Have another thread run a function, which must not raise."""
    with _change:
        _open[0] += 1
    _tasks.put(function)
    if not _idle.acquire(blocking=False):
        # a daemon, so that a collective that hangs does not keep the process from ending
        threading.Thread(target=_work, name="toprope hccl futures", daemon=True).start()


def wait_for_all(seconds: float) -> None:
    """Wait until no function is running or waiting, for at most this time."""
    with _change:
        _change.wait_for(lambda: _open[0] == 0, seconds)


def _work() -> None:
    while True:
        _tasks.get()()
        with _change:
            _open[0] -= 1
            _change.notify_all()
        _idle.release()
