"""Keeping what was made: results as `toprope edit` writes them, what pages show of their sources, and ZIPs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from toprope.images.jobs import Job, stem_of
from toprope.images.output import Output
from toprope.images.pictures import open_picture, save_picture
from toprope.images.request import EditRequest
from toprope.images.results import EditResult
from toprope.images.web.history import Entry

__all__ = ["keep", "pack"]

SHOWN_SIDE = 1600
"""The longer side of what is shown as "before", at most: pages need no more."""


def keep(output: Output, scratch: Path, request: EditRequest, result: EditResult) -> list[Entry]:
    """Save the pictures of an edit, each with its record beside it.

    Args:
        output: where to.
        scratch: for what only pages need.
        request: of the edit; its picture is a path. Records have its name alone: where uploads lie means nothing.
        result: of the edit.
    """
    source = Path(request.image)
    record = {
        **result.record,
        "request": {**result.record["request"], "image": source.name},
        "source": {**result.record["source"], "name": source.name},
    }
    paths = output.save(Job(request, stem_of(source.name)), result.pictures, record)
    crop = tuple(record["frame"]["crop"])
    opened = open_picture(source).picture
    before = opened if crop == (0, 0, *opened.size) else opened.crop(crop)
    before.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    shown = save_picture(before, scratch / f"{paths[0].stem}-before.jpg")
    entries = []
    for path in paths:
        sidecar = path.with_suffix(".json")
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
