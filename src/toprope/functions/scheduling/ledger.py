"""Ledger of cards, cores and memory: grants, a fair queue of requests, and releases; pure.

A local session and each of its resource groups have one; on Ray it only answers questions (`ray.nodes.cluster_view`).
Requests are met in the order of arrival. One that fits goes before earlier ones that could be met some day only if it
takes nothing that they are short of, and makes them short of nothing more: what an earlier request lacks only gets
less, so that none starves behind smaller ones. This order is ours; the words of shortages are openYuanrong's. The
caller locks. tests/functions/test_functions_ledger.py holds this, tests/functions/test_functions_groups.py what is
granted together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from toprope.functions.scheduling.cards import Card, Share, Use, card_reason, choose
from toprope.functions.scheduling.nodes import UNMET_AFFINITY, Grant, Node, Shortage, advice
from toprope.functions.scheduling.requests import Request
from toprope.functions.scheduling.strategies import arrange

__all__ = ["Card", "Grant", "Ledger", "Node", "Shortage"]

_EVERY_CARD = "card count"
_DIGITS = 9  # of an amount: sums of fractions come back to what they were


_Filter = Callable[[Node], bool] | None
"""Filter of the nodes for a request; None for all."""

_Rank = Callable[[Node], tuple[int, ...]] | None
"""Rank of the nodes for a request, the smallest best; None if all are equal."""


@dataclass(frozen=True)
class _Asked:
    """A queued request, or several that are granted together, `each` consecutive ones on one node."""

    numbers: tuple[int, ...]
    requests: tuple[Request, ...]
    on: tuple[_Filter, ...]
    rank: _Rank = None
    strategy: str = ""
    each: int = 1


@dataclass
class _Pool:
    node: Node
    cpu: int
    memory: int
    scalars: dict[str, float]
    use: dict[tuple[str, int], Use]
    held: list[Request] = field(default_factory=list)


class Ledger:
    """Resources of nodes and their grants. Not thread-safe: its owner holds a lock."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._pools: dict[str, _Pool] = {}
        self._grants: dict[int, Grant] = {}
        self._waiting: dict[int, _Asked] = {}
        self._paused: set[int] = set()
        self._numbers = itertools.count(1)
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Add or update a node; its grants stay valid."""
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
        """Remove a node. Return its grants, which are void now."""
        self._pools.pop(node, None)
        gone = tuple(grant for grant in self._grants.values() if grant.node == node)
        for grant in gone:
            del self._grants[grant.number]
            self._paused.discard(grant.number)
        return gone

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes."""
        return tuple(pool.node for pool in self._pools.values())

    @property
    def grants(self) -> tuple[Grant, ...]:
        """All current grants."""
        return tuple(self._grants.values())

    def free(self, node: str) -> Node:
        """Return the free part of a node: cores, memory, named amounts, and the cards without any holder."""
        pool = self._pools[node]
        unused = tuple(card for card in pool.node.cards if card.healthy and not pool.use[card.vendor, card.id].is_used)
        return replace(pool.node, cpu=max(0, pool.cpu), memory=pool.memory, cards=unused, scalars=dict(pool.scalars))

    @property
    def is_waited_for(self) -> bool:
        """True while a request is queued."""
        return bool(self._waiting)

    def shares(self, node: str) -> dict[tuple[str, int], Share]:
        """Return the held parts of a node's cards by vendor and id; free cards are left out."""
        pool = self._pools.get(node)
        held = {} if pool is None else {key: use.own for key, use in pool.use.items()}
        return {key: own for key, own in held.items() if own.wholes or own.sharers}

    def held_elsewhere(self, node: str, shares: Mapping[tuple[str, int], Share]) -> None:
        """Set the parts of a node's cards that other programs hold."""
        pool = self._pools.get(node)
        for key, use in () if pool is None else pool.use.items():
            use.share_with(shares.get(key, Share()))

    def ask(self, request: Request, on: _Filter = None, rank: _Rank = None) -> int:
        """Queue a request; `serve` grants it in its turn.

        Args:
            request: the resources.
            on: filter of the nodes; None for all.
            rank: preference among the nodes.

        Returns:
            The number of the grant that `serve` makes.
        """
        number = next(self._numbers)
        self._waiting[number] = _Asked((number,), (request,), (on,), rank)
        return number

    def ask_together(
        self, requests: Sequence[Request], strategy: str = "", on: Sequence[_Filter] = (), each: int = 1
    ) -> tuple[int, ...]:
        """Queue requests that `serve` grants all at once in their turn, or none.

        Args:
            requests: the resources of each.
            strategy: how they lie on nodes, of `toprope.functions.scheduling.strategies`.
            on: for each, the filter of its nodes; empty for all nodes.
            each: number of consecutive requests that share a node.

        Returns:
            The numbers of the grants that `serve` makes.
        """
        numbers = tuple(next(self._numbers) for _ in requests)
        filters = tuple(on) or (None,) * len(numbers)
        self._waiting[numbers[0]] = _Asked(numbers, tuple(requests), filters, None, strategy, each)
        return numbers

    def withdraw(self, number: int) -> None:
        """Cancel a queued request, and those that were to be granted with it."""
        if self._waiting.pop(number, None) is None:
            first = next((key for key, asked in self._waiting.items() if number in asked.numbers), None)
            self._waiting.pop(first or 0, None)

    def hold(self, node: str, request: Request) -> None:
        """Reserve a part of a node for ever. It must fit."""
        pool = self._pools[node]
        pool.held.append(request)
        self._take(pool, 0, request)

    def could_ever(self, number: int) -> bool:
        """True if a queued request, with those granted together with it, would fit on idle nodes."""
        asked = self._waiting[number]
        return self._place(asked, [self._unused(pool) for pool in self._pools.values()], ()) is not None

    def serve(self) -> tuple[Grant, ...]:
        """Grant what can be granted now, in turn."""
        granted: list[Grant] = []
        earlier: list[_Asked] = []  # those that wait on, and could be met some day
        failed: set[tuple[int, int]] = set()  # a request like one that has just not been met is not met either
        for number, asked in list(self._waiting.items()):
            single = len(asked.requests) == 1
            if single and (id(asked.requests[0]), id(asked.on[0])) in failed:
                continue
            grants = self._place(asked, list(self._pools.values()), earlier)
            if grants is not None:
                del self._waiting[number]
                self._grants.update((grant.number, grant) for grant in grants)
                granted += grants
                continue
            if single:
                failed.add((id(asked.requests[0]), id(asked.on[0])))
            if self.could_ever(number):
                earlier.append(asked)
        return tuple(granted)

    def pause(self, number: int) -> None:
        """Lend the cores of a grant: its holder only waits for others."""
        grant = self._grants.get(number)
        if grant is not None and number not in self._paused and grant.node in self._pools:
            self._paused.add(number)
            self._pools[grant.node].cpu += grant.request.cpu

    def resume(self, number: int) -> None:
        """Take back the lent cores of a grant. If others use them, more cores than exist are in use for a while."""
        if number in self._paused:
            self._paused.discard(number)
            self._pools[self._grants[number].node].cpu -= self._grants[number].request.cpu

    def release(self, number: int) -> None:
        """Release a grant; a second call does nothing."""
        grant = self._grants.pop(number, None)
        pool = self._pools.get(grant.node) if grant is not None else None
        if grant is None or pool is None:
            return
        if number in self._paused:
            self._paused.discard(number)
            pool.cpu -= grant.request.cpu  # it was given back before
        self._put_back(pool, grant)

    def shortage(self, request: Request, on: _Filter = None) -> Shortage:
        """Return why a request cannot be met now. For an unknown card model, the existing models are named."""
        reasons: dict[str, int] = {}
        for pool in self._pools.values():
            excluded = on is not None and not on(pool.node)
            reason = UNMET_AFFINITY if excluded else ", ".join(self._reasons(pool, request))
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
        if not self._pools:
            reasons["No Resource In Cluster"] = 1
        ever = any(self._may_ever(pool, request, on) for pool in self._pools.values())
        return Shortage(reasons, ever, "" if ever else advice(request, self.nodes))

    def _place(self, asked: _Asked, pools: list[_Pool], earlier: Sequence[_Asked]) -> list[Grant] | None:
        """Take a request's resources from nodes, unless that delays an earlier request."""
        if asked.rank is not None:
            pools = sorted(pools, key=lambda pool: asked.rank(pool.node))  # type: ignore[misc]
        by_name = {pool.node.id: pool for pool in pools}
        taken: dict[int, list[Grant]] = {}

        def take(index: int, name: str) -> bool:
            pool = by_name[name]
            grants: list[Grant] = []
            for place in range(index * asked.each, (index + 1) * asked.each):
                grant = self._take_behind(pool, asked.numbers[place], asked.requests[place], asked.on[place], earlier)
                if grant is None:
                    for each in grants:
                        self._put_back(pool, each)
                    return False
                grants.append(grant)
            taken[index] = grants
            return True

        def give_back(index: int, name: str) -> None:
            for grant in taken.pop(index):
                self._put_back(by_name[name], grant)

        if arrange(len(asked.requests) // asked.each, asked.strategy, list(by_name), take, give_back) is None:
            return None
        return [grant for index in sorted(taken) for grant in taken[index]]

    def _take_behind(
        self, pool: _Pool, number: int, request: Request, on: _Filter, earlier: Sequence[_Asked]
    ) -> Grant | None:
        if (on is not None and not on(pool.node)) or self._lacking(pool, request):
            return None
        before = [(other, self._lacking_for_all(pool, other)) for other in earlier]
        if any(lacks & _requested_names(request) for _, lacks in before):
            return None
        grant = self._take(pool, number, request)
        if all(self._lacking_for_all(pool, other) <= lacks for other, lacks in before):
            return grant
        self._put_back(pool, grant)
        return None

    def _lacking_for_all(self, pool: _Pool, asked: _Asked) -> set[str]:
        """Return the resources that a node lacks for as many of the requests as it could ever meet, in order."""
        lacks: set[str] = set()
        taken = []
        for number, request, on in zip(asked.numbers, asked.requests, asked.on, strict=True):
            if self._may_ever(pool, request, on):
                lacking = self._lacking(pool, request)
                lacks |= lacking
                if not lacking and len(asked.requests) > 1:
                    taken.append(self._take(pool, number, request))
        for grant in taken:
            self._put_back(pool, grant)
        return lacks

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
    def _put_back(pool: _Pool, grant: Grant) -> None:
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

    def _unused(self, pool: _Pool) -> _Pool:
        """Return a node without its grants."""
        node = pool.node
        unused = _Pool(node, node.cpu, node.memory, dict(node.scalars), {key: Use() for key in pool.use})
        for request in pool.held:
            self._take(unused, 0, request)
        return unused

    def _may_ever(self, pool: _Pool, request: Request, on: _Filter) -> bool:
        """True if an idle node could meet a request."""
        return (on is None or on(pool.node)) and not self._lacking(self._unused(pool), request)


def _requested_names(request: Request) -> set[str]:
    """The resources that a request takes some of, by the names that `_lacking` gives them."""
    wants = {key for key, amount in request.scalars.items() if amount}
    wants |= {"CPU"} if request.cpu else set()
    wants |= {"Memory"} if request.memory else set()
    return wants | {f"{asked.vendor} {_EVERY_CARD}" for asked in request.cards}
