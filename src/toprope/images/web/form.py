"""Make a request from the form of a page, and choose the parts of the form for a model.

Called by the page, the controller and the HTTP API. `FIELDS` is the order of the form's components in `web.page.app`,
and its names are in stored sessions; knobs and their ranges are those of `images.request`, the ends of sliders are
free. Tests: tests/images/test_images_web.py, tests/images/test_images_messages.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toprope.errors import SeedError, UsageError
from toprope.images.lora.files import check_scale
from toprope.images.request import KNOBS, EditRequest

__all__ = ["FIELDS", "Knob", "dice", "knobs", "picked_loras", "read_box", "read_form", "read_seed", "seed_text"]

FIELDS = (
    "instruction", "refine", "seed", "steps", "guidance", "image_guidance", "refine_strength", "negative", "cfg_norm",
    "num_images", "size", "fit",
)  # fmt: skip
"""The fields of the form in the order in which pages send them."""

SLIDERS = {
    "steps": (1, 100, 1),
    "guidance": (0, 20, 0.1),
    "image_guidance": (0, 10, 0.1),
    "refine_strength": (0, 1, 0.05),
}
"""Smallest value, largest value and step of the knobs that are sliders. A larger default extends the slider."""


@dataclass(frozen=True)
class Knob:
    """Display of a knob on a page.

    Attributes:
        shown: True if the model has it.
        value: its default; None for no default.
        most: the right end of its slider; None if it is no slider.
    """

    shown: bool
    value: Any = None
    most: float | None = None


def knobs(options: Mapping[str, Any]) -> dict[str, Knob]:
    """All knobs for a model.

    Args:
        options: the model's knobs with their defaults, from `Engine.describe`.
    """
    found = {}
    for name in KNOBS:
        value = options.get(name)
        most: float | None = None
        if name in SLIDERS:
            most = max(SLIDERS[name][1], value or 0)
        found[name] = Knob(name in options, value, most)
    return found


def read_seed(text: Any) -> int | None:
    """Read a typed seed; None for a random one.

    It is a text in the page, as numbers are exact there only up to 2**53.

    Raises:
        SeedError: it is no seed.
    """
    words = str("" if text is None else text).strip()
    if words.lower() in ("", "random", "-1"):
        return None
    if words.isascii() and words.isdigit() and int(words) < 2**64:
        return int(words)
    raise SeedError(f"{words!r} is not a seed.", do="give a whole number from 0 to 2**64 - 1, or nothing, for any")


def read_box(given: Any) -> tuple[float, float, float, float] | None:
    """Read a typed rectangle: left, top, right and bottom in percent of the picture; None for all of it.

    Raises:
        UsageError: it has no area.
    """
    if given is None or all(each is None for each in given):
        return None
    usual = (0.0, 0.0, 100.0, 100.0)
    box = tuple(own if each is None else float(each) for each, own in zip(given, usual, strict=True))
    left, top, right, bottom = box
    if not (0 <= left < right <= 100 and 0 <= top < bottom <= 100):
        raise UsageError(
            "the rectangle has no inside.",
            looked_at=f"left {left:g}, top {top:g}, right {right:g}, bottom {bottom:g} %",
            do="give left below right and top below bottom, from 0 to 100",
        )
    return None if box == usual else (left, top, right, bottom)


def seed_text(seed: int | None) -> str:
    """Format a seed for the form."""
    return "" if seed is None else str(seed)


def dice() -> str:
    """Draw a seed that is short enough to read out and type."""
    return str(secrets.randbelow(10**9))


def read_form(values: Mapping[str, Any], image: Any, options: Iterable[str], *, refiner: bool) -> EditRequest:
    """Make a request from the values of a form.

    Args:
        values: values by the names in `FIELDS`; knobs that the model does not have are ignored, as pages show them
            until they know the model.
        image: a path, or a picture.
        options: the model's knobs.
        refiner: True if the engine has a refiner.

    Raises:
        UsageError: a field is invalid.
    """
    has = set(options)
    if image is None or image == "":
        raise UsageError("there is no picture.", do="drop one on the page, or choose a file")
    row = {name: values.get(name) for name in FIELDS if name not in KNOBS or name in has}
    row["instruction"] = str(row.get("instruction") or "").strip()
    if not row["instruction"]:
        raise UsageError("there is no instruction.", do='say what to do with the picture, such as "make it snow"')
    row["seed"] = read_seed(row.get("seed"))
    row["refine"] = bool(row.get("refine")) if refiner else None
    row["image"] = image
    return EditRequest.from_json(row)


def picked_loras(picked: Iterable[str] | None, scales: Iterable[Any], known: Mapping[str, str]) -> list[str]:
    """The LoRAs that are selected in a form, each as "path:scale". LoRAs with the scale 0 are left out.

    Args:
        picked: names in the order of their sliders.
        scales: values of the sliders; sliders without a name are ignored.
        known: paths by name.

    Raises:
        UsageError: a name is unknown.
    """
    found = []
    for name, scale in zip(picked or (), scales, strict=False):
        if name not in known:
            raise UsageError(f"there is no LoRA {name!r}.", f"known are {', '.join(known) or 'none'}", "pick another")
        if factor := check_scale(scale):
            found.append(f"{known[name]}:{factor:g}")
    return found
