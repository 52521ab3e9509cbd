"""Decide if a program can be stuck when exactly some operators have finished; pure.

The core of the exact tests: `proof.exact`, `exact_solver` and `bursts` ask it about single cuts, a number of finished
operators for each stream. Any finished operators can have run one after the other on empty cards. What is left is to
choose who holds how many cores: under D0, D1 and D2 any choice that leaves nobody able to go on can be reached by
handing out cores in the right order, so that no interleavings need to be explored (the stuck-cut theorem,
docs/core_proof.md: code and page change together). Under D0b a card hands out all that an operator can use at once, and
only what one such order on empty cards leads to is looked at here. Tests: tests/cores/test_cores_exact.py,
tests/cores/test_cores_bounds.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from toprope.cores.model import Cores, Discipline, Op
from toprope.cores.order import Graph
from toprope.cores.state import State

__all__ = ["Cuts"]

Held = dict[int, int]
"""Blocks held, by operator."""

Choice = tuple[int, Held, frozenset[int]]
"""A way to be stuck on a card: how many operators have some but not all of their cores, who holds what, and which
collectives, whose members are all active, lack a member's cores there."""

MANY_ORDERS = 2000
"""Moments of one card that a search over the orders of D0b looks at; it is for witnesses only and may miss some."""


class Cuts:
    """The cuts of a program: how many operators of each stream have finished."""

    def __init__(self, graph: Graph, discipline: Discipline) -> None:
        """The cuts of a graph without circular waits, under a discipline."""
        self.graph = graph
        self.discipline = discipline
        program = graph.program
        self.ops: list[Op] = [op for _, op in program.ops()]
        self.need: list[Cores] = [op.need for op in self.ops]
        self.block: list[Cores] = [op.block for op in self.ops]
        self.blocks = [op.needed_blocks for op in self.ops]
        self.alone = [group < 0 for group in graph.group]
        cards = {card.name: number for number, card in enumerate(program.cards)}
        self.card_of_stream = [cards[stream.card] for stream in program.streams]
        self.card = [self.card_of_stream[stream] for stream, _ in graph.ids]
        self.cores = [card.cores for card in program.cards]

    def active(self, done: Sequence[int]) -> list[int]:
        """The heads of the streams whose predecessors have all finished."""
        graph, ids = self.graph, self.graph.ids
        heads = (graph.first[stream] + place for stream, place in enumerate(done))
        return [
            op
            for stream, op in enumerate(heads)
            if op < graph.first[stream + 1] and all(ids[each][1] < done[ids[each][0]] for each in graph.before[op])
        ]

    def stuck(self, done: Sequence[int]) -> State | None:
        """A moment in which nothing can go on and these have finished; None when there is none."""
        active = self.active(done)
        if not active or any(self.alone[op] and not self.blocks[op] for op in active):
            return None
        by_card: dict[int, list[int]] = {}
        for op in active:
            by_card.setdefault(self.card[op], []).append(op)
        ready = self._ready(active)
        choices: list[list[Choice]] = []
        for card, ops in by_card.items():
            found = self._choices(card, ops, ready)
            if not found:
                return None
            choices.append(found)
        chosen = _choose(choices, frozenset(ready))
        if chosen is None:
            return None
        held = [0] * len(done)
        for op, blocks in chosen.items():
            held[self.graph.ids[op][0]] = blocks
        return State(self.graph.program, tuple(done), tuple(held))

    def _ready(self, active: list[int]) -> set[int]:
        """The collectives that finish once all of their members have their cores."""
        group, members = self.graph.group, self.graph.members
        at_head: dict[int, int] = {}
        for op in active:
            if group[op] >= 0:
                at_head[group[op]] = at_head.get(group[op], 0) + 1
        return {each for each, count in at_head.items() if count == len(members[each]) and self._complete(each)}

    def _complete(self, group: int) -> bool:
        return not self.graph.incomplete[group]

    def _choices(self, card: int, ops: list[int], ready: set[int]) -> list[Choice]:
        """Ways to be stuck on a card; of those that leave the same collectives without cores, the easiest to follow."""
        best: dict[frozenset[int], tuple[int, Held]] = {}
        for held in self._stuck_on(card, ops):
            lacking = frozenset(
                group for op in ops if (group := self.graph.group[op]) in ready and held.get(op, 0) < self.blocks[op]
            )
            partial = sum(1 for op, blocks in held.items() if 0 < blocks < self.blocks[op])
            if lacking not in best or partial < best[lacking][0]:
                best[lacking] = partial, held
        return [(partial, held, lacking) for lacking, (partial, held) in best.items()]

    def _stuck_on(self, card: int, ops: list[int]) -> Iterator[Held]:
        """Ways to hold cores of a card so that no operator that waits for cores can get them."""
        if self.discipline is Discipline.D0B:
            yield from self._bursts(card, ops)
            return
        forced = [op for op in ops if not self.blocks[op]]
        may = [op for op in ops if not self.alone[op] and self.blocks[op]]
        for count in range(len(may) + 1):
            for full in combinations(may, count):
                idle = self._idle(card, {op: self.blocks[op] for op in full})
                if min(idle) < 0:
                    continue
                waiting = [op for op in ops if op not in full and op not in forced]
                more = self._waiting(waiting, idle)
                if more is not None:
                    yield {op: self.blocks[op] for op in full} | more

    def _idle(self, card: int, held: Held) -> Cores:
        cube, vector = self.cores[card]
        for op, blocks in held.items():
            cube, vector = cube - blocks * self.block[op][0], vector - blocks * self.block[op][1]
        return cube, vector

    def _waiting(self, waiting: list[int], idle: Cores) -> Held | None:
        """Shares of the idle cores with which none of those that wait goes on; None when one always does."""
        if self.discipline is Discipline.D0:
            return self._share(waiting, idle)
        fits = [_blocks_that_fit(self.need[op], idle) > 0 for op in waiting]
        stuck = not any(fits) if self.discipline is Discipline.D2 else not (fits and all(fits))
        return {} if stuck else None

    def _share(self, waiting: list[int], idle: Cores) -> Held | None:
        """Hand out single blocks, each operator lacking one at the end, so that no further block fits."""
        waiting = sorted(waiting, key=lambda op: not self.alone[op])
        mixed = [op for op in waiting if all(self.block[op])]
        single = [op for op in waiting if not all(self.block[op])]
        seen: set[tuple[int, Cores]] = set()

        def share(number: int, idle: Cores) -> Held | None:
            if (number, idle) in seen:
                return None
            seen.add((number, idle))
            if number == len(mixed):
                return self._share_single(single, mixed, idle)
            op = mixed[number]
            for blocks in range(min(self.blocks[op] - 1, _blocks_that_fit(self.block[op], idle)), -1, -1):
                found = share(number + 1, _idle_without(idle, self.block[op], blocks))
                if found is not None:
                    return {op: blocks} | found
            return None

        return share(0, idle)

    def _share_single(self, single: list[int], mixed: list[int], idle: Cores) -> Held | None:
        held: Held = {}
        for op in single:
            held[op] = min(self.blocks[op] - 1, _blocks_that_fit(self.block[op], idle))
            idle = _idle_without(idle, self.block[op], held[op])
        stuck = not any(_blocks_that_fit(self.block[op], idle) for op in (*single, *mixed))
        return held if stuck else None

    def _bursts(self, card: int, ops: list[int]) -> Iterator[Held]:
        """The ends of all orders of handing out, each operator all that fits at once; no operator that is alone may get
        all of its blocks, for then it goes on."""
        seen: set[tuple[tuple[int, int], ...]] = set()
        queue: list[Held] = [{}]
        for held in queue:
            if len(queue) > MANY_ORDERS:
                return
            idle = self._idle(card, held)
            over = True
            for op in ops:
                fit = min(self.blocks[op] - held.get(op, 0), _blocks_that_fit(self.block[op], idle))
                if not fit:
                    continue
                over = False
                after = held | {op: held.get(op, 0) + fit}
                key = tuple(sorted(after.items()))
                if key not in seen and not (self.alone[op] and after[op] == self.blocks[op]):
                    seen.add(key)
                    queue.append(after)
            if over:
                yield held


def _blocks_that_fit(block: Cores, idle: Cores) -> int:
    """Number of such blocks that fit."""
    return min(idle[kind] // block[kind] for kind in (0, 1) if block[kind]) if any(block) else 0


def _idle_without(idle: Cores, block: Cores, blocks: int) -> Cores:
    return idle[0] - blocks * block[0], idle[1] - blocks * block[1]


def _choose(choices: list[list[Choice]], ready: frozenset[int]) -> Held | None:
    """One way for each card, so that each of these collectives lacks a member's cores somewhere."""
    failed: set[tuple[int, frozenset[int]]] = set()

    def choose(card: int, missing: frozenset[int]) -> Held | None:
        if card == len(choices):
            return None if missing else {}
        if (card, missing) in failed:
            return None
        # Those with the fewest operators that have some but not all of their cores are the easiest to understand.
        for _, held, lacking in sorted(choices[card], key=lambda each: (each[0], -len(each[2] & missing))):
            found = choose(card + 1, missing - lacking)
            if found is not None:
                return held | found
        failed.add((card, missing))
        return None

    return choose(0, ready)
