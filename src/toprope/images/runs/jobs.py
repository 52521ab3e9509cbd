"""Jobs: the edits of one run, the names of their files, and the jobs that are done already. Pure.

Every picture has a record next to it, its sidecar: `cat-0003.json` for `cat-0003.png`. A job that failed leaves
`cat-0004.failed.json`. A later run finds the jobs that are left from these files alone.

Called by `toprope edit` and `runs.output`. The key of a job decides what `--resume` skips: a change of it, or of the
files' names, makes old folders look undone. The fields of jobs.jsonl are those of `EditRequest`. Tests:
tests/images/test_images_jobs.py, tests/images/test_images_loading.py.
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
"""Ending of the name of a failed job's record, after the number."""

_MOST_LETTERS = 60


@dataclass(frozen=True)
class Job:
    """One edit of a run.

    Attributes:
        request: the request; its picture is a path.
        stem: name of its files, before the number.
        number: number of the job in its run, from 1.
        where: origin for error messages: "jobs.jsonl, line 3"; empty on a command line.
        key: identity of the job, unique in a run and the same in the next run.
    """

    request: EditRequest
    stem: str
    number: int = 0
    where: str = ""
    key: str = ""

    def as_json(self) -> dict[str, Any]:
        """Facts about it for a sidecar."""
        return {"key": self.key, "number": self.number, "where": self.where or None, "name": self.stem}


@dataclass(frozen=True)
class Done:
    """A job that an earlier run has done.

    Attributes:
        files: its pictures, by name.
        source: the SHA-256 of the picture that was edited.
        mask: the SHA-256 of its mask; None without a mask.
    """

    files: tuple[str, ...]
    source: str | None
    mask: str | None = None


@dataclass
class Summary:
    """Counters of a run.

    Attributes:
        jobs: number of jobs.
        done: jobs that were done in this run.
        failed: jobs that failed in this run.
        skipped: jobs that were done before.
        stopped: reason why the run ended early; empty if it did not.
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
        """The counters in one line."""
        parts = [f"{self.done} of {self.jobs} done"]
        parts += [f"{self.skipped} done before"] if self.skipped else []
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.left} left: {self.stopped}"] if self.left and self.stopped else []
        return ", ".join(parts)


def stem_of(name: str) -> str:
    """Make a name for files from a picture's name: without its ending, and with characters of any file system."""
    return re.sub(r"[^\w.-]+", "_", Path(name).stem).strip("._")[:_MOST_LETTERS] or "picture"


def read_jobs(text: str, knobs: Mapping[str, Any], *, folder: str, name: str) -> list[Job]:
    """Read a jobs.jsonl: one JSON object per line, with the fields of `EditRequest`, and "name" for its files.

    Args:
        text: the file's text; empty lines are skipped.
        knobs: defaults for the rows. A null in a row leaves a knob to the model's family.
        folder: folder that paths of pictures are relative to.
        name: the file's name, for errors.

    Raises:
        UsageError: a line is no object, or no valid request; the error names the line. Nothing has been done then.
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
    """Give jobs their numbers and keys.

    Args:
        jobs: the jobs in their order.
        made_with: everything else that a picture depends on, for JSON: the model, LoRAs, the refiner.
    """
    seen: dict[str, int] = {}
    numbered = []
    for number, job in enumerate(jobs, 1):
        asked = json.dumps([job.request.as_json(), job.stem, dict(made_with)], sort_keys=True)
        seen[asked] = seen.get(asked, 0) + 1  # two equal rows are two jobs
        key = hashlib.sha256(f"{seen[asked]} {asked}".encode()).hexdigest()[:32]
        numbered.append(replace(job, number=number, key=key))
    return numbered


def next_number(names: Iterable[str], stem: str) -> int:
    """The number for the next files of a stem: one more than the largest number of a file."""
    form = re.compile(rf"{re.escape(stem)}-(\d{{4,}})\.")
    return max((int(found[1]) for name in names if (found := form.match(name))), default=0) + 1


def finished(sidecars: Mapping[str, Any], names: Iterable[str]) -> dict[str, Done]:
    """Find the jobs of earlier runs that are done, with all pictures present, by the job's key.

    Args:
        sidecars: records by name; other JSON files are skipped.
        names: the names of all files in the folder.
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
    """Find the jobs that are still to be done: not done, or done with a picture or mask that has changed since.

    Args:
        jobs: all jobs.
        done: the jobs that earlier runs have done.
        sources: the SHA-256 of readable pictures and masks, by path.
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
