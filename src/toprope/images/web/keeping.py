"""Keeping what was made: results as `toprope edit` writes them, what pages show of their sources, and ZIPs."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from toprope.images.picture.files import open_picture, save_picture
from toprope.images.request import EditRequest
from toprope.images.results import EditResult
from toprope.images.runs.jobs import Job, stem_of
from toprope.images.runs.output import Output
from toprope.images.web.history import Entry

__all__ = ["drop", "keep", "pack"]

SHOWN_SIDE = 1600
"""The longer side of what is shown as "before", at most: pages need no more."""


def keep(output: Output, scratch: Path, request: EditRequest, result: EditResult) -> list[Entry]:
    """Save the pictures of an edit, each with its record beside it.

    Args:
        output: where to.
        scratch: for what pages need: entries are of copies in the folder "made" there.
        request: of the edit; its picture is a path. Records have its name alone: where uploads lie means nothing.
        result: of the edit.
    """
    source = Path(request.image)
    asked = {**result.record["request"], "image": source.name}
    if request.mask is not None:
        asked["mask"] = Path(request.mask).name
    record = {
        **result.record,
        "request": asked,
        "source": {**result.record["source"], "name": source.name},
    }
    made = scratch / "made"
    paths = output.save(Job(request, stem_of(source.name)), result.pictures, record)
    if output.folder != made:  # which is not to be served: others may have files there
        made.mkdir(exist_ok=True)
        for path in paths:
            for each in (path, path.with_suffix(".json")):
                shutil.copyfile(each, made / each.name)
        paths = [made / path.name for path in paths]
    crop = tuple(record["frame"]["crop"])
    opened = open_picture(source).picture
    before = opened if crop == (0, 0, *opened.size) else opened.crop(crop)
    before.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    entries = []
    for path in paths:
        sidecar = path.with_suffix(".json")
        shown = save_picture(before, made / f"{path.stem}-before.jpg")
        written = json.loads(sidecar.read_text(encoding="utf-8"))
        entries.append(Entry(source.name, path, sidecar, written["seed"], written, shown))
    return entries


def pack(path: Path, entries: Sequence[Entry]) -> Path:
    """Write a ZIP with the pictures and records of entries."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        for entry in entries:
            for file in (entry.picture, entry.sidecar):
                packed.write(file, file.name)
    return path


def drop(entries: Iterable[Entry]) -> None:
    """Remove the files of entries that no page shows any more."""
    for entry in entries:
        for path in (entry.picture, entry.sidecar, entry.before):
            if path is not None:
                path.unlink(missing_ok=True)
