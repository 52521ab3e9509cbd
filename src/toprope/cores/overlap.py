"""Operators that can be active together, as far as streams, events and collectives order them; pure.

Only for `findings`: proofs have their own, faster ways (`proof.antichain`). An operator begins, and may hold cores,
before its peers on other cards do; all members of a collective finish together. So an operator must wait for what has
*finished* before it may begin: the rule of `cores.order`, whose graph it walks. Tests:
tests/cores/test_cores_findings.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from toprope.cores.model import OpId
from toprope.cores.order import Graph, starts

__all__ = ["Overlap"]


class Overlap:
    """Numbers of operators of some streams that must have finished before each operator of the program begins.

    Args:
        graph: the order of the program.
        streams: the streams that `together` will be asked for; each costs a number an operator.

    A collective that lacks a member counts as one of the members that are there: what never finishes is another
    finding.
    """

    def __init__(self, graph: Graph, streams: Sequence[int]) -> None:
        self._graph = graph
        self._column = {stream: place for place, stream in enumerate(streams)}
        self._before: dict[int, tuple[int, ...]] = {}
        self._known = [0] * len(graph.program.streams)
        after: dict[int, tuple[int, ...]] = {}
        for op in starts(graph):
            sources = graph.before[op]
            for source in sources:
                if source not in after:
                    finished = self._join([self._with_itself(peer) for peer in graph.peers(source)])
                    after.update(dict.fromkeys(graph.peers(source), finished))
            self._before[op] = self._join([after[source] for source in sources])
            self._known[graph.ids[op][0]] += 1

    def together(self, id: OpId, stream: int) -> range:
        """Places in another stream whose operators can be active together with this operator.

        Both streams are among `streams`. What waits in a circle, or for one, is never active.
        """
        if id[1] >= self._known[id[0]]:
            return range(0)
        own, first = self._column[id[0]], self._before[self._number(id)][self._column[stream]]
        places = range(self._known[stream])
        last = bisect_left(places, id[1] + 1, key=lambda at: self._before[self._number((stream, at))][own])
        return range(first, last)

    def _number(self, id: OpId) -> int:
        return self._graph.first[id[0]] + id[1]

    def _with_itself(self, op: int) -> tuple[int, ...]:
        """The operators that have finished when this one has."""
        stream, place = self._graph.ids[op]
        clock, column = self._before[op], self._column.get(stream)
        return clock if column is None else (*clock[:column], max(clock[column], place + 1), *clock[column + 1 :])

    def _join(self, clocks: list[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(max, zip(*clocks, strict=True))) if clocks else (0,) * len(self._column)
