"""The one file of `--vendor`: where its copies go, and under which names ported programs import it.

Called by `scan` and `cli.port --vendor`; `placement` finds the folders. The file is `device/_portable_runtime.py`.
Tests: tests/port/test_port_options.py, tests/port/test_port_releases.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toprope.errors import UsageError
from toprope.port.file import VENDORED
from toprope.port.finding import Ported
from toprope.port.runtime.placement import Place, Tree, package_of

__all__ = ["Vendoring", "is_vendored", "plan", "text", "uses"]

_BEGINNING = b'"""Runs a program written for CUDA on an NPU, CUDA, another accelerator or the CPU. Put here by'


@dataclass(frozen=True)
class Vendoring:
    """The copies of the file in a project.

    Attributes:
        places: how each file imports it.
        there: the copies that are there already.
        lost: files that may not find the copy in the folder that the user wants.
    """

    places: dict[Path, Place]
    there: tuple[Path, ...]
    lost: tuple[Path, ...] = ()

    def module(self, path: Path) -> str:
        """The name under which a file imports it."""
        return self.places[path].module

    def put(self, changed: Iterable[Path]) -> list[Path]:
        """Write the copies that changed files need and that are not there. Returns those that were written.

        A copy that the user changed is what the others are made from.

        Raises:
            UsageError: one cannot be written, or another file has its name.
        """
        wanted = {folder / f"{VENDORED}.py" for path in changed for folder in self.places[path].folders}
        missing = sorted(wanted - set(_real(self.there)))
        for path in missing:
            if path.exists() and not is_vendored(path.read_bytes()):
                raise UsageError(
                    f"{path} is there, and is not the file of --vendor.",
                    do="rename it, or name a folder: --vendor=FOLDER",
                )
        data = self.there[0].read_bytes() if self.there else text()
        written = []
        for path in missing:
            try:
                with path.open("xb") as file:
                    file.write(data)
            except FileExistsError:
                continue
            except OSError as error:
                raise UsageError(
                    f"{path} cannot be written: {error.strerror}.",
                    do="name a folder of the program: --vendor=FOLDER",
                ) from None
            written.append(path)
        return written


def text() -> bytes:
    """The file's bytes."""
    return Path(__file__).parents[2].joinpath("device", "_portable_runtime.py").read_bytes()


def is_vendored(data: bytes) -> bool:
    """Test for the bytes of such a file, changed by its user or not."""
    return data.startswith(_BEGINNING)


def uses(ported: Ported) -> bool:
    """Test that a file, afterwards, imports a vendored one."""
    return VENDORED.encode() in ported.after


def plan(paths: Sequence[Path], files: Sequence[Path], folder: str | None = None) -> Vendoring | None:
    """How the files import the vendored one.

    Args:
        paths: what is ported.
        files: the files in it.
        folder: where the user wants the file; "" for wherever each file finds it, None for what is there already.

    Returns:
        The plan; None where nothing is vendored.

    Raises:
        UsageError: there is no such folder.
    """
    there = tuple(path for path in files if path.name == f"{VENDORED}.py" and _is_copy(path))
    if folder is None and not there:
        return None
    if folder and not Path(folder).is_dir():
        raise UsageError(f"{folder} is no folder.", do="name a folder of the program: --vendor=FOLDER")
    tree = Tree(paths, files)
    if folder:
        wished = {path: tree.at(path, Path(folder)) for path in files}
        lost = tuple(path for path, place in wished.items() if not tree.reaches(path, place))
        return Vendoring(wished, there, lost)
    packages = [path.parent for path in there if package_of(path.parent) is not None]
    places = {}
    for path in files:
        shared = (tree.at(path, each) for each in packages)
        places[path] = next((place for place in shared if tree.reaches(path, place)), None) or tree.place(path)
    return Vendoring(places, there)


def _is_copy(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_vendored(file.read(len(_BEGINNING)))
    except OSError:
        return False


def _real(paths: Iterable[Path]) -> list[Path]:
    return [path.absolute() for path in paths]
