"""Presets of the form and examples, by the family of the model: what to change when too little or too much happens.

Values are parts of the defaults of the model's authors, in the direction that they recommend: InstructPix2Pix ("if the
picture is not changing enough: less image guidance, more text guidance", and the reverse), HiDream-E1-Full (image
guidance 3 to 4 for a style, 2 to 3 for a local change).

Used by `web.page.app`. The factors are free; values must lie in the knobs' ranges, and each name needs its texts in
`web.texts`. Tests: tests/images/test_images_texts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["EXAMPLES", "PRESETS", "Example", "example", "preset"]

PRESETS: dict[str, dict[str, float]] = {
    "authors": {},
    "draft": {"steps": 0.4},
    "stronger": {"guidance": 1.25, "image_guidance": 0.8},
    "closer": {"guidance": 0.8, "image_guidance": 1.25},
}
"""Factors of the defaults, by the names of the presets. Knobs that a model does not have are passed over."""

EXAMPLES = {
    "weather": ("make it snow", "authors"),
    "style": ("turn it into a watercolour painting", "stronger"),
    "part": ("make the house red", "closer"),
}
"""An instruction and a preset, by the names of the examples. Models read English."""

FULL = {"style": 3.5, "part": 2.5}
"""Image guidance of HiDream-E1-Full by the names of the examples: as its authors advise."""

LEAST_STEPS = 4


@dataclass(frozen=True)
class Example:
    """An example for a model.

    Attributes:
        instruction: of it.
        values: for the knobs of the form, all that the model has.
        hint: key of the text on guidance.
    """

    instruction: str
    values: Mapping[str, Any]
    hint: str


def preset(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a preset for a model.

    Args:
        name: one of `PRESETS`.
        options: the knobs of the model with their defaults.
    """
    found = {knob: value for knob, value in options.items() if value is not None}
    for knob, factor in PRESETS[name].items():
        if knob in found:
            value = found[knob] * factor
            found[knob] = max(LEAST_STEPS, round(value)) if knob == "steps" else round(value, 1)
    return found


def example(name: str, family: str | None, options: Mapping[str, Any]) -> Example:
    """An example for a model.

    Args:
        name: one of `EXAMPLES`.
        family: of the model; None before it is loaded.
        options: the knobs of the model with their defaults; empty before.
    """
    instruction, wanted = EXAMPLES[name]
    values, kind = preset(wanted, options), "" if "image_guidance" in options or not options else "_alone"
    if family == "hidream-e1" and (options.get("image_guidance") or 0) >= 3 and name in FULL:  # E1-Full: 4; E1.1: 1.5
        values, kind = {**preset("authors", options), "image_guidance": FULL[name]}, "_full"
    return Example(instruction, values, f"hint_{name}{kind if name != 'weather' else ''}")
