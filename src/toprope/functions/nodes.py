"""A node with its resources, what a request was given of it, and why one was not met; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toprope.functions.cards import Card
from toprope.functions.resources import Request

__all__ = ["UNMET_AFFINITY", "Grant", "Node", "Shortage"]

UNMET_AFFINITY = "Affinity can't be Satisfied"
"""The reason of a node that the affinities of a request exclude."""


@dataclass(frozen=True)
class Node:
    """A host.

    Attributes:
        id: its name.
        cpu: millicores.
        memory: MB.
        cards: its cards.
        scalars: amounts of named resources.
        labels: names and values that affinities ask for.
    """

    id: str
    cpu: int
    memory: int
    cards: tuple[Card, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def amounts(self) -> dict[str, float]:
        """Amounts of all its resources by the names that `yr.resources` has for them."""
        amounts: dict[str, float] = {"CPU": self.cpu, "Memory": self.memory, **self.scalars}
        for card in self.cards:
            key = f"{card.vendor}/{card.model}"
            amounts[key] = amounts.get(key, 0) + 1
        return amounts


@dataclass(frozen=True)
class Grant:
    """What a request was given.

    Attributes:
        number: names it.
        request: what was asked for.
        node: name of the node.
        cards: ids of the cards by vendor, ascending.
        hbm: MB taken of each of these cards, by vendor.
    """

    number: int
    request: Request
    node: str
    cards: Mapping[str, tuple[int, ...]]
    hbm: Mapping[str, int]


@dataclass(frozen=True)
class Shortage:
    """Why a request was not met.

    Attributes:
        reasons: the vendor's words, with the number of nodes that each holds for.
        ever: whether some node could meet it with nothing else on it.
    """

    reasons: Mapping[str, int]
    ever: bool

    @property
    def is_affinity(self) -> bool:
        """Whether it is affinities alone that exclude every node."""
        return self.reasons.keys() == {UNMET_AFFINITY}

    @property
    def text(self) -> str:
        """The reasons as the vendor writes them."""
        lines = [f"\t{count} unit with [{reason}]." for reason, count in self.reasons.items()]
        head = "no available resource that meets the request requirements, The reasons are as follows:"
        return "\n".join((head, *lines))
