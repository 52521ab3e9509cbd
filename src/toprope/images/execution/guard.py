"""Whether what a model computed can be a picture: numbers that are finite, and not black where the input is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

__all__ = ["DARK", "NoPicture", "check_latents", "check_pictures"]

DARK = 2.5 / 255
"""What counts as black: no value of any pixel is above this. It is one level above what rounds to 2 of 255."""


@dataclass
class NoPicture(Exception):  # noqa: N818 - it never leaves the engine, which tells it as EditGuardError
    """What the model gave is no picture.

    Attributes:
        what: as a part of a sentence: "numbers that are not finite".
        where: at which step, or which picture.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})"


def check_latents(latents: torch.Tensor, number: int, of: int) -> None:
    """Look at the latents after a step. Waits for the device.

    Raises:
        NoPicture: some are not finite; the steps that follow would not mend that.
    """
    import torch

    if not bool(torch.isfinite(latents).all()):
        raise NoPicture("numbers that are not finite", f"the latents after step {number} of {of}")


def check_pictures(images: torch.Tensor, inputs: Sequence[Image]) -> None:
    """Look at the pictures that came out.

    A black picture is right where the input is black too. One of a single other colour is right as well: an
    instruction can ask for that, and nothing that goes wrong in a short dtype gives it.

    Args:
        images: floats, 0 to 1, (pictures, 3, height, width), on the CPU.
        inputs: what the model was shown, one for each.

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
