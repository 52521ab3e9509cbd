"""Does jobs one after the other, or several at once: one that fails stops no other, and Ctrl-C ends after a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toprope.errors import EditCancelled
from toprope.images.request import EditRequest
from toprope.images.results import EditResult, versions
from toprope.images.runs.jobs import Job, Summary
from toprope.images.runs.output import Output, problem_of
from toprope.progress import Step

__all__ = ["Attempt", "Editor", "Event", "Listener", "Problem", "attempts", "keep", "run_jobs"]

Problem = dict[str, Any]
"""An error, as `toprope.images.runs.output.problem_of` gives it."""

Attempt = tuple[Sequence[Job], list[EditResult] | Problem | None]
"""Jobs, and their results; or why all of them failed; or None where they were cancelled."""


class Editor(Protocol):
    """What jobs need of an engine."""

    def edit_all(
        self,
        requests: Sequence[EditRequest],
        *,
        on_step: Callable[[Step], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        at_once: int = 8,
    ) -> list[EditResult]:
        """See `Engine.edit_all`."""


@dataclass(frozen=True)
class Event:
    """What became of a job.

    Attributes:
        job: itself.
        pictures: where they are; none where it failed.
        record: that lies beside the pictures.
        problem: why it failed; None where it is done.
        kept: where that is written down; None where it could not be.
    """

    job: Job
    pictures: tuple[Path, ...] = ()
    record: dict[str, Any] | None = None
    problem: Problem | None = None
    kept: Path | None = None


class Listener(Protocol):
    """Receiver of a run's progress."""

    def begin(self, jobs: Sequence[Job]) -> None:
        """These jobs are begun, together."""

    def step(self, step: Step) -> None:
        """A step of them is done."""

    def end(self, event: Event) -> None:
        """A job is done, or has failed."""


def run_jobs(
    editor: Editor,
    jobs: Sequence[Job],
    output: Output,
    listener: Listener,
    *,
    summary: Summary,
    stopped: Callable[[], str],
    at_once: int = 1,
) -> None:
    """Do jobs, write what comes of them, and count it in the summary.

    Args:
        editor: an engine.
        jobs: those that are to be done.
        output: where to.
        listener: told of all.
        summary: counts.
        stopped: why no further step shall be done, such as "Ctrl-C"; empty to go on.
        at_once: pictures that go through the model at once. Where jobs fail together, each is tried alone.
    """
    for start in range(0, len(jobs), at_once):
        for part, results in attempts(editor, jobs[start : start + at_once], listener, stopped, at_once):
            if results is None:
                summary.stopped = stopped() or "cancelled"
                return
            for at, job in enumerate(part):
                keep(job, results if isinstance(results, dict) else results[at], output, listener, summary)


def keep(job: Job, result: EditResult | Problem, output: Output, listener: Listener, summary: Summary) -> None:
    """Write what came of a job, count it and tell it."""
    if isinstance(result, EditResult):
        try:
            pictures = output.save(job, result.pictures, result.record)
        except OSError as error:
            result = problem_of(error)
        else:
            summary.done += 1
            listener.end(Event(job, tuple(pictures), result.record))
            return
    summary.failed += 1
    kept = None
    try:
        kept = output.fail(job, result, {"versions": versions()})
    except OSError:
        pass  # a disk that is full has no room for this either
    listener.end(Event(job, problem=result, kept=kept))


def attempts(
    editor: Editor, group: Sequence[Job], listener: Listener, stopped: Callable[[], str], at_once: int
) -> Iterator[Attempt]:
    """Do jobs together; where that fails, each alone.

    Raises:
        Exception: what the listener raised. The run ends then, and the job has not failed.
    """
    listener.begin(group)
    deaf: list[Exception] = []

    def step(each: Step) -> None:
        try:
            listener.step(each)
        except Exception as error:  # such as a console that is gone: no fault of the job
            deaf.append(error)
            raise

    results: list[EditResult] | Problem | None
    try:
        results = editor.edit_all(
            [job.request for job in group],
            on_step=step,
            cancelled=lambda: bool(stopped()),
            at_once=at_once,
        )
    except EditCancelled:
        results = None
    except Exception as error:
        if deaf:
            raise deaf[0] from None
        results = problem_of(error)  # not the error, whose frames hold tensors
    if isinstance(results, dict) and len(group) > 1:
        for job in group:
            yield from attempts(editor, [job], listener, stopped, at_once)
    else:
        yield group, results
