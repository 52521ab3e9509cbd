"""The model loads in a thread of its own, while pages are served; what it does meanwhile can be asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from toprope.errors import EditError
from toprope.images.web.job_queue import Problem

__all__ = ["Loader"]

Opened = TypeVar("Opened")


class Loader(Generic[Opened]):
    """Opens something in the background, once `start` was called.

    Args:
        open_it: called once, in a thread, with a function that takes sentences about what is done.
    """

    def __init__(self, open_it: Callable[[Callable[[str], None]], Opened]) -> None:
        self._open_it = open_it
        self._opened: Opened | None = None
        self._problem: Problem | None = None
        self._note = "starting"
        self._settled = threading.Event()
        self._began = time.monotonic()
        self._seconds: float | None = None
        self._thread = threading.Thread(target=self._load, name="toprope-loads", daemon=True)

    def start(self) -> None:
        """Begin. Calling it again does nothing."""
        if self._thread.ident is None:
            self._began = time.monotonic()
            self._thread.start()

    @property
    def opened(self) -> Opened | None:
        """What was opened; None before, and where it failed."""
        return self._opened

    @property
    def problem(self) -> Problem | None:
        """Why it failed."""
        return self._problem

    @property
    def state(self) -> str:
        """ "loading", "ready" or "failed"."""
        if not self._settled.is_set():
            return "loading"
        return "ready" if self._problem is None else "failed"

    @property
    def seconds(self) -> float:
        """How long it takes, or took."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    @property
    def note(self) -> str:
        """What it does now, or did last."""
        return self._note

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is ready or failed; False where it is not in time."""
        return self._settled.wait(seconds)

    def get(self, check: Callable[[], None] = lambda: None, every: float = 0.1) -> Opened:
        """What was opened, waited for.

        Args:
            check: called while waiting; it raises to give up.
            every: seconds between two calls.

        Raises:
            EditError: it failed.
        """
        while not self._settled.wait(every):
            check()
        if self._opened is None:
            why = self._problem or Problem("the model is not there.")
            raise EditError(f"the model could not be loaded: {why.what}", why.looked_at, why.do)
        return self._opened

    def close(self, seconds: float = 60.0) -> Any:
        """Wait for its end and hand out what was opened; None where nothing was."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        opened, self._opened = self._opened, None
        return opened

    def tell(self, note: str) -> None:
        """Take a sentence about what is done."""
        self._note = note

    def _load(self) -> None:
        try:
            self._opened = self._open_it(self.tell)
        except BaseException as error:
            self._problem = Problem.of(error)
        self._seconds = time.monotonic() - self._began
        del self._open_it
        self._settled.set()
