"""Who holds which cards, cores and memory: granting, waiting in turn, giving back; pure.

A request waits in the order of arrival. One that fits goes before an earlier one only where it takes nothing that the
earlier one is short of, so that no request starves behind smaller ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from toprope.functions.resources import CardRequest, Request, matches

__all__ = ["Card", "Grant", "Ledger", "Node", "Shortage"]

STREAMS = 110
"""Streams of a card that requests for a share of it by memory may take together."""

_EVERY_CARD = "card count"


@dataclass(frozen=True, slots=True)
class Card:
    """A card of a node.

    Attributes:
        id: what the mask of visible cards calls it.
        vendor: "NPU" or "GPU".
        model: as the node's tools call it, such as "910B4".
        hbm: MB of its memory; 0 where not known.
        healthy: a card that is not gets no work.
    """

    id: int
    vendor: str
    model: str
    hbm: int = 0
    healthy: bool = True


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
    def text(self) -> str:
        """The reasons as the vendor writes them."""
        lines = [f"\t{count} unit with [{reason}]." for reason, count in self.reasons.items()]
        head = "no available resource that meets the request requirements, The reasons are as follows:"
        return "\n".join((head, *lines))


@dataclass
class _Use:
    """What is taken of a card."""

    whole: int | None = None  # number of the grant that has it all
    hbm: int = 0
    stream: int = 0
    latency: int = 0
    sharers: int = 0


@dataclass
class _Pool:
    node: Node
    cpu: int
    memory: int
    scalars: dict[str, float]
    use: dict[tuple[str, int], _Use]


class Ledger:
    """The resources of nodes, and who holds them. Not for several threads at once: its owner has a lock."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._pools: dict[str, _Pool] = {}
        self._grants: dict[int, Grant] = {}
        self._waiting: dict[int, tuple[Request, Callable[[Node], bool] | None]] = {}
        self._numbers = itertools.count(1)
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """A node joins, or what is known of it changed; what is held of it stays held."""
        former = self._pools.get(node.id)
        use = {} if former is None else former.use
        for card in node.cards:
            use.setdefault((card.vendor, card.id), _Use())
        if former is None:
            self._pools[node.id] = _Pool(node, node.cpu, node.memory, dict(node.scalars), use)
            return
        former.cpu += node.cpu - former.node.cpu
        former.memory += node.memory - former.node.memory
        for key in {*node.scalars, *former.node.scalars}:
            change = node.scalars.get(key, 0) - former.node.scalars.get(key, 0)
            former.scalars[key] = former.scalars.get(key, 0) + change
        former.node = node

    def remove(self, node: str) -> tuple[Grant, ...]:
        """A node leaves; what was granted on it is void and is returned."""
        self._pools.pop(node, None)
        gone = tuple(grant for grant in self._grants.values() if grant.node == node)
        for grant in gone:
            del self._grants[grant.number]
        return gone

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes as they are."""
        return tuple(pool.node for pool in self._pools.values())

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What is held now."""
        return tuple(self._grants.values())

    def free(self, node: str) -> Node:
        """What is free of a node: cores, memory, named amounts, and the cards that nobody holds any of."""
        pool = self._pools[node]
        unused = tuple(card for card in pool.node.cards if not self._is_used(pool, card) and card.healthy)
        return replace(pool.node, cpu=pool.cpu, memory=pool.memory, cards=unused, scalars=dict(pool.scalars))

    def ask(self, request: Request, on: Callable[[Node], bool] | None = None) -> int:
        """Queue a request; `serve` grants it in its turn.

        Args:
            request: what is asked for.
            on: which nodes may meet it; None for all.

        Returns:
            The number that `serve` grants it by.
        """
        number = next(self._numbers)
        self._waiting[number] = request, on
        return number

    def withdraw(self, number: int) -> None:
        """The request is waited for no longer."""
        self._waiting.pop(number, None)

    def serve(self) -> tuple[Grant, ...]:
        """Grant what can be granted now, in turn."""
        granted = []
        short: dict[str, set[str]] = {}  # by node, what an earlier request waits for there
        for number, (request, on) in list(self._waiting.items()):
            grant = self._grant(number, request, on, short)
            if grant is not None:
                del self._waiting[number]
                self._grants[number] = grant
                granted.append(grant)
                continue
            for pool in self._pools.values():
                if (on is None or on(pool.node)) and self._could_ever(pool, request):
                    short.setdefault(pool.node.id, set()).update(self._lacking(pool, request))
        return tuple(granted)

    def release(self, number: int) -> None:
        """Give back what a grant holds; a second time does nothing."""
        grant = self._grants.pop(number, None)
        pool = self._pools.get(grant.node) if grant is not None else None
        if grant is None or pool is None:
            return
        pool.cpu += grant.request.cpu
        pool.memory += grant.request.memory
        for key, amount in grant.request.scalars.items():
            pool.scalars[key] += amount
        for asked in grant.request.cards:
            for id in grant.cards[asked.vendor]:
                use = pool.use[asked.vendor, id]
                if use.whole == number:
                    use.whole = None
                else:
                    use.hbm -= grant.hbm[asked.vendor]
                    use.stream -= asked.stream
                    use.latency -= asked.latency
                    use.sharers -= 1

    def shortage(self, request: Request, on: Callable[[Node], bool] | None = None) -> Shortage:
        """Why a request cannot be met now. The models that there are are named where the model is what is wrong."""
        reasons: dict[str, int] = {}
        for pool in self._pools.values():
            if on is not None and not on(pool.node):
                reason = "Affinity can't be Satisfied"
            else:
                reason = ", ".join(self._reasons(pool, request))
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
        if not self._pools:
            reasons["No Resource In Cluster"] = 1
        ever = any((on is None or on(pool.node)) and self._could_ever(pool, request) for pool in self._pools.values())
        return Shortage(reasons, ever)

    def _grant(
        self, number: int, request: Request, on: Callable[[Node], bool] | None, short: Mapping[str, set[str]]
    ) -> Grant | None:
        for pool in self._pools.values():
            if on is not None and not on(pool.node):
                continue
            if self._lacking(pool, request) or short.get(pool.node.id, set()) & _wants(request):
                continue
            cards: dict[str, tuple[int, ...]] = {}
            hbm: dict[str, int] = {}
            for asked in request.cards:
                chosen, taken = _choose(pool, asked)
                cards[asked.vendor] = tuple(sorted(card.id for card in chosen))
                hbm[asked.vendor] = taken
                for card in chosen:
                    use = pool.use[card.vendor, card.id]
                    if asked.whole_cards:
                        use.whole = number
                    else:
                        use.hbm += taken
                        use.stream += asked.stream
                        use.latency += asked.latency
                        use.sharers += 1
            pool.cpu -= request.cpu
            pool.memory -= request.memory
            for key, amount in request.scalars.items():
                pool.scalars[key] -= amount
            return Grant(number, request, pool.node.id, cards, hbm)
        return None

    def _lacking(self, pool: _Pool, request: Request) -> set[str]:
        """The resources of a node that a request is short of."""
        lacking = {key for key, amount in request.scalars.items() if pool.scalars.get(key, 0) < amount}
        if pool.cpu < request.cpu:
            lacking.add("CPU")
        if pool.memory < request.memory:
            lacking.add("Memory")
        for asked in request.cards:
            if not _choose(pool, asked)[0]:
                lacking.add(f"{asked.vendor} {_EVERY_CARD}")
        return lacking

    def _reasons(self, pool: _Pool, request: Request) -> list[str]:
        reasons = []
        for key, amount in request.scalars.items():
            if key not in pool.scalars:
                reasons.append(f"{key}: Not Found")
            elif pool.scalars[key] < amount:
                reasons.append(f"{key}: Not Enough")
        if pool.cpu < request.cpu:
            reasons.append("CPU: Not Enough")
        if pool.memory < request.memory:
            reasons.append("Memory: Not Enough")
        for asked in request.cards:
            if not _choose(pool, asked)[0]:
                reasons.append(_card_reason(pool, asked))
        return reasons

    def _could_ever(self, pool: _Pool, request: Request) -> bool:
        """Whether the node could meet the request with nothing else on it."""
        unused = {key: _Use() for key in pool.use}
        empty = _Pool(pool.node, pool.node.cpu, pool.node.memory, dict(pool.node.scalars), unused)
        return not self._lacking(empty, request)

    @staticmethod
    def _is_used(pool: _Pool, card: Card) -> bool:
        use = pool.use[card.vendor, card.id]
        return use.whole is not None or use.sharers > 0


