"""Mapping of requests to Ray's resources, and of cards to node labels; pure.

Ray knows no models, no memory of cards and no named kinds of request. Nodes that toprope starts or joins carry the
labels below; of other nodes Ray's own resources are read. What is written here is read by `nodes.cluster_view`,
perhaps on another machine with another version: change both. Names and units of resources and the four digits of an
amount are Ray's. Amounts are rounded up, so that no card is given out twice. Tests:
tests/functions/test_functions_ray_mapping.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toprope.functions.scheduling.cards import STREAMS, Card
from toprope.functions.scheduling.requests import CardRequest, Request

__all__ = [
    "NODE_ID",
    "PREFIX",
    "PSEUDO_HBM",
    "Amounts",
    "amounts",
    "card_labels",
    "label_of",
    "plain_key",
    "read_label",
    "share",
    "whole_resources",
]

PREFIX = "toprope.io/"
"""Prefix of toprope's node labels."""

NODE_ID = "ray.io/node-id"
"""Ray's own label with a node's id."""

PSEUDO_HBM = 1000
"""Assumed memory of a card of unknown size, in MB."""

_RESERVED = {"CPU", "GPU", "NPU", "memory", "object_store_memory"}
_DIGITS = 4  # Ray's resolution of an amount


@dataclass(frozen=True)
class Amounts:
    """A request in Ray's terms: amounts of Ray's resources.

    Attributes:
        cpus: cores.
        memory: bytes.
        gpus: of "GPU".
        others: of all other resources, NPUs among them.
    """

    cpus: float = 0
    memory: int = 0
    gpus: float = 0
    others: Mapping[str, float] = field(default_factory=dict)

    def options(self) -> dict[str, object]:
        """As options of an actor or a task."""
        return {
            "num_cpus": self.cpus,
            "memory": self.memory,
            "num_gpus": self.gpus,
            "resources": dict(self.others),
        }

    def bundle(self) -> dict[str, float]:
        """As a bundle of a placement group."""
        every = {"CPU": self.cpus, "memory": self.memory, "GPU": self.gpus, **self.others}
        return {key: amount for key, amount in every.items() if amount}


def amounts(request: Request, smallest: Mapping[str, int]) -> Amounts:
    """Return the amounts of Ray's resources for a request.

    Args:
        request: the resources of an instance.
        smallest: MB of the smallest card, by vendor, of the nodes that it may go to: requests for memory are made as
            a share of that, so that no card is given out for more than it has.

    Example:
        >>> amounts(Request(500, 128, (CardRequest("NPU", ".+", count=0.5),)), {})
        Amounts(cpus=0.5, memory=134217728, gpus=0, others={'NPU': 0.5})
    """
    cards = {each.vendor: share(each, smallest.get(each.vendor, PSEUDO_HBM)) for each in request.cards}
    gpus = cards.pop("GPU", 0)
    scalars = {plain_key(key): _round_up(amount) for key, amount in request.scalars.items() if amount}
    return Amounts(request.cpu / 1000, request.memory * 2**20, gpus, {**scalars, **cards})


def share(asked: CardRequest, hbm: int) -> float:
    """Of one card, or whole cards: a request for memory also holds its part of the card's streams."""
    if asked.whole_cards:
        return asked.whole_cards
    if asked.count:
        return _round_up(asked.count)
    return min(1.0, _round_up(max(asked.hbm / max(1, hbm), asked.stream / STREAMS)))


def plain_key(key: str) -> str:
    """Ray's name of a named resource: a plain key "NPU" is no card, though Ray calls its cards so."""
    return f"toprope:{key}" if key in _RESERVED else key


def whole_resources(cards: Sequence[Card], scalars: Mapping[str, float]) -> tuple[dict[str, float], int]:
    """Return a node's named resources for Ray, and its number of GPUs."""
    offered = {plain_key(key): amount for key, amount in scalars.items() if amount}
    vendors = [card.vendor for card in cards if card.healthy]
    for vendor in dict.fromkeys(vendors):
        if vendor != "GPU":
            offered[vendor] = vendors.count(vendor)
    return offered, vendors.count("GPU")


def card_labels(cards: Sequence[Card]) -> dict[str, str]:
    """Return the labels of a node's cards: model and MB of memory, by vendor."""
    labels: dict[str, str] = {}
    for card in cards:
        if card.healthy and f"{label_of(card.vendor)}-model" not in labels:
            labels[f"{label_of(card.vendor)}-model"] = card.model.replace(" ", "_")
            labels[f"{label_of(card.vendor)}-hbm"] = str(card.hbm)
    return labels


def label_of(vendor: str) -> str:
    """Return the prefix of the labels of a vendor's cards."""
    return f"{PREFIX}{vendor.lower()}"


def read_label(value: str) -> str:
    """The model that a label tells; labels have no blanks."""
    return value.replace("_", " ")


def _round_up(amount: float) -> float:
    """Round up to Ray's resolution, so that shares never add up to more than a card."""
    scale = 10**_DIGITS
    return amount if float(amount).is_integer() else math.ceil(round(amount * scale, 6)) / scale
