"""Output of `toprope edit`: progress, results and failures, for people or as JSON.

The `Listener` of a run (`images.runs.running`), made by `cli.edit`; `cli.ui` uses `failure_text` and `details`. Results
go to stdout, everything else to stderr. The JSON lines of `_as_dict` are an interface for programs; texts are free.
Tests: tests/images/test_images_cli.py.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toprope.sizes import gibibytes
from toprope.terminal import Display, columns, field, render

if TYPE_CHECKING:
    from toprope.images.runs.jobs import Job
    from toprope.images.runs.running import Event
    from toprope.progress import Step

__all__ = ["Console", "details", "failure_text"]

_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Console(logging.Handler):
    """Shows the progress of a run on stderr and its results on stdout; as a context also the log's warnings.

    Args:
        jobs: number of jobs in the run.
        quiet: print only the pictures' paths, and failures.
        as_json: print one line of JSON for each job on stdout instead.
        cards: number of cards on which jobs run at the same time.
    """

    def __init__(self, jobs: int, *, quiet: bool = False, as_json: bool = False, cards: int = 1) -> None:
        super().__init__(logging.WARNING)
        self._jobs, self._quiet, self._as_json, self._cards = jobs, quiet, as_json, cards
        self._running: dict[int, str] = {}
        self._ended = 0
        self._display = Display(quiet=quiet)
        self.say, self.stage = self._display.say, self._display.stage

    def watch(self, facts: Callable[[], Mapping[str, Any]], memory: Callable[[], Mapping[str, Any]]) -> None:
        """Show device and memory use in the progress: from `Engine.describe` and `Engine.memory`."""
        self._display.details = lambda: details(facts(), memory())

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning of the log."""
        if not self._quiet:
            self.say(record.getMessage())

    # A listener of run_jobs

    def begin(self, jobs: Sequence[Job]) -> None:
        """These jobs are begun."""
        name = ", ".join(Path(job.request.image).name for job in jobs)
        if self._jobs > 1:
            numbers = f"{jobs[0].number}" if len(jobs) == 1 else f"{jobs[0].number}-{jobs[-1].number}"
            name += f" ({numbers} of {self._jobs})"
        self._display.name = name
        self._running |= {job.number: Path(job.request.image).name for job in jobs}
        self.stage(self._spread() if self._cards > 1 else name)

    def step(self, step: Step) -> None:
        """A step is done."""
        self._display.step(step)

    def end(self, event: Event) -> None:
        """A job is done, or has failed."""
        self._display.clear()
        if self._as_json:
            sys.stdout.write(json.dumps(_as_dict(event), ensure_ascii=False) + "\n")
        elif event.problem is None:
            for path in event.pictures:
                kept = "" if self._quiet else f" (and {path.with_suffix('.json')}: everything needed to repeat it)"
                sys.stdout.write(f"{path}\n" if self._quiet else f"wrote {path}{kept}\n")
        name = Path(event.job.request.image).name
        for note in ((event.record or {}).get("source") or {}).get("notes", ()) if not self._quiet else ():
            self.say(f"{name}: {note}")
        words = (event.record or {}).get("refinement")
        if words and not self._quiet:
            if words["refined"]:
                self.say(f"{name} was edited with: {words['instruction']}")
            else:
                self.say(f"{name}: the instruction was used as it is, {words['reason']}")
        if event.problem is not None:
            self.say(_failure(event, self._jobs))
        sys.stdout.flush()
        self._ended += 1
        self._running.pop(event.job.number, None)
        if self._running and self._cards > 1:
            self.stage(self._spread())

    def _spread(self) -> str:
        """Text about the jobs that run on several cards, whose steps are not known here."""
        return f"{self._ended} of {self._jobs} ended  on {self._cards} cards: {', '.join(self._running.values())}"

    def __enter__(self) -> Console:
        logging.getLogger("toprope").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("toprope").removeHandler(self)
        self._display.clear()


def details(facts: Mapping[str, Any], memory: Mapping[str, Any]) -> str:
    """Format the resources of an edit: device, dtype, attention, rung of the memory ladder, memory.

    Args:
        facts: result of `Engine.describe`.
        memory: result of `Engine.memory`, in bytes.
    """
    rung = (facts.get("memory") or {}).get("rung")
    words = [
        str(facts.get("device", "")),
        _SHORT.get(str(facts.get("dtype")), str(facts.get("dtype", ""))),
        str((facts.get("attention") or {}).get("path") or ""),
        "" if rung in (None, "none") else f"memory {rung}",
    ]
    parts = [" ".join(word for word in words if word)]
    if memory.get("total"):
        used = gibibytes(memory.get("allocated") or 0).removesuffix(" GiB")
        parts.append(f"{used} of {gibibytes(memory['total'])}")
    return "  ".join(part for part in parts if part)


def failure_text(what: str, problem: Mapping[str, Any], *more: tuple[str, object]) -> str:
    """A failure in lines: what failed, the facts, and what to do.

    Args:
        what: failed, and why.
        problem: with "looked_at" and "do".
        more: further labels and texts.
    """
    rows = [("looked at", problem.get("looked_at")), ("do", problem.get("do")), *more]
    items = (item for label, text in rows if text for item in field(label, str(text), label_width=11, indent=2))
    return render(what, *items, width=columns(sys.stderr)).rstrip("\n")


def _failure(event: Event, jobs: int) -> str:
    problem = event.problem or {}
    where = f" ({event.job.where or f'{event.job.number} of {jobs}'})" if jobs > 1 else ""
    what = f"{Path(event.job.request.image).name}{where} failed: {problem.get('what')}"
    return failure_text(what, problem, ("kept in", event.kept))


def _as_dict(event: Event) -> dict[str, Any]:
    return {
        "job": event.job.number,
        "image": str(event.job.request.image),
        "pictures": [str(path) for path in event.pictures],
        "sidecars": [str(path.with_suffix(".json")) for path in event.pictures],
        "seconds": None if event.record is None else event.record.get("seconds"),
        "error": event.problem and {key: event.problem[key] for key in ("kind", "what", "looked_at", "do")},
        "kept": None if event.kept is None else str(event.kept),
    }
