"""A load: a transfer that is under way, in chunks, and waited for; and what transfers took of everybody's time."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from toprope.errors import TierBusyError

if TYPE_CHECKING:
    from toprope.tiers.transfer import Worker

__all__ = ["LIMIT", "Chunk", "Clock", "Load"]

LIMIT = 120.0
"""Seconds after which a transfer that has not ended is an error."""


class Clock:
    """What transfers took, of everybody's time: a second in which two threads move bytes is one second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moving = self._waited = self._since = 0.0
        self._active = 0
        self.moved: Counter[str] = Counter()
        """Bytes that callers copied themselves, by link."""
        self.busy: defaultdict[str, float] = defaultdict(float)
        """Seconds that it took them."""

    def start(self) -> None:
        """A thread begins to move bytes."""
        with self._lock:
            if not self._active:
                self._since = time.perf_counter()
            self._active += 1

    def stop(self) -> None:
        """It ends."""
        with self._lock:
            self._active -= 1
            if not self._active:
                self._moving += time.perf_counter() - self._since

    def wait(self, seconds: float) -> None:
        """Somebody waited for a transfer."""
        with self._lock:
            self._waited += seconds

    def copied(self, link: str, nbytes: int, seconds: float) -> None:
        """A caller copied bytes itself: it waited as long as that took."""
        with self._lock:
            self.moved[link] += nbytes
            self.busy[link] += seconds
            self._waited += seconds
            if not self._active:
                self._moving += seconds

    @property
    def moving(self) -> float:
        """Seconds in which something was moved."""
        with self._lock:
            return self._moving + (time.perf_counter() - self._since if self._active else 0.0)

    @property
    def waited(self) -> float:
        """Seconds that callers waited for transfers."""
        return self._waited


class Chunk(Protocol):
    """A part of a load."""

    def run(self, worker: Worker, load: Load) -> None:
        """Do it."""


class _Gate:
    """Opens once. Waiting for it may be interrupted at any moment, which an Event of Python's may not: whoever sets it
    would wait for the lock that was not let go.
    """

    __slots__ = ("_lock", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, limit: float) -> bool:
        until = time.perf_counter() + limit
        while not self.is_open and (left := until - time.perf_counter()) > 0:
            if self._lock.acquire(timeout=min(left, 1.0)):  # who is interrupted here keeps it: hence a second
                self._lock.release()
        return self.is_open


class Load:
    """A transfer that is under way.

    Args:
        label: for errors.
        chunks: what is to be done.
        after: events of the device that must have come before anything is written there.
        count: how often `finish` is called, where that is not once for each chunk.
    """

    def __init__(
        self, label: str, chunks: Sequence[Chunk], after: Sequence[Any] = (), count: int | None = None
    ) -> None:
        self.label, self.after = label, after
        self.events: list[Any] = []
        self.error: BaseException | None = None
        self.begin = self.end = 0.0
        self.left = len(chunks) if count is None else count
        self.waiting = deque(chunks)
        self.clock: Clock | None = None
        """Of who carries it out."""
        self._done = _Gate()
        self._then: list[Callable[[Load], None]] = []
        self._lock = threading.Lock()
        if not self.left:
            self._done.open()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_open

    def then(self, call: Callable[[Load], None]) -> None:
        """Call when it has ended, in the thread that ends it."""
        with self._lock:
            if not self.done:
                self._then.append(call)
                return
        call(self)

    def finish(self, error: BaseException | None = None) -> None:
        """One chunk less; the last ends the load."""
        with self._lock:
            if error is not None and self.error is None:
                self.error = error
            self.left -= 1
            if self.left:
                return
            self.end = time.perf_counter()
            calls = self._then
            self._done.open()
        for each in calls:
            each(self)

    def settle(self, limit: float = LIMIT) -> None:
        """Return when it has ended, well or not.

        Raises:
            TierBusyError: it takes longer than that.
        """
        if self._done.is_open:
            return
        begin = time.perf_counter()
        ended = self._done.wait(limit)
        if self.clock is not None:
            self.clock.wait(time.perf_counter() - begin)
        if not ended:
            raise TierBusyError(
                f"a transfer of {self.label} has not ended in {limit:.0f} s.",
                looked_at=f"{self.left} chunks are left",
                do="check the disk and its file system",
            )

    def wait(self, limit: float = LIMIT) -> None:
        """Return when it has ended; raise its error."""
        self.settle(limit)
        if self.error is not None:
            raise self.error
