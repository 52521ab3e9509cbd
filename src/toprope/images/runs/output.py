"""The folder with results: pictures with free numbers, each with its sidecar, and records of failed jobs.

Used by everything that saves results: `runs.running`, `runs.cards`, the page. Names follow `runs.jobs`, records
`images.results`. Several programs may write to one folder, so a number is claimed before a picture is written, and
files appear whole or not at all. The record inside a picture has no path and no time of this machine. Tests:
tests/images/test_images_jobs.py, tests/images/test_images_web.py, tests/images/test_images_loading.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.errors import ImageError, TopropeError, UsageError
from toprope.images.picture.files import SUFFIXES, save_picture
from toprope.images.runs.jobs import FAILED, Job, next_number
from toprope.whole_file import writing_whole

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["SOURCES", "Output", "hash_of", "name_kept", "problem_of"]

SOURCES = "sources"
"""The folder, among the results, with the pictures that were edited."""


class Output:
    """A folder that results are written to; several programs may write to it at the same time.

    Args:
        folder: the folder; it is made if needed.
        suffix: format of pictures: "png", "jpg" or "webp".
        sources: True to keep copies of the edited pictures too, each once, in its folder "sources".

    Raises:
        UsageError: the format is unknown, or the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], suffix: str = "png", *, sources: bool = True) -> None:
        self.folder, self.suffix, self._sources = Path(folder), f".{suffix.lower().lstrip('.')}", sources
        if self.suffix not in SUFFIXES:
            raise UsageError(
                f"pictures cannot be saved as {suffix}.", do=f"give {', '.join(each[1:] for each in SUFFIXES)}"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot be a folder for results: {error.strerror}.", do="name another with --out-dir"
            ) from None

    def names(self) -> list[str]:
        """The names of all files in it."""
        return sorted(os.listdir(self.folder))

    def sidecars(self) -> dict[str, Any]:
        """All records in it, by name. Files that are no JSON are skipped."""
        found = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                found[path.name] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
        return found

    def save(self, job: Job, pictures: Sequence[Image], record: Mapping[str, Any]) -> list[Path]:
        """Write the pictures of a job, each with its sidecar, and remove the record of an earlier failure.

        Args:
            job: the job.
            pictures: its pictures.
            record: the engine's record of the edit.

        Returns:
            The pictures' paths.

        Raises:
            OSError: they cannot be written; none of them is left then.
        """
        written: list[Path] = []
        request = job.request
        whole = {**record, "source": {**record["source"], **self._kept(request.image)}}
        if request.mask is not None:
            whole["mask"] = {**record["mask"], **self._kept(request.mask)}
        shared = _to_share(whole)
        try:
            for at, (picture, seed) in enumerate(zip(pictures, record["seeds"], strict=True), 1):
                sidecar = self._claim(job.stem)
                path = sidecar.with_suffix(self.suffix)
                written.append(path)
                save_picture(picture, path, record={"seed": seed, **shared})
                about = {**job.as_json(), "picture": at, "of": len(pictures)}
                _write_json(
                    sidecar, {"picture": path.name, "seed": seed, "job": about, **whole, "written": _now()}, sidecar
                )
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
                path.with_suffix(".json").unlink(missing_ok=True)
            raise
        self._forget_failure(job)
        return written

    def fail(self, job: Job, problem: Mapping[str, Any], record: Mapping[str, Any]) -> Path:
        """Write the record of a failed job; replaces the record of an earlier failure.

        Args:
            job: the job.
            problem: the error, see `problem_of`.
            record: other known facts.
        """
        about = {"job": job.as_json(), "error": dict(problem), "request": job.request.as_json(), **record}
        about["written"] = _now()
        known = self._failures(job)
        if known:
            _write_json(known[0], about, known[0])
            return known[0]
        claimed = self._claim(job.stem)
        path = claimed.with_name(claimed.stem + FAILED)
        try:
            _write_json(path, about, claimed)
        finally:
            claimed.unlink(missing_ok=True)
        return path

    def _kept(self, image: str | os.PathLike[str]) -> dict[str, str | None]:
        """The hash of a picture that was used, and the path of its copy in the folder; None if it is not kept."""
        digest = hash_of(image)
        return {"sha256": digest, "kept": self._copied(image, digest) if self._sources and digest else None}

    def keep(self, image: str | os.PathLike[str]) -> str:
        """Copy a picture into the folder, once for each content.

        Returns:
            The path of the copy, from the folder.

        Raises:
            OSError: it cannot be read, or the copy cannot be written.
        """
        with open(image, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._copied(image, digest)

    def kept(self, digest: str) -> str | None:
        """The path, from the folder, of the copy of a picture with this SHA-256; None if there is none."""
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            return None
        for path in sorted((self.folder / SOURCES).glob(f"{digest[:16]}*")):
            if hash_of(path) == digest:
                return f"{SOURCES}/{path.name}"
        return None

    def _copied(self, image: str | os.PathLike[str], digest: str) -> str:
        """Copy a picture to the folder of sources, as a hard link where that is enough; return its path."""
        name = name_kept(image, digest)
        kept = self.folder / SOURCES / name
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            if not (Path(image).parent == self.folder and _linked(image, kept)):
                with open(image, "rb") as source, writing_whole(kept) as file:
                    shutil.copyfileobj(source, file)
        return f"{SOURCES}/{name}"

    def _claim(self, stem: str) -> Path:
        """Reserve the next number by making an empty sidecar."""
        while True:
            path = self.folder / f"{stem}-{next_number(os.listdir(self.folder), stem):04}.json"
            try:
                path.touch(exist_ok=False)
                return path
            except FileExistsError:
                continue

    def _failures(self, job: Job) -> list[Path]:
        """Records of earlier failures of a job."""
        found = []
        for path in sorted(self.folder.glob(f"*{FAILED}")):
            try:
                if json.loads(path.read_text(encoding="utf-8"))["job"]["key"] == job.key:
                    found.append(path)
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found

    def _forget_failure(self, job: Job) -> None:
        for path in self._failures(job):
            path.unlink(missing_ok=True)


def _linked(image: str | os.PathLike[str], kept: Path) -> bool:
    """Hard-link a result that is edited further, which takes no space; False on a file system without hard links.

    Results are replaced as whole files and never written into, so the copy keeps its content.
    """
    try:
        os.link(image, kept)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def name_kept(image: str | os.PathLike[str], digest: str) -> str:
    """The name, in `SOURCES`, of the copy of a picture with this SHA-256."""
    ending = Path(image).suffix.lower()
    return digest[:16] + (ending if re.fullmatch(r"\.[a-z0-9]{1,5}", ending) else "")


def hash_of(path: str | os.PathLike[str]) -> str | None:
    """The SHA-256 of a file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def problem_of(error: BaseException) -> dict[str, Any]:
    """Describe an error for JSON: kind, what happened, what was looked at, what to do; or the traceback."""
    kind = type(error).__name__
    if isinstance(error, TopropeError):
        return {"kind": kind, "what": error.what, "looked_at": error.looked_at or None, "do": error.do or None}
    if isinstance(error, OSError) and not isinstance(error, ImageError) and error.strerror:
        return {"kind": kind, "what": f"{error.filename or 'a file'}: {error.strerror}.", "looked_at": None, "do": None}
    said = " ".join(str(error).split())[:500]
    return {
        "kind": kind,
        "what": f"{kind}: {said}" if said else kind,
        "looked_at": None,
        "do": None,
        "traceback": traceback.format_exception(error),
    }


def _to_share(record: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a record that is stored in the picture itself: without folders of this machine and times.

    So a repeated edit gives the same file, also from copies of its pictures with other names.
    """
    shared = {
        name: record[name] for name in ("seeds", "frame", "model_files", "refinement", "versions") if name in record
    }
    request = dict(record.get("request") or {})
    for name, used in (("image", "source"), ("mask", "mask")):
        if request.get(name) is not None:
            request[name] = name + Path(str(request[name])).suffix.lower()
            shared[used] = {**record[used], "name": request[name]}
            shared[used].pop("kept", None)
    engine = record.get("engine") or {}
    told = ("family", "pipeline", "device_name", "simulated", "dtype")
    about = {name: engine[name] for name in told if name in engine}
    about["loras"] = [{**each, "path": Path(str(each["path"])).name} for each in engine.get("loras") or ()]
    if engine.get("model"):
        about["model"] = Path(str(engine["model"])).name
    return {**shared, "request": request, "engine": about}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _write_json(path: Path, facts: Mapping[str, Any], like: Path) -> None:
    """Write a record atomically, with the permissions of the file `like`."""
    with writing_whole(path) as file:
        os.chmod(file.fileno(), like.stat().st_mode & 0o777)
        file.write(json.dumps(facts, ensure_ascii=False, indent=2).encode() + b"\n")
