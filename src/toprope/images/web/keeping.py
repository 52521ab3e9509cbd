"""Keeping what was made: each picture with its record beside it, under a name that is free."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from toprope.images.pictures import open_picture, save_picture
from toprope.images.results import EditResult
from toprope.images.web.history import Entry

__all__ = ["free_name", "keep", "pack", "stem_of"]

SHOWN_SIDE = 1600
"""The longer side of what is shown as "before", at most: pages need no more."""


def stem_of(name: str) -> str:
    """A name for files after that of an upload: without its ending, and with nothing that a file system minds."""
    return re.sub(r"[^\w.-]+", "_", Path(name).stem).strip("._")[:60] or "picture"


def free_name(folder: Path, stem: str) -> Path:
    """The first of stem-0001.png, stem-0002.png, ... that is not there; the file is made, so that nobody takes it."""
    taken = [
        int(found[1])
        for path in folder.glob(f"{stem}-*.png")
        if (found := re.fullmatch(rf"{re.escape(stem)}-(\d{{4,}})", path.stem))
    ]
    number = max(taken, default=0) + 1
    while True:
        path = folder / f"{stem}-{number:04}.png"
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            number += 1


def keep(folder: Path, scratch: Path, source: Path, result: EditResult) -> list[Entry]:
    """Save the pictures of an edit, each with its record as JSON beside it.

    Args:
        folder: for the results.
        scratch: for what only pages need.
        source: the picture that was edited.
        result: of the edit.
    """
    stem = stem_of(source.name)
    crop = tuple(result.record["frame"]["crop"])
    opened = open_picture(source).picture
    before = opened if crop == (0, 0, *opened.size) else opened.crop(crop)
    before.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    entries: list[Entry] = []
    for picture, seed in zip(result.pictures, result.record["seeds"], strict=True):
        path = save_picture(picture, free_name(folder, stem))
        sidecar = path.with_suffix(".json")
        record = {**result.record, "picture": path.name, "seed": seed}
        sidecar.write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        if not entries:
            shown = save_picture(before, scratch / f"{path.stem}-before.jpg")
        entries.append(Entry(source.name, path, sidecar, seed, record, shown))
    return entries


def pack(path: Path, entries: Sequence[Entry]) -> Path:
    """Write a ZIP with the pictures and records of entries."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        for entry in entries:
            for file in (entry.picture, entry.sidecar):
                packed.write(file, file.name)
    return path
