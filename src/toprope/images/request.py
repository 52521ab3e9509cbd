"""Request for the engine: one edit of one picture, with all knobs. No torch and no Pillow here.

A knob that is None is left to the model's family. `validate` finds invalid values before anything is loaded.

Made by the command line, a jobs.jsonl, the page and the HTTP API; read by the engine and the families. The names of
fields and values are in users' files and in records: some may be added, none renamed. A new knob also needs an option
of `toprope edit`, a field in `images.web.form` and `images.web.api`, and its texts in `images.web.texts`. Tests:
tests/images/test_images_request.py, tests/images/test_images_api.py.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from toprope.errors import SeedError, UsageError

__all__ = ["FITS", "KNOBS", "LIKES", "MOST_LETTERS", "RANGES", "SAMPLERS", "SIZES", "EditRequest"]

SIZES = ("model", "768", "1m", "keep")
"""Policies for the size that the model sees; see `toprope.images.picture.geometry`."""

FITS = ("stretch", "crop", "pad")
"""Ways to fit a picture of another shape into that size."""

KNOBS = ("negative", "steps", "guidance", "image_guidance", "refine_strength", "cfg_norm")
"""Fields that not every family has. Giving one that the family does not have is an error."""

SAMPLERS = ("ddim", "dpm++", "euler", "euler-a", "lcm", "unipc")
"""Samplers, of which a family has some; see `toprope.images.samplers`."""

LIKES = ("authors",)
"""Values of `like`: "authors" gives the same pixels as the scripts of the model's authors."""

MOST_LETTERS = 10_000
"""Largest number of characters of an instruction or negative; text encoders read only a few hundred words."""

RANGES: dict[str, tuple[type, float, float]] = {
    "steps": (int, 1, 1000),
    "guidance": (float, 0, 100),
    "image_guidance": (float, 0, 100),
    "refine_strength": (float, 0, 1),
    "num_images": (int, 1, 64),
    "max_pixels": (int, 256, 2**28),
    "mask_feather": (int, 0, 256),
}
"""Fields that are numbers: type, smallest and largest value."""


