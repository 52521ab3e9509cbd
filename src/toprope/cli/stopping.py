"""Ctrl-C and SIGTERM for work that ends at a safe point: the first asks for it, the second ends at once.

Used by `cli.edit` around its run. Statuses are 128 plus the signal's number, as shells expect; a signal that is ignored
(nohup) stays ignored. Tests: tests/images/test_images_cli.py, whose test of Ctrl-C for the next safe point is a slow
one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Stopping"]

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stopping:
    """A context in which signals end the work at once; after `stop_at_safe_points`, at its next safe point.

    Args:
        tell: gets a line on what the first signal does.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._safe = False
        self._number: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def stop_at_safe_points(self) -> None:
        """From here on, the program asks `signal_name` at its safe points."""
        self._safe = True

    def signal_name(self) -> str:
        """The signal that asked for the end; empty before one did."""
        return "" if self._number is None else _NAMES[signal.Signals(self._number)]

    @property
    def exit_status(self) -> int:
        """The status that shells expect of a program that a signal ended."""
        return 128 + (self._number or signal.SIGINT)

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in _NAMES:
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        first, self._number = self._number is None, number
        if not self._safe or not first:
            raise KeyboardInterrupt
        self._tell("stopping after this step; once more ends at once")
