"""Group pictures of the same size with the same knobs into batches. Pure, no torch.

Called by `images.engine` between `images.resolve`, which makes a `ResolvedRequest`, and the pipeline. Everything that
must be the same for all pictures of a batch belongs in `Row.kind`. Fixed: a picture's seed is the request's seed plus
its number, or a recorded edit cannot be repeated. Tests: tests/images/test_images_request.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from toprope.images.picture.files import Opened
from toprope.images.picture.geometry import Frame
from toprope.images.picture.masks import Mask
from toprope.images.request import KNOBS, EditRequest

__all__ = ["ResolvedRequest", "Row", "batches", "rows_of"]


@dataclass(frozen=True)
class ResolvedRequest:
    """A request with all values chosen.

    Attributes:
        request: the request; it has a value for each knob of the family, and the instruction that is used.
        opened: its picture.
        frame: the part of the picture that the model sees, and its size.
        seed: seed of its first picture.
        refinement: result of the refiner for JSON; None if no refiner was asked.
        mask: the part of the picture that may change; None for all of it.
    """

    request: EditRequest
    opened: Opened
    frame: Frame
    seed: int
    refinement: dict[str, Any] | None = None
    mask: Mask | None = None


@dataclass(frozen=True)
class Row:
    """One picture to compute.

    Attributes:
        at: index of its request.
        resolved: its request.
        seed: seed of its noise.
    """

    at: int
    resolved: ResolvedRequest
    seed: int = field(default=0)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Properties that must be the same for all pictures of a batch."""
        request = self.resolved.request
        knobs = tuple(getattr(request, name) for name in KNOBS if name != "negative")
        return self.resolved.frame.model, request.generator_device, request.sampler, request.like, knobs


def rows_of(resolved: Sequence[ResolvedRequest]) -> list[Row]:
    """Make a row for every picture of every request; seeds count up from the request's seed."""
    return [
        Row(at, each, (each.seed + number) % 2**64)
        for at, each in enumerate(resolved)
        for number in range(each.request.num_images)
    ]


def batches(rows: Sequence[Row], at_once: int) -> Iterator[list[Row]]:
    """Group rows of one kind into batches of at most `at_once`, in the order of each kind's first row."""
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    for same in kinds.values():
        for start in range(0, len(same), at_once):
            yield same[start : start + at_once]
