"""Nodes of a Ray cluster as a ledger: capacity, free resources, and reasons of shortages; pure.

The manager and the scheduler on Ray use it, so that rules and messages are those of `scheduling.ledger`. It reads what
`nodes.resource_mapping` has written into resources and labels, and Ray's own names (`accelerator_type:`, `_group_`,
units of memory): both are fixed. Held by tests/functions/test_functions_ray_mapping.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from toprope.functions.ray.nodes.resource_mapping import NODE_ID, PREFIX, PSEUDO_HBM, amounts, label_of, read_label
from toprope.functions.scheduling.cards import Card
from toprope.functions.scheduling.ledger import Ledger, Node, Shortage
from toprope.functions.scheduling.requests import CardRequest, Request, matches

__all__ = [
    "Seen",
    "allowed_nodes",
    "fits",
    "has_bundle_room",
    "node_of",
    "resources_of",
    "selector",
    "shortage",
    "smallest_hbm",
]

_VENDORS = ("NPU", "GPU")
_ACCELERATOR = "accelerator_type:"
_OWN = ("node:", _ACCELERATOR, "bundle_")
_SLACK = 1e-6


@dataclass(frozen=True)
class Seen:
    """A node as Ray reports it.

    Attributes:
        id: Ray's name of it.
        ip: its address.
        total, free: amounts of its resources.
        labels: its labels.
    """

    id: str
    ip: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


def node_of(seen: Seen) -> Node:
    """Return a node with its capacity. Its cards are numbered from 0: Ray does not report their numbers."""
    return Node(
        id=seen.id,
        cpu=_millicores(seen.total),
        memory=_megabytes(seen.total),
        cards=tuple(card for vendor in _VENDORS for card in _cards(seen, vendor)),
        scalars=_scalars(seen.total),
        labels={"NODE_ID": seen.id, "HOST_IP": seen.ip, **_user_labels(seen.labels)},
    )


def shortage(nodes: Iterable[Seen], request: Request, on: Callable[[Node], bool] | None = None) -> Shortage:
    """Return why a request cannot be met now, and whether the idle cluster could meet it."""
    nodes = list(nodes)
    unused = Ledger(node_of(seen) for seen in nodes).shortage(request, on)
    ever = not nodes or unused.ever
    return replace(_ledger(nodes).shortage(request, on), ever=ever, advice="" if ever else unused.advice)


def fits(nodes: Sequence[Seen], request: Request, before: Sequence[Request] = ()) -> bool:
    """True if a request could be met now, after earlier requests."""
    ledger = _ledger(nodes)
    for each in before:
        ledger.ask(each)
    ledger.serve()
    number = ledger.ask(request)
    return any(grant.number == number for grant in ledger.serve())


def charged(nodes: Iterable[Seen], held: Iterable[tuple[str, Mapping[str, float]]]) -> list[Seen]:
    """Return the nodes with the grants of living instances deducted: nodes report grants with a delay.

    Args:
        nodes: as they report themselves.
        held: of each instance the node and the amounts that it holds, by Ray's names.
    """
    taken: dict[str, Counter[str]] = {}
    for node, of_instance in held:
        taken.setdefault(node, Counter()).update(of_instance)  # amounts may be fractions
    return [replace(seen, free=_left(seen, taken.get(seen.id, {}))) for seen in nodes]


def _left(seen: Seen, taken: Mapping[str, float]) -> dict[str, float]:
    return {
        key: min(free, max(0.0, seen.total[key] - taken.get(key, 0))) if key in seen.total else free
        for key, free in seen.free.items()
    }


def has_bundle_room(nodes: Iterable[Seen], request: Request, bundles: Sequence[str]) -> bool:
    """True if one of these bundles of a placement group could meet a request now.

    Args:
        nodes: those of the Ray.
        request: the resources.
        bundles: for each bundle, Ray's suffix of the names of its resources.
    """
    nodes = list(nodes)
    wanted = amounts(request, smallest_hbm(nodes)).bundle()
    return any(
        all(seen.free.get(f"{key}{bundle}", 0) + _SLACK >= amount for key, amount in wanted.items())
        for seen in nodes
        for bundle in bundles
    )


def allowed_nodes(
    nodes: Sequence[Seen], request: Request, on: Callable[[Node], bool] | None = None
) -> list[Seen] | None:
    """Return the nodes for a request, by card model, card memory and affinity; None for all, also later ones.

    A request for cards of any model may go everywhere, also to nodes that come later.
    """
    if on is None and all(each.model == ".+" and not each.hbm for each in request.cards):
        return None
    found = []
    for seen in nodes:
        node = node_of(seen)
        if (on is None or on(node)) and all(_has(node, asked) for asked in request.cards):
            found.append(seen)
    return found


def smallest_hbm(nodes: Sequence[Seen]) -> dict[str, int]:
    """MB of the smallest card of these nodes by vendor."""
    smallest: dict[str, int] = {}
    for seen in nodes:
        for card in node_of(seen).cards:
            smallest[card.vendor] = min(card.hbm, smallest.get(card.vendor, card.hbm))
    return smallest


def resources_of(seen: Seen) -> dict[str, object]:
    """Return a node's entry of `yr.resources`; free cards are those that Ray has not granted, shares included."""
    node = node_of(seen)
    free = replace(node, cpu=_millicores(seen.free), memory=_megabytes(seen.free), scalars=_scalars(seen.free))
    capacity, allocatable = node.amounts, free.amounts
    for vendor in _VENDORS:
        for key in {f"{vendor}/{card.model}" for card in node.cards if card.vendor == vendor}:
            left = round(seen.free.get(vendor, 0), 4)
            allocatable[key] = int(left) if float(left).is_integer() else left
    for key in node.scalars:
        allocatable.setdefault(key, 0)
    return {
        "id": seen.id, "status": 0, "capacity": capacity, "allocatable": allocatable, "labels": dict(node.labels),
    }  # fmt: skip


