"""Result of an edit: pictures, and the record with everything needed to repeat it.

Made by `images.engine`, written by `images.runs.output`, read again by `images.repeat`, `toprope edit --repeat` and
the page. They read records of earlier versions too, so names in it are added and never changed. Tests:
tests/images/test_images_cli.py, tests/images/test_images_hidream.py, tests/images/test_images_loading.py.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

    from toprope.images.batching import ResolvedRequest

__all__ = ["EditResult", "files_of", "make_record", "versions"]


@dataclass(frozen=True)
class EditResult:
    """Result of an edit.

    Attributes:
        pictures: the pictures; their number is the request's num_images.
        record: everything needed to repeat the edit, and facts about its computation, for JSON. Its "request", given to
            `EditRequest.from_json`, asks for the same pictures.
    """

    pictures: list[Image]
    record: dict[str, Any] = field(default_factory=dict)


def make_record(resolved: ResolvedRequest, engine: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
    """Make the record of an edit, as far as it is known before the edit, for JSON.

    Args:
        resolved: the request.
        engine: result of `Engine.describe`.
        files: result of `files_of` for the model.
    """
    request, frame = resolved.request, resolved.frame
    return {
        "request": request.as_json() | {"refine": False},
        "seeds": [(resolved.seed + number) % 2**64 for number in range(request.num_images)],
        "source": {"name": resolved.opened.name, "size": list(frame.source), "notes": list(resolved.opened.notes)},
        "frame": {
            "model": list(frame.model),
            "crop": list(frame.crop),
            "inner": list(frame.inner),
            "script": None if frame.script is None else asdict(frame.script),
        },
        "mask": None if resolved.mask is None else resolved.mask.as_json(),
        "engine": engine,
        "model_files": files,
        "refinement": resolved.refinement,
        "versions": versions(),
    }


@cache
def versions() -> dict[str, str]:
    """Versions of the packages in use; those that are not installed are left out."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("toprope", "torch", "torch_npu", "diffusers", "transformers", "accelerate", "peft", "pillow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


def files_of(folder: Path, *others: Path, full: bool = False) -> dict[str, dict[str, Any]]:
    """List the files of a model by their path from its folder, with bytes and a SHA-256.

    For safetensors, only the header is hashed, which has every tensor's name, shape and place. That takes milliseconds
    and tells models apart, but not two trainings of one model. With `full`, the whole file is hashed.

    Args:
        folder: the model's folder.
        others: other folders that it is loaded from.
        full: hash whole files of weights.
    """
    found = {}
    for file in (file for each in (folder, *others) for file in sorted(each.rglob("*"))):
        if file.suffix not in (".json", ".safetensors", ".bin", ".txt", ".model") or not file.is_file():
            continue
        part = "file" if full or file.suffix != ".safetensors" else "header"
        if not full and file.suffix == ".bin":
            part = "nothing"
        found[Path(os.path.relpath(file, folder)).as_posix()] = {
            "bytes": file.stat().st_size, "sha256_of": part, "sha256": _hash(file, part),
        }  # fmt: skip
    return found


def _hash(file: Path, part: str) -> str | None:
    """The SHA-256 of a file, or of its header alone; None if nothing of it is hashed."""
    if part == "nothing":
        return None
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        if part == "header":
            start = opened.read(8)
            digest.update(start)
            digest.update(opened.read(min(int.from_bytes(start, "little"), os.fstat(opened.fileno()).st_size)))
        else:
            while piece := opened.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()
