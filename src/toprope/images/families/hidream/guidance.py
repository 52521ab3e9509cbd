"""Combine the predictions of one step: guidance by text and by picture. Works on tensors, but imports no torch.

A step has three predictions: for a picture of zeros ("nothing"), for the picture with the texts to avoid ("picture"),
and for the picture with the instruction ("everything"). The difference that the instruction makes is scaled by
`guidance`, the difference that the picture makes by `image_guidance`. All is computed in float32 for any dtype of the
model; `AUTHORS` computes like the authors' pipeline, in the model's dtype with its rounding (HiDream-E1, f6f0631), and
is fixed by that commit. A change of `OURS` changes the pictures of recorded edits.

Called by `pipeline` in every step. Tests: tests/images/test_images_authors.py, tests/images/test_images_hidream.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["AUTHORS", "OURS", "Formulas", "guide", "guide_by_text", "guide_with_norm", "refine_from"]


def guide_with_norm(
    nothing: torch.Tensor, picture: torch.Tensor, everything: torch.Tensor, guidance: float, image_guidance: float
) -> torch.Tensor:
    """Combine predictions, with a bound on the norm of the part guided by text.

    Args:
        nothing, picture, everything: predictions, (batch, channels, height, width).
        guidance: scale of the instruction's part; 1 leaves it unchanged.
        image_guidance: scale of the picture's part; 1 leaves it unchanged.

    Returns:
        nothing + image_guidance * (text - nothing), where text is picture + guidance * (everything - picture), scaled
        down to the norm of `everything` over the channels wherever its norm is larger.
    """
    nothing, picture, everything = nothing.float(), picture.float(), everything.float()
    text = picture + guidance * (everything - picture)
    most, norm = everything.norm(dim=1, keepdim=True), text.norm(dim=1, keepdim=True)
    bounded: torch.Tensor = text * (most / norm.clamp(min=1e-8)).clamp(max=1.0)
    return nothing + image_guidance * (bounded - nothing)


def guide(
    nothing: torch.Tensor, picture: torch.Tensor, everything: torch.Tensor, guidance: float, image_guidance: float
) -> torch.Tensor:
    """Combine predictions without a bound: the parts of picture and instruction, each by its scale."""
    nothing, picture, everything = nothing.float(), picture.float(), everything.float()
    return nothing + image_guidance * (picture - nothing) + guidance * (everything - picture)


def guide_by_text(nothing: torch.Tensor, everything: torch.Tensor, guidance: float) -> torch.Tensor:
    """Guidance of the base model, which sees no picture."""
    nothing = nothing.float()
    return nothing + guidance * (everything.float() - nothing)


def refine_from(steps: int, strength: float) -> int:
    """The number, from 0, of the first step that the base model does; `steps` where it does none.

    It is the whole part of steps * (1 - strength), counted in decimals: 10 steps at 0.9 begin at 1. Any strength above
    0 is one step at least.
    """
    return math.floor(steps * (1 - Fraction(str(float(strength)))))


def _as_authors_with_norm(
    nothing: torch.Tensor, picture: torch.Tensor, everything: torch.Tensor, guidance: float, image_guidance: float
) -> torch.Tensor:
    text = picture + guidance * (everything - picture)
    most, norm = everything.norm(dim=1, keepdim=True), text.norm(dim=1, keepdim=True)
    bounded: torch.Tensor = text * (most / (norm + 1e-8)).clamp(0.0, 1.0)
    return nothing + image_guidance * (bounded - nothing)


def _as_authors(
    nothing: torch.Tensor, picture: torch.Tensor, everything: torch.Tensor, guidance: float, image_guidance: float
) -> torch.Tensor:
    return nothing + image_guidance * (picture - nothing) + guidance * (everything - picture)


@dataclass(frozen=True)
class Formulas:
    """Formulas of guidance: ours, or the authors'.

    Attributes:
        with_norm, plain: guidance by text and picture, bounded or not.
        by_text: guidance of the base model.
        refine_from: the first step, from 0, that refines.
    """

    with_norm: Callable[..., torch.Tensor]
    plain: Callable[..., torch.Tensor]
    by_text: Callable[..., torch.Tensor]
    refine_from: Callable[[int, float], int]


OURS = Formulas(guide_with_norm, guide, guide_by_text, refine_from)
"""Our computation: in float32, with the number of refine steps from exact decimals."""

AUTHORS = Formulas(
    _as_authors_with_norm,
    _as_authors,
    lambda nothing, everything, guidance: nothing + guidance * (everything - nothing),
    lambda steps, strength: int(steps * (1.0 - strength)),
)
"""The authors' computation: in the dtype of the predictions; by rounding, 10 steps at 0.9 refine from step 0."""
