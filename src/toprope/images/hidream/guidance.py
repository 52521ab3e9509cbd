"""How the predictions of one step become one: guidance by text and by picture. On tensors, importing no torch.

A step predicts three times: for a picture of zeros ("nothing"), for the picture with the texts to avoid ("picture"),
and for the picture with the instruction ("everything"). What the instruction adds is scaled by `guidance`, and what the
picture adds by `image_guidance`. All is computed in float32, whatever the model's dtype.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["guide", "guide_by_text", "guide_with_norm", "refine_from"]


def guide_with_norm(
    nothing: torch.Tensor, picture: torch.Tensor, everything: torch.Tensor, guidance: float, image_guidance: float
) -> torch.Tensor:
    """Guidance whose text part is never larger than the prediction that it began with.

    Args:
        nothing, picture, everything: predictions, (batch, channels, height, width).
        guidance: 1 for what the instruction adds, as it is.
        image_guidance: 1 for the guided prediction itself.

    Returns:
        nothing + image_guidance * (text - nothing), where text is picture + guidance * (everything - picture), made
        shorter to the norm of `everything` over the channels wherever it is longer; it is never made longer.
    """
    nothing, picture, everything = nothing.float(), picture.float(), everything.float()
    text = picture + guidance * (everything - picture)
    most, norm = everything.norm(dim=1, keepdim=True), text.norm(dim=1, keepdim=True)
    bounded: torch.Tensor = text * (most / norm.clamp(min=1e-8)).clamp(max=1.0)
    return nothing + image_guidance * (bounded - nothing)


def guide(
    nothing: torch.Tensor, picture: torch.Tensor, everything: torch.Tensor, guidance: float, image_guidance: float
) -> torch.Tensor:
    """Guidance without a bound: what the picture adds and what the instruction adds, each by its scale."""
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
