"""The exact test in plain Python: is there a moment in which a program is stuck; pure.

`cores.check` calls it when sums do not decide. Under D0, D1 and D2 that is a question about sets of finished operators
alone (`proof.stuck_cuts`). The sets are searched by halving: a box is, for each stream, the least and the largest
number of operators that have finished. What a box implies is drawn from it first, and a box on whose cards no kind of
core can run short holds no deadlock. No box may be left out that could hold one; the order of the search is free.
Tests: tests/cores/test_cores_exact.py, against exhaustive search.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from toprope.cores.model import Discipline
from toprope.cores.order import Graph
from toprope.cores.proof.bounds import KINDS, largest_of_streams
from toprope.cores.proof.stuck_cuts import Cuts
from toprope.cores.state import State

__all__ = ["Outcome", "search"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an exact test: a witness, none, or the end of the time.

    Attributes:
        witness: a moment in which the program is stuck, None where none was found.
        whole: whether the search came to its end: without a witness there is none, and with one none is shorter.
        looked_at: how many boxes or moments it looked at.
    """

    witness: State | None
    whole: bool
    looked_at: int


def search(graph: Graph, discipline: Discipline, deadline: float, improve: float = 0.5) -> Outcome:
    """Look for a moment in which a program without circular waits is stuck, with the fewest operators finished.

    Args:
        graph: the program's.
        discipline: how cards hand out cores. Under D0b a search that finds nothing proves nothing.
        deadline: when to give up, in seconds of `time.thread_time`.
        improve: seconds to look for a shorter witness once there is one.
    """
    boxes = _Boxes(graph, discipline)
    witness: State | None = None
    fewest, looked_at = len(graph.ids), 0
    waiting = [_Box([0] * len(boxes.lengths), list(boxes.lengths))]
    while waiting:
        if time.thread_time() > deadline:
            return Outcome(witness, False, looked_at)
        box = waiting.pop()
        looked_at += 1
        if not boxes.narrow(box) or sum(box.lower) >= fewest:
            continue
        found = boxes.cuts.stuck(box.lower)
        if found is None:
            waiting += boxes.parts(box)
            continue
        if witness is None:
            deadline = min(deadline, time.thread_time() + improve)
        witness, fewest = found, sum(box.lower)  # all others in the box have more finished
    return Outcome(witness, discipline is not Discipline.D0B, looked_at)


Kind = tuple[int, int]
"""A card's number and a kind of core's."""


@dataclass(slots=True)
class _Box:
    """Bounds of the operators finished in each stream, and the kinds of core that run short on each card.

    What has been narrowed since all that follows was drawn is `fresh`: streams with the bounds they had then. A card
    and a kind not in `short` may run short or not.
    """

    lower: list[int]
    upper: list[int]
    short: dict[Kind, bool] = field(default_factory=dict)
    fresh: list[tuple[int, int, int]] = field(default_factory=list)

    def part(self) -> _Box:
        """A copy to narrow further."""
        return _Box(self.lower.copy(), self.upper.copy(), self.short.copy())

    def bound(self, stream: int, lower: int, upper: int) -> _Box:
        """Narrow one stream, in place."""
        if (lower, upper) != (self.lower[stream], self.upper[stream]):
            self.fresh.append((stream, self.lower[stream], self.upper[stream]))
            self.lower[stream], self.upper[stream] = lower, upper
        return self


