"""The tree of a session's steps, in the order and with the words in which a page shows it. Pure.

Used by `web.page.app`; the steps come from `web.sessions`. A page chooses a step by its place in this order. Tests:
tests/images/test_images_web.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toprope.images.web.sessions import Step, StepState

__all__ = ["Node", "last_request", "nodes", "without_picture"]

MOST_LETTERS = 40
"""Letters of an instruction in a caption."""


@dataclass(frozen=True)
class Node:
    """A step with a picture.

    Attributes:
        step: itself.
        depth: edits between it and the picture that was brought.
        caption: depth, instruction and seed.
    """

    step: Step
    depth: int
    caption: str


def nodes(steps: Sequence[Step], seed: str = "seed") -> list[Node]:
    """The steps with pictures, depth first: each step is followed by the steps that were made from it.

    Args:
        steps: of a session.
        seed: the word for it in captions.
    """
    children: dict[int | None, list[Step]] = {}
    for step in steps:
        if step.state.has_picture:
            children.setdefault(step.parent, []).append(step)
    found: list[Node] = []
    rest = [(step, 0) for step in reversed(children.get(None, ()))]
    while rest:
        step, depth = rest.pop()
        found.append(Node(step, depth, _caption(step, depth, seed)))
        rest += [(child, depth + 1) for child in reversed(children.get(step.number, ()))]
    return found


def _caption(step: Step, depth: int, seed: str) -> str:
    if step.request is None:
        return step.name
    words = " ".join(str(step.request.get("instruction", "")).split())
    short = words if len(words) <= MOST_LETTERS else words[: MOST_LETTERS - 1].rstrip() + "…"
    return f"{depth}. {short} · {seed} {step.request.get('seed', '')}"


def without_picture(steps: Sequence[Step], most: int = 6) -> list[Step]:
    """The edits without a picture: those that run and wait in their order, then the newest of the others first.

    Args:
        steps: of a session.
        most: failed and cancelled edits at most.
    """
    queue = [step for step in steps if step.state.is_open]
    without = [step for step in reversed(steps) if step.state in (StepState.FAILED, StepState.CANCELLED)]
    stopped = [step for step in reversed(steps) if step.state is StepState.INTERRUPTED]
    return [*queue, *stopped, *without[:most]]


def last_request(steps: Sequence[Step]) -> dict[str, object]:
    """The form of the newest edit as it was filled in: a seed that was drawn is left out. Empty before the first."""
    found = next((dict(step.request) for step in reversed(steps) if step.request is not None), {})
    return {**found, "seed": ""} if found.get("drawn") else found
