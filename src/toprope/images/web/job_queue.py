"""The desk where edits wait for the model: one at a time, first come, first served; each is watched and cancelled.

Nothing here knows of models or of web pages: a job is a function, which tells its steps and asks whether to stop.
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

__all__ = ["Desk", "Job", "Problem", "State", "View", "follow"]

_log = logging.getLogger("toprope")


class State(StrEnum):
    """Where a job is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (State.DONE, State.FAILED, State.CANCELLED)


@dataclass(frozen=True)
class Problem:
    """An error, in words alone: an exception would keep the memory of whatever failed.

    Attributes:
        what: happened.
        looked_at: the facts that it rests on; empty without.
        do: what helps; empty where nothing is known.
    """

    what: str
    looked_at: str = ""
    do: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """What an exception says; one that nobody foresaw is also written to the log, with its traceback."""
        if isinstance(error, TopropeError):
            return cls(error.what, error.looked_at, error.do)
        _log.error("an edit failed in a way that nobody foresaw", exc_info=error)
        said = " ".join(str(error).split())[:500]
        return cls(
            f"{type(error).__name__}: {said}" if said else type(error).__name__,
            do="see the terminal in which the server runs, where the whole of it stands",
        )


@dataclass(frozen=True)
class View:
    """What there is to see of a job at one moment.

    Attributes:
        state: where it is.
        ahead: jobs that come before it, with the one that runs; 0 once it runs.
        note: what is done now, in words.
        step: the last one; None before the first.
        parts: how many parts of it are done, of a batch.
        running: the numbers of the parts that run, from 0.
        seconds: since it began to run; 0 before.
        problem: why it failed.
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
    """Something that waits at the desk, runs, or is over. Its function is given the job itself.

    Attributes:
        number: from 1, in the order of coming.
        client: who wants it.
        title: what is asked for, in a few words.
        about: what `submit` was given of it.
        parts: of a batch, what `add` was given.
        result: what the function returned, once it is done.
        problem: why it failed.
        refused: whether it failed because of what was asked for, and not of the server's.
    """

    def __init__(
        self,
        desk: Desk,
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
        self._desk, self._work, self._on_end = desk, work, ended
        self._state = State.WAITING
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._began: float | None = None
        self._until: float | None = None
        self._views: list[View] = []
        self._seeing = threading.RLock()  # a batch may run in several threads

    # For its function, while it runs

    def tell(self, note: str) -> None:
        """Say what is done now; steps that come after it may begin anew."""
        self._see(note=note, step=None)

    def step(self, step: Step) -> None:
        """A step of denoising is done."""
        self._see(step=step)

    def begin_part(self, number: int) -> None:
        """A part of the job runs now."""
        with self._seeing:
            self._see(running=(*self._running_parts(), number))

    def add(self, part: Any, number: int | None = None) -> None:
        """A part of the job is done; its number, from 0, where it was begun."""
        with self._seeing:
            self.parts.append(part)
            running = tuple(each for each in self._running_parts() if each != number)
            self._see(parts=len(self.parts), running=running, step=None)

    def _running_parts(self) -> tuple[int, ...]:
        return self._views[-1].running if self._views else ()

    def cancelled(self) -> bool:
        """Whether it shall stop."""
        return self._stop.is_set()

    def check(self) -> None:
        """Go on, or not.

        Raises:
            EditCancelled: it shall stop.
        """
        if self._stop.is_set():
            raise EditCancelled("the edit was cancelled.")

    # For everybody else

    @property
    def state(self) -> State:
        """Where it is."""
        return self._state

    def cancel(self) -> None:
        """Stop it: at once while it waits, after the step that runs otherwise. Later it does nothing."""
        self._stop.set()
        self._desk._dropped(self)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; False where it did not come in time."""
        return self._ended.wait(seconds)

    def view(self) -> View:
        """What there is to see of it now."""
        if self._state is State.WAITING:
            return View(State.WAITING, ahead=self._desk.ahead_of(self))
        last = self._views[-1] if self._views else View(State.RUNNING)
        return View(self._state, 0, last.note, last.step, len(self.parts), last.running, self.seconds, self.problem)

    def views(self, start: int) -> list[View]:
        """Everything that was told of it since the first `start` things: no step is left out."""
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
        """Report the end before anyone can see it. What fails here is logged: the job has ended all the same."""
        try:
            if self._on_end is not None:
                self._on_end(self, state)
        except Exception:
            _log.exception("the end of an edit could not be noted")

    def _end(self, state: State) -> None:
        self._until, self._state = time.monotonic(), state
        del self._work, self._on_end  # and with them the pictures that they were given
        self._ended.set()


class Desk:
    """A queue of jobs with one thread that does them.

    Args:
        most: how many may wait at once.
        most_each: how many of one client may wait or run at once.
    """

    def __init__(self, most: int = 32, most_each: int = 4) -> None:
        self._most, self._most_each = most, most_each
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._count = 0
        self.ended: dict[State, int] = dict.fromkeys((State.DONE, State.FAILED, State.CANCELLED), 0)
        """How many jobs came to which end."""
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
            client: any text that is the same for the same client.
            work: called with the job, in the desk's thread.
            ended: called once with the job and the state in which it ends, also while it waits; before others see it.
            about: kept with the job, for callers.
            title: what is asked for, in a few words.

        Raises:
            UsageError: too many wait already, or the desk is closed.
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
        """How many jobs come before a job that waits, with the one that runs."""
        with self._changed:
            if job not in self._waiting:
                return 0
            return self._waiting.index(job) + (self._running is not None)

    def cancel(self, client: str) -> int:
        """Stop all jobs of a client; how many there were."""
        jobs = self.jobs_of(client)
        for job in jobs:
            job.cancel()
        return len(jobs)

    def jobs_of(self, client: str | None = None) -> list[Job]:
        """The jobs of a client, or of all, that run or wait, in the order in which they are done."""
        with self._changed:
            return self._of(client)

    def describe(self) -> dict[str, Any]:
        """The queue, ready for JSON: how many wait, what runs, how many came to which end."""
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
        """Cancel everything and wait for the step that runs; whether it ended in time."""
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
        """A job that still waits leaves the queue."""
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        job._report(State.CANCELLED)
        with self._changed:
            self.ended[State.CANCELLED] += 1
            job._end(State.CANCELLED)

    def _serve(self) -> None:
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
    """A job from now to its end: its place in the queue whenever that changes, each step, its end.

    Args:
        job: waiting, running or over.
        every: seconds between two looks.
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
