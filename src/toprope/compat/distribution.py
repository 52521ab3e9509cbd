"""Package metadata of facades for importlib.metadata: libraries ask there for the version of torch-npu.

toprope.compat.finder calls it when a program lists distributions. The form of METADATA and the rule for equal names are
Python's (core metadata, PEP 503); the summary must say that it is a facade. Tests: tests/compat/test_finder.py.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import Distribution, PackageNotFoundError, version
from pathlib import Path

__all__ = ["FacadeDistribution", "distribution", "same_name"]


class FacadeDistribution(Distribution):
    """A distribution that no one installed: its metadata says that the package is a facade."""

    def __init__(self, facade: str, path: str, name: str, release: str) -> None:
        self._path = Path(path)
        self._files = {
            "METADATA": (
                "Metadata-Version: 2.1\n"
                f"Name: {name}\n"
                f"Version: {release}\n"
                f"Summary: {facade} as toprope stands in for it; not the package of this name\n"
            ),
            "top_level.txt": f"{facade}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """The text of a metadata file; None when there is none of that name."""
        return self._files.get(str(filename))

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Path of a file of the distribution."""
        return self._path.parent / path


def distribution(facade: str, path: str, name: str, version_from: str) -> FacadeDistribution | None:
    """The distribution of a facade; None when the one whose version it carries is not installed.

    Args:
        facade: the foreign top-level name.
        path: its file or folder.
        name: the distribution's name.
        version_from: the distribution whose version it carries.
    """
    try:
        release = version(version_from)
    except PackageNotFoundError:
        return None
    return FacadeDistribution(facade, path, name, release.partition("+")[0])


def same_name(one: str, other: str) -> bool:
    """True if two names of distributions are the same by the packaging rules: "Torch_NPU" and "torch-npu" are."""
    return _normal(one) == _normal(other)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
