"""Errors for options of an estimate that would have no effect on it; pure.

Called by estimate.py; no option is passed over in silence. Names are those of the parameters in cli/estimate.py: a new
option of the command needs its conditions here. Tests: tests/cli/test_cli_estimate.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from toprope.errors import UsageError

__all__ = ["Asked", "refuse_without_effect"]


@dataclass(frozen=True)
class Asked:
    """Facts about an estimate that options depend on.

    Attributes:
        mode: "forward", "prefill", "decode", "train".
        graph: whether a graph replays the operators.
        kind: "language model" (predicts one token after the other), "text" or "pictures" of transformers, "diffusers",
            "pipeline", or "class" of the user.
        has_experts: whether the model is a mixture of experts.
        denoises: whether a component of a pipeline runs several times.
        inputs: whether the inputs are given by --input.
    """

    mode: str
    graph: bool
    kind: str
    has_experts: bool = False
    denoises: bool = False
    inputs: bool = False


_OF_TRAINING = ("zero", "micro_batches", "checkpointing", "master", "optimizer")
_NAMES = {"master": "--master-weights", "inputs": "--input"}


def refuse_without_effect(given: Collection[str], asked: Asked) -> None:
    """Refuse options that change nothing.

    Args:
        given: names of the options that the user wrote, as the command's parameters are called.
        asked: what is estimated.

    Raises:
        UsageError: one of them has no effect; all such are named.
    """
    found = [(name, why) for name, why in _without_effect(asked) if name in given]
    if not found:
        return
    reasons = dict.fromkeys(why for _, why in found)
    several = "s have" if len(found) > 1 else " has"
    names = ", ".join(_NAMES.get(name, f"--{name.replace('_', '-')}") for name, _ in found)
    training = any(name in _OF_TRAINING for name, _ in found)
    raise UsageError(
        f"option{several} no effect here: {names}.",
        looked_at="; ".join(reasons),
        do=f"leave {names} out" + (", or add --mode train" if training and asked.kind != "pipeline" else ""),
    )


def _without_effect(asked: Asked) -> Iterator[tuple[str, str]]:
    if asked.mode != "train":
        yield from ((name, f"--mode {asked.mode} trains nothing") for name in _OF_TRAINING)
    if asked.graph:
        yield "queue", "a graph replays the operators, so TASK_QUEUE_ENABLE does not matter"
    if not asked.has_experts:
        yield "experts", "the model has no experts"
    if not asked.denoises:
        yield "steps", "no component runs several times for a picture"
    if asked.kind == "pipeline":
        yield "inputs", "the components of a pipeline have inputs of their own"
    if asked.inputs and asked.kind != "pipeline":
        given = "the inputs are given by --input"
        yield "size", given
        if asked.mode != "decode":  # which fills its cache by them
            yield "batch", given
            yield "length", given
        return
    if asked.kind not in ("diffusers", "pipeline"):
        yield "size", "the model takes no pictures of a size that is chosen"
    if asked.kind not in ("language model", "text"):
        yield "length", "the model takes no text of a length that is chosen"
