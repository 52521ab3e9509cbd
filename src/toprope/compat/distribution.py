"""The distributions that importlib.metadata shows for facades: libraries ask for torch-npu's version there."""

from __future__ import annotations

import os
import re
from importlib.metadata import Distribution, PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.compat.finder import Facade

__all__ = ["FacadeDistribution", "distribution", "same_name"]


class FacadeDistribution(Distribution):
    """A distribution that no one installed: its metadata says that the package is a facade."""

    def __init__(self, facade: Facade, release: str) -> None:
        self._facade = facade
        self._files = {
            "METADATA": (
                "Metadata-Version: 2.1\n"
                f"Name: {facade.distribution}\n"
                f"Version: {release}\n"
                f"Summary: {facade.name} as toprope stands in for it; not the package of this name\n"
            ),
            "top_level.txt": f"{facade.name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """The text of a metadata file; None when there is none of that name."""
        return self._files.get(str(filename))

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Where a file of the distribution lies."""
        return Path(self._facade.path).parent / path


def distribution(facade: Facade) -> FacadeDistribution | None:
    """The distribution of a facade; None when the one whose version it carries is not installed."""
    try:
        release = version(facade.version_from)
    except PackageNotFoundError:
        return None
    return FacadeDistribution(facade, release.partition("+")[0])


def same_name(one: str, other: str) -> bool:
    """Whether two names of distributions are the same by the packaging rules: "Torch_NPU" and "torch-npu" are."""
    return _normal(one) == _normal(other)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
