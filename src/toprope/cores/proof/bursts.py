"""The exact test under D0b in plain Python: every moment that a small program can get to; pure.

`cores.check` calls it if the test under D0 (`proof.exact`) does not answer for D0b. Under D0b an operator takes all
that it can use and is idle at once, so that what can be held depends on what went before: the moments themselves have
to be searched. An operator without a barrier may run on any of its blocks; while it runs it may hold many, which
decides what is idle for others. The discipline is given in docs/core_proof.md; only how the moments are kept is free.
Tests: tests/cores/test_cores_exact.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from toprope.cores.model import Cores, Discipline
from toprope.cores.order import Graph
from toprope.cores.proof.exact import Outcome
from toprope.cores.proof.stuck_cuts import Cuts
from toprope.cores.state import State

__all__ = ["explore"]

MOST_MOMENTS = 400_000
"""Moments that a search keeps at most: some hundred megabytes."""

Moment = tuple[tuple[int, ...], tuple[int, ...]]
"""Operators finished and blocks held, by stream."""


def explore(graph: Graph, deadline: float, most: int = MOST_MOMENTS) -> Outcome:
    """Look at every moment that a program can get to under D0b, for one in which it is stuck.

    Args:
        graph: the program's.
        deadline: when to give up, in seconds of `time.thread_time`.
        most: moments at which to give up.

    Returns:
        The first stuck moment met, of those with the fewest steps before them; that the search is whole and found none
        proves that there is none.
    """
    machine = _Machine(graph)
    nothing = (0,) * len(graph.program.streams)
    seen: set[Moment] = {(nothing, nothing)}
    queue = [(nothing, nothing)]
    for looked_at, moment in enumerate(queue):
        if looked_at % 256 == 0 and (len(seen) > most or time.thread_time() > deadline):
            return Outcome(None, False, looked_at)
        going_on = False
        for after in machine.steps(moment):
            going_on = True
            if after not in seen:
                seen.add(after)
                queue.append(after)
        if not going_on and not machine.finished(moment):
            done, held = moment
            return Outcome(State(graph.program, done, held), False, looked_at)
    return Outcome(None, True, len(queue))


class _Machine:
    """The moments that can come next."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.cuts = Cuts(graph, Discipline.D0B)
        self.lengths = tuple(len(stream.ops) for stream in graph.program.streams)

    def finished(self, moment: Moment) -> bool:
        return moment[0] == self.lengths

    def steps(self, moment: Moment) -> Iterator[Moment]:
        """The moments that one step leads to: a burst of cores handed out, a block's end, an operator's."""
        done, held = moment
        graph, cuts = self.graph, self.cuts
        active = cuts.active(done)
        idle = self._idle(active, held)
        for op in active:
            stream, has = graph.ids[op][0], held[graph.ids[op][0]]
            most = cuts.ops[op].blocks
            block, left = cuts.block[op], idle[cuts.card[op]]
            fit = min((left[kind] // block[kind] for kind in (0, 1) if block[kind]), default=0)
            if has < most and fit:
                yield done, _with(held, stream, min(most, has + fit))
            if has > 1 and not cuts.ops[op].all_at_once:
                yield done, _with(held, stream, has - 1)
            if self._ends(op, done, held, active):
                ended = {graph.ids[peer][0] for peer in graph.peers(op)}
                yield (
                    tuple(count + (stream in ended) for stream, count in enumerate(done)),
                    tuple(0 if stream in ended else count for stream, count in enumerate(held)),
                )

    def _idle(self, active: list[int], held: tuple[int, ...]) -> list[Cores]:
        idle = list(self.cuts.cores)
        for op in active:
            blocks, (cube, vector) = held[self.graph.ids[op][0]], self.cuts.block[op]
            card = self.cuts.card[op]
            idle[card] = idle[card][0] - blocks * cube, idle[card][1] - blocks * vector
        return idle

    def _ends(self, op: int, done: tuple[int, ...], held: tuple[int, ...], active: list[int]) -> bool:
        graph, peers = self.graph, self.graph.peers(op)
        return op == peers[0] and all(
            peer in active and held[graph.ids[peer][0]] >= self.cuts.blocks[peer] for peer in peers
        )


def _with(held: tuple[int, ...], stream: int, blocks: int) -> tuple[int, ...]:
    return (*held[:stream], blocks, *held[stream + 1 :])
