"""Who holds which cards, cores and memory: granting, waiting in turn, giving back; pure.

Requests are met in the order of arrival. One that fits goes before earlier ones that could be met some day only where
it takes nothing that they are short of, and makes them short of nothing more: what an earlier request lacks only gets
less, so that none starves behind smaller ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from toprope.functions.cards import Card, Use, card_reason, choose
from toprope.functions.resources import Request

__all__ = ["Card", "Grant", "Ledger", "Node", "Shortage"]

_EVERY_CARD = "card count"
_DIGITS = 9  # of an amount: sums of fractions come back to what they were


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


_Filter = Callable[[Node], bool] | None
"""Which nodes may meet a request; None for all."""


@dataclass
class _Pool:
    node: Node
    cpu: int
    memory: int
    scalars: dict[str, float]
    use: dict[tuple[str, int], Use]


class Ledger:
    """The resources of nodes, and who holds them. Not for several threads at once: its owner has a lock."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._pools: dict[str, _Pool] = {}
        self._grants: dict[int, Grant] = {}
        self._waiting: dict[int, tuple[Request, _Filter]] = {}
        self._paused: set[int] = set()
        self._numbers = itertools.count(1)
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """A node joins, or what is known of it changed; what is held of it stays held."""
        former = self._pools.get(node.id)
        use = {} if former is None else former.use
        for card in node.cards:
            use.setdefault((card.vendor, card.id), Use())
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
            self._paused.discard(grant.number)
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
        unused = tuple(card for card in pool.node.cards if card.healthy and not pool.use[card.vendor, card.id].is_used)
        return replace(pool.node, cpu=max(0, pool.cpu), memory=pool.memory, cards=unused, scalars=dict(pool.scalars))

    def ask(self, request: Request, on: _Filter = None) -> int:
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
        earlier: list[tuple[Request, _Filter]] = []  # those that wait on, and could be met some day
        failed: set[tuple[int, int]] = set()  # a request like one that has just not been met is not met either
        for number, (request, on) in list(self._waiting.items()):
            if (id(request), id(on)) in failed:
                continue
            grant = self._grant(number, request, on, earlier)
            if grant is not None:
                del self._waiting[number]
                self._grants[number] = grant
                granted.append(grant)
                continue
            failed.add((id(request), id(on)))
            if any(self._may_ever(pool, request, on) for pool in self._pools.values()):
                earlier.append((request, on))
        return tuple(granted)

    def pause(self, number: int) -> None:
        """Who holds a grant does nothing but wait for others: they may have its cores meanwhile."""
        grant = self._grants.get(number)
        if grant is not None and number not in self._paused and grant.node in self._pools:
            self._paused.add(number)
            self._pools[grant.node].cpu += grant.request.cpu

    def resume(self, number: int) -> None:
        """Who holds a grant works on. Where others have its cores now, more are in use than there are, for a while."""
        if number in self._paused:
            self._paused.discard(number)
            self._pools[self._grants[number].node].cpu -= self._grants[number].request.cpu

    def release(self, number: int) -> None:
        """Give back what a grant holds; a second time does nothing."""
        grant = self._grants.pop(number, None)
        pool = self._pools.get(grant.node) if grant is not None else None
        if grant is None or pool is None:
            return
        if number in self._paused:
            self._paused.discard(number)
            pool.cpu -= grant.request.cpu  # it was given back before
        self._give(pool, grant)

    def shortage(self, request: Request, on: _Filter = None) -> Shortage:
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
        ever = any(self._may_ever(pool, request, on) for pool in self._pools.values())
        return Shortage(reasons, ever)

    def _grant(
        self, number: int, request: Request, on: _Filter, earlier: Sequence[tuple[Request, _Filter]]
    ) -> Grant | None:
        for pool in self._pools.values():
            if (on is not None and not on(pool.node)) or self._lacking(pool, request):
                continue
            before = [
                (other, self._lacking(pool, other)) for other, where in earlier if self._may_ever(pool, other, where)
            ]
            if any(lacks & _wants(request) for _, lacks in before):
                continue
            grant = self._take(pool, number, request)
            if all(self._lacking(pool, other) <= lacks for other, lacks in before):
                return grant
            self._give(pool, grant)
        return None

    def _take(self, pool: _Pool, number: int, request: Request) -> Grant:
        cards: dict[str, tuple[int, ...]] = {}
        hbm: dict[str, int] = {}
        for asked in request.cards:
            chosen, taken = choose(pool.node.cards, pool.use, asked)
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
            pool.scalars[key] = round(pool.scalars[key] - amount, _DIGITS)
        return Grant(number, request, pool.node.id, cards, hbm)

    @staticmethod
    def _give(pool: _Pool, grant: Grant) -> None:
        pool.cpu += grant.request.cpu
        pool.memory += grant.request.memory
        for key, amount in grant.request.scalars.items():
            pool.scalars[key] = round(pool.scalars[key] + amount, _DIGITS)
        for asked in grant.request.cards:
            for id in grant.cards[asked.vendor]:
                use = pool.use[asked.vendor, id]
                if use.whole == grant.number:
                    use.whole = None
                else:
                    use.hbm -= grant.hbm[asked.vendor]
                    use.stream -= asked.stream
                    use.latency -= asked.latency
                    use.sharers -= 1

    def _lacking(self, pool: _Pool, request: Request) -> set[str]:
        """The resources of a node that a request is short of."""
        lacking = {key for key, amount in request.scalars.items() if pool.scalars.get(key, 0) < amount}
        if pool.cpu < request.cpu:
            lacking.add("CPU")
        if pool.memory < request.memory:
            lacking.add("Memory")
        for asked in request.cards:
            if not choose(pool.node.cards, pool.use, asked)[0]:
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
            if not choose(pool.node.cards, pool.use, asked)[0]:
                reasons.append(card_reason(pool.node.cards, asked))
        return reasons

    def _could_ever(self, pool: _Pool, request: Request) -> bool:
        """Whether the node could meet the request with nothing else on it."""
        unused = {key: Use() for key in pool.use}
        empty = _Pool(pool.node, pool.node.cpu, pool.node.memory, dict(pool.node.scalars), unused)
        return not self._lacking(empty, request)

    def _may_ever(self, pool: _Pool, request: Request, on: _Filter) -> bool:
        return (on is None or on(pool.node)) and self._could_ever(pool, request)


def _wants(request: Request) -> set[str]:
    """The resources that a request takes some of, by the names that `_lacking` gives them."""
    wants = {key for key, amount in request.scalars.items() if amount}
    wants |= {"CPU"} if request.cpu else set()
    wants |= {"Memory"} if request.memory else set()
    return wants | {f"{asked.vendor} {_EVERY_CARD}" for asked in request.cards}
