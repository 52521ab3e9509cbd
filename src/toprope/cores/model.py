"""A program as the cores of its cards see it: streams of operators, events between them, collectives; pure.

Readers (`cores.formats`) and users make a `Program`; all of `toprope.cores` works on it. The model is one
first-in-first-out queue per stream. An operator asks for cores of its card and never gives any back before it has
finished. What it must hold *at the same time* to finish is what matters for deadlocks (`Op.need`):

- a collective, and an operator with a barrier over all of its blocks (SyncAll), need every block resident at once;
- any other operator is elastic: its blocks may run one after the other, so one core to run them on is enough.

A member of a collective finishes only together with the members on the other cards. The proofs (docs/core_proof.md)
rest on these rules: none of them changes alone. The classes are public API. Tests: tests/cores/test_cores_record.py
(what a program may not be), tests/cores/test_cores_findings.py, tests/cores/test_cores_check.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from toprope.errors import ScheduleError

__all__ = ["Card", "Collective", "Communicator", "Cores", "Discipline", "Op", "OpId", "Program", "Stream"]

OpId = tuple[int, int]
"""An operator by its place: number of the stream in the program, number of the operator in the stream."""

Cores = tuple[int, int]
"""Cube cores and vector cores, in this order."""


class Discipline(StrEnum):
    """How a card hands out idle cores to operators that wait. What real cards do is not documented.

    Whatever deadlocks under D2 can under D1 and D0b, and whatever can under D0b can under D0. Where all operators of a
    card use the same kind of core, whatever can under D1 can under D0b, so that a program that is safe under D0 is safe
    under all. With both kinds D1 differs: an operator that lacks vector cores keeps idle cube cores from others.
    """

    D0 = "D0"
    """Block by block in any order; what was handed out is kept. The strictest: safety is proven for this one."""

    D0B = "D0b"
    """As D0, but an operator takes all that it needs and is idle in one go."""

    D1 = "D1"
    """All or nothing; the first operator that does not fit keeps the idle cores of its card from all others."""

    D2 = "D2"
    """All or nothing; an operator that fits goes before one that does not."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card with its cube and vector cores.

    Attributes:
        name: how the program's records call it, such as "0".
        cube: its cube cores.
        vector: its vector cores.
        chip: name of the chip, empty where it is not known.
    """

    name: str
    cube: int
    vector: int
    chip: str = ""

    @property
    def cores(self) -> Cores:
        """Its cube and vector cores."""
        return self.cube, self.vector


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group of cards that run collectives together.

    Attributes:
        name: how collectives call it.
        cards: names of its cards, by rank.
        engine: what runs its collectives: "aiv" (on vector cores), "aicpu", "host", "ccu"; empty where not known.
        on_callers_stream: its collectives were recorded on the streams that called them; a card gives them a stream of
            their own.
        as_seen: its cards are those that were seen to run one of its collectives; the source does not list them.
    """

    name: str
    cards: tuple[str, ...]
    engine: str = ""
    as_seen: bool = field(default=False, compare=False)
    on_callers_stream: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective of which an operator is a member: the `sequence`-th of its communicator, counted from 0."""

    communicator: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.communicator}#{self.sequence}"


@dataclass(frozen=True, slots=True)
class Op:
    """An operator in the queue of a stream.

    Attributes:
        name: as a person knows it: "NonZero".
        cube, vector: cores it is launched on, its limit already applied. Both 0: it uses none (AICPU, host).
        sync_all: it has a barrier over all of its blocks, or is launched in batch mode: every block needs its core at
            the same time.
        collective: what it is a member of, None for a local operator.
        waits: names of events that must have passed before it begins.
        records: names of events that pass when it has finished.
        microseconds: how long it runs once it has its cores; None where not known.
        timing: where the time comes from: "measured", "profile" or "estimate"; empty without a time.
        kind: the profiler's word for it, such as "AI_VECTOR_CORE" or "MIX_AIC"; empty where not known.
        ignores_limit: why a core limit has no effect on it, such as "static kernel"; empty where it has.
        assumed: no source says whether it needs all of its blocks at once: `sync_all` is an assumption.
        limit: cube and vector cores that its stream allowed when it was launched; None where not known.
        source: where it was read, such as "train.json: streams[2].ops[0]"; empty when made by a program.
    """

    name: str
    cube: int = 0
    vector: int = 0
    sync_all: bool = False
    collective: Collective | None = None
    waits: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    microseconds: float | None = None
    timing: str = ""
    kind: str = ""
    limit: Cores | None = None
    ignores_limit: str = ""
    assumed: bool = False
    source: str = field(default="", compare=False)

    @property
    def cores(self) -> Cores:
        """Cube and vector cores it is launched on."""
        return self.cube, self.vector

    @property
    def all_at_once(self) -> bool:
        """True if it can only finish when all of its blocks hold their cores at the same time."""
        return self.sync_all or self.collective is not None

    @property
    def blocks(self) -> int:
        """Its blocks. With both kinds of core, a block has both in the ratio of their numbers."""
        return math.gcd(self.cube, self.vector)

    @property
    def block(self) -> Cores:
        """Cores of one block; (0, 0) for an operator that uses none."""
        blocks = self.blocks
        return (self.cube // blocks, self.vector // blocks) if blocks else (0, 0)

    @property
    def needed_blocks(self) -> int:
        """Blocks that must hold their cores at the same time for it to finish."""
        return self.blocks if self.all_at_once else min(self.blocks, 1)

    @property
    def need(self) -> Cores:
        """Cores that it must hold at the same time to finish."""
        return self.cores if self.all_at_once else self.block

    def within(self, limit: Cores) -> Op:
        """The operator launched within a limit: on as many blocks as fit, at least one, as the card does it."""
        if not self.blocks or self.ignores_limit:
            return self
        fits = min(limit[kind] // self.block[kind] for kind in (0, 1) if self.block[kind])
        blocks = max(min(self.blocks, fits), 1)
        return replace(self, cube=self.block[0] * blocks, vector=self.block[1] * blocks, limit=limit)


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue of a card; its operators begin in their order, each when the one before has finished.

    Attributes:
        name: how a person calls it.
        card: name of its card.
        ops: its operators.
    """

    name: str
    card: str
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Program:
    """Cards, streams and communicators. Making one checks that it makes sense.

    Raises:
        ScheduleError: it does not: an unknown card, cores below 0 or beyond the card's, an event that nobody records
            or two do, a collective with two members on one card. Circular waits and collectives without a member on
            one of their cards are no such error: they are what `toprope.cores.check` finds.
    """

    cards: tuple[Card, ...]
    streams: tuple[Stream, ...]
    communicators: tuple[Communicator, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def op(self, id: OpId) -> Op:
        """The operator at this place."""
        return self.streams[id[0]].ops[id[1]]

    def ops(self) -> Iterator[tuple[OpId, Op]]:
        """Every operator with its place, stream by stream."""
        for number, stream in enumerate(self.streams):
            for place, op in enumerate(stream.ops):
                yield (number, place), op

    def card_of(self, id: OpId) -> Card:
        """The card that the operator runs on."""
        return self._cards[self.streams[id[0]].card]

    def describe(self, id: OpId) -> str:
        """The operator for a reader: "NonZero(0)" on card 0, with its place in the stream where the name is not one."""
        stream = self.streams[id[0]]
        op = stream.ops[id[1]]
        twice = self._names[stream.card, op.name] > 1
        return f"{op.name}[{stream.name}:{id[1]}]({stream.card})" if twice else f"{op.name}({stream.card})"

    @cached_property
    def members(self) -> dict[Collective, tuple[OpId, ...]]:
        """The operators of every collective."""
        found: dict[Collective, list[OpId]] = {}
        for id, op in self.ops():
            if op.collective is not None:
                found.setdefault(op.collective, []).append(id)
        return {collective: tuple(ids) for collective, ids in found.items()}

    def missing(self, collective: Collective) -> tuple[str, ...]:
        """Names of the cards of the communicator on which the collective has no member: it never finishes."""
        (cards,) = (each.cards for each in self.communicators if each.name == collective.communicator)
        have = {self.streams[stream].card for stream, _ in self.members[collective]}
        return tuple(card for card in cards if card not in have)

    @cached_property
    def incomplete(self) -> frozenset[Collective]:
        """Collectives that lack a member, and so never finish."""
        return frozenset(each for each in self.members if self.missing(each))

    @cached_property
    def recorded_by(self) -> dict[str, OpId]:
        """The operator that records each event."""
        return {event: id for id, op in self.ops() for event in op.records}

    def before(self, id: OpId) -> Iterator[OpId]:
        """The operators that must have finished before this one can begin."""
        if id[1]:
            yield id[0], id[1] - 1
        for event in self.op(id).waits:
            yield self.recorded_by[event]

    @cached_property
    def _cards(self) -> dict[str, Card]:
        return {card.name: card for card in self.cards}

    @cached_property
    def _names(self) -> dict[tuple[str, str], int]:
        names: dict[tuple[str, str], int] = {}
        for stream in self.streams:
            for op in stream.ops:
                names[stream.card, op.name] = names.get((stream.card, op.name), 0) + 1
        return names


def _check(program: Program) -> None:
    cards = {card.name: card for card in program.cards}
    if len(cards) < len(program.cards):
        raise ScheduleError("two cards have the same name.", looked_at=", ".join(each.name for each in program.cards))
    for card in program.cards:
        if card.cube < 0 or card.vector < 0:
            raise ScheduleError(f"card {card.name} has fewer than 0 cores.", looked_at=f"cores {card.cores}")
    for stream in program.streams:
        if stream.card not in cards:
            raise ScheduleError(
                f"stream {stream.name} is on card {stream.card}, which is not there.",
                looked_at=f"cards {', '.join(cards) or 'none'}",
            )
    recorders: dict[str, str] = {}
    for id, op in program.ops():
        where = op.source or f"streams[{id[0]}].ops[{id[1]}]"
        _check_cores(op, program.card_of(id), where)
        for event in op.records:
            if event in recorders:
                raise ScheduleError(f"event {event} is recorded twice.", looked_at=f"{recorders[event]} and {where}")
            recorders[event] = where
    for id, op in program.ops():
        for event in op.waits:
            if event not in recorders:
                raise ScheduleError(
                    f"{op.name} waits for event {event}, which nobody records.",
                    looked_at=op.source or f"streams[{id[0]}].ops[{id[1]}]",
                    do="check that the record is complete; a wait for an event never recorded is no wait on a card",
                )
    _check_collectives(program, set(cards))


def _check_cores(op: Op, card: Card, where: str) -> None:
    if min(op.cores) < 0:
        raise ScheduleError(f"{op.name} asks for fewer than 0 cores.", looked_at=f"{where}: {_text(op.cores)}")
    if op.microseconds is not None and not 0 <= op.microseconds < math.inf:
        raise ScheduleError(f"{op.name} cannot take {op.microseconds} microseconds.", looked_at=where)
    if op.cube > card.cube or op.vector > card.vector:
        raise ScheduleError(
            f"{op.name} asks for more cores than card {card.name} has.",
            looked_at=f"{where}: {_text(op.cores)} of {_text(card.cores)}",
            do="give the cores it is launched on; a card launches at most as many blocks as it has cores",
        )


def _check_collectives(program: Program, cards: set[str]) -> None:
    groups = {each.name: each for each in program.communicators}
    if len(groups) < len(program.communicators):
        raise ScheduleError("two communicators have the same name.", looked_at=", ".join(groups))
    for group in program.communicators:
        unknown = [name for name in group.cards if name not in cards]
        if unknown or len(set(group.cards)) < len(group.cards):
            raise ScheduleError(
                f"communicator {group.name} has cards that are not there, or one twice.",
                looked_at=f"its cards {', '.join(group.cards)}; cards {', '.join(sorted(cards))}",
            )
    for collective, ids in program.members.items():
        where = program.op(ids[0]).source or f"streams[{ids[0][0]}].ops[{ids[0][1]}]"
        if collective.communicator not in groups:
            raise ScheduleError(f"there is no communicator {collective.communicator}.", looked_at=where)
        have = [program.streams[stream].card for stream, _ in ids]
        want = groups[collective.communicator].cards
        if len(set(have)) < len(have) or not set(have) <= set(want):
            raise ScheduleError(
                f"collective {collective} has members that it cannot have.",
                looked_at=f"{where}: members on cards {', '.join(sorted(have))}, communicator of {', '.join(want)}",
            )


def _text(cores: Cores) -> str:
    return f"{cores[0]} cube, {cores[1]} vector"
