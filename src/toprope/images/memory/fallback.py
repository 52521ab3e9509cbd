"""The memory ladder: its rungs from top to bottom, and the next one when memory runs out. Pure, no torch.

Every rung takes less memory of the device than the one above it, and includes the measures above it if possible.

Called by `images.pipeline_manager`. The names are values of `--memory` and stand in records. A new rung needs a class
in `offload_policies`, and its name in the help of `toprope edit --memory` and in docs/images.md. Tests:
tests/images/test_images_memory.py, tests/images/test_images_cli.py, tests/images/test_images_engine.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from toprope.errors import UsageError

__all__ = ["RUNGS", "Rung", "below", "rung"]


@dataclass(frozen=True)
class Rung:
    """A way to place a pipeline's parts.

    Attributes:
        name: its name on the command line.
        says: description, as a part of a sentence.
        costs: the price for the saved memory.
        automatic: True if "auto" uses it. Quantised text encoders are used only on request.
    """

    name: str
    says: str
    costs: str
    automatic: bool = True


RUNGS = (
    Rung("none", "all parts are on the device", "nothing"),
    Rung(
        "vae",
        "the VAE takes pictures one after the other, and in tiles where they are larger than it was trained on",
        "pictures larger than a tile come out different: each tile is normalised by itself, seams are blended",
    ),
    Rung(
        "encoders-4bit",
        "text encoders have their linear layers in 4.5 bits (nvfp4)",
        "other embeddings, so that pictures differ in all",
        automatic=False,
    ),
    Rung(
        "encoders",
        "text encoders come to the device one after the other, and the rest when they are done",
        "the time of moving them for every new instruction",
    ),
    Rung(
        "tiers",
        "weights of text encoders and denoiser come when their layer runs, into half of what is free",
        "the time of moving what has no room, in every step",
    ),
    Rung(
        "tiers-least",
        "weights come when their layer runs, into as little as two layers take",
        "the time of moving nearly all weights in every step",
    ),
)
"""From top to bottom."""


def rung(name: str) -> Rung:
    """The rung of a name.

    Raises:
        UsageError: there is none.
    """
    for each in RUNGS:
        if each.name == name:
            return each
    raise UsageError(
        f"there is no rung {name!r} of the memory ladder.",
        looked_at=f"there are {', '.join(each.name for each in RUNGS)}",
        do="give one of them, or auto",
    )


def below(name: str) -> str | None:
    """The rung to go on with where memory ran out on this one; None on the lowest."""
    names = [each.name for each in RUNGS]
    lower = RUNGS[names.index(rung(name).name) + 1 :]
    return next((each.name for each in lower if each.automatic), None)
