"""A picture to edit where none is at hand: a house on a hill, drawn here.

Used by the page's button, `toprope images` and doctor's tiny edit. Nothing depends on what it shows: all of it is free
to change. Tests: tests/images/test_images_cli.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["picture"]


def picture(width: int = 192, height: int = 144) -> Image:
    """A house below a sun, as RGB."""
    from PIL import Image, ImageDraw

    across, down = width / 192, height / 144
    drawn = Image.linear_gradient("L").resize((width, height)).point(lambda value: 130 + value // 3)
    sky = Image.merge(
        "RGB", (drawn.point(lambda value: value - 60), drawn, drawn.point(lambda value: 255 - value // 9))
    )
    draw = ImageDraw.Draw(sky)

    def placed(*points: float) -> list[float]:
        return [each * (down if at % 2 else across) for at, each in enumerate(points)]

    draw.ellipse(placed(140, 14, 172, 46), fill=(255, 214, 90))
    draw.ellipse(placed(-60, 88, 260, 240), fill=(96, 150, 72))
    draw.rectangle(placed(62, 62, 122, 108), fill=(196, 120, 92))
    draw.polygon(placed(54, 64, 92, 34, 130, 64), fill=(124, 60, 48))
    draw.rectangle(placed(84, 82, 100, 108), fill=(86, 58, 44))
    draw.rectangle(placed(68, 70, 80, 82), fill=(210, 230, 244))
    draw.rectangle(placed(104, 70, 116, 82), fill=(210, 230, 244))
    return sky
