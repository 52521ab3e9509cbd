"""A moment of a program: what has finished, who holds which cores, and why nothing can go on; pure.

Witnesses of deadlocks are `State`s: proofs and runs make them, the commands and pictures show them. When a moment is
stuck is defined here once (`is_stuck`), as docs/core_proof.md has it: proofs, runs and tests all go by it. Tests:
tests/cores/test_cores_state.py, tests/cores/test_cores_exact.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from toprope.cores.model import Card, Cores, Discipline, OpId, Program

__all__ = ["State", "Wait"]


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why an operator does not go on.

    Attributes:
        op: who waits.
        lacking: cores that it still needs; (0, 0) where it waits for a peer, an event or its stream.
        on: the operators that it waits for: those that hold the cores, the peers of its collective that do not hold
            all of theirs, or those that must finish before it begins.
        reason: "cores", "peer" or "order".
    """

    op: OpId
    lacking: Cores
    on: tuple[OpId, ...]
    reason: str


@dataclass(frozen=True)
class State:
    """A moment of a program: what has finished, and the cores that are held.

    Attributes:
        program: what runs.
        done: operators that have finished, by stream.
        held: blocks that the operators at the head of a stream hold, by stream; 0 where there is none.
    """

    program: Program
    done: tuple[int, ...]
    held: tuple[int, ...]

    @property
    def finished(self) -> bool:
        """True if nothing is left to do."""
        return all(done == len(stream.ops) for done, stream in zip(self.done, self.program.streams, strict=True))

    def head(self, stream: int) -> OpId | None:
        """The first operator of a stream that has not finished."""
        place = self.done[stream]
        return (stream, place) if place < len(self.program.streams[stream].ops) else None

    def is_done(self, id: OpId) -> bool:
        """True if an operator has finished."""
        return id[1] < self.done[id[0]]

    @cached_property
    def active(self) -> tuple[OpId, ...]:
        """The operators that may hold cores: heads of their streams whose events have passed."""
        heads = (self.head(stream) for stream in range(len(self.done)))
        return tuple(id for id in heads if id is not None and all(map(self.is_done, self.program.before(id))))

    def held_cores(self, id: OpId) -> Cores:
        """Cores that an active operator holds."""
        cube, vector = self.program.op(id).block
        blocks = self.held[id[0]]
        return blocks * cube, blocks * vector

    def has_all(self, id: OpId) -> bool:
        """True if an active operator holds all that it needs at the same time."""
        return self.held[id[0]] >= self.program.op(id).needed_blocks

    def idle(self, card: Card) -> Cores:
        """Cores of a card that nobody holds."""
        cube, vector = card.cores
        for id in self.active:
            if self.program.card_of(id) == card:
                held = self.held_cores(id)
                cube, vector = cube - held[0], vector - held[1]
        return cube, vector

    def can_finish(self, id: OpId) -> bool:
        """True if an active operator can finish with what it and its peers hold."""
        collective = self.program.op(id).collective
        if collective in self.program.incomplete:
            return False
        peers = (id,) if collective is None else self.program.members[collective]
        return all(peer in self.active and self.has_all(peer) for peer in peers)

    def is_stuck(self, discipline: Discipline) -> bool:
        """True if work is left and, handing out cores by this discipline, nothing can ever go on."""
        if self.finished or any(map(self.can_finish, self.active)):
            return False
        for card in self.program.cards:
            waiting = [id for id in self.active if self.program.card_of(id) == card and not self.has_all(id)]
            if waiting and not self._is_card_stuck(card, waiting, discipline):
                return False
        return True

    def _is_card_stuck(self, card: Card, waiting: list[OpId], discipline: Discipline) -> bool:
        idle = self.idle(card)
        if discipline in (Discipline.D0, Discipline.D0B):
            return not any(_fits(self.program.op(id).block, idle) for id in waiting)
        if any(self.held[id[0]] for id in waiting):
            return False  # all or nothing: such a moment cannot be
        fits = [_fits(self.program.op(id).need, idle) for id in waiting]
        return not any(fits) if discipline is Discipline.D2 else not all(fits)

    def waits(self) -> Iterator[Wait]:
        """The reason why each operator at the head of a stream does not go on; none for those that can finish."""
        for stream in range(len(self.done)):
            id = self.head(stream)
            if id is None or (id in self.active and self.can_finish(id)):
                continue
            if id not in self.active:
                on = tuple(each for each in self.program.before(id) if not self.is_done(each))
                yield Wait(id, (0, 0), on, "order")
            elif not self.has_all(id):
                yield self._wait_for_cores(id)
            else:
                collective = self.program.op(id).collective
                assert collective is not None  # a local operator that has all of its cores can finish
                peers = (peer for peer in self.program.members[collective] if peer != id)
                lacking = tuple(peer for peer in peers if not (peer in self.active and self.has_all(peer)))
                yield Wait(id, (0, 0), lacking, "peer")

    def _wait_for_cores(self, id: OpId) -> Wait:
        op, held, card = self.program.op(id), self.held_cores(id), self.program.card_of(id)
        lacking = op.need[0] - held[0], op.need[1] - held[1]
        idle = self.idle(card)
        others = [each for each in self.active if each != id and self.program.card_of(each) == card]
        if _fits(lacking, idle):  # all or nothing: kept back for one that does not fit
            too_large = (each for each in others if not _fits(self.program.op(each).need, idle))
            return Wait(id, lacking, tuple(each for each in too_large if not self.has_all(each)), "cores")
        scarce = [lacking[each] > idle[each] for each in (0, 1)]
        holders = (each for each in others if any(map(bool.__and__, map(bool, self.held_cores(each)), scarce)))
        return Wait(id, lacking, tuple(holders), "cores")

    def cycle(self) -> tuple[OpId, ...]:
        """Operators of which each waits for the next and the last for the first; the shortest; empty without one.

        Who waits for cores is taken to wait for those that hold some without having all, where there are any: they
        are the ones that a limit can send away, while a collective that has its cores holds them rightly.
        """
        edges: dict[OpId, list[OpId]] = {}
        for wait in self.waits():
            partial = [each for each in wait.on if wait.reason == "cores" and not self.has_all(each)]
            edges[wait.op] = [self._at_head(each) for each in partial or wait.on]
        best: tuple[OpId, ...] = ()
        for start in edges:
            path = _shortest_return(edges, start)
            if path and (not best or len(path) < len(best)):
                best = path
        culprits = (id for id in sorted(best) if self.held[id[0]] and not self.has_all(id))
        first = best.index(next(culprits, best[0])) if best else 0
        return best[first:] + best[:first]

    def _at_head(self, id: OpId) -> OpId:
        """The operator that keeps this one from finishing: itself, or the head of its stream."""
        head = self.head(id[0])
        return id if head is None else head


def _fits(need: Cores, idle: Cores) -> bool:
    return need[0] <= idle[0] and need[1] <= idle[1]


def _shortest_return(edges: dict[OpId, list[OpId]], start: OpId) -> tuple[OpId, ...]:
    came_from: dict[OpId, OpId] = {}
    queue = [start]
    for id in queue:
        for other in edges.get(id, ()):
            if other == start:
                path = [id]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return tuple(reversed(path))
            if other not in came_from:
                came_from[other] = id
                queue.append(other)
    return ()
