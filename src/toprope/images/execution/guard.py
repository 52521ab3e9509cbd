"""Check that a model's result can be a picture: its numbers are finite, and it is not black unless the input is.

`images.callbacks` calls it after each step, `images.engine` at the end; `images.pipeline_manager` answers `NoPicture`
by loading the model in a safer dtype, which is slow: a right picture must never be refused. Tests:
tests/images/test_images_engine.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["DARK", "NoPicture", "check_latents", "check_pictures"]

DARK = 2.5 / 255
"""Threshold for black: no value of any pixel is above it. Values up to 2 of 255 are black."""


@dataclass
class NoPicture(Exception):  # noqa: N818 - it never leaves the engine, which raises it as EditGuardError
    """The model's result is no picture.

    Attributes:
        what: the problem, as a part of a sentence: "numbers that are not finite".
        where: the step or the picture.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})"


def check_latents(latents: torch.Tensor, number: int, of: int) -> None:
    """Check the latents after a step. Waits for the device.

    Raises:
        NoPicture: some are not finite; later steps would not fix that.
    """
    import torch

    if not bool(torch.isfinite(latents).all()):
        raise NoPicture("numbers that are not finite", f"the latents after step {number} of {of}")


def check_pictures(images: torch.Tensor, inputs: Sequence[Image]) -> None:
    """Check the resulting pictures.

    A black picture is right if the input is black too. A picture in any other single colour is right as well: an
    instruction can ask for it, and overflow in a short dtype does not cause it.

    Args:
        images: floats from 0 to 1, (pictures, 3, height, width), on the CPU.
        inputs: the pictures that the model was shown, one for each result.

    Raises:
        NoPicture: some are not finite, or one is black and its input is not.
    """
    import torch

    for at, (image, shown) in enumerate(zip(images, inputs, strict=True)):
        if not bool(torch.isfinite(image).all()):
            raise NoPicture("numbers that are not finite", f"picture {at + 1} of {len(inputs)}")
        if float(image.max()) <= DARK and not _is_dark(shown):
            raise NoPicture("a black picture from one that is not", f"picture {at + 1} of {len(inputs)}")


def _is_dark(picture: Image) -> bool:
    most: Any = [channel.getextrema()[1] for channel in picture.split()]
    return bool(max(most) <= DARK * 255)
