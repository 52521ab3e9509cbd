"""Environment variables that show a worker only the cards that it was granted.

The instance manager and the pools set them for local workers, `ray.worker.process` for those on Ray. Names, and masks
that rise without blanks, are those of the vendors' runtimes (ASCEND_RT_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES) and of
openYuanrong (NPU-DEVICE-IDS, YR_NOSET_...): nothing here is free but the refusal of cards that are not there. Tests:
tests/functions/test_functions_assertions.py, tests/functions/test_functions_threads.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.scheduling.ledger import Grant, Node

__all__ = ["VISIBLE", "mask"]

VISIBLE = {"NPU": "ASCEND_RT_VISIBLE_DEVICES", "GPU": "CUDA_VISIBLE_DEVICES"}
"""The mask of each vendor."""

IDS = {"NPU": "NPU-DEVICE-IDS", "GPU": "GPU-DEVICE-IDS"}
"""The variable with the cards' numbers on their host."""


def mask(grant: Grant, nodes: Sequence[Node], environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables to set, and those to take away, for a process that was given cards.

    `YR_NOSET_...` takes the variable away, by being there; without a request for cards nothing is changed.

    Args:
        grant: what the process was given.
        nodes: the nodes.
        environment: the variables that it would have.

    Raises:
        YRRuntimeError: a card of the grant is not one of the node's. The vendor's runtime would drop it, and all
            behind it, without a word.
    """
    variables: dict[str, str] = {}
    unset: list[str] = []
    (node,) = (each for each in nodes if each.id == grant.node)
    for vendor, ids in grant.cards.items():
        name = VISIBLE.get(vendor)
        if name is None:
            continue
        there = {card.id for card in node.cards if card.vendor == vendor}
        if list(ids) != sorted(set(ids)) or not set(ids) <= there:
            raise YRRuntimeError(f"cards {ids} cannot be shown to a process of {node.id}", CODES["resource config"])
        shown = ",".join(map(str, ids))
        if f"YR_NOSET_{name}" in environment:
            unset.append(name)
        else:
            variables[name] = shown
        variables[IDS[vendor]] = shown
    return variables, unset
