"""Copies of results for pages; the folder with results itself is not served, as it may have other files.

Used by the controller; paths of results never leave it, only those of copies. Sizes and the number of copies are free.
Tests: tests/images/test_images_web.py.
"""

from __future__ import annotations

import json
import shutil
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toprope.errors import ImageError
from toprope.images.picture.files import open_picture, save_picture
from toprope.images.request import EditRequest
from toprope.images.results import EditResult
from toprope.images.runs.jobs import Job, stem_of
from toprope.images.runs.output import Output
from toprope.images.web.entries import Entry
from toprope.whole_file import writing_whole

__all__ = ["Copies", "pack", "save"]

SHOWN_SIDE = 1600
"""Largest longer side, in pixels, of the picture that is shown as "before"."""

SMALL_SIDE = 256
"""The longer side of a thumbnail."""

MOST = 600
"""Largest number of copies, three for each picture. Older ones are made again when they are needed."""


def save(output: Output, request: EditRequest, result: EditResult, name: str) -> list[Path]:
    """Save the pictures of an edit, each with its sidecar.

    Args:
        output: the folder.
        request: the request; its picture is a path. Records have the name instead, as paths of uploads are temporary.
        result: the result of the edit.
        name: name of the edited picture for the client.

    Returns:
        The pictures' paths.
    """
    asked = {**result.record["request"], "image": name}
    if request.mask is not None:
        asked["mask"] = Path(request.mask).name
    record = {**result.record, "request": asked, "source": {**result.record["source"], "name": name}}
    return output.save(Job(request, stem_of(name)), result.pictures, record)


class Copies:
    """Copies in a folder that may be served; the oldest go first. Threads may call at the same time.

    Args:
        folder: folder for the copies; it is made.
        kept: the folder with results.
        most: largest number of files.
    """

    def __init__(self, folder: Path, kept: Path, most: int = MOST) -> None:
        self.folder, self._kept, self._most = folder, kept, most
        self._made: OrderedDict[str, Path] = OrderedDict()
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)

    def entry(self, name: str, picture: str, source: str | None = None) -> Entry:
        """A result with its record.

        Args:
            name: name of the edited picture.
            picture: path of the result, from the folder with results; its sidecar is next to it.
            source: path of the edited picture; None if they are not compared.

        Raises:
            ImageError: a file of it is gone.
        """
        sidecar = str(Path(picture).with_suffix(".json"))
        copied = self.file(sidecar)
        try:
            record = json.loads(copied.read_text(encoding="utf-8"))
            seed, crop = int(record["seed"]), tuple(record["frame"]["crop"])
        except (ValueError, KeyError, TypeError) as error:
            raise ImageError(
                f"{sidecar} is no record of a picture.", f"{type(error).__name__}: {error}", "choose another picture"
            ) from error
        before = None if source is None else self.before(picture, source, crop)
        return Entry(name, self.file(picture), copied, seed, record, before)

    def file(self, path: str) -> Path:
        """A copy of a file."""

        def make(copy: Path) -> None:
            with open(self._kept / path, "rb") as original, writing_whole(copy) as file:
                shutil.copyfileobj(original, file)

        return self._copy(Path(path).name, path, make)

    def before(self, picture: str, source: str, crop: Sequence[int]) -> Path:
        """The part of the edited picture that a result shows, for comparison on the page."""
        return self._copy(
            f"{Path(picture).stem}-before.jpg", source, lambda to: self._draw(source, to, SHOWN_SIDE, crop)
        )

    def large(self, path: str) -> Path:
        """A copy of a picture in a format that browsers can show."""
        return self._copy(f"{Path(path).stem}-shown.jpg", path, lambda to: self._draw(path, to, SHOWN_SIDE))

    def small(self, path: str) -> Path:
        """A thumbnail of a picture."""
        return self._copy(f"{Path(path).stem}-small.jpg", path, lambda to: self._draw(path, to, SMALL_SIDE))

    def drop(self, names: Mapping[str, Any] | Sequence[str]) -> None:
        """Remove copies by their names."""
        with self._lock:
            for name in names:
                if self._made.pop(name, None) is not None:
                    (self.folder / name).unlink(missing_ok=True)

    def _draw(self, path: str, to: Path, side: int, crop: Sequence[int] | None = None) -> None:
        opened = open_picture(self._kept / path).picture
        if crop is not None and tuple(crop) != (0, 0, *opened.size):
            opened = opened.crop((crop[0], crop[1], crop[2], crop[3]))
        opened.thumbnail((side, side))
        save_picture(opened, to)

    def _copy(self, name: str, path: str, make: Callable[[Path], None]) -> Path:
        """Make a copy unless it is there, and remove the oldest ones beyond the limit."""
        with self._lock:
            copy = self.folder / name
            if name not in self._made:
                if not (self._kept / path).is_file():
                    raise ImageError(f"{path} is no longer in the folder with results.", do="choose another picture")
                make(copy)
                self._made[name] = copy
            self._made.move_to_end(name)
            while len(self._made) > self._most:
                self._made.popitem(last=False)[1].unlink(missing_ok=True)
            return copy


def pack(path: Path, entries: Sequence[Entry]) -> Path:
    """Write a ZIP with the pictures and records of entries."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        for entry in entries:
            for file in (entry.picture, entry.sidecar):
                packed.write(file, file.name)
    return path
