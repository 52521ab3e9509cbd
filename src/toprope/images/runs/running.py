"""Do jobs one after the other, or several at once; a failed job stops no other, and Ctrl-C ends after a step.

Called by `toprope edit` (`cli.editing.execution`) with one engine, and by `runs.cards` inside each process.
`Listener` is implemented by `cli.editing.console`; an error of a listener is none of the job. Tests:
tests/images/test_images_jobs.py, tests/images/test_images_cli.py.
"""

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
"""An error as described by `toprope.images.runs.output.problem_of`."""

Attempt = tuple[Sequence[Job], list[EditResult] | Problem | None]
"""Jobs with their results; with the problem if all of them failed; or with None if they were cancelled."""


class Editor(Protocol):
    """The part of an engine that jobs use."""

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
    """Result of a job.

    Attributes:
        job: the job.
        pictures: the pictures' paths; none if it failed.
        record: the record next to the pictures.
        problem: the error if it failed; None if it is done.
        kept: path of the record of a failure; None if it could not be written.
    """

    job: Job
    pictures: tuple[Path, ...] = ()
    record: dict[str, Any] | None = None
    problem: Problem | None = None
    kept: Path | None = None


class Listener(Protocol):
    """Receiver of a run's progress."""

    def begin(self, jobs: Sequence[Job]) -> None:
        """Take note that these jobs have begun together."""

    def step(self, step: Step) -> None:
        """Take note of a step of them."""

    def end(self, event: Event) -> None:
        """Take note that a job is done, or has failed."""


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
    """Do jobs, write the results, and count them in the summary.

    Args:
        editor: an engine.
        jobs: the jobs to do.
        output: the folder for results.
        listener: called for jobs and steps.
        summary: counters that are updated.
        stopped: returns the reason to stop, such as "Ctrl-C"; empty to go on.
        at_once: number of pictures that go through the model at once. If jobs fail together, each is tried alone.
    """
    for start in range(0, len(jobs), at_once):
        for part, results in attempts(editor, jobs[start : start + at_once], listener, stopped, at_once):
            if results is None:
                summary.stopped = stopped() or "cancelled"
                return
            for at, job in enumerate(part):
                keep(job, results if isinstance(results, dict) else results[at], output, listener, summary)


def keep(job: Job, result: EditResult | Problem, output: Output, listener: Listener, summary: Summary) -> None:
    """Write the result of a job, count it, and report it to the listener."""
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
        pass  # a full disk has no room for the record either
    listener.end(Event(job, problem=result, kept=kept))


def attempts(
    editor: Editor, group: Sequence[Job], listener: Listener, stopped: Callable[[], str], at_once: int
) -> Iterator[Attempt]:
    """Do jobs together; if that fails, do each alone.

    Raises:
        Exception: an error of the listener. It ends the run; the job is not recorded as failed.
    """
    listener.begin(group)
    listener_errors: list[Exception] = []

    def step(each: Step) -> None:
        try:
            listener.step(each)
        except Exception as error:  # for instance, the console was closed: not an error of the job
            listener_errors.append(error)
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
        if listener_errors:
            raise listener_errors[0] from None
        results = problem_of(error)  # not the error, whose frames hold tensors
    if isinstance(results, dict) and len(group) > 1:
        for job in group:
            yield from attempts(editor, [job], listener, stopped, at_once)
    else:
        yield group, results
