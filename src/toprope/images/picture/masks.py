"""Masks: the part of a picture that may change. Outside it the result is the source, to the bit.

`images.resolve` opens the mask of a request, `images.engine` applies it to the result, the page's controller makes
rectangles. So the edge is blended inwards only; its usual width is free. Tests: tests/images/test_images_masks.py,
tests/images/test_images_web.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toprope.errors import ImageError
from toprope.images.picture.files import open_grey
from toprope.images.picture.geometry import Box

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Mask", "open_mask", "rectangle"]


@dataclass(frozen=True)
class Mask:
    """A mask with its edge blended.

    Attributes:
        weights: how much of the result each pixel of the source takes, from 0 to 255 (mode L). It is 0 wherever the
            mask is 0: the edge is blended inside the mask.
        name: its path, or "picture" for one that has none.
        covers: the part of the picture that may change, more than 0 and up to 1.
        feather: width of the blended edge in pixels.
    """

    weights: Image
    name: str
    covers: float
    feather: int

    def keep_outside(self, result: Image, source: Image, crop: Box) -> Image:
        """The result within the mask, and the source outside it.

        Args:
            result: of the model, of any size; it is resized to the crop's.
            source: the picture that was edited, RGB.
            crop: the box of the source that the result shows.

        Returns:
            A picture of the crop's size, RGB.
        """
        from PIL import Image

        kept = source.crop(crop)
        if result.size != kept.size:
            result = result.resize(kept.size, Image.Resampling.BICUBIC)
        made = Image.composite(result, kept, self.weights.crop(crop))
        made.info.update(result.info)
        return made

    def as_json(self) -> dict[str, Any]:
        """Describe it for a record."""
        return {"name": self.name, "covers": round(self.covers, 4), "feather": self.feather}


def rectangle(size: tuple[int, int], percent: tuple[float, float, float, float]) -> Image:
    """A mask in which a rectangle may change, of at least one pixel.

    Args:
        size: width and height of the picture.
        percent: left, top, right and bottom, each in percent of the picture.
    """
    from PIL import Image

    wide, high = size
    left, top = int(wide * percent[0] / 100), int(high * percent[1] / 100)
    right, bottom = max(left + 1, round(wide * percent[2] / 100)), max(top + 1, round(high * percent[3] / 100))
    mask = Image.new("L", size, 0)
    mask.paste(255, (left, top, right, bottom))
    return mask


def open_mask(mask: Any, size: tuple[int, int], feather: int | None = None) -> Mask:
    """Open a mask from a path or a picture: white parts may change, black ones stay, grey is in between.

    In a picture with transparency, opaque parts may change, as editors save a painted layer in this way.

    Args:
        mask: a path, or a picture of Pillow.
        size: width and height of the picture that is edited, upright; the mask must have the same.
        feather: pixels over which the edge is blended, inwards; 0 for none; None for 1/64 of the shorter side. A part
            of the mask that is narrower is blended over half of its own width.

    Raises:
        ImageError: it cannot be read, is of another size, or is black everywhere.
    """
    import numpy
    from PIL import Image, ImageFilter

    grey, name = open_grey(mask)
    if grey.size != size:
        raise ImageError(
            f"the mask {name} has another size than the picture.",
            looked_at=f"the mask {grey.size[0]} x {grey.size[1]}, the picture (upright) {size[0]} x {size[1]} pixels",
            do="save the mask in the picture's size",
        )
    within = numpy.asarray(grey)
    covers = float((within > 0).mean())
    if not covers:
        raise ImageError(
            f"the mask {name} is black everywhere: nothing may change.",
            looked_at=f"{size[0]} x {size[1]} pixels, all 0",
            do="paint white what may change",
        )
    wanted = max(1, min(size) // 64) if feather is None else feather
    inner, shrunk = [within], grey
    while len(inner) < 2 * wanted:  # how deep the mask is, as far as it matters
        shrunk = shrunk.filter(ImageFilter.MinFilter(3))
        if shrunk.getbbox() is None:
            break
        inner.append(numpy.asarray(shrunk))
    steps = min(wanted, (len(inner) + 1) // 2)
    mean = numpy.mean(inner[: max(steps, 1)], axis=0)
    return Mask(Image.fromarray(mean.round().astype(numpy.uint8), "L"), name, covers, steps)