class _Boxes:
    """The smaller box that follows from a box."""

    def __init__(self, graph: Graph, discipline: Discipline) -> None:
        self.graph = graph
        self.all_or_nothing = discipline in (Discipline.D1, Discipline.D2)
        self.discipline = discipline
        self.cuts = cuts = Cuts(graph, discipline)
        self.lengths = [len(stream.ops) for stream in graph.program.streams]
        self.streams: list[list[int]] = [[] for _ in cuts.cores]
        for stream, card in enumerate(cuts.card_of_stream):
            self.streams[card].append(stream)
        tight = {(bound.card.name, bound.kind) for bound in largest_of_streams(graph.program) if not bound.fits}
        self.kinds: list[Kind] = [
            (card, kind)
            for card, each in enumerate(graph.program.cards)
            for kind, name in enumerate(KINDS)
            if (each.name, name) in tight
        ]
        """The kinds of core that can run short at all (S1)."""
        self.least = {what: self._least(*what) for what in self.kinds}
        self.largest = {
            (stream, kind): self._largest(stream, kind) for card, kind in self.kinds for stream in self.streams[card]
        }

    def _largest(self, stream: int, kind: int) -> tuple[_Maxima, _Maxima]:
        """Of the operators of a stream between two places, the most that counts when others run short.

        Under D1 and D2 those are what a collective needs, and what any operator does. Under D0 an operator that is
        alone counts without its last block, because with it it would go on; both are the same.
        """
        numbers = range(self.graph.first[stream], self.graph.first[stream + 1])
        needs, blocks, alone = self.cuts.need, self.cuts.block, self.cuts.alone
        if self.all_or_nothing:
            together = _Maxima([0 if alone[op] else needs[op][kind] for op in numbers] + [0])
            return together, _Maxima([needs[op][kind] for op in numbers] + [0])
        held = _Maxima([needs[op][kind] - alone[op] * blocks[op][kind] for op in numbers] + [0])
        return held, held

    def _least(self, card: int, kind: int) -> int:
        """The cores that must be held for an operator on a card to wait for this kind: fewer are left than it takes."""
        block = max(self.cuts.block[op][kind] for op in range(len(self.graph.ids)) if self.cuts.card[op] == card)
        return self.cuts.cores[card][kind] + 1 - (0 if self.all_or_nothing else block)

    def narrow(self, box: _Box) -> bool:
        """Draw from a box what it implies, in place; whether anything is left of it."""
        before: list[int] = []
        while before != box.lower or box.fresh:
            before = box.lower.copy()
            if not self._tighten_by_order(box):
                return False
            if not all(self._run_short(each, box) for each in self.kinds if box.short.get(each, True)):
                return False
            if not box.fresh and not self._run_ahead(box):
                return False
        return True

    def _tighten_by_order(self, box: _Box) -> bool:
        """Tighten by the order: predecessors of the finished have finished, successors of the unfinished have not."""
        graph, ids, lower, upper = self.graph, self.graph.ids, box.lower, box.upper
        fresh = box.fresh
        box.fresh = []
        while fresh:
            stream, old_lower, old_upper = fresh.pop()
            for op in range(graph.first[stream] + old_lower, graph.first[stream] + lower[stream]):
                for other, place in (ids[each] for each in (*graph.before[op], *graph.peers(op))):
                    if lower[other] <= place:
                        fresh.append((other, lower[other], upper[other]))
                        lower[other] = place + 1
            for op in range(graph.first[stream] + upper[stream], graph.first[stream] + old_upper):
                for other, place in (ids[each] for each in (*graph.after[op], *graph.peers(op))):
                    if upper[other] > place:
                        fresh.append((other, lower[other], upper[other]))
                        upper[other] = place
        return all(map(int.__le__, lower, upper))

    def _run_short(self, what: Kind, box: _Box) -> bool:
        """Draw what follows if a kind of core runs short on a card, or if it cannot; whether anything is left.

        Under D1 and D2 all active operators but the one that waits hold their cores, and so are of collectives.
        """
        card, kind = what
        streams = self.streams[card]
        spans = [(box.lower[stream], box.upper[stream]) for stream in streams]
        tables = [self.largest[stream, kind] for stream in streams]
        surely = [table.between(*span) for (table, _), span in zip(tables, spans, strict=True)]
        most = [table.between(*span) for (_, table), span in zip(tables, spans, strict=True)]
        over = list(map(int.__sub__, most, surely))
        total = sum(surely)
        if total + max(over) < self.least[what]:
            expected = box.short.get(what, False)
            box.short[what] = False
            return not expected
        if box.short.get(what):
            for number, stream in enumerate(streams):
                rest = total - surely[number] + max(over[:number] + over[number + 1 :], default=0)
                if rest < self.least[what]:
                    box.bound(stream, *tables[number][1].within(*spans[number], self.least[what] - rest))
        return True

    def _run_ahead(self, box: _Box) -> bool:
        """Finish what could finish in every moment of the box that is about to; whether the box allows it."""
        graph, lower = self.graph, box.lower
        heads = list(range(len(lower)))
        while heads:
            stream = heads.pop()
            op = graph.first[stream] + lower[stream]
            if op == graph.first[stream + 1] or not all(self._can_always_finish(each, box) for each in graph.peers(op)):
                continue
            for peer in graph.peers(op):
                place = graph.ids[peer][0]
                lower[place] += 1
                if lower[place] > box.upper[place]:
                    return False
                heads.append(place)
                heads += (graph.ids[each][0] for each in graph.after[peer])
        return True

    def _can_always_finish(self, op: int, box: _Box) -> bool:
        """True if an operator is at the head of its stream, active, and can never lack cores."""
        ids, lower, cuts = self.graph.ids, box.lower, self.cuts
        stream, place = ids[op]
        if place != lower[stream] or not all(ids[each][1] < lower[ids[each][0]] for each in self.graph.before[op]):
            return False
        if not cuts.blocks[op]:
            return True
        # Under D1 it may have to wait for one that lacks another kind of core.
        kinds = [kind for kind in (0, 1) if cuts.need[op][kind] or self.discipline is Discipline.D1]
        return not any(self._may_be_short((cuts.card[op], kind), box) for kind in kinds)

    def _may_be_short(self, what: Kind, box: _Box) -> bool:
        return what in self.least and box.short.get(what, True)

    def parts(self, box: _Box) -> list[_Box]:
        """Two parts that make up a box, the one to look at first last; none when it is a single moment."""
        for what in self.kinds:
            if what not in box.short:
                parts = box.part(), box.part()
                parts[0].short[what], parts[1].short[what] = False, True
                return list(parts)
        spans = [(box.upper[stream] - box.lower[stream], stream) for stream in range(len(box.lower))]
        cards = {card for card, kind in self.kinds if box.short[card, kind]}
        span, stream = max([each for each in spans if each[0] and self.cuts.card_of_stream[each[1]] in cards] or spans)
        if not span:
            return []
        lower, upper = box.lower[stream], box.upper[stream]
        middle = (lower + upper) // 2
        return [box.part().bound(stream, middle + 1, upper), box.part().bound(stream, lower, middle)]


class _Maxima:
    """The largest of some numbers between two places, both included; a table of powers of two."""

    def __init__(self, numbers: list[int]) -> None:
        self._levels = [numbers]
        width = 1
        while 2 * width <= len(numbers) and any(numbers):
            last = self._levels[-1]
            self._levels.append(list(map(max, last, last[width:])))
            width *= 2

    def between(self, begin: int, end: int) -> int:
        level = (end - begin + 1).bit_length() - 1
        if level >= len(self._levels):
            return 0  # nothing but zeros
        numbers = self._levels[level]
        return max(numbers[begin], numbers[end + 1 - (1 << level)])

    def within(self, begin: int, end: int, least: int) -> tuple[int, int]:
        """The first and the last place between two whose number is at least this; there is one."""
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.between(begin, middle) >= least else (middle + 1, high)
        first, high = low, end
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.between(middle, end) >= least else (low, middle - 1)
        return first, low