@dataclass(frozen=True)
class EditRequest:
    """One edit.

    Attributes:
        image: a path, or a Pillow image.
        instruction: what to do, such as "make it snow".
        negative: what the picture should not show.
        steps: number of denoising steps, 1 to 1000.
        guidance: how closely the instruction is followed, 0 to 100.
        image_guidance: how closely the input picture is followed, 0 to 100.
        refine_strength: the part of the steps that the base model does at the end, 0 to 1.
        cfg_norm: True to keep guidance from making a prediction larger than it was.
        seed: 0 to 2**64 - 1; None, "random" or -1 draws one, which the record names.
        num_images: number of results of this edit, with the seeds seed, seed + 1, ...
        size: what the model sees: "model" (its own size, in the picture's shape), "768" (a square), "1m" (2**20
            pixels in the picture's shape), "keep" (the picture's size, as near as the model can).
        max_pixels: largest number of pixels that the model sees, whatever `size` says.
        fit: how the picture gets into that size: "stretch", "crop" (the middle; the result is the middle too), "pad".
        generator_device: where noise is drawn: "cpu", the same noise for every device, or "device".
        refine: True to rewrite the instruction with the engine's refiner; None to do so if it has one.
        sampler: one of `SAMPLERS`; None for the model's own.
        like: "authors" for the preprocessing, the numerics and the refine stage of the scripts of the model's authors.
        mask: a path, or a Pillow image, of the picture's size: white may change, black stays as it is; see
            `toprope.images.picture.masks`. None if all may change.
        mask_feather: pixels over which the mask's edge is blended, 0 to 256; None for 1/64 of the shorter side.
    """

    image: Any
    instruction: str
    negative: str | None = None
    steps: int | None = None
    guidance: float | None = None
    image_guidance: float | None = None
    refine_strength: float | None = None
    cfg_norm: bool | None = None
    seed: int | Literal["random"] | None = None
    num_images: int = 1
    size: str = "model"
    max_pixels: int | None = None
    fit: str = "stretch"
    generator_device: str = "cpu"
    refine: bool | None = None
    sampler: str | None = None
    like: str | None = None
    mask: Any = None
    mask_feather: int | None = None

    def validate(self) -> EditRequest:
        """The request with its numbers in their types.

        Raises:
            UsageError: a field cannot be what it is; the error names it and its range.
            SeedError: no such seed.
        """
        if not isinstance(self.instruction, str) or not self.instruction.strip():
            raise _wrong("instruction", self.instruction, "a text that says what to do")
        if self.negative is not None and not isinstance(self.negative, str):
            raise _wrong("negative", self.negative, "a text")
        for name in ("instruction", "negative"):
            length = len(getattr(self, name) or "")
            if length > MOST_LETTERS:
                raise UsageError(
                    f"{name} has {length} characters, and the most is {MOST_LETTERS}.",
                    looked_at=f"it begins {getattr(self, name)[:60]!r}",
                    do="write a shorter one: models read a few hundred words",
                )
        for name in ("cfg_norm", "refine"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "true or false")
        if self.image is None or self.image == "":
            raise _wrong("image", self.image, "a path or a picture")
        for name, among in (("size", SIZES), ("fit", FITS), ("generator_device", ("cpu", "device"))):
            if getattr(self, name) not in among:
                raise _wrong(name, getattr(self, name), f"one of {', '.join(among)}")
        for name, some in (("sampler", SAMPLERS), ("like", LIKES)):
            if getattr(self, name) is not None and getattr(self, name) not in some:
                raise _wrong(name, getattr(self, name), f"one of {', '.join(some)}")
        if self.like is not None:
            own = {"size": "model", "fit": "stretch", "max_pixels": None, "sampler": None, "mask": None}
            given = [name for name, usual in own.items() if getattr(self, name) != usual]
            if given:
                raise UsageError(
                    f"like is {self.like!r}, which decides {' and '.join(given)} too.",
                    looked_at=", ".join(f"{name}={getattr(self, name)!r}" for name in given),
                    do=f"leave out {' and '.join(given)}, or like",
                )
        if self.mask is None and self.mask_feather is not None:
            raise UsageError("mask_feather blends a mask's edge, and there is no mask.", do="give one, or leave it out")
        _check_seed(self.seed)
        return replace(self, **{name: _number(name, getattr(self, name)) for name in RANGES})

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EditRequest:
        """A request from a row of JSON, such as a line of jobs.jsonl or the "request" of a sidecar; validated.

        Raises:
            UsageError: a key is not known, one is missing, or a value cannot be.
        """
        known = [field.name for field in fields(cls)]
        for name in row:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                raise UsageError(
                    f"an edit has no {name!r}{f'; {near[0]!r} is meant?' if near else '.'}",
                    looked_at=f"known are {', '.join(known)}",
                    do=f"write {near[0]!r}" if near else "leave it out",
                )
        for name in ("image", "instruction"):
            if row.get(name) is None:
                raise UsageError(f"an edit without {name!r}.", looked_at=f"its keys {', '.join(row)}", do="name it")
        given = {name: value for name, value in row.items() if value is not None}
        return cls(**given).validate()

    def as_json(self) -> dict[str, Any]:
        """The request ready for JSON, with only what is not None. A picture that has no path is left out."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("image", "mask"):
            path = row[name] if isinstance(row[name], str | os.PathLike) else getattr(row[name], "filename", "")
            row[name] = os.fspath(path) or None
        return {name: value for name, value in row.items() if value is not None}

    def given(self) -> tuple[str, ...]:
        """The knobs of `KNOBS` that are not left to the family."""
        return tuple(name for name in KNOBS if getattr(self, name) is not None)


def _wrong(name: str, value: object, wanted: str) -> UsageError:
    return UsageError(f"{name} is {value!r}, and must be {wanted}.", looked_at=f"{name}={value!r}", do=f"give {wanted}")


def _number(name: str, value: Any) -> Any:
    """Check a knob's number against its range, and return it in its type."""
    kind, least, most = RANGES[name]
    if value is None and name != "num_images":
        return None
    wanted = f"{'a whole number' if kind is int else 'a number'} from {least:g} to {int(most)}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(name, value, wanted)
    if not least <= value <= most or (kind is int and value != int(value)):
        raise _wrong(name, value, wanted)
    return kind(value)


def _check_seed(seed: object) -> None:
    if seed is None or seed == "random" or seed == -1:
        return
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise SeedError(
            f"{seed!r} is not a seed.", do='give a whole number from 0 to 2**64 - 1, or "random", which draws one'
        )
