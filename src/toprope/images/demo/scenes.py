"""Drawn scenes and their edits: the pictures on which the demo model is trained and tested.

A scene is a sky, a sun, hills, a house and trees, with places and colours that a seed chooses. An edit is an exact
function of the scene, so the correct result of every instruction is known for each pixel.

Called by scripts/train_demo.py, which trains the model, and by its tests. After a change of the drawing, also of the
order of random draws, the weights in `model/` have to be trained again: they know only these pictures. Tests:
tests/images/test_images_demo.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["EDGE", "EDITS", "TEST_SEEDS", "draw_scene"]

EDGE = 64
"""Width and height of a scene in pixels: what the demo model is trained on."""

TEST_SEEDS = range(1_000_000, 1_000_100)
"""Scenes that the demo model was not trained on."""

_SHARP = 4
"""Scenes are drawn this much larger, so that edges are smooth."""

Colour = tuple[int, int, int]

SNOW, CLOUD, RED = (244, 247, 252), (208, 214, 222), (206, 44, 38)
MOON, LAMP, NIGHT_SKY = (232, 232, 214), (255, 208, 104), (12, 16, 44)


@dataclass(frozen=True)
class _Part:
    """Something in a scene.

    Attributes:
        what: kind of part, such as "roof"; edits choose the colour by it.
        shape: "ellipse", "polygon" or "sky", which fills the whole picture.
        points: its corners, or those of the box around it, in pixels of a scene with the width `EDGE`.
        colour: red, green, blue; for a sky, at its upper edge.
        lower: colour of a sky at its lower edge.
    """

    what: str
    shape: str
    points: tuple[tuple[float, float], ...]
    colour: Colour
    lower: Colour = (0, 0, 0)


def draw_scene(seed: int, edit: str | None = None, edge: int = EDGE) -> Image:
    """Draw a scene as RGB.

    Args:
        seed: chooses the scene.
        edit: one of `EDITS`; None for the scene itself.
        edge: width and height in pixels.
    """
    from PIL import Image, ImageDraw

    recolour = EDITS[edit] if edit is not None else _same
    size, scale = edge * _SHARP, edge * _SHARP / EDGE
    picture = Image.new("RGB", (size, size))
    draw = ImageDraw.Draw(picture)
    for part in _parts(random.Random(seed)):
        colour = recolour(part.what, part.colour)
        points = [(x * scale, y * scale) for x, y in part.points]
        if part.shape == "sky":
            ramp = Image.linear_gradient("L").resize((size, size))
            upper, lower = (Image.new("RGB", (size, size), each) for each in (colour, recolour(part.what, part.lower)))
            picture.paste(Image.composite(lower, upper, ramp))
        elif part.shape == "ellipse":
            draw.ellipse(points, fill=colour)
        else:
            draw.polygon(points, fill=colour)
    return picture.reduce(_SHARP)


# Edits: the colour of a part by what it is


def _same(what: str, colour: Colour) -> Colour:
    return colour


def _snow(what: str, colour: Colour) -> Colour:
    """The colour of a part in snow; parts that are not named keep theirs."""
    towards = {
        "sky": (CLOUD, 0.75),
        "sun": (SNOW, 0.7),
        "ground": (SNOW, 0.9),
        "roof": (SNOW, 0.85),
        "crown": (SNOW, 0.7),
    }
    return _mixed(colour, *towards.get(what, (colour, 0.0)))


def _night(what: str, colour: Colour) -> Colour:
    """The colour of a part at night."""
    if what == "sun":
        return MOON
    if what == "window":
        return LAMP
    red, green, blue = colour
    dark = (red * 30 // 100, green * 33 // 100, blue * 48 // 100)
    return _mixed(dark, NIGHT_SKY, 0.7) if what == "sky" else dark


def _red_house(what: str, colour: Colour) -> Colour:
    return _mixed(colour, RED, 0.92) if what == "wall" else colour


EDITS: dict[str, Callable[[str, Colour], Colour]] = {
    "make it snow": _snow,
    "make it night": _night,
    "make the house red": _red_house,
}
"""Edits of the demo model: the instruction, and the function that gives the colour of each part afterwards."""


def _mixed(colour: Colour, other: Colour, part: float) -> Colour:
    red, green, blue = (round(own + (its - own) * part) for own, its in zip(colour, other, strict=True))
    return red, green, blue


# Scenes

SKIES = (((88, 150, 226), (196, 222, 244)), ((120, 176, 232), (238, 226, 208)), ((92, 122, 196), (244, 190, 160)))
GROUNDS = ((96, 150, 72), (122, 168, 84), (70, 124, 66), (176, 158, 92), (150, 116, 78))
WALLS = (
    (232, 220, 190),
    (196, 170, 120),
    (120, 150, 186),
    (236, 236, 232),
    (222, 190, 96),
    (140, 112, 92),
    (150, 176, 140),
)
ROOFS = ((124, 60, 48), (84, 66, 60), (64, 70, 86), (150, 92, 56), (58, 92, 74))
DOORS = ((86, 58, 44), (44, 66, 92), (110, 84, 50), (52, 84, 60))
CROWNS = ((52, 110, 56), (78, 132, 60), (40, 92, 70), (196, 140, 52))


def _parts(draws: random.Random) -> list[_Part]:
    """The parts of a scene, the farthest first."""
    upper, lower = draws.choice(SKIES)
    found = [_Part("sky", "sky", (), _near(draws, upper), _near(draws, lower))]
    if draws.random() < 0.75:
        x, y, r = draws.uniform(6, 58), draws.uniform(6, 18), draws.uniform(4, 7)
        found.append(_Part("sun", "ellipse", _box(x, y, r, r), _near(draws, (255, 214, 90), 12)))
    horizon = draws.uniform(36, 46)
    ground = draws.choice(GROUNDS)
    for _ in range(draws.randint(0, 2)):
        hill = _box(draws.uniform(-5, 69), horizon + 8, draws.uniform(18, 36), draws.uniform(10, 17))
        found.append(_Part("ground", "ellipse", hill, _near(draws, ground, 20)))
    land = ((0, horizon), (EDGE, horizon + draws.uniform(-4, 4)), (EDGE, EDGE), (0, EDGE))
    found.append(_Part("ground", "polygon", land, _near(draws, ground)))
    middle, width, height = draws.uniform(18, 46), draws.uniform(16, 28), draws.uniform(12, 19)
    trees = [draws.choice((-1, 1)) * draws.uniform(width / 2 + 5, 34) + middle for _ in range(draws.randint(0, 2))]
    for x in trees:
        found += _tree(draws, x, horizon + draws.uniform(4, 9))
    return found + _house(draws, middle, horizon + draws.uniform(6, 13), width, height)


def _tree(draws: random.Random, x: float, foot: float) -> list[_Part]:
    """Parts of a tree: a trunk, and a round or a pointed crown."""
    tall, wide = draws.uniform(8, 14), draws.uniform(4, 7)
    crown = _near(draws, draws.choice(CROWNS))
    trunk = _Part("trunk", "polygon", _corners(x - 1.3, foot - tall, x + 1.3, foot), _near(draws, (92, 66, 46)))
    if draws.random() < 0.5:
        return [trunk, _Part("crown", "ellipse", _box(x, foot - tall, wide, wide * 1.2), crown)]
    top = ((x - wide, foot - tall * 0.4), (x, foot - tall - wide * 1.6), (x + wide, foot - tall * 0.4))
    return [trunk, _Part("crown", "polygon", top, crown)]


def _house(draws: random.Random, middle: float, foot: float, width: float, height: float) -> list[_Part]:
    """Parts of a house: walls, roof, door and windows, with colours and shape that the seed chooses."""
    left, right, top = middle - width / 2, middle + width / 2, foot - height
    over, tall = draws.uniform(1, 3), draws.uniform(7, 12)
    flat = draws.choice((0.0, width * 0.2))  # a ridge, or a tip
    roof = ((left - over, top + 1), (middle - flat, top - tall), (middle + flat, top - tall), (right + over, top + 1))
    door = left + width * draws.choice((0.18, 0.5, 0.82))
    found = [
        _Part("wall", "polygon", _corners(left, top, right, foot), _near(draws, draws.choice(WALLS))),
        _Part("roof", "polygon", roof, _near(draws, draws.choice(ROOFS))),
        _Part("door", "polygon", _corners(door - 2, foot - 8, door + 2, foot), _near(draws, draws.choice(DOORS))),
    ]
    glass = _near(draws, (198, 224, 240))
    for at in (0.18, 0.5, 0.82):
        x = left + width * at
        if abs(x - door) > 4.5 and draws.random() < 0.85:
            found.append(_Part("window", "polygon", _corners(x - 2, top + 3, x + 2, top + 7), glass))
    return found


def _near(draws: random.Random, colour: Colour, most: int = 14) -> Colour:
    red, green, blue = (min(max(each + draws.randint(-most, most), 0), 255) for each in colour)
    return red, green, blue


def _box(x: float, y: float, wide: float, high: float) -> tuple[tuple[float, float], ...]:
    return ((x - wide, y - high), (x + wide, y + high))


def _corners(left: float, top: float, right: float, bottom: float) -> tuple[tuple[float, float], ...]:
    return ((left, top), (right, top), (right, bottom), (left, bottom))
