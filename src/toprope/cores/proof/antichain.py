"""The heaviest set of operators that can be active together: weighted Dilworth for few streams; pure.

For condition S2 in `proof.bounds`. Hand cores on from operator to operator: what one has finished with may go to any
that starts only after it. The fewest cores with which every operator gets all it needs this way are as many as the
heaviest antichain needs (Dilworth, weighted). Operators are served in an order in which they can start. One that finds
too few cores among its predecessors first tries to have one handed on differently (an augmenting path), and only then
gets new ones.

What precedes an operator is a prefix of each stream, so a search covers prefixes. A search that finds nothing has
covered prefixes in which no core will ever be left: they are never searched again. docs/core_proof.md has the proof.
A result that is too small would call a deadlock safe. Tests: tests/cores/test_cores_bounds.py (trying everything), and
for programs as long as need the second paragraph tests/cores/test_cores_benchmark.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from toprope.cores.order import Graph

__all__ = ["Handing", "Place", "latest"]

Place = tuple[int, int]
"""Number of a stream among those of its card, and of an operator in it."""

FIRST_WINDOW = 16
"""Operators of each stream that a search looks at first; all that can matter once these did not do."""


def latest(graph: Graph, order: Sequence[int], streams: Sequence[int]) -> list[list[int]]:
    """By operator and by each of these streams, the last place in it that has finished whenever the operator starts.

    -1 where there is none. Only operators of `order` (an order in which they can start) are filled in.
    """
    column = {stream: number for number, stream in enumerate(streams)}
    nothing = [-1] * len(streams)
    begin: list[list[int]] = [nothing] * len(graph.ids)
    end: list[list[int]] = [nothing] * len(graph.ids)
    lacking = [len(members) for members in graph.members]
    for op in order:
        found = nothing
        for source in graph.before[op]:
            stream, place = graph.ids[source]
            # What had finished before a source is known where a later operator of its stream has finished too.
            if stream not in column or place > found[column[stream]]:
                found = _merge(found, end[source], nothing)
        begin[op] = found
        group = graph.group[op]
        if group < 0:
            end[op] = _and_itself(graph, op, found, column)
            continue
        lacking[group] -= 1
        if not lacking[group]:
            for member in graph.members[group]:
                found = _merge(found, _and_itself(graph, member, begin[member], column), nothing)
            for member in graph.members[group]:
                end[member] = found
    return begin


def _merge(one: list[int], other: list[int], nothing: list[int]) -> list[int]:
    if other is nothing or one is other:
        return one
    return other if one is nothing else list(map(max, one, other))


def _and_itself(graph: Graph, op: int, found: list[int], column: dict[int, int]) -> list[int]:
    stream, place = graph.ids[op]
    if stream not in column:
        return found
    found = found.copy()
    found[column[stream]] = place
    return found


class Handing:
    """Cores of one kind, handed on between operators of a few streams of a card.

    An operator is a pair: its stream's number among these, its place.
    """

    def __init__(self, before: Sequence[Sequence[list[int]]], floor: list[int]) -> None:
        """Nothing served yet.

        Args:
            before: by stream and place, the last place in each stream that has finished before the operator starts.
            floor: places up to here take no part, by stream; all -1 for whole streams.
        """
        self.total = 0
        """Cores needed so far: the weight of the heaviest antichain of the operators served."""
        self.heaviest: tuple[Place, ...] = ()
        """An antichain of that weight."""
        self._before = before
        self._covered = floor
        """Prefixes in which no core will be left any more."""
        self._taken: dict[Place, dict[Place, int]] = {}
        """By operator, from whom it got how many cores."""
        self._served: list[list[int]] = [[] for _ in floor]
        self._left: list[dict[int, int]] = [{} for _ in floor]
        """By stream and place, cores that nobody has yet had after this operator; places ascend."""

    def serve(self, op: Place, need: int) -> None:
        """Give an operator its cores; all that precede it have been served."""
        column, before, lacking = op[0], self._before[op[0]][op[1]], need
        self._taken[op] = {}
        # Its own stream first: nobody else has a use for those cores so soon.
        for other in (column, *range(column), *range(column + 1, len(before))):
            left, last = self._left[other], before[other]
            # The newest first: older ones are of use to more of those to come.
            for place in [each for each in left if each <= last][::-1] if left else ():
                lacking -= self._take((other, place), op, lacking)
                if not lacking:
                    break
            if not lacking:
                break
        while lacking:
            found = self._rearrange(op, lacking)
            if not found:
                self.total += lacking
                break
            lacking -= found
        self._left[column][op[1]] = need
        self._served[column].append(op[1])

    def _take(self, giver: Place, taker: Place, most: int) -> int:
        left = self._left[giver[0]]
        count = min(left[giver[1]], most)
        if count == left[giver[1]]:
            del left[giver[1]]
        else:
            left[giver[1]] -= count
        taken = self._taken[taker]
        taken[giver] = taken.get(giver, 0) + count
        return count

    def _rearrange(self, op: Place, most: int) -> int:
        """Have cores handed on differently, so that up to `most` are left for an operator; 0 when that cannot be."""
        window = FIRST_WINDOW
        while True:
            search = _Search(self._before, self._taken, self._left, self._covered, op)
            whole = search.gather(self._served, window)
            giver = search.run()
            if giver is not None:
                return self._shift(search, giver, op, most)
            if whole:
                self._covered = search.covered
                self.heaviest = tuple(self._behind(op))
                return 0
            window *= 4

    def _behind(self, op: Place) -> Iterator[Place]:
        """The operators just behind the covered prefixes, among those served and this one."""
        for column, last in enumerate(self._covered):
            behind = column, last + 1
            if behind in self._taken and not _beyond(self._before[column][last + 1], self._covered):
                yield behind

    def _shift(self, search: _Search, giver: Place, op: Place, most: int) -> int:
        """Along an augmenting path: who gets cores from `giver` leaves as many of its own to the next, up to `op`."""
        count = min(most, self._left[giver[0]][giver[1]])
        takers = [search.wanted_by[giver]]
        while takers[-1] != op:
            old = search.has_from[takers[-1]]
            count = min(count, self._taken[takers[-1]][old])
            takers.append(search.wanted_by[old])
        self._take(giver, takers[0], count)
        for taker, following in pairwise(takers):
            old = search.has_from[taker]
            taken = self._taken[taker]
            taken[old] -= count
            if not taken[old]:
                del taken[old]
            taken = self._taken[following]
            taken[old] = taken.get(old, 0) + count
        return count


class _Search:
    """A search for a core that is left, backwards from an operator that lacks one.

    Those that precede the operator might have given it a core; who has got theirs might have got it from those that
    precede *it*; and so on. Only operators that are preceded by something not covered yet lead any further: per stream
    these are the last ones. The last few of each mostly do, so that a search begins with them.
    """

    def __init__(
        self,
        before: Sequence[Sequence[list[int]]],
        taken: dict[Place, dict[Place, int]],
        left: list[dict[int, int]],
        covered: list[int],
        op: Place,
    ) -> None:
        self.before, self.taken, self.left = before, taken, left
        self.covered = list(map(max, covered, before[op[0]][op[1]]))
        self.has_from: dict[Place, Place] = {}
        self.wanted_by: dict[Place, Place] = {}
        self.reached_by = [op] * len(covered)
        self.pending: list[Place] = []

    def gather(self, served: list[list[int]], window: int) -> bool:
        """Take up to `window` operators of each stream that may lead further; whether these are all."""
        whole = True
        for column, places in enumerate(served):
            for count, place in enumerate(reversed(places)):
                if not _beyond(self.before[column][place], self.covered):
                    break
                if count == window:
                    whole = False
                    break
                self.pending.append((column, place))
        return whole

    def run(self) -> Place | None:
        """The operator with a core left to hand on along the path found."""
        more = True
        while more:
            more, waiting = False, []
            for taker in self.pending:
                giver = next((each for each in self.taken[taker] if each[1] <= self.covered[each[0]]), None)
                if giver is None:
                    waiting.append(taker)
                    continue
                more = True
                self.has_from[taker] = giver
                self.wanted_by.setdefault(giver, self.reached_by[giver[0]])
                found = self._cover(taker)
                if found is not None:
                    return found
            self.pending = waiting
        return None

    def _cover(self, taker: Place) -> Place | None:
        for column, last in enumerate(self.before[taker[0]][taker[1]]):
            if last > self.covered[column]:
                place = next((each for each in reversed(self.left[column]) if each <= last), -1)
                if place > self.covered[column]:
                    self.wanted_by[column, place] = taker
                    return column, place
                self.covered[column], self.reached_by[column] = last, taker
        return None


def _beyond(before: list[int], covered: list[int]) -> bool:
    """True if a predecessor is not covered."""
    return any(map(int.__gt__, before, covered))
