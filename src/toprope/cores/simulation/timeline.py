"""The content of a picture of a run: which operators held which cores when, and which waited; pure.

`toprope cores` makes it of a run or of a witness; `timeline_svg` draws it. Cards do not say which of their cores an
operator has: a free place is chosen for each, so that what it holds is in one piece if possible. That choice is free;
how much is held when is the run's. Tests: tests/cores/test_cores_timeline.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from toprope.cores.descriptions import cycle_texts, holds_text, wait_text
from toprope.cores.model import OpId, Program
from toprope.cores.simulation.run import Interval, Run
from toprope.cores.state import State

__all__ = ["PARTIAL", "RUNS", "WAITS", "Arrow", "Block", "Idle", "Timeline", "of_run", "of_state"]

RUNS, WAITS, PARTIAL = "runs", "waits", "partial"
"""An operator runs; has the cores it needs and waits for its peers; holds fewer than it needs."""

MOST = 2000
"""Operators that a picture holds; of longer runs it shows the end."""


@dataclass(frozen=True, slots=True)
class Block:
    """Cores that an operator holds for some time, in one piece.

    Attributes:
        op: the operator.
        kind: 0 for cube cores, 1 for vector cores.
        row: the first of the cores.
        cores: how many.
        begin: since when, in microseconds.
        end: until when; None where the run ends in a deadlock before that.
        state: `RUNS`, `WAITS` or `PARTIAL`.
    """

    op: OpId
    kind: int
    row: int
    cores: int
    begin: float
    end: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Idle:
    """An operator that waits without any cores, or runs without needing any.

    Attributes:
        op: the operator.
        begin, end: as in `Block`.
        uses_cores: whether it wants cores at all.
    """

    op: OpId
    begin: float
    end: float | None
    uses_cores: bool


@dataclass(frozen=True, slots=True)
class Arrow:
    """A step of the wait-for cycle.

    Attributes:
        source: who waits.
        target: for whom.
        text: for what, in short: "16 cores", "peer".
    """

    source: OpId
    target: OpId
    text: str


@dataclass(frozen=True)
class Timeline:
    """The content of a picture: blocks, waiting operators and arrows.

    Attributes:
        program: what ran.
        begin, end: the time that is shown, in microseconds; the same for a moment alone.
        deadlock: whether nothing goes on after `end`.
        blocks: who held cores.
        idle: who waited or ran without any.
        arrows: the wait-for cycle; empty without a deadlock, or where it has none.
        labels: for each operator that waits at the end: the cores that it holds, and the reason why it waits.
        cycle: the cycle in sentences.
        notes: what the reader must know.
    """

    program: Program
    begin: float
    end: float
    deadlock: bool
    blocks: tuple[Block, ...]
    idle: tuple[Idle, ...]
    arrows: tuple[Arrow, ...] = ()
    labels: Mapping[OpId, tuple[str, str]] = field(default_factory=dict)
    cycle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def of_state(state: State) -> Timeline:
    """The picture of one moment, such as the witness of a deadlock."""
    places = _Places(state.program)
    blocks: list[Block] = []
    for id in state.active:
        places.take(id, state.held[id[0]])
        what = PARTIAL if not state.has_all(id) else RUNS if state.can_finish(id) else WAITS
        blocks += (Block(id, kind, row, cores, 0.0, None, what) for kind, row, cores in places.of(id))
    return _with_moment(Timeline(state.program, 0.0, 0.0, True, tuple(blocks), ()), state)


def of_run(run: Run) -> Timeline:
    """The picture of a run; of a long one only its end, which a note says."""
    intervals = run.intervals
    begin, notes = 0.0, list(run.notes)
    if len(intervals) > MOST:
        ends = sorted(run.microseconds if each.end is None else each.end for each in intervals)
        begin = ends[-MOST]
        intervals = tuple(each for each in intervals if each.end is None or each.end > begin)
        notes.insert(0, f"the last {len(intervals)} of {len(run.intervals)} operators are shown")
    timeline = Timeline(
        run.program,
        begin,
        run.microseconds,
        run.deadlocked,
        tuple(_blocks(run.program, intervals, begin)),
        tuple(_idle(run.program, intervals, begin)),
        notes=tuple(notes),
    )
    return _with_moment(timeline, run.end) if run.deadlocked else timeline


def _with_moment(timeline: Timeline, state: State) -> Timeline:
    """The picture with what the deadlock is made of."""
    waits = {wait.op: wait for wait in state.waits()}
    shown = {each.op for each in timeline.blocks if each.end is None} | {
        each.op for each in timeline.idle if each.end is None
    }
    uses = {id: any(timeline.program.op(id).cores) for id in waits}
    idle = [Idle(id, timeline.end, None, uses[id]) for id in waits if id not in shown]
    cycle = state.cycle()
    arrows = []
    for place, id in enumerate(cycle):
        wait = waits[id]
        lacking = sum(max(each, 0) for each in wait.lacking)
        text = {"cores": f"{lacking} core{'' if lacking == 1 else 's'}", "peer": "peer", "order": "order"}[wait.reason]
        arrows.append(Arrow(id, cycle[(place + 1) % len(cycle)], text))
    return replace(
        timeline,
        idle=(*timeline.idle, *idle),
        arrows=tuple(arrows),
        labels={id: (holds_text(state, id), wait_text(state, wait)) for id, wait in waits.items()},
        cycle=cycle_texts(state),
    )


class _Places:
    """The cores of its card on which each operator is shown."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.owner: dict[tuple[str, int], list[OpId | None]] = {
            (card.name, kind): [None] * card.cores[kind] for card in program.cards for kind in (0, 1)
        }

    def take(self, id: OpId, blocks: int) -> None:
        """Give the operator a number of blocks more."""
        card = self.program.card_of(id).name
        for kind, each in enumerate(self.program.op(id).block):
            owner = self.owner[card, kind]
            for row in _choose(owner, id, each * blocks):
                owner[row] = id

    def give_back(self, id: OpId) -> None:
        """The operator has finished."""
        card = self.program.card_of(id).name
        for kind in (0, 1):
            self.owner[card, kind] = [None if each == id else each for each in self.owner[card, kind]]

    def of(self, id: OpId) -> list[tuple[int, int, int]]:
        """Cores that the operator holds: kind, first core and number of each piece."""
        card = self.program.card_of(id).name
        return [
            (kind, row, length)
            for kind in (0, 1)
            for row, length, owner in _pieces(self.owner[card, kind])
            if owner == id
        ]


