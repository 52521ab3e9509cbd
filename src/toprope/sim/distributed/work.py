"""torch's Work object for a collective under way: waiting, futures, errors in HCCL's words, and results.

collectives.py returns it to torch and to the program. Tests: tests/sim/test_distributed.py.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from toprope.sim.distributed.flight_recorder import write_file
from toprope.sim.distributed.threads import run_elsewhere
from toprope.sim.npu._state import message

__all__ = ["HcclWork", "done", "hccl_errors", "timed"]

_NO_LIMIT = timedelta(0)
"""Limit that torch's C++ gives for none; Python code that waits gives no argument."""

_c10d: Any = torch._C._distributed_c10d  # torch's stubs name a part of it

_expected: dict[int, HcclWork] = {}
"""Works that a caller may still wait for. torch's C++ keeps only the C++ part of a work alive and must find the Python
part later, so it is kept here until the caller waits for the work or asks for its future."""

_read_by_torch: deque[HcclWork] = deque(maxlen=1000)
"""Works for which torch's C++ has waited, without their tensors. It waits again where a work is of several tensors, as
of `all_reduce_coalesced`, and would wait for ever for one without its Python part."""

_MOST_EXPECTED = 10_000
"""More than these means that a program drops works unread; the oldest are dropped then."""

_UNREAD_AFTER = 1.0
"""Seconds after its end in which a work is still read by a caller that has just got it."""

_HELD_HERE_ALONE = 4
"""References to a work that nobody but `_expected` holds, as `_free_unread` counts them."""


_PEER_MISSING = re.compile(r"closed by peer|reset by peer|broken pipe|timed out", re.IGNORECASE)


@contextmanager
def hccl_errors() -> Iterator[None]:
    """Add HCCL's message to gloo's error for a process that did not arrive, and write the flight recorder's file.

    Source: HCCL_timeout.md of Ascend/pytorch.
    """
    try:
        yield
    except RuntimeError as error:
        if not _PEER_MISSING.search(str(error)):
            raise
        write_file()
        reason = (
            "The wait execution of the Notify register times out. Reason: the remote rank has not come, or has ended."
        )
        text = message(f"{error}\nEI0002: [PID: {os.getpid()}] {reason}", "ERR02200 DIST call hccl api failed.")
        raise RuntimeError(text) from error


def _completed(results: Any = None) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(results)
    return future


def done(results: Any) -> Work:
    """The work of a collective that has ended well.

    Args:
        results: the device tensors that its future holds.
    """
    future = _completed(results)
    made: Work = _c10d._create_work_from_future(future)
    return made


def timed(work: Any, ended: Callable[[], None]) -> Work:
    """Wrap a work of gloo that has no future, as a message has none, so that its end is reported.

    Args:
        work: gloo's work, on which nobody else waits.
        ended: called when it has ended well, before the caller who waits goes on.
    """
    future: Any = torch.futures.Future()

    def wait() -> None:
        try:
            work.wait()
            ended()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    run_elsewhere(wait)
    made: Work = _c10d._create_work_from_future(future)
    return made


class _Outcome:
    """Outcome of a collective, and the future that passes it on.

    Args:
        works: gloo's works.
        finish: what is to be done when all of them are done.
        results: the device tensors that the future holds.
    """

    def __init__(self, works: Sequence[Any], finish: Callable[[], None], results: Any) -> None:
        self.error: BaseException | None = None
        self.ended_at = 0.0
        self.ended = threading.Event()
        self._told = threading.Lock()
        self._source: Any = torch.futures.Future()
        self.future: Any = self._source.then(lambda _: self._take(results))
        self._complete = threading.Event()
        self.future.add_done_callback(lambda _: self._complete.set())  # the first one, before those of the caller

        def end(future: Any) -> None:
            """Runs in gloo's thread: no other collective of the group begins before."""
            try:
                for one in future.value():
                    one.value()  # raises what gloo raised
                finish()
            except Exception as error:
                self.error = error
            self.ended_at = time.monotonic()
            self.ended.set()
            run_elsewhere(self.tell)

        torch.futures.collect_all([work.get_future() for work in works]).then(end)

    def _take(self, results: Any) -> Any:
        if self.error is not None:
            raise self.error
        return results

    def tell(self) -> None:
        """Complete the future, which runs what hangs on it; once, in the thread that comes first."""
        if self._told.acquire(blocking=False):
            self._source.set_result(None)
        self._complete.wait()  # another thread may have come first, and not be there yet


class HcclWork(Work):
    """The work of a collective whose caller waits later.

    Args:
        works: gloo's works that it consists of.
        finish: what is to be done when all of them are done, such as copies to the card.
        results: the device tensors that its future holds.
        waited: called when the caller has waited; None for nothing.
    """

    def __init__(
        self, works: Sequence[Any], finish: Callable[[], None], results: Any, waited: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._waited = waited
        self._works = works
        self._outcome = _Outcome(works, finish, results)
        self._results = results
        _free_unread()
        _expected[id(self)] = self

    @property
    def ended(self) -> threading.Event:
        """Set when the collective has ended, well or not."""
        return self._outcome.ended

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the results are on the card.

        Args:
            timeout: how long, none for the time that the group's collectives may take.

        Raises:
            RuntimeError: gloo's, the collective failed or the time is over.
        """
        try:
            with nullcontext() if timeout else hccl_errors():  # a limit of the caller's own is none of HCCL's
                for work in self._works:
                    work.wait(timeout or _NO_LIMIT)
            self.ended.wait()
        finally:
            _expected.pop(id(self), None)
        if self._outcome.error is not None:
            raise self._outcome.error
        self._outcome.tell()
        if self._waited is not None:
            self._waited()
            self._waited = None
        if timeout == _NO_LIMIT:
            self.forget_results()
            _read_by_torch.append(self)
        return True

    def get_future(self) -> Any:
        """The future of the results."""
        _expected.pop(id(self), None)
        return self._outcome.future or _completed()

    def is_completed(self) -> bool:
        """Return True if it has ended, with or without an error."""
        return self.ended.is_set()

    def is_success(self) -> bool:
        """Return True if it has ended without an error."""
        return self.is_completed() and self._outcome.error is None

    def exception(self) -> BaseException | None:
        """The error with which it ended; None while it runs and where there was none."""
        return self._outcome.error

    def result(self) -> Any:
        """The device tensors; what is in them is the result once it has ended."""
        return self._results

    def synchronize(self) -> None:
        """Nothing: a host that has waited for the work may use the results on every stream."""

    def is_unread(self) -> bool:
        """Return True if it ended a while ago. The caller knows already that nobody has waited for it."""
        return self.is_completed() and time.monotonic() - self._outcome.ended_at >= _UNREAD_AFTER

    def forget_results(self) -> None:
        """Hold no tensors any longer, only how it ended."""
        self._works = ()
        self._results = None
        self._outcome.future = None


def _free_unread() -> None:
    """Free the tensors of works that have ended and that no Python code holds."""
    for work in list(_expected.values()):
        if work.is_unread() and sys.getrefcount(work) <= _HELD_HERE_ALONE:
            work.forget_results()
    while len(_expected) >= _MOST_EXPECTED:
        del _expected[next(iter(_expected))]
