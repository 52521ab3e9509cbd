"""The one file of `--vendor`: where it goes, and under which name ported programs import it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toprope.errors import UsageError

__all__ = ["NAME", "Vendored", "is_vendored", "present", "text", "where"]

NAME = "toprope_portable"
"""The file's name without its suffix."""

_BEGINNING = b'"""Runs a program written for CUDA on an NPU, CUDA, another accelerator or the CPU. Put here by'


@dataclass(frozen=True)
class Vendored:
    """The file in a project.

    Attributes:
        path: where it is, or goes.
        module: the name under which the project's programs import it.
    """

    path: Path
    module: str

    def put(self) -> bool:
        """Write it, unless it is there: it is the user's then. Returns whether it was written.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            with self.path.open("xb") as file:
                file.write(text())
        except FileExistsError:
            return False
        except OSError as error:
            raise UsageError(
                f"{self.path} cannot be written: {error.strerror}.", do="name a folder of the program: --vendor=FOLDER"
            ) from None
        return True


def text() -> bytes:
    """The file's bytes."""
    return Path(__file__).with_name("runtime.py").read_bytes()


def is_vendored(data: bytes) -> bool:
    """Whether these are the bytes of such a file, changed by its user or not."""
    return data.startswith(_BEGINNING)


def where(paths: Sequence[Path], folder: str = "") -> Vendored:
    """Where the file goes.

    Args:
        paths: what is ported.
        folder: where it is wanted; left out, the folder that holds all that is ported.

    Raises:
        UsageError: there is no such folder.
    """
    if folder:
        place = Path(folder)
        if not place.is_dir():
            raise UsageError(f"{folder} is no folder.", do="name a folder of the program: --vendor=FOLDER")
    else:
        tops = [path if path.is_dir() else path.parent for path in paths]
        place = tops[0] if len(tops) == 1 else Path(os.path.commonpath([os.path.abspath(top) for top in tops]))
    return _at(place / f"{NAME}.py")


def present(files: Iterable[Path]) -> Vendored | None:
    """The file that an earlier port put among these files; None where there is none."""
    for path in files:
        if path.name == f"{NAME}.py":
            try:
                with path.open("rb") as file:
                    if is_vendored(file.read(len(_BEGINNING))):
                        return _at(path)
            except OSError:
                continue
    return None


def _at(path: Path) -> Vendored:
    """In a package the name begins with the package's; elsewhere a program imports what lies beside it."""
    names = [NAME]
    folder = path.absolute().parent
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return Vendored(path, ".".join(names))
