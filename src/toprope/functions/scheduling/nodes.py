"""Nodes with their resources, grants, and reasons of shortages; pure.

The types that `scheduling.ledger` and its callers share. The head of a shortage's text, its lines and the names in
`Node.amounts` are openYuanrong's; the advice (`do: ...`) is ours. Tests: tests/functions/test_functions_ledger.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toprope.functions.scheduling.cards import Card
from toprope.functions.scheduling.requests import Request, matches

__all__ = ["UNMET_AFFINITY", "Grant", "Node", "Shortage", "advice"]

_VENDORS = ("NPU", "GPU")

_ROOM = (
    "There is room for it now: its process has not begun in time, or requests that came earlier are served first. "
    "do: a longer schedule_timeout_ms"
)

UNMET_AFFINITY = "Affinity can't be Satisfied"
"""The reason of a node that the affinities of a request exclude."""


@dataclass(frozen=True)
class Node:
    """A host with its resources and labels; a bundle of a resource group is one, too.

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
    """Resources that were granted to a request.

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
    """Reasons why a request was not met.

    Attributes:
        reasons: the vendor's words, with the number of nodes that each holds for.
        ever: whether some node could meet it with nothing else on it.
        advice: the amounts that exceed every node, and what to do; "" if waiting may help.
    """

    reasons: Mapping[str, int]
    ever: bool
    advice: str = ""

    @property
    def is_affinity(self) -> bool:
        """True if affinities alone exclude all nodes."""
        return self.reasons.keys() == {UNMET_AFFINITY}

    @property
    def text(self) -> str:
        """The reasons in the vendor's words; says so if there is no shortage."""
        if not self.reasons:
            return _ROOM
        lines = [f"\t{count} unit with [{reason}]." for reason, count in self.reasons.items()]
        head = "no available resource that meets the request requirements, The reasons are as follows:"
        return "\n".join((head, *lines))

    @property
    def explained(self) -> str:
        """The reasons, with the advice."""
        return f"{self.text}\n{self.advice}" if self.advice else self.text


def advice(request: Request, nodes: Sequence[Node]) -> str:
    """Return the requested amounts that exceed every node, and what to do; "" if there are none."""
    return "\n".join((*_missing_names(request, nodes), *_missing_models(request, nodes), *_too_much(request, nodes)))


def _missing_names(request: Request, nodes: Sequence[Node]) -> Iterator[str]:
    """Named resources that no node has."""
    known = sorted({key for node in nodes for key in node.scalars})
    for key, amount in request.scalars.items():
        if key in known:
            continue
        if key.upper() in _VENDORS:
            yield f'do: {{"{key.upper()}/.+/count": {amount:g}}}; "{key}" alone is a named resource, which no node has'
        elif near := difflib.get_close_matches(key, known, n=1):
            yield f'do: "{near[0]}" instead of "{key}", which no node has'
        else:
            offered = f"{', '.join(known)} or none" if known else "none"
            yield f'do: ask for {offered} of the named resources, or offer "{key}" with Config.custom_resources'


def _missing_models(request: Request, nodes: Sequence[Node]) -> Iterator[str]:
    """Cards of models that no node has."""
    cards = [card for node in nodes for card in node.cards]
    for asked in request.cards:
        there = {card.model for card in cards if card.vendor == asked.vendor}
        if there and not any(matches(asked, card.vendor, card.model) for card in cards):
            yield f"do: {asked.vendor}/{min(there)}/{asked.kind}, or {asked.vendor}/.+/{asked.kind} for any model"


def _too_much(request: Request, nodes: Sequence[Node]) -> Iterator[str]:
    """Return the amounts that exceed the capacity of every node."""
    asked: dict[str, float] = {"CPU": request.cpu, "Memory": request.memory, **request.scalars}
    most = {key: max((node.amounts.get(key, 0) for node in nodes), default=0) for key in asked}
    for each in request.cards:
        fitting = [[card for card in node.cards if matches(each, card.vendor, card.model)] for node in nodes]
        name = f"{each.vendor}/{each.model}"
        if each.count:
            asked[f"{name}/count"], most[f"{name}/count"] = each.whole_cards, max(map(len, fitting), default=0)
        else:
            hbm = max((card.hbm for cards in fitting for card in cards), default=0)
            asked[f"{name}/HBM"], most[f"{name}/HBM"] = each.hbm, hbm
    for key, amount in asked.items():
        if amount > most[key] > 0:
            yield f"{key}: {amount:g} asked for, no node has more than {most[key]:g}. do: ask for {most[key]:g} at most"
