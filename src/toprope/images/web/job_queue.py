"""Job queue for the model: one edit at a time, first come, first served; each can be followed and cancelled.

This module is independent of models and web pages: a job is a function that reports its steps and checks for
cancellation.

Used by the controller, and by the page and the API to follow a job. One lock guards the queue, and a job's end is
reported before others can see it. `web.api` knows a full queue by the beginning of its error. Tests:
tests/images/test_images_web.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from toprope.errors import EditCancelled, TopropeError, UsageError
from toprope.progress import Step

__all__ = ["Job", "JobQueue", "Problem", "State", "View", "follow"]

_log = logging.getLogger("toprope")


class State(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """True if the job has ended."""
        return self in (State.DONE, State.FAILED, State.CANCELLED)


@dataclass(frozen=True)
class Problem:
    """Description of an error, without the exception, whose frames would keep memory alive.

    Attributes:
        what: what happened.
        looked_at: the facts; may be empty.
        do: advice; may be empty.
    """

    what: str
    looked_at: str = ""
    do: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Describe an exception; an unexpected one is also logged with its traceback."""
        if isinstance(error, TopropeError):
            return cls(error.what, error.looked_at, error.do)
        _log.error("an edit failed in a way that nobody foresaw", exc_info=error)
        said = " ".join(str(error).split())[:500]
        return cls(
            f"{type(error).__name__}: {said}" if said else type(error).__name__,
            do="see the terminal in which the server runs: it has the traceback",
        )


@dataclass(frozen=True)
class View:
    """Snapshot of a job.

    Attributes:
        state: its state.
        ahead: number of jobs before it, including the running one; 0 once it runs.
        note: text about the current stage.
        step: the last step; None before the first.
        parts: for a batch, number of parts that are done.
        running: indices of the parts that run.
        seconds: seconds since it began to run; 0 before.
        problem: the error if it failed.
    """

    state: State
    ahead: int = 0
    note: str = ""
    step: Step | None = None
    parts: int = 0
    running: tuple[int, ...] = ()
    seconds: float = 0.0
    problem: Problem | None = None


class Job:
    """A job in the queue: waiting, running or ended. Its function is called with the job itself.

    Attributes:
        number: its number, from 1, in the order of arrival.
        client: name of the client.
        title: the request in a few words.
        about: the caller's data from `submit`.
        parts: for a batch, the results given to `add`.
        result: the function's result, once it is done.
        problem: the error if it failed.
        refused: True if it failed because of the request, and not of the server.
    """

    def __init__(
        self,
        job_queue: JobQueue,
        number: int,
        client: str,
        work: Callable[[Job], Any],
        ended: Callable[[Job, State], None] | None = None,
        about: Any = None,
        title: str = "",
    ) -> None:
        self.number, self.client, self.about, self.title = number, client, about, title
        self.parts: list[Any] = []
        self.result: Any = None
        self.problem: Problem | None = None
        self.refused = False
        self._queue, self._work, self._on_end = job_queue, work, ended
        self._state = State.WAITING
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._began: float | None = None
        self._until: float | None = None
        self._views: list[View] = []
        self._seeing = threading.RLock()  # a batch may run in several threads

    # For its function, while it runs

    def tell(self, note: str) -> None:
        """Set the text about the current stage; the steps after it may start from 1 again."""
        self._see(note=note, step=None)

    def step(self, step: Step) -> None:
        """Report a step of denoising."""
        self._see(step=step)

    def begin_part(self, number: int) -> None:
        """Report that a part of the job begins to run."""
        with self._seeing:
            self._see(running=(*self._running_parts(), number))

    def add(self, part: Any, number: int | None = None) -> None:
        """Report that a part of the job is done; `number` is its index if `begin_part` was called."""
        with self._seeing:
            self.parts.append(part)
            running = tuple(each for each in self._running_parts() if each != number)
            self._see(parts=len(self.parts), running=running, step=None)

    def _running_parts(self) -> tuple[int, ...]:
        return self._views[-1].running if self._views else ()

    def cancelled(self) -> bool:
        """True if cancellation was requested."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise if cancellation was requested.

        Raises:
            EditCancelled: it was requested.
        """
        if self._stop.is_set():
            raise EditCancelled("the edit was cancelled.")

    # For other threads

    @property
    def state(self) -> State:
        """Its state."""
        return self._state

    def cancel(self) -> None:
        """Cancel it: at once while it waits, else after the current step. Does nothing once it has ended."""
        self._stop.set()
        self._queue._dropped(self)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; False after the time limit."""
        return self._ended.wait(seconds)

    def view(self) -> View:
        """Snapshot of its current state."""
        if self._state is State.WAITING:
            return View(State.WAITING, ahead=self._queue.ahead_of(self))
        last = self._views[-1] if self._views else View(State.RUNNING)
        return View(self._state, 0, last.note, last.step, len(self.parts), last.running, self.seconds, self.problem)

    def views(self, start: int) -> list[View]:
        """All reported snapshots from index `start` on, so that no step is left out."""
        return self._views[start:]

    @property
    def seconds(self) -> float:
        """Seconds that it has run, or ran."""
        if self._began is None:
            return 0.0
        return (time.monotonic() if self._until is None else self._until) - self._began

    def _see(self, **seen: Any) -> None:
        with self._seeing:
            last = self._views[-1] if self._views else View(State.RUNNING)
            kept = {name: getattr(last, name) for name in ("note", "step", "parts", "running")}
            self._views.append(View(State.RUNNING, seconds=self.seconds, **kept | seen))

    def _begin(self) -> None:
        self._began, self._state = time.monotonic(), State.RUNNING

    def _run(self) -> State:
        """Call the job's function; return the state that it ends in."""
        try:
            self.check()
            self.result = self._work(self)
        except EditCancelled:
            return State.CANCELLED
        except Exception as error:
            self.problem, self.refused = Problem.of(error), isinstance(error, UsageError)
            return State.FAILED
        return State.DONE

    def _report(self, state: State) -> None:
        """Report the end before other threads can see it. An error here is logged; the job has ended anyway."""
        try:
            if self._on_end is not None:
                self._on_end(self, state)
        except Exception:
            _log.exception("the end of an edit could not be noted")

    def _end(self, state: State) -> None:
        self._until, self._state = time.monotonic(), state
        del self._work, self._on_end  # and with them the pictures that they were given
        self._ended.set()


