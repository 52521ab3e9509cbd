"""Compute the part of a picture that the model sees, its size, and the place of the result. Pure numbers.

A `Frame` describes both directions: a box of the source is mapped to a box of the model's input, and the same box of
the model's result is mapped back to the same pixels of the source.

Called by `images.resolve` for each request; `picture.files` and `picture.masks` carry the frame out. `Script` and the
rounding of `area_size` follow the authors' scripts of HiDream-E1 and may not be changed otherwise; any change of a size
changes the pictures of recorded edits. Tests: tests/images/test_images_authors.py,
tests/images/test_images_pictures.py, tests/images/test_images_request.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MEGAPIXEL", "SQUARE", "Frame", "Script", "area_size", "halvings", "plan_as_authors", "plan_frame"]

SQUARE = 768
"""The side of the policy "768"."""

MEGAPIXEL = 1024 * 1024
"""The pixels of the policy "1m"."""

SCRIPT_MULTIPLE = 16
"""Divisor of both sides in the authors' script of HiDream-E1.1."""

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Script:
    """Steps with which the scripts of a model's authors prepare a picture.

    Attributes:
        halvings: number of times that the picture is halved by averaging, each side rounded down.
        resized: width and height to which it is then resized, by bicubic interpolation.
        crop: the box of the resized picture that the model sees.
    """

    halvings: int
    resized: tuple[int, int]
    crop: Box


@dataclass(frozen=True)
class Frame:
    """Mapping of a picture to the model's input, and of the result back to the picture.

    Attributes:
        source: width and height of the picture.
        model: width and height of the model's input.
        crop: the box of the source that is shown: left, top, right, bottom.
        inner: the box of the model's input that shows it; all of the input, unless it is padded.
        output: width and height of the result: the source's, or the cropped box's.
        script: steps of the authors' scripts; None if they are not followed.
    """

    source: tuple[int, int]
    model: tuple[int, int]
    crop: Box
    inner: Box
    output: tuple[int, int]
    script: Script | None = None


def area_size(width: int, height: int, pixels: int, multiple: int = 16) -> tuple[int, int]:
    """Find a size of about the same shape with at most `pixels` pixels, and sides that are divisible by `multiple`.

    Sides are rounded to whole pixels, up or down; the largest combination within `pixels` is taken. A side is at least
    `multiple`; the other one is then shortened, so that a very long picture changes its shape.

    Args:
        width, height: size of the picture; smaller ones are enlarged.
        pixels: largest number of pixels; at least `multiple` squared.
        multiple: divisor of both sides.

    Example:
        >>> area_size(1920, 1080, 1024 * 1024)
        (1360, 768)
    """
    scale = math.sqrt(pixels / (width * height))
    sides = [
        {number // multiple * multiple for number in (round(side * scale), math.floor(side * scale))}
        for side in (width, height)
    ]
    fitting = [(wide, high) for wide in sides[0] for high in sides[1] if 0 < wide * high <= pixels]
    if fitting:
        return max(fitting, key=lambda size: (size[0] * size[1], size))
    if width > height:  # too long: the short side is one multiple, and the long one gets the rest
        return pixels // multiple // multiple * multiple, multiple
    return multiple, pixels // multiple // multiple * multiple


def halvings(width: int, height: int, side: int = 1024) -> int:
    """Number of halvings by averaging before a picture is resized: while its shorter side is at least twice `side`."""
    times = 0
    while min(width, height) >= 2 * side:
        width, height, times = width // 2, height // 2, times + 1
    return times


def plan_frame(
    source: tuple[int, int],
    *,
    size: str,
    fit: str,
    pixels: int,
    multiple: int,
    square: bool = False,
    sizes: Sequence[tuple[int, int]] = (),
    max_pixels: int | None = None,
) -> Frame:
    """Compute the frame of a picture.

    Args:
        source: width and height.
        size: a policy of `request.SIZES`.
        fit: one of `request.FITS`.
        pixels, multiple, square, sizes: the model's sizes, see `families.base.Native`.
        max_pixels: largest number of pixels of the model's input; None for no limit but the policy's.
    """
    width, height = source
    if size == "768" or (size == "model" and square):
        side = SQUARE if size == "768" else math.isqrt(pixels)
        side = max(side // multiple, 1) * multiple
        model = (side, side)
    elif size == "model" and sizes:
        model = min(sizes, key=lambda each: abs(math.log(each[0] / each[1] * height / width)))
    elif size == "keep":
        model = (max(width // multiple, 1) * multiple, max(height // multiple, 1) * multiple)
    else:
        area = MEGAPIXEL if size == "1m" else pixels
        times = halvings(width, height, math.isqrt(area))
        model = area_size(width >> times, height >> times, max(area, multiple * multiple), multiple)
    if max_pixels is not None and model[0] * model[1] > max_pixels:
        model = area_size(*(model if model[0] == model[1] else source), max(max_pixels, multiple**2), multiple)
    everything = (0, 0, width, height)
    whole = (0, 0, *model)
    if fit == "crop":
        crop = _middle(source, model)
        return Frame(source, model, crop, whole, (crop[2] - crop[0], crop[3] - crop[1]))
    if fit == "pad":
        return Frame(source, model, everything, _middle(model, source), source)
    return Frame(source, model, everything, whole, source)


def plan_as_authors(source: tuple[int, int], *, pixels: int, multiple: int, square: bool) -> Frame:
    """Compute the frame of a picture like the authors' scripts of HiDream-E1, which stretch the result to the source.

    E1-Full (inference.py) sees all of the picture in a square. E1.1 (inference_e1_1.py) halves it while its shorter
    side is twice the model's, resizes it to cover the model's size, and crops the middle.

    Args:
        source: width and height.
        pixels, multiple, square: the model's sizes, see `families.base.Native`.
    """
    side = math.isqrt(pixels)
    everything = (0, 0, *source)
    if square:
        model = (side, side)
        return Frame(source, model, everything, (0, 0, *model), source, Script(0, model, (0, 0, *model)))
    times = halvings(*source, side)
    width, height = source[0] >> times, source[1] >> times
    model = area_size(width, height, side * side, max(multiple, SCRIPT_MULTIPLE))
    across, down = width / model[0], height / model[1]
    resized = (model[0], round(height / across)) if across < down else (round(width / down), model[1])
    left, top = (resized[0] - model[0]) // 2, (resized[1] - model[1]) // 2
    script = Script(times, resized, (left, top, left + model[0], top + model[1]))
    return Frame(source, model, everything, (0, 0, *model), source, script)


def _middle(of: tuple[int, int], shape: tuple[int, int]) -> Box:
    """The largest box in the middle of `of` with the proportions of `shape`, to the nearest pixel."""
    scale = min(of[0] / shape[0], of[1] / shape[1])
    wide = min(of[0], max(1, round(shape[0] * scale)))
    high = min(of[1], max(1, round(shape[1] * scale)))
    left, top = (of[0] - wide) // 2, (of[1] - high) // 2
    return left, top, left + wide, top + high
