"""Jobs: the edits of one run, what their files are called, and which of them are done already. Pure.

Beside every picture lies a record, its sidecar: `cat-0003.json` beside `cat-0003.png`. A job that failed leaves
`cat-0004.failed.json`. What a later run has to do is read from these alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toprope.errors import UsageError
from toprope.images.request import EditRequest

__all__ = [
    "FAILED",
    "Done",
    "Job",
    "Summary",
    "finished",
    "next_number",
    "number_jobs",
    "read_jobs",
    "stem_of",
    "undone",
]

FAILED = ".failed.json"
"""How the record of a job that failed ends, after its number."""

_MOST_LETTERS = 60


@dataclass(frozen=True)
class Job:
    """One edit of a run.

    Attributes:
        request: what to do; its picture is a path.
        stem: what its files are called, before the number.
        number: of the job in its run, from 1.
        where: where it was asked for, for people: "jobs.jsonl, line 3"; empty on a command line.
        key: tells it from all other jobs of the run, and is the same in the next run.
    """

    request: EditRequest
    stem: str
    number: int = 0
    where: str = ""
    key: str = ""

    def as_json(self) -> dict[str, Any]:
        """What a sidecar says about it."""
        return {"key": self.key, "number": self.number, "where": self.where or None, "name": self.stem}


@dataclass(frozen=True)
class Done:
    """A job that an earlier run has done.

    Attributes:
        files: its pictures, by name.
        source: the SHA-256 of the picture that was edited.
        mask: the SHA-256 of its mask; None where there was none.
    """

    files: tuple[str, ...]
    source: str | None
    mask: str | None = None


@dataclass
class Summary:
    """What came of a run.

    Attributes:
        jobs: how many there were.
        done: jobs that were done now.
        failed: jobs that failed now.
        skipped: jobs that were done before.
        stopped: why it ended early; empty where it did not.
    """

    jobs: int
    done: int = 0
    failed: int = 0
    skipped: int = 0
    stopped: str = ""

    @property
    def left(self) -> int:
        """Jobs that were not begun or not ended."""
        return self.jobs - self.done - self.failed - self.skipped

    def text(self) -> str:
        """All of it in one line."""
        parts = [f"{self.done} of {self.jobs} done"]
        parts += [f"{self.skipped} done before"] if self.skipped else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.left} left: {self.stopped}"] if self.left and self.stopped else []
        return ", ".join(parts)


def stem_of(name: str) -> str:
    """A name for files after that of a picture: without its ending, and with nothing that a file system minds."""
    return re.sub(r"[^\w.-]+", "_", Path(name).stem).strip("._")[:_MOST_LETTERS] or "picture"


def read_jobs(text: str, knobs: Mapping[str, Any], *, folder: str, name: str) -> list[Job]:
    """The jobs of a jobs.jsonl: one object of JSON a line, with the fields of `EditRequest`, and "name" for its files.

    Args:
        text: of the file; empty lines are passed over.
        knobs: for rows that do not say otherwise. A null in a row leaves a knob to the model's family.
        folder: that paths of pictures are from.
        name: of the file, for errors.

    Raises:
        UsageError: a line is no object, or asks for what cannot be; the error names it. Nothing has been done then.
    """
    jobs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{where} is no JSON: {error}.", looked_at=_short(line), do="write one object a line, in double quotes"
            ) from None
        if not isinstance(row, dict):
            raise UsageError(f"{where} is no object.", looked_at=_short(line), do='write {"image": ..., ...}')
        stem = row.pop("name", None)
        if stem is not None and (not isinstance(stem, str) or not stem.strip()):
            raise UsageError(f"{where}: name is {stem!r}.", do="give a text, or leave it out")
        try:
            request = EditRequest.from_json({**knobs, **row})
        except UsageError as error:
            raise type(error)(f"{where}: {error.what}", error.looked_at, error.do) from None
        paths: dict[str, Any] = {
            name: os.path.join(folder, _path(name, getattr(request, name), where))
            for name in ("image", "mask")
            if getattr(request, name) is not None
        }
        request = replace(request, **paths)
        jobs.append(Job(request, stem_of(f"{stem}.x" if stem else request.image), where=where))
    if not jobs:
        raise UsageError(f"{name} has no jobs.", looked_at=f"{len(text)} characters", do="write one object a line")
    return jobs


def number_jobs(jobs: Iterable[Job], made_with: Mapping[str, Any]) -> list[Job]:
    """The jobs with their numbers and keys.

    Args:
        jobs: in their order.
        made_with: what else decides what a picture looks like, ready for JSON: the model, LoRAs, the refiner.
    """
    seen: dict[str, int] = {}
    numbered = []
    for number, job in enumerate(jobs, 1):
        asked = json.dumps([job.request.as_json(), job.stem, dict(made_with)], sort_keys=True)
        seen[asked] = seen.get(asked, 0) + 1  # two rows that are alike are two jobs
        key = hashlib.sha256(f"{seen[asked]} {asked}".encode()).hexdigest()[:32]
        numbered.append(replace(job, number=number, key=key))
    return numbered


def next_number(names: Iterable[str], stem: str) -> int:
    """The number for the next files of a stem: one more than the largest that any file has."""
    form = re.compile(rf"{re.escape(stem)}-(\d{{4,}})\.")
    return max((int(found[1]) for name in names if (found := form.match(name))), default=0) + 1


def finished(sidecars: Mapping[str, Any], names: Iterable[str]) -> dict[str, Done]:
    """What earlier runs have done, by the key of the job: those of which all pictures are there.

    Args:
        sidecars: records by name; what is none of ours is passed over.
        names: of all files in the folder.
    """
    there = set(names)
    pictures: dict[str, dict[int, str]] = {}
    wanted: dict[str, tuple[int, str | None, str | None]] = {}
    for name, record in sidecars.items():
        job = record.get("job") if isinstance(record, dict) and not name.endswith(FAILED) else None
        if not isinstance(job, dict) or record.get("picture") not in there:
            continue
        try:
            pictures.setdefault(job["key"], {})[int(job["picture"])] = record["picture"]
            source, mask = record.get("source", {}).get("sha256"), (record.get("mask") or {}).get("sha256")
            wanted[job["key"]] = int(job["of"]), source, mask
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return {
        key: Done(tuple(found[at] for at in sorted(found)), *wanted[key][1:])
        for key, found in pictures.items()
        if set(found) == set(range(1, wanted[key][0] + 1))
    }


def undone(jobs: Sequence[Job], done: Mapping[str, Done], sources: Mapping[str, str]) -> list[Job]:
    """The jobs that are still to be done: not done, or done with a picture or a mask that was changed since.

    Args:
        jobs: all of them.
        done: of earlier runs.
        sources: the SHA-256 of pictures and masks by path, of those that can be read.
    """

    def same(job: Job) -> bool:
        request, before = job.request, done[job.key]
        mask = None if request.mask is None else sources.get(request.mask)
        return sources.get(request.image) == before.source and mask == before.mask

    return [job for job in jobs if job.key not in done or not same(job)]


def _path(name: str, given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise UsageError(f"{where}: {name} is {given!r}, and must be a path.", do="give a text")
    return given


def _short(line: str) -> str:
    return line if len(line) <= 100 else f"{line[:99]}…"
