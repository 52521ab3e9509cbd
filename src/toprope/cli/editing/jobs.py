"""Jobs of `toprope edit` from its arguments: pictures, folders and patterns, a jobs.jsonl, or a record to repeat.

Called by `cli.edit`. What a job is, and which are done, is decided in `images.runs.jobs`; the records that are read
here were written by `images.runs.output`, whose keys ("source", "mask", "kept", "sha256") are a format on users' disks.
Tests: tests/images/test_images_cli.py, tests/images/test_images_masks.py (records).
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toprope.errors import UsageError
from toprope.images.families.base import Family
from toprope.images.picture.files import SUFFIXES, record_in
from toprope.images.request import EditRequest
from toprope.images.runs.jobs import Job, read_jobs, stem_of
from toprope.images.runs.output import SOURCES, hash_of, name_kept

__all__ = ["PICTURES", "from_file", "from_pictures", "pictures_in", "read_record", "refuse_knobs", "to_repeat"]

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
"""Files that are taken from a folder."""


def pictures_in(given: Iterable[str]) -> list[str]:
    """The paths of pictures, each once: of files, of all pictures in folders, of what patterns such as "*.png" match.

    Raises:
        UsageError: nothing is found where one of them points.
    """
    found: dict[str, None] = {}
    for each in given:
        if os.path.isdir(each):
            names = sorted(name for name in os.listdir(each) if name.lower().endswith(PICTURES))
            paths = [os.path.join(each, name) for name in names]
            problem = f"there is no picture in the folder {each}."
        elif os.path.exists(each) or not glob.has_magic(each):
            paths = [each] if os.path.exists(each) else []
            problem = f"there is no picture {each}."
        else:
            paths = sorted(path for path in glob.glob(each, recursive=True) if os.path.isfile(path))
            problem = f"no file matches {each}."
        if not paths:
            raise UsageError(problem, looked_at=f"in {os.getcwd()}", do="check the path given with --image")
        found.update(dict.fromkeys(os.path.abspath(path) for path in paths))
    return list(found)


def from_pictures(images: Sequence[str], instruction: str, knobs: Mapping[str, Any]) -> list[Job]:
    """A job for every picture, all with one instruction.

    Raises:
        UsageError: a knob cannot be.
    """
    rows = ({"image": path, "instruction": instruction, **knobs} for path in images)
    return [Job(EditRequest.from_json(row), stem_of(row["image"])) for row in rows]


def from_file(path: str, knobs: Mapping[str, Any]) -> list[Job]:
    """The jobs of a jobs.jsonl; "-" is stdin. Paths of pictures are from the file's folder.

    Raises:
        UsageError: it cannot be read, or a line asks for what cannot be.
    """
    if path == "-":
        return read_jobs(sys.stdin.read(), knobs, folder=os.getcwd(), name="stdin")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else f"it is no UTF-8 ({error.reason})"
        raise UsageError(f"{path} cannot be read: {said}.", do="give a jobs.jsonl") from None
    return read_jobs(text, knobs, folder=os.path.dirname(os.path.abspath(path)), name=os.path.basename(path))


def read_record(path: str) -> dict[str, Any]:
    """A record of an edit, from the .json next to a picture or from the picture itself.

    Of a picture with its .json next to it that is read, which says more.

    Raises:
        UsageError: it is none.
    """
    try:
        if Path(path).suffix.lower() in SUFFIXES:
            record = _record_of(Path(path))
        else:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path} cannot be read: {said}.", do="give the .json next to a picture") from None
    if not isinstance(record, dict) or not isinstance(record.get("request"), dict) or "seed" not in record:
        raise UsageError(
            f"{path} is no record of an edit.",
            looked_at=f"its keys {', '.join(record)}" if isinstance(record, dict) else "it is no object",
            do="give the .json next to a picture; a job that failed has another kind of record",
        )
    return record


def to_repeat(
    record: Mapping[str, Any], images: Sequence[str], knobs: Mapping[str, Any], folder: str | os.PathLike[str] = "."
) -> Job:
    """Make the job that repeats the edit of a record.

    Args:
        record: the record next to the picture.
        images: path of the edited picture, if it is elsewhere now; else empty.
        knobs: settings that differ from the record's.
        folder: folder of the record; the copy of the edited picture in it is used if the original is gone or was
            changed.

    Raises:
        UsageError: the record does not say which picture was edited.
    """
    row = {**record["request"], "seed": record["seed"], "num_images": 1, **knobs}
    if images:
        row["image"] = images[0]
    else:
        row["image"] = _kept(record.get("source"), row.get("image"), Path(folder))
    if row.get("mask") and "mask" not in knobs:
        row["mask"] = _kept(record.get("mask"), row["mask"], Path(folder))
        if not os.path.exists(row["mask"]):
            raise UsageError(f"the mask of the record, {row['mask']}, is not there.", do="give it with --mask")
    if not row.get("image"):
        raise UsageError("the record does not say where the picture is that was edited.", do="give it with --image")
    if not os.path.exists(row["image"]):
        raise UsageError(f"the picture of the record, {row['image']}, is not there.", do="give it with --image")
    request = EditRequest.from_json(row)
    named = request.image if images else (record.get("source") or {}).get("name") or request.image
    mask = None if request.mask is None else os.path.abspath(request.mask)
    return Job(replace(request, image=os.path.abspath(request.image), mask=mask), stem_of(named))


def _record_of(picture: Path) -> Any:
    """The record next to a picture, or in it.

    Raises:
        OSError: the picture cannot be read.
        UsageError: there is neither.
    """
    try:
        record = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
        if isinstance(record, dict) and record.get("picture") == picture.name:
            return record
    except (OSError, ValueError):
        pass
    record = record_in(picture)
    if record is None:
        raise UsageError(
            f"{picture} carries no record of an edit.",
            looked_at=f"no {picture.with_suffix('.json').name} next to it, and nothing in it",
            do="give a PNG that `toprope edit` or `toprope ui` wrote; other programs may have removed what it carried",
        )
    for name, used in (("image", "source"), ("mask", "mask")):  # whose names it does not carry, nor where they are
        about, path = record.get(used), (record.get("request") or {}).get(name)
        if isinstance(about, dict) and isinstance(path, str) and isinstance(about.get("sha256"), str):
            about["kept"] = f"{SOURCES}/{name_kept(path, about['sha256'])}"
            about["name"] = re.sub(r"-\d{4,}$", "", picture.stem) + Path(path).suffix
    return record


def _kept(used: Mapping[str, Any] | None, image: Any, folder: Path) -> Any:
    """A picture that was used, or the copy of it that was kept with the result."""
    digest, kept = (used or {}).get("sha256"), (used or {}).get("kept")
    there = isinstance(image, str) and os.path.exists(image)
    if not isinstance(kept, str) or digest is None or (there and hash_of(image) == digest):
        return image
    copy = folder / SOURCES / Path(kept).name
    return str(copy) if hash_of(copy) == digest else image


def refuse_knobs(family: Family, jobs: Iterable[Job]) -> None:
    """Refuse knobs that the model's family does not honour, before the model is loaded.

    Raises:
        UsageError: the first of them.
    """
    for job in jobs:
        try:
            family.refuse(job.request)
        except UsageError as error:
            if not job.where:
                raise
            raise type(error)(f"{job.where}: {error.what}", error.looked_at, error.do) from None
