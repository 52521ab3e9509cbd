"""Writing a tiny pipeline of a family into a folder: the files of this folder are the list of families.

Called by `toprope images tiny`, doctor and tests. A new tiny model is a file here with a function `make(folder)`. The
same seed gives the same weights, and the global generators of random numbers stay as they are. Tests:
tests/images/test_images_engine.py, tests/images/test_images_cli.py.
"""

from __future__ import annotations

import os
import pkgutil
from importlib import import_module
from pathlib import Path

from toprope.errors import UsageError

__all__ = ["TINY", "write"]

TINY = tuple(
    sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if module.name not in ("making", "parts")
    )
)
"""The names that `write` takes."""


def write(family: str, folder: str | os.PathLike[str], *, seed: int = 0) -> Path:
    """Write a tiny pipeline with random weights, a few megabytes at most, in the layout of a real one.

    Args:
        family: one of `TINY`.
        folder: is made; it must not hold anything yet.
        seed: of the weights; the global generators of random numbers stay as they are.

    Returns:
        The folder.

    Raises:
        UsageError: no such family, or the folder holds something.
        PackageError: diffusers or transformers cannot be imported.
    """
    import torch

    from toprope.images.families.loading import need_diffusers, without_bars

    path = Path(folder)
    if family not in TINY:
        raise UsageError(
            f"there is no tiny pipeline {family!r}.", looked_at=f"there are {', '.join(TINY)}", do="name one of them"
        )
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UsageError(f"{path} is there already.", do="name a folder that is empty or is not there")
    need_diffusers()
    module = import_module(f"toprope.images.tiny.{family.replace('-', '_')}")
    with torch.random.fork_rng(devices=[]), without_bars():
        torch.manual_seed(seed)
        module.make(path)
    return path