def _wants(request: Request) -> set[str]:
    """The resources that a request takes some of, by the names that `_lacking` gives them."""
    wants = {key for key, amount in request.scalars.items() if amount}
    wants |= {"CPU"} if request.cpu else set()
    wants |= {"Memory"} if request.memory else set()
    return wants | {f"{asked.vendor} {_EVERY_CARD}" for asked in request.cards}


def _suitable(pool: _Pool, asked: CardRequest) -> list[Card]:
    """The healthy cards of the first model of the node that matches, lowest id first."""
    fitting = [card for card in pool.node.cards if matches(asked, card.vendor, card.model)]
    model = fitting[0].model if fitting else ""
    return sorted((card for card in fitting if card.model == model and card.healthy), key=lambda card: card.id)


def _choose(pool: _Pool, asked: CardRequest) -> tuple[list[Card], int]:
    """The cards for a request, and the MB of memory that it takes of each; none where it does not fit."""
    cards = _suitable(pool, asked)
    use = {card.id: pool.use[card.vendor, card.id] for card in cards}
    if asked.whole_cards:
        free = [card for card in cards if use[card.id].whole is None and not use[card.id].sharers]
        return (free[: asked.whole_cards], 0) if len(free) >= asked.whole_cards else ([], 0)
    shared = [card for card in cards if use[card.id].whole is None]
    if asked.count:
        # the card that is already shared first, so that whole ones stay free
        for card in sorted(shared, key=lambda card: (not use[card.id].sharers, card.id)):
            taken = int(card.hbm * asked.count)
            if taken and use[card.id].hbm + taken <= card.hbm:
                return [card], taken
        return [], 0
    fitting = [
        card
        for card in shared
        if use[card.id].hbm + asked.hbm <= card.hbm and use[card.id].stream + asked.stream <= STREAMS
    ]
    best = min(fitting, key=lambda card: (use[card.id].latency, card.hbm - use[card.id].hbm, card.id), default=None)
    return ([], 0) if best is None else ([best], asked.hbm)


def _card_reason(pool: _Pool, asked: CardRequest) -> str:
    known = sorted({f"{card.vendor}/{card.model}" for card in pool.node.cards})
    if not any(matches(asked, card.vendor, card.model) for card in pool.node.cards):
        there = f" (there are {', '.join(known)})" if known else " (no card was found on the node)"
        return ("Card Type Not Found" if asked.count else "Card Type: Not Found") + there
    cards = _suitable(pool, asked)
    if 0 < asked.count < 1 and cards and not any(card.hbm for card in cards):
        return f"specified card quantity {asked.count} must be a whole number"
    return "card count: Not Enough" if asked.count else "HBM: Not Enough"