def _pieces(owner: list[OpId | None]) -> Iterable[tuple[int, int, OpId | None]]:
    """Neighbouring cores of one owner: first, number, owner."""
    first = 0
    for row in range(1, len(owner) + 1):
        if row == len(owner) or owner[row] != owner[first]:
            yield first, row - first, owner[first]
            first = row


def _choose(owner: list[OpId | None], id: OpId, count: int) -> list[int]:
    """Free cores: next to those that the operator has, else the smallest gap that is enough, else the largest gaps."""
    chosen: list[int] = []
    gaps = [(row, row + length) for row, length, who in _pieces(owner) if who is None]
    while len(chosen) < count and gaps:
        lacking = count - len(chosen)
        below = [gap for gap in gaps if gap[0] and owner[gap[0] - 1] == id]
        above = [gap for gap in gaps if gap[1] < len(owner) and owner[gap[1]] == id]
        enough = [gap for gap in gaps if gap[1] - gap[0] >= lacking]
        if below or above:
            first, end = (below or above)[0]
        else:
            first, end = min(enough, key=_size) if enough else max(gaps, key=_size)
        gaps.remove((first, end))
        taken = min(end - first, lacking)
        chosen += range(end - taken, end) if above and not below else range(first, first + taken)
    return chosen


def _size(gap: tuple[int, int]) -> int:
    return gap[1] - gap[0]


def _blocks(program: Program, intervals: tuple[Interval, ...], begin: float) -> Iterable[Block]:
    places, held = _Places(program), {each.op: 0 for each in intervals}
    by_op = {each.op: each for each in intervals}
    shown: dict[OpId, list[tuple[float, list[tuple[int, int, int]]]]] = {each.op: [] for each in intervals}
    steps = [
        (time, blocks > 0, each.op, blocks)
        for each in intervals
        for time, blocks in each.held
        if not blocks or time != each.end  # what is taken and given back at once is not seen
    ]
    for time, _, id, blocks in sorted(steps):  # at one moment cores are given back before they are taken
        if blocks:
            places.take(id, blocks - held[id])
            held[id] = blocks
            shown[id].append((time, places.of(id)))
        else:
            places.give_back(id)
    for id, changes in shown.items():
        for from_, to, what in _stretches(program, by_op[id]):
            pieces = [pieces for time, pieces in changes if time <= from_]
            if pieces and (to is None or to > max(from_, begin)):
                for kind, row, cores in pieces[-1]:
                    yield Block(id, kind, row, cores, max(from_, begin), to, what)


def _stretches(program: Program, interval: Interval) -> Iterable[tuple[float, float | None, str]]:
    """From when to when an operator held the same, and what it did."""
    needed = program.op(interval.op).needed_blocks
    grown = [(time, blocks) for time, blocks in interval.held if blocks]
    if interval.running is not None and grown:
        had = [blocks for time, blocks in grown if time <= interval.running]
        grown.append((interval.running, had[-1] if had else 0))
    times = sorted(dict(sorted(grown)).items())
    for place, (time, blocks) in enumerate(times):
        to = times[place + 1][0] if place + 1 < len(times) else interval.end
        runs = interval.running is not None and time >= interval.running
        yield time, to, RUNS if runs else WAITS if blocks >= needed else PARTIAL


def _idle(program: Program, intervals: tuple[Interval, ...], begin: float) -> Iterable[Idle]:
    for each in intervals:
        uses = any(program.op(each.op).cores)
        to = each.begin if uses else each.end
        from_ = max(each.ready, begin)
        if to is None or to > from_:
            yield Idle(each.op, from_, to, uses)
