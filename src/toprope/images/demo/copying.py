"""Copying the demo model out of the package, with a picture to edit.

Called by `toprope images demo` (`cli.images`). The folder has the layout of a pipeline of diffusers; a folder that is
not empty is never written to, and no part is left after an error. Tests: tests/images/test_images_demo.py,
tests/cli/test_wrong_use.py.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from toprope.errors import UsageError
from toprope.images.demo.scenes import TEST_SEEDS, draw_scene

__all__ = ["EXAMPLE", "MODEL", "write"]

MODEL = Path(__file__).with_name("model")
"""The model's folder in the package, written by scripts/train_demo.py."""

EXAMPLE = "example.png"


def write(folder: str | os.PathLike[str]) -> Path:
    """Write the demo model, of less than 2 MB, and a picture that it was not trained on.

    Args:
        folder: created if necessary; must be empty.

    Returns:
        The folder.

    Raises:
        UsageError: the folder is not empty, or is a file.
        OSError: a file cannot be written; none of them is left then.
    """
    path = Path(folder)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UsageError(f"{path} is there already.", do="name a folder that is empty or is not there")
    there = path.exists()
    try:
        for each in sorted(MODEL.rglob("*")):  # not copytree, whose error names many files and no reason
            if each.is_file():
                target = path / each.relative_to(MODEL)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(each, target)
        draw_scene(TEST_SEEDS[0]).save(path / EXAMPLE)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)  # a part would be refused as a folder that is not empty
        if there:
            path.mkdir(exist_ok=True)
        raise
    return path
