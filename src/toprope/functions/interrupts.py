"""Defers KeyboardInterrupt while the session changes its own state.

Sessions on this machine and graphs of `toprope.flow` install its handler of SIGINT. Python raises KeyboardInterrupt
wherever the main thread happens to be: for example after bytes were read from a socket and before they are stored. A
program that catches it and goes on, as notebooks do, would wait for ever for the results that were lost. While there
is a session, the handler looks where the main thread is: in the user's code and in functions marked as
`interruptible`, the interrupt is raised at once; else it looks again a moment later. Calls pay nothing for it. A new
function of the session that waits has to be marked, or Ctrl-C is delayed in it by `_LONGEST` seconds. Tests:
tests/functions/test_functions_interrupts.py; tests/functions/test_functions_faults.py interrupts programs (slow).
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

__all__ = ["Guard", "interruptible", "protect", "wait"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_packages: tuple[str, ...] = (_PACKAGE,)
_PICKLING = os.path.join(_PACKAGE, "transport", "serialization.py")
_MOMENT = 0.001
_LONGEST = 2.0
"""Seconds after which an interrupt is raised wherever the main thread is."""

_waits: set[CodeType] = set()

_Function = TypeVar("_Function", bound=Callable[..., Any])


def interruptible(function: _Function) -> _Function:
    """A function in which KeyboardInterrupt may be raised at any moment: it waits, or it changes nothing."""
    _waits.add(function.__code__)
    return function


def protect(file: str) -> None:
    """Defer KeyboardInterrupt in another package too.

    Args:
        file: one of its files.
    """
    global _packages
    _packages = (*_packages, os.path.dirname(os.path.abspath(file)) + os.sep)


@interruptible
def wait(event: threading.Event, timeout: float | None) -> bool:
    """Wait for an event; return True if it is set."""
    return event.wait(timeout)


class Guard:
    """The handler of SIGINT while there is a session. From a thread that is not the main one, it does nothing."""

    def __init__(self) -> None:
        self._since = 0.0  # when the interrupt came that has not been raised; 0 for none
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._handle)

    def remove(self) -> None:
        """Restore the previous handler, unless another one was installed since."""
        if self._before is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) == self._handle:
                signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if _is_at_work(frame) and (not self._since or now - self._since < _LONGEST):
            self._since = self._since or now
            # not threading.Thread: the main thread may be in the middle of that too
            _thread.start_new_thread(self._again, (self._since,))
            return
        self._since = 0.0
        before = self._before or signal.default_int_handler
        before(number, frame)

    def _again(self, since: float) -> None:
        time.sleep(_MOMENT)
        if self._since == since:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _is_at_work(frame: FrameType | None) -> bool:
    """True if the stack is inside the session's own code, and not in the user's code or in a wait."""
    while frame is not None:
        code = frame.f_code
        if code in _waits:
            return False
        if code.co_filename.startswith(_packages):
            return code.co_filename != _PICKLING  # which runs the user's code, and undoes what it has begun
        frame = frame.f_back
    return False
