"""Load the model in a separate thread while pages are served, and report the progress.

Used by `web.worker`; what pages show of it is `Controller.facts`, with the words of `state`. The loader keeps no error,
whose frames would hold tensors, but a `Problem`. Tests: tests/images/test_images_web.py.
"""

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
    """Opens a model in the background, once `start` was called.

    Args:
        open_it: called once, in a thread, with a function that takes sentences about the progress.
    """

    def __init__(self, open_it: Callable[[Callable[[str], None]], Opened]) -> None:
        self._open_it = open_it
        self._opened: Opened | None = None
        self._problem: Problem | None = None
        self._note = "starting"
        self._ended = threading.Event()
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
        """The opened model; None before, and if it failed."""
        return self._opened

    @property
    def problem(self) -> Problem | None:
        """The problem if it failed; else None."""
        return self._problem

    @property
    def state(self) -> str:
        """ "loading", "ready" or "failed"."""
        if not self._ended.is_set():
            return "loading"
        return "ready" if self._problem is None else "failed"

    @property
    def seconds(self) -> float:
        """Seconds that it takes so far, or took."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    @property
    def note(self) -> str:
        """Text about the current step, or the last one."""
        return self._note

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is ready or failed; False after the time limit."""
        return self._ended.wait(seconds)

    def get(self, check: Callable[[], None] = lambda: None, every: float = 0.1) -> Opened:
        """Wait for the model, and return it.

        Args:
            check: called while waiting; it raises to stop waiting.
            every: seconds between two calls of `check`.

        Raises:
            EditError: it failed.
        """
        while not self._ended.wait(every):
            check()
        if self._opened is None:
            why = self._problem or Problem("the model is not there.")
            raise EditError(f"the model could not be loaded: {why.what}", why.looked_at, why.do)
        return self._opened

    def close(self, seconds: float = 60.0) -> Any:
        """Wait for the end, and hand over the model to be closed; None if there is none."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        opened, self._opened = self._opened, None
        return opened

    def tell(self, note: str) -> None:
        """Set the text about the current step."""
        self._note = note

    def _load(self) -> None:
        """Open the model, in the loader's thread, and keep it or the problem."""
        try:
            self._opened = self._open_it(self.tell)
        except BaseException as error:
            self._problem = Problem.of(error)
        self._seconds = time.monotonic() - self._began
        del self._open_it
        self._ended.set()
