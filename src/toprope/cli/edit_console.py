"""What `toprope edit` prints: a bar that moves, results, failures, and the same for machines."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toprope.sizes import gibibytes

if TYPE_CHECKING:
    from toprope.images.jobs import Job
    from toprope.images.results import Step
    from toprope.images.run_jobs import Event

__all__ = ["Console", "bar", "failure_text"]

_WIDE = 24
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_BETWEEN = 0.1


class Console(logging.Handler):
    """Tells on stderr how a run goes and on stdout what came of it. A context: notices in the log come here meanwhile.

    Args:
        jobs: how many there are in the run.
        quiet: whether only the pictures' paths are printed, and failures.
        as_json: whether stdout gets a line of JSON for each job instead.
        cards: on how many of them jobs run at the same time.
    """

    def __init__(self, jobs: int, *, quiet: bool = False, as_json: bool = False, cards: int = 1) -> None:
        super().__init__(logging.WARNING)
        self._jobs, self._quiet, self._as_json, self._cards = jobs, quiet, as_json, cards
        self._running: dict[int, str] = {}
        self._ended = 0
        self._lively = sys.stderr.isatty() and not quiet
        self._shown = ""
        self._names = ""
        self._drawn = 0.0
        self._facts: Callable[[], Mapping[str, Any]] | None = None
        self._numbers: Callable[[], Mapping[str, Any]] | None = None

    def watch(self, facts: Callable[[], Mapping[str, Any]], memory: Callable[[], Mapping[str, Any]]) -> None:
        """From now on the bar says what is in use: `Engine.describe` and `Engine.memory`."""
        self._facts, self._numbers = facts, memory

    def tell(self, text: str) -> None:
        """Show on a terminal what is done now, until something else is."""
        self._draw(f"{text} ...")

    def say(self, text: str) -> None:
        """Write lines to stderr that stay."""
        self._draw("")
        sys.stderr.write(f"toprope: {text}\n")
        sys.stderr.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """A notice in the log."""
        if not self._quiet:
            self.say(record.getMessage())

    # A listener of run_jobs

    def begin(self, jobs: Sequence[Job]) -> None:
        """These jobs are begun."""
        self._names = ", ".join(Path(job.request.image).name for job in jobs)
        if self._jobs > 1:
            numbers = f"{jobs[0].number}" if len(jobs) == 1 else f"{jobs[0].number}-{jobs[-1].number}"
            self._names += f" ({numbers} of {self._jobs})"
        self._running |= {job.number: Path(job.request.image).name for job in jobs}
        self._draw(self._spread() if self._cards > 1 else f"{self._names}  ...")

    def step(self, step: Step) -> None:
        """A step is done."""
        now = time.monotonic()
        if self._lively and (now - self._drawn >= _BETWEEN or step.number == step.of):
            facts = self._facts() if self._facts is not None else {}
            memory = self._numbers() if self._numbers is not None else {}
            self._draw(bar(self._names, step, facts, memory))
            self._drawn = now

    def end(self, event: Event) -> None:
        """A job is done, or has failed."""
        self._draw("")
        if self._as_json:
            sys.stdout.write(json.dumps(_as_dict(event), ensure_ascii=False) + "\n")
        elif event.problem is None:
            for path in event.pictures:
                kept = "" if self._quiet else f" (and {path.with_suffix('.json')}: everything needed to repeat it)"
                sys.stdout.write(f"{path}\n" if self._quiet else f"wrote {path}{kept}\n")
        words = (event.record or {}).get("refinement")
        if words and not self._quiet:
            name = Path(event.job.request.image).name
            if words["refined"]:
                self.say(f"{name} was edited with: {words['instruction']}")
            else:
                self.say(f"{name}: the instruction was used as it is, {words['reason']}")
        if event.problem is not None:
            self.say(failure_text(event, self._jobs))
        sys.stdout.flush()
        self._ended += 1
        self._running.pop(event.job.number, None)
        if self._running and self._cards > 1:
            self._draw(self._spread())

    # Inside

    def _spread(self) -> str:
        """What runs on several cards; their steps are not known here."""
        return f"{self._ended} of {self._jobs} ended  on {self._cards} cards: {', '.join(self._running.values())} ..."

    def _draw(self, text: str) -> None:
        """Put a text in place of the one that is on the terminal's last line."""
        if not self._lively:
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        if text == self._shown:
            return
        sys.stderr.write("\r" + text + " " * (len(self._shown) - len(text)) + ("" if text else "\r"))
        sys.stderr.flush()
        self._shown = text

    def __enter__(self) -> Console:
        logging.getLogger("toprope").addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("toprope").removeHandler(self)
        self._draw("")


def bar(name: str, step: Step, facts: Mapping[str, Any], memory: Mapping[str, Any]) -> str:
    """One line about a step: how far it is, how fast it goes, what is in use.

    Args:
        name: of what is edited.
        step: that is done.
        facts: of `Engine.describe`; empty where they are not known.
        memory: of `Engine.memory`, in bytes.
    """
    full = _WIDE * step.number // step.of
    seconds = step.seconds / max(1, step.number)
    rate = f"{seconds:.1f} s/step" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms/step"
    parts = [name, f"[{'#' * full}{'.' * (_WIDE - full)}]", f"{step.number:>{len(str(step.of))}}/{step.of}", rate]
    if step.stage != "edit":
        parts.append(step.stage)
    if facts:
        rung = (facts.get("memory") or {}).get("rung")
        words = [
            str(facts.get("device", "")),
            _SHORT.get(str(facts.get("dtype")), str(facts.get("dtype", ""))),
            str((facts.get("attention") or {}).get("path") or ""),
            "" if rung in (None, "none") else f"memory {rung}",
        ]
        parts.append(" ".join(word for word in words if word))
    if memory.get("total"):
        used = memory.get("allocated") or 0
        total = gibibytes(memory["total"])
        parts.append(f"{gibibytes(used).removesuffix(' GiB')} of {total}")
    return "  ".join(parts)


def failure_text(event: Event, jobs: int) -> str:
    """A job that failed, in lines: which, why, and what to do."""
    problem = event.problem or {}
    name = Path(event.job.request.image).name
    where = event.job.where or f"{event.job.number} of {jobs}"
    lines = [f"{name} ({where}) failed: {problem.get('what')}" if jobs > 1 else f"{name} failed: {problem.get('what')}"]
    for key, label in (("looked_at", "looked at"), ("do", "do")):
        if problem.get(key):
            lines.append(f"  {label:<9}  {problem[key]}")
    if event.kept is not None:
        lines.append(f"  {'kept in':<9}  {event.kept}")
    return "\n".join(lines)


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
