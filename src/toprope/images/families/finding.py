"""Find the family of a model's folder; each family is a module next to this one.

Called when an engine is opened, and by `toprope edit` to check knobs before loading. model_index.json is diffusers'
format, toprope.json is our own (docs/images.md). A new module that is no family (such as `base`, `loading`, `sizes`)
has to be named in `families` below. Tests: tests/images/test_images_engine.py, tests/images/test_images_demo.py.
"""

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
from toprope.images.request import EditRequest

__all__ = ["families", "find", "index_of", "named", "own_defaults"]


@cache
def families() -> tuple[Family, ...]:
    """One object of each family, by name."""
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
    """Find a family by its name.

    Raises:
        UsageError: it is unknown.
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
    """Find the family of the model in a folder; return it with the folder as a path.

    Raises:
        UsageError: it is no folder of a pipeline, or of one that does not edit.
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
    """Read a folder's model_index.json.

    Raises:
        UsageError: the folder has none.
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


def own_defaults(folder: Path, family: Family) -> dict[str, Any]:
    """Read the defaults that a model's own folder has for knobs of its family, from toprope.json; most have none.

    A model that was distilled or trained otherwise than its family needs other steps or guidance:
    `{"defaults": {"steps": 8, "guidance": 1.0}}`.

    Raises:
        WeightsError: the file cannot be read, or a value is none that the knob can have.
    """
    file = folder / "toprope.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))["defaults"]
        unknown = sorted(set(values) - family.options)
        if unknown:
            raise ValueError(f"models of the family {family.name} have no {', '.join(unknown)}")
        checked = EditRequest("-", "-", **values).validate()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = error.what if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        raise WeightsError(
            f"the defaults in {file} cannot be used: {what}",
            looked_at=f"knobs of the family {family.name}: {', '.join(sorted(family.options))}",
            do="write knobs of the family with their values, or remove the file",
        ) from None
    return {name: getattr(checked, name) for name in values}
