"""Folders of tiny pipelines for tests of pictures, written once a process, and pictures to edit. Not a test.

    from images_tiny import QUIET, picture, tiny

    pytestmark = QUIET  # where a pipeline is made or run

A process that a test starts is given the folder's path.
"""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("DO_NOT_TRACK", "1")

# diffusers gives tensors to numpy in a way that both will change, and calls what it has deprecated itself
_ARRAY = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
QUIET = [_ARRAY, pytest.mark.filterwarnings("ignore:`upcast_vae` is deprecated:FutureWarning")]


@functools.cache
def folder() -> Path:
    """The folder of all tiny models; it is removed when this process ends."""
    found = Path(tempfile.mkdtemp(prefix="toprope-tiny-"))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


@functools.cache
def tiny(family: str, seed: int = 0) -> Path:
    """The folder of a tiny pipeline, one thread for torch from here on."""
    import torch

    from toprope.images.tiny import write

    torch.set_num_threads(1)
    return write(family, folder() / f"{family}-{seed}", seed=seed)


def picture(width: int = 64, height: int = 64, mode: str = "RGB", shift: int = 0):
    """A picture with a gradient in each channel: no two rows or columns are alike."""
    from PIL import Image

    down = Image.linear_gradient("L").resize((width, height))
    across = down.transpose(Image.Transpose.ROTATE_90).resize((width, height))
    both = Image.blend(down, across, 0.5).point(lambda value: (value + shift) % 256)
    return Image.merge("RGB", (down, across, both)).convert(mode)
