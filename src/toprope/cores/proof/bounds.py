"""Sums that prove a program safe, whatever else it does: S1, S2, S3; pure.

`cores.check` tries them first, as they are fast. Each holds for a card and a kind of core when at most the card's cores
are needed by

- S1: the largest operator of each of its streams, all together;
- S2: any operators that can be active together (none of them starts only after another has finished);
- S3: any such operators of which at most one is local. For D1 and D2 only.

With S1 or S2 for every card and kind, and no circular waits, no operator ever waits for cores for good: there is no
deadlock under any discipline. What an operator needs is what it must hold at the same time to finish (`Op.need`). The
sums are those of docs/core_proof.md: one that is too small calls a deadlock safe. How they are added is free. Tests:
tests/cores/test_cores_bounds.py, which scripts/mutants.py puts to the test.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from toprope.cores.model import Card, Cores, OpId, Program
from toprope.cores.order import Graph, starts
from toprope.cores.proof.antichain import Handing, Place, latest

__all__ = ["KINDS", "Bound", "alike", "heaviest_sets", "largest_of_streams", "one_local_sets", "streams_of"]

KINDS = ("cube", "vector")
"""The kinds of core, in the order of `Cores`."""

Window = tuple[tuple[int, int], ...]
"""By stream of a card, places between two that are themselves outside."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Cores of a card that some of its operators need at most.

    Attributes:
        card: the card.
        kind: "cube" or "vector".
        total: what they need together.
        ops: the operators that need it.
    """

    card: Card
    kind: str
    total: int
    ops: tuple[OpId, ...]

    @property
    def capacity(self) -> int:
        """Cores of this kind that the card has."""
        return self.card.cores[KINDS.index(self.kind)]

    @property
    def fits(self) -> bool:
        """True if the card has as many cores as they need."""
        return self.total <= self.capacity

    def text(self, program: Program) -> str:
        """The sum for a reader: "16 + 24 + 8 = 48 of 48 vector cores on card 0"."""
        kind = KINDS.index(self.kind)
        parts = " + ".join(str(program.op(op).need[kind]) for op in self.ops)
        total = f"{parts} = {self.total}" if len(self.ops) > 1 else str(self.total)
        return f"{total} of {self.capacity} {self.kind} cores on card {self.card.name}"


def alike(program: Program) -> list[list[Card]]:
    """The cards, in lists of those that can be swapped for each other without changing the program.

    Two cards can be swapped when their streams hold the same operators in the same collectives and nobody waits for
    an event of another card: what holds for one then holds for the other. So it is where every rank runs the same.
    """
    if len(program.cards) < 2:
        return [list(program.cards)] if program.cards else []
    recorded = program.recorded_by
    tied: set[str] = set()
    for id, op in program.ops():
        for event in op.waits:
            cards = {program.streams[id[0]].card, program.streams[recorded[event][0]].card}
            tied |= cards if len(cards) > 1 else set()
    found: dict[object, list[Card]] = {}
    for card in program.cards:
        key = card.name if card.name in tied else _signature(program, card)
        found.setdefault(key, []).append(card)
    return list(found.values())


def streams_of(program: Program, card: Card) -> list[int]:
    """Numbers of the streams of a card."""
    return [number for number, stream in enumerate(program.streams) if stream.card == card.name]


def _signature(program: Program, card: Card) -> object:
    streams, recorded = streams_of(program, card), program.recorded_by
    local = {stream: number for number, stream in enumerate(streams)}

    def sources(waits: tuple[str, ...]) -> tuple[OpId, ...]:
        return tuple((local[stream], place) for stream, place in (recorded[event] for event in waits))

    return card.cores, tuple(
        tuple((op.cores, op.sync_all, op.collective, sources(op.waits)) for op in program.streams[stream].ops)
        for stream in streams
    )


def largest_of_streams(program: Program) -> list[Bound]:
    """S1: for each card and kind of core, the largest operators of its streams. O(operators)."""
    largest: list[tuple[OpId | None, OpId | None]] = []
    for number, stream in enumerate(program.streams):
        best: list[OpId | None] = [None, None]
        most = [0, 0]
        for place, op in enumerate(stream.ops):
            for kind, need in enumerate(op.need):
                if need > most[kind]:
                    most[kind], best[kind] = need, (number, place)
        largest.append((best[0], best[1]))
    found = []
    for card in program.cards:
        for kind, name in enumerate(KINDS):
            ops = tuple(op for op in (largest[each][kind] for each in streams_of(program, card)) if op is not None)
            found.append(Bound(card, name, sum(program.op(op).need[kind] for op in ops), ops))
    return found


def heaviest_sets(graph: Graph, beyond: bool = False, deadline: float = math.inf) -> list[Bound] | None:
    """S2: for each card and kind of core, the operators that need most of those that can be active together.

    Cards that are alike are looked at once, and kinds whose largest operators fit (S1) not at all unless asked to go
    `beyond`: then the heaviest set is found also where it does not fit, and not only one that does not. None when the
    deadline (of `time.thread_time`) has passed first.
    """
    found: list[Bound] = []
    order = starts(graph)
    sums = {(bound.card.name, bound.kind): bound for bound in largest_of_streams(graph.program)}
    for card, *_ in alike(graph.program):
        kinds = [kind for kind, name in enumerate(KINDS) if beyond or not sums[card.name, name].fits]
        found += [sums[card.name, name] for kind, name in enumerate(KINDS) if kind not in kinds]
        if kinds:
            if time.thread_time() > deadline:
                return None
            view = _View(graph, card, order)
            found += [view.heaviest(kind, beyond) for kind in kinds]
    return found


def one_local_sets(graph: Graph, deadline: float = math.inf) -> list[Bound] | None:
    """S3: for each card and kind of core, what collectives that can be active together need, and one local operator.

    Where it does not fit, the search for more ends. None when the deadline (of `time.thread_time`) has passed first.
    """
    found: list[Bound] = []
    order = starts(graph)
    for card, *_ in alike(graph.program):
        view = _View(graph, card, order)
        for kind in range(len(KINDS)):
            bound = view.one_local(kind, deadline)
            if bound is None:
                return None
            found.append(bound)
    return found


class _View:
    """The operators of one card: its streams are columns, each operator a column and a place."""

    def __init__(self, graph: Graph, card: Card, order: Sequence[int]) -> None:
        program = graph.program
        self.card = card
        self.streams = streams_of(program, card)
        column = {stream: number for number, stream in enumerate(self.streams)}
        before = latest(graph, order, self.streams)
        spans = [(graph.first[stream], graph.first[stream + 1]) for stream in self.streams]
        self.before = [before[first:end] for first, end in spans]
        self.need: list[list[Cores]] = [[op.need for op in program.streams[stream].ops] for stream in self.streams]
        self.together = [[group >= 0 for group in graph.group[first:end]] for first, end in spans]
        self.order: list[Place] = [
            (column[stream], place) for stream, place in map(graph.ids.__getitem__, order) if stream in column
        ]

    def bound(self, kind: int, total: int, places: Iterable[Place] = ()) -> Bound:
        ops = tuple(sorted((self.streams[column], place) for column, place in places))
        return Bound(self.card, KINDS[kind], total, ops)

    def heaviest(self, kind: int, beyond: bool) -> Bound:
        handing = Handing(self.before, [-1] * len(self.streams))
        capacity = self.card.cores[kind]
        for at in self.order:
            need = self.need[at[0]][at[1]][kind]
            if need:
                handing.serve(at, need)
                if handing.total > capacity and not beyond:
                    break
        return self.bound(kind, handing.total, handing.heaviest)

    def one_local(self, kind: int, deadline: float) -> Bound | None:
        most = 0
        capacity = self.card.cores[kind]
        whole: Window = tuple((-1, len(each)) for each in self.need)
        windows: dict[tuple[int, Window], int] = {(-1, whole): 0}
        for column in range(len(self.streams)):
            for need, rough, window in self.windows(kind, column):
                if rough <= capacity:
                    most = max(most, rough)
                else:
                    windows[column, window] = max(need, windows.get((column, window), 0))
        for (column, window), need in windows.items():
            if time.thread_time() > deadline:
                return None
            inside, places = self.collectives(kind, column, window)
            if need + inside > most:
                most = need + inside
            if most > capacity:
                return self.bound(kind, most, places)
        return self.bound(kind, most)

    def windows(self, kind: int, column: int) -> Iterator[tuple[int, int, Window]]:
        """For each local operator of a column: what it needs, no less than it and collectives can need together, and
        the places of the other columns, as pairs of bounds that are not included, that can be active with it."""
        others = [other for other in range(len(self.streams)) if other != column]
        upper = [0] * len(self.streams)
        largest: list[deque[tuple[int, int]]] = [deque() for _ in self.streams]
        for place, before in enumerate(self.before[column]):
            for other in others:
                queue = largest[other]
                while upper[other] < len(self.need[other]) and self.before[other][upper[other]][column] < place:
                    if self.together[other][upper[other]]:
                        need = self.need[other][upper[other]][kind]
                        while queue and queue[-1][1] <= need:
                            queue.pop()
                        queue.append((upper[other], need))
                    upper[other] += 1
                while queue and queue[0][0] <= before[other]:
                    queue.popleft()
            need = self.need[column][place][kind]
            if need and not self.together[column][place]:
                rough = need + sum(queue[0][1] for queue in largest if queue)
                yield need, rough, tuple(zip(before, upper, strict=True))

    def collectives(self, kind: int, column: int, window: Window) -> tuple[int, tuple[Place, ...]]:
        """The most that collectives inside a window need together, other than those of a column; and which they are."""
        handing = Handing(self.before, [lower for lower, _ in window])
        for other, place in self.order:
            lower, upper = window[other]
            need = self.need[other][place][kind]
            if need and other != column and lower < place < upper and self.together[other][place]:
                handing.serve((other, place), need)
        return handing.total, handing.heaviest
