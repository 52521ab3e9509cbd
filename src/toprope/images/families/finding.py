"""Which family a model's folder is of: the files of this folder are the list."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from toprope.errors import UsageError, WeightsError
from toprope.images.families.base import Family

__all__ = ["families", "find", "index_of", "named"]


@cache
def families() -> tuple[Family, ...]:
    """One of each family, by name."""
    found = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name in ("base", "finding", "loading", "sizes"):
            continue
        name = f"toprope.images.families.{module.name}"
        for _, each in inspect.getmembers(import_module(name), inspect.isclass):
            if issubclass(each, Family) and not inspect.isabstract(each) and each.__module__.startswith(name):
                found.append(each())
    return tuple(sorted(found, key=lambda family: family.name))


def named(name: str) -> Family:
    """The family of this name.

    Raises:
        UsageError: there is none.
    """
    for family in families():
        if family.name == name:
            return family
    raise UsageError(
        f"there is no family of models {name!r}.",
        looked_at=f"there are {', '.join(family.name for family in families())}",
        do="name one of them",
    )


def find(folder: str | os.PathLike[str]) -> tuple[Family, Path]:
    """The family of the model in a folder, and the folder as a path.

    Raises:
        UsageError: it is no folder of a pipeline, or of one that edits nothing.
        WeightsError: its model_index.json cannot be read.
    """
    path = Path(folder)
    kind = index_of(path).get("_class_name")
    for family in families():
        if kind in family.pipelines:
            return family, path
    known = sorted(name for family in families() for name in family.pipelines)
    raise UsageError(
        f"{path} holds a pipeline of the kind {kind}, which is none that edits pictures here.",
        looked_at=f"{path / 'model_index.json'}; known are {', '.join(known)}",
        do="give the folder of one of these",
    )


def index_of(folder: Path) -> dict[str, Any]:
    """The contents of a folder's model_index.json.

    Raises:
        UsageError: there is none.
        WeightsError: it cannot be read.
    """
    file = folder / "model_index.json"
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} is no folder of a model: it has no model_index.json.",
            looked_at=f"{file} is not there" if folder.is_dir() else f"{folder} is no folder",
            do="give the folder that a pipeline was saved or downloaded to; "
            "`toprope images tiny DIR --family ip2p` writes one to try",
        ) from None
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"{file} cannot be read: {error}.", looked_at=str(file), do="download the model again"
        ) from None
    if not isinstance(index, dict):
        raise WeightsError(f"{file} has no names of parts.", looked_at=str(file), do="download the model again")
    return index
