"""A program of many cards that all run the same, as one of a few: enough to decide it; pure.

`cores.check` decides the smaller program, and shows its witness on the cards of the whole one. Cards that are alike
(`bounds.alike`) run the same streams in the same collectives. All of them have finished equally many collectives of
each of their streams, so that, together, at most as many collectives are under way as streams carry any: K. Of a
moment in which nothing can go on, keep for each of these collectives one card that lacks its cores: what is left is
still such a moment, of at most K cards of each sort. The other way round, a card may be doubled: the copy waits for
what the first waits for. So K cards of each sort decide the program. Tests: tests/cores/test_cores_exact.py.
"""

from __future__ import annotations

from dataclasses import replace

from toprope.cores.model import Card, Communicator, Program
from toprope.cores.proof.bounds import alike, streams_of
from toprope.cores.state import State

__all__ = ["FewerCards"]


class FewerCards:
    """A program with as few cards as decide it.

    Attributes:
        whole: the program.
        program: the program with fewer cards; the same where none can be left out.
    """

    def __init__(self, whole: Program) -> None:
        self.whole = whole
        sorts = alike(whole)
        carrying = sum(
            any(op.collective is not None for op in whole.streams[stream].ops)
            for cards in sorts
            for stream in streams_of(whole, cards[0])
        )
        self._stands_for: dict[str, Card] = {}
        for cards in sorts:
            kept = cards[: max(1, carrying)]
            self._stands_for |= {card.name: kept[min(place, len(kept) - 1)] for place, card in enumerate(cards)}
        names = {card.name for card in self._stands_for.values()}
        self._kept = [number for number, stream in enumerate(whole.streams) if stream.card in names]
        self.program = whole if len(names) == len(whole.cards) else self._part(names)

    def _part(self, names: set[str]) -> Program:
        def part(group: Communicator) -> Communicator:
            return replace(group, cards=tuple(name for name in group.cards if name in names))

        return Program(
            tuple(card for card in self.whole.cards if card.name in names),
            tuple(self.whole.streams[stream] for stream in self._kept),
            tuple(map(part, self.whole.communicators)),
        )

    def back(self, state: State) -> State:
        """The moment of the whole program that one of the part stands for."""
        if self.program is self.whole:
            return state
        place = {stream: number for number, stream in enumerate(self._kept)}
        done, held = [0] * len(self.whole.streams), [0] * len(self.whole.streams)
        for card in self.whole.cards:
            instead = streams_of(self.whole, self._stands_for[card.name])
            for stream, other in zip(streams_of(self.whole, card), instead, strict=True):
                done[stream], held[stream] = state.done[place[other]], state.held[place[other]]
        return State(self.whole, tuple(done), tuple(held))