class JobQueue:
    """A queue of jobs with one thread that does them.

    Args:
        most: largest number of waiting jobs.
        most_each: largest number of one client's waiting and running jobs.
    """

    def __init__(self, most: int = 32, most_each: int = 4) -> None:
        self._most, self._most_each = most, most_each
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._count = 0
        self.ended: dict[State, int] = dict.fromkeys((State.DONE, State.FAILED, State.CANCELLED), 0)
        """Number of ended jobs by state."""
        self._thread = threading.Thread(target=self._serve, name="toprope-edits", daemon=True)
        self._thread.start()

    def submit(
        self,
        client: str,
        work: Callable[[Job], Any],
        ended: Callable[[Job, State], None] | None = None,
        about: Any = None,
        title: str = "",
    ) -> Job:
        """Put a job at the end of the queue.

        Args:
            client: name of the client.
            work: called with the job, in the thread of the queue.
            ended: called once with the job and its final state, also if it is cancelled while it waits; before other
                threads see the state.
            about: data of the caller, kept with the job.
            title: the request in a few words.

        Raises:
            UsageError: too many wait already, or the queue is closed.
        """
        with self._changed:
            if self._closed:
                raise UsageError("the server is stopping.", do="start it again")
            mine = len(self._of(client))
            if mine >= self._most_each:
                raise UsageError(
                    f"{mine} of your edits wait or run already.",
                    looked_at=f"the most is {self._most_each} for one page",
                    do="wait for one of them, or cancel them",
                )
            if len(self._waiting) >= self._most:
                raise UsageError(
                    "the queue is full.", looked_at=f"{len(self._waiting)} edits wait", do="try again in a while"
                )
            self._count += 1
            job = Job(self, self._count, client, work, ended, about, title)
            self._waiting.append(job)
            self._changed.notify_all()
        return job

    def ahead_of(self, job: Job) -> int:
        """Number of jobs before a waiting job, including the running one."""
        with self._changed:
            if job not in self._waiting:
                return 0
            return self._waiting.index(job) + (self._running is not None)

    def cancel(self, client: str) -> int:
        """Cancel all jobs of a client; return their number."""
        jobs = self.jobs_of(client)
        for job in jobs:
            job.cancel()
        return len(jobs)

    def jobs_of(self, client: str | None = None) -> list[Job]:
        """The running and waiting jobs of a client, or of all clients, in their order."""
        with self._changed:
            return self._of(client)

    def describe(self) -> dict[str, Any]:
        """The queue for JSON: number of waiting jobs, the running one, and numbers of ended jobs by state."""
        with self._changed:
            running, waiting = self._running, len(self._waiting)
        step = running.view().step if running is not None else None
        return {
            "waiting": waiting,
            "running": running is not None,
            "step": None if step is None else step.number,
            "of": None if step is None else step.of,
            **{state.value: count for state, count in self.ended.items()},
        }

    def close(self, seconds: float = 60.0) -> bool:
        """Cancel everything and wait for the current step; True if it ended in time."""
        with self._changed:
            self._closed = True
            jobs = [*self._waiting, *([self._running] if self._running else [])]
            self._changed.notify_all()
        for job in jobs:
            job.cancel()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _of(self, client: str | None) -> list[Job]:
        jobs = [*([self._running] if self._running else []), *self._waiting]
        return [job for job in jobs if client in (None, job.client)]

    def _dropped(self, job: Job) -> None:
        """Remove a waiting job from the queue."""
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        job._report(State.CANCELLED)
        with self._changed:
            self.ended[State.CANCELLED] += 1
            job._end(State.CANCELLED)

    def _serve(self) -> None:
        """Run waiting jobs one after the other, in the queue's thread, until it is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                job = self._running = self._waiting.popleft()
                job._begin()
            state = job._run()
            job._report(state)
            with self._changed:
                self._running = None
                self.ended[state] += 1
                job._end(state)
            del job  # nothing of it is kept while the next is waited for


async def follow(job: Job, every: float = 0.05) -> AsyncIterator[View]:
    """Follow a job from now to its end: each change of its place in the queue, each step, and its end.

    Args:
        job: the job.
        every: seconds between two polls.
    """
    told, ahead = 0, -1
    while True:
        over = job.state.over  # asked before the views are read: then the last of them is among these
        if job.state is State.WAITING:
            view = job.view()
            if view.state is State.WAITING and view.ahead != ahead:
                ahead = view.ahead
                yield view
        for view in job.views(told):
            told += 1
            yield view
        if over:
            yield job.view()
            return
        await asyncio.sleep(every)