def _ledger(nodes: Sequence[Seen]) -> Ledger:
    """A ledger in which what is not free is held."""
    ledger = Ledger(node_of(seen) for seen in nodes)
    for seen in nodes:
        node = node_of(seen)
        scalars = {key: max(0, amount - _scalars(seen.free).get(key, 0)) for key, amount in node.scalars.items()}
        cards = []
        for vendor in _VENDORS:
            model = next((card.model for card in node.cards if card.vendor == vendor), None)
            used = seen.total.get(vendor, 0) - seen.free.get(vendor, 0)
            if model is None:
                continue
            if used >= 1:
                cards.append(CardRequest(vendor, re.escape(model), count=int(used + _SLACK)))
            if used % 1 > _SLACK and used % 1 < 1 - _SLACK:
                ledger.hold(seen.id, Request(0, 0, (CardRequest(vendor, re.escape(model), count=used % 1),)))
        cpu, memory = node.cpu - _millicores(seen.free), node.memory - _megabytes(seen.free)
        ledger.hold(seen.id, Request(max(0, cpu), max(0, memory), tuple(cards), scalars))
    return ledger


def _has(node: Node, asked: CardRequest) -> bool:
    return any(matches(asked, card.vendor, card.model) and card.hbm >= asked.hbm for card in node.cards)


def _cards(seen: Seen, vendor: str) -> list[Card]:
    model = read_label(seen.labels.get(f"{label_of(vendor)}-model", "")) or _reported_model(seen, vendor)
    hbm = int(seen.labels.get(f"{label_of(vendor)}-hbm", "0")) or PSEUDO_HBM
    return [Card(number, vendor, model, hbm) for number in range(int(seen.total.get(vendor, 0)))]


def _reported_model(seen: Seen, vendor: str) -> str:
    """Return the card model of a node that toprope has not started: the one that Ray has found, if any."""
    for key in seen.total:
        if key.startswith(_ACCELERATOR) and key.removeprefix(_ACCELERATOR).startswith("Ascend") == (vendor == "NPU"):
            return key.removeprefix(_ACCELERATOR)
    return "Ascend" if vendor == "NPU" else vendor


def _millicores(amounts: Mapping[str, float]) -> int:
    return round(amounts.get("CPU", 0) * 1000)


def _megabytes(amounts: Mapping[str, float]) -> int:
    return int(amounts.get("memory", 0) / 2**20)


def _scalars(amounts: Mapping[str, float]) -> dict[str, float]:
    own = {"CPU", "memory", "object_store_memory", *_VENDORS}
    return {
        key.removeprefix("toprope:"): amount
        for key, amount in amounts.items()
        if key not in own and not key.startswith(_OWN) and "_group_" not in key
    }


def _user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value for key, value in labels.items() if not key.startswith((PREFIX, NODE_ID.partition("/")[0] + "/"))
    }


def selector(nodes: Sequence[Seen]) -> dict[str, str]:
    """Return the label selector for one of these nodes; without nodes, one that never matches."""
    if not nodes:
        return {f"{PREFIX}no-such": "node"}
    return {NODE_ID: f"in({','.join(seen.id for seen in nodes)})"}
