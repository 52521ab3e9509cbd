"""Which pictures go through the pipeline together: those with the same size and the same knobs. Pure, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from toprope.images.picture.files import Opened
from toprope.images.picture.geometry import Frame
from toprope.images.picture.masks import Mask
from toprope.images.request import KNOBS, EditRequest

__all__ = ["Row", "Settled", "batches", "rows_of"]


@dataclass(frozen=True)
class Settled:
    """A request with nothing left open.

    Attributes:
        request: no knob that the family honours is None; its instruction is the one that is used.
        opened: its picture.
        frame: what the model sees of it.
        seed: of its first picture.
        refinement: what became of the instruction, ready for JSON; None where nobody was asked.
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
    """One picture that is wanted.

    Attributes:
        at: the number of its request.
        settled: its request.
        seed: of its noise.
    """

    at: int
    settled: Settled
    seed: int = field(default=0)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be the same for all pictures of a batch."""
        request = self.settled.request
        knobs = tuple(getattr(request, name) for name in KNOBS if name != "negative")
        return self.settled.frame.model, request.generator_device, request.sampler, request.like, knobs


def rows_of(settled: Sequence[Settled]) -> list[Row]:
    """A row for every picture of every request, each with its seed: that of the request, and one more for each."""
    return [
        Row(at, each, (each.seed + number) % 2**64)
        for at, each in enumerate(settled)
        for number in range(each.request.num_images)
    ]


def batches(rows: Sequence[Row], at_once: int) -> Iterator[list[Row]]:
    """The rows in batches of at most `at_once` of one kind, in the order of the first of each."""
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    for same in kinds.values():
        for start in range(0, len(same), at_once):
            yield same[start : start + at_once]
