"""One run of a program on a virtual clock, in an order that a seed chooses; pure.

For `toprope cores simulate`, users, and the tests of the checker. It shows what happens: what it finds is a deadlock,
whatever a proof says. What it does not find may still be there; only `toprope.cores.check` proves safety. The rules are
those of the model (docs/core_proof.md); the proofs are tested against them, so they change only together:

- A host issues each operator at a random time after those before it have finished; many at the same moment.
- Cores are handed out by the discipline, in random order among the operators that wait.
- A collective, or an operator with a barrier over its blocks, runs once it (and its peers) hold all of their cores.
- Any other operator runs on what it holds, one block at least, and takes more as cores get idle: its time is the one of
  the record, times its blocks, divided by the blocks that it holds.

Tests: tests/cores/test_cores_simulate.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from heapq import heappop, heappush

from toprope.cores.model import Discipline, Program
from toprope.cores.simulation.run import Interval, Moment, Run
from toprope.cores.simulation.timeouts import first_time_out
from toprope.cores.state import State

__all__ = ["UNKNOWN_MICROSECONDS", "hunt", "simulate"]

UNKNOWN_MICROSECONDS = 1.0
"""Time that an operator is taken to run if its time is not known."""


def simulate(
    program: Program,
    discipline: Discipline = Discipline.D0B,
    seed: int = 0,
    *,
    until: float | None = None,
    keep: bool = True,
) -> Run:
    """Run a program once, in the order that the seed chooses.

    Args:
        program: what to run.
        discipline: how cores are handed out.
        seed: chooses when operators are issued and in which order they get cores.
        until: stop before the first change after this virtual time, in microseconds; None: at the end.
        keep: whether the run keeps its moments and intervals.

    Returns:
        The run. Without `until` it has either finished every operator or ended in a deadlock.

    Example:
        >>> from toprope.cores import record
        >>> stream = {"card": "0", "name": "main", "ops": [{"name": "Sort", "vector": 48}]}
        >>> simulate(record.from_data({"cards": [{"name": "0", "chip": "910B1"}], "streams": [stream]})).deadlocked
        False
    """
    return _Machine(_Layout(program), discipline, seed, keep).run(until)


def hunt(program: Program, discipline: Discipline = Discipline.D0B, seeds: Iterable[int] = range(300)) -> Run | None:
    """Try seeds until one ends in a deadlock.

    Returns:
        The first run that does, with its moments; None where none of these seeds does, which proves nothing.
    """
    layout = _Layout(program)
    for seed in seeds:
        if _Machine(layout, discipline, seed, keep=False).run(None).deadlocked:
            return _Machine(layout, discipline, seed, keep=True).run(None)
    return None


class _Layout:
    """Facts that all runs of a program share, by number of the operator."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ids = [id for id, _ in program.ops()]
        self.ops = [op for _, op in program.ops()]
        numbers = {id: number for number, id in enumerate(self.ids)}
        cards = {card.name: place for place, card in enumerate(program.cards)}
        self.card = [cards[program.card_of(id).name] for id in self.ids]
        self.block = [op.block for op in self.ops]
        self.blocks = [op.blocks for op in self.ops]
        self.needed = [op.needed_blocks for op in self.ops]
        self.gang = [op.all_at_once for op in self.ops]
        self.peers: dict[int, list[int]] = {}
        self.incomplete: set[int] = set()
        for collective, members in program.members.items():
            peers = [numbers[id] for id in members]
            self.peers.update(dict.fromkeys(peers, peers))
            if collective in program.incomplete:
                self.incomplete.update(peers)
        before = [{numbers[each] for each in program.before(id)} for id in self.ids]
        self.missing = [len(each) for each in before]
        self.after: list[list[int]] = [[] for _ in self.ids]
        for number, each in enumerate(before):
            for other in each:
                self.after[other].append(number)
        times = [op.microseconds for op in self.ops]
        self.time = [UNKNOWN_MICROSECONDS if time is None else time for time in times]
        self.mean = sum(self.time) / len(self.time) if self.time else 0.0
        unknown = times.count(None)
        self.notes: tuple[str, ...] = ()
        if unknown:
            self.notes = (
                f"{unknown} of {len(times)} operators have no time: each is taken to run {UNKNOWN_MICROSECONDS} "
                "microseconds, so the virtual times mean nothing by themselves",
            )


_ISSUE, _FINISH = 0, 1


class _Machine:
    """The cards at work in one run: events in the order of virtual time."""

    def __init__(self, layout: _Layout, discipline: Discipline, seed: int, keep: bool) -> None:
        count, cards = len(layout.ids), layout.program.cards
        self.layout, self.discipline, self.seed, self.keep = layout, discipline, seed, keep
        self.random = random.Random(seed)
        # Each seed has its own delays between operators, and its own inequality of their chances to get cores.
        self.jitter = self.random.choice((0.0, 0.3, 1.0, 3.0)) * layout.mean
        self.unfairness = self.random.choice((0.0, 1.0, 4.0))
        self.weight = [1.0] * count
        self.now = 0.0
        self.events: list[tuple[float, int, int, int]] = []
        self.version = [0] * count  # a finish event of an older version is void
        self.missing = list(layout.missing)
        self.held = [0] * count
        self.work = [0.0] * count  # of an elastic operator: microseconds of one block that are left
        self.since = [0.0] * count  # the time for which `work` holds
        self.idle = [list(card.cores) for card in cards]
        self.active: list[list[int]] = [[] for _ in cards]  # per card: operators that may take cores
        self.keeper: list[int | None] = [None for _ in cards]  # D1: the operator that keeps idle cores from all others
        self.lacking = {number: len(set(peers)) for number, peers in layout.peers.items() if peers[0] == number}
        self.done = [0] * len(layout.program.streams)
        self.ready: dict[int, float] = {}
        self.begin: dict[int, float] = {}
        self.running: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self.steps: dict[int, list[tuple[float, int]]] = {}
        self.changed: set[int] = set()
        self.moments: list[Moment] = []

    def run(self, until: float | None) -> Run:
        for number, missing in enumerate(self.missing):
            if not missing:
                self._issue(number)
        stopped = False
        while (time := self._next()) is not None and not stopped:
            stopped = until is not None and time > until
            if not stopped:
                self._step(time)
        return self._run(deadlocked=not stopped and len(self.end) < len(self.layout.ids))

    def _next(self) -> float | None:
        """The time of the next event; those that have become void are dropped."""
        while self.events and self.events[0][3] != self.version[self.events[0][2]]:
            heappop(self.events)
        return self.events[0][0] if self.events else None

    def _step(self, time: float) -> None:
        """Everything that happens at this time: only then are cores handed out."""
        self.now = time
        touched: set[int] = set()
        while self._next() == time:
            _, what, number, _ = heappop(self.events)
            touched.add(self.layout.card[number])
            self._activate(number) if what == _ISSUE else self._finish(number)
        for card in sorted(touched):
            self._hand_out(card)
        for number in sorted(self.changed):
            self._after_handing_out(number)
        self.changed.clear()
        if self.keep:
            if self.moments and self.moments[-1].microseconds == self.now:
                self.moments.pop()  # an operator that takes no time
            self.moments.append(Moment(self.now, tuple(self.done), self._held_by_stream()))

    def _issue(self, number: int) -> None:
        """Have the host issue an operator now or, in half of the cases, a random time later."""
        delay = 0.0 if self.random.random() < 0.5 else self.jitter * self.random.random()
        self.weight[number] = (self.random.random() + 1e-3) ** self.unfairness
        heappush(self.events, (self.now + delay, _ISSUE, number, self.version[number]))

    def _activate(self, number: int) -> None:
        """Have an issued operator begin to ask for cores; one without blocks needs none."""
        self.ready[number] = self.now
        if self.layout.blocks[number]:
            self.active[self.layout.card[number]].append(number)
        else:
            self.begin[number] = self.now
            self._has_all(number)

    def _finish(self, number: int) -> None:
        layout, card = self.layout, self.layout.card[number]
        if self.held[number]:
            self.active[card].remove(number)
            self._change_held(number, -self.held[number])
        self.end[number] = self.now
        self.done[layout.ids[number][0]] += 1
        for other in layout.after[number]:
            self.missing[other] -= 1
            if not self.missing[other]:
                self._issue(other)

    # Who gets cores.

    def _hand_out(self, card: int) -> None:
        if self.discipline in (Discipline.D0, Discipline.D0B):
            self._hand_out_freely(card, burst=self.discipline is Discipline.D0B)
            return
        if self._hand_out_whole(card):
            # What is left, and kept for nobody, lets elastic operators run more of their blocks at a time.
            for number in self.active[card]:
                if self.held[number] and not self.layout.gang[number]:
                    self._take(number, self._blocks_possible(number))

    def _hand_out_freely(self, card: int, burst: bool) -> None:
        """D0 and D0b: give idle cores to waiting operators in random order, block by block or as many as fit."""
        waiting = [number for number in self.active[card] if self._blocks_possible(number)]
        while waiting:
            number = self._draw(waiting)
            blocks = self._blocks_possible(number)
            if blocks:
                self._take(number, blocks if burst else 1)
            if not self._blocks_possible(number):
                waiting.remove(number)

    def _hand_out_whole(self, card: int) -> bool:
        """D1 and D2: give operators all that they need, or nothing. False if idle cores are kept for one (D1)."""
        waiting = [number for number in self.active[card] if not self.held[number]]
        reserves = self.discipline is Discipline.D1
        while waiting:
            keeper = self.keeper[card]
            number = self._draw(waiting) if keeper is None else keeper
            if self._blocks_that_fit(number) >= self.layout.needed[number]:
                self.keeper[card] = None
                self._take(number, self.layout.needed[number])
            elif reserves:
                self.keeper[card] = number
                return False
            waiting.remove(number)
        return True

    def _draw(self, waiting: list[int]) -> int:
        """Choose one of the waiting operators, by their random weights."""
        if len(waiting) == 1:
            return waiting[0]
        return self.random.choices(waiting, [self.weight[number] for number in waiting])[0]

    def _blocks_that_fit(self, number: int) -> int:
        """Number of its blocks that the idle cores of its card can take."""
        idle = self.idle[self.layout.card[number]]
        return min(idle[kind] // cores for kind, cores in enumerate(self.layout.block[number]) if cores)

    def _blocks_possible(self, number: int) -> int:
        """Number of blocks that it can get now, in addition."""
        return min(self.layout.blocks[number] - self.held[number], self._blocks_that_fit(number))

    def _take(self, number: int, blocks: int) -> None:
        if blocks:
            self._change_held(number, blocks)
            self.begin.setdefault(number, self.now)

    def _change_held(self, number: int, blocks: int) -> None:
        """Give an operator blocks, or take some back; the work that it has done so far is counted first."""
        layout = self.layout
        if not layout.gang[number] and self.held[number]:
            self.work[number] -= self.held[number] * (self.now - self.since[number])
        elif not layout.gang[number]:
            self.work[number] = layout.time[number] * layout.blocks[number]
        self.since[number] = self.now
        self.held[number] += blocks
        idle = self.idle[layout.card[number]]
        for kind, cores in enumerate(layout.block[number]):
            idle[kind] -= blocks * cores
        self.changed.add(number)

    # Who runs.

    def _after_handing_out(self, number: int) -> None:
        """After cores were handed out: keep what it holds; let it run."""
        if self.keep:
            self.steps.setdefault(number, []).append((self.now, self.held[number]))
        if not self.held[number]:
            return
        if not self.layout.gang[number]:
            self.running.setdefault(number, self.now)
            self._end_at(number, self.now + max(self.work[number], 0.0) / self.held[number])
        elif self.held[number] == self.layout.blocks[number]:
            self._has_all(number)

    def _has_all(self, number: int) -> None:
        peers = self.layout.peers.get(number, [number])
        if len(peers) > 1 or number in self.layout.incomplete:
            self.lacking[peers[0]] -= 1
            if self.lacking[peers[0]] or number in self.layout.incomplete:
                return
        time = max(self.layout.time[peer] for peer in peers)
        for peer in peers:
            self.running[peer] = self.now
            self._end_at(peer, self.now + time)

    def _end_at(self, number: int, time: float) -> None:
        self.version[number] += 1
        heappush(self.events, (time, _FINISH, number, self.version[number]))

    # The record of the run.

    def _held_by_stream(self) -> tuple[int, ...]:
        held = [0] * len(self.done)
        for active in self.active:
            for number in active:
                held[self.layout.ids[number][0]] = self.held[number]
        return tuple(held)

    def _run(self, deadlocked: bool) -> Run:
        layout = self.layout
        begun = {layout.ids[number]: time for number, time in self.begin.items() if number not in self.end}
        return Run(
            program=layout.program,
            discipline=self.discipline,
            seed=self.seed,
            microseconds=self.now,
            end=State(layout.program, tuple(self.done), self._held_by_stream()),
            deadlocked=deadlocked,
            moments=tuple(self.moments),
            intervals=tuple(map(self._interval, self.ready)) if self.keep else (),
            time_out=first_time_out(layout.program, begun) if deadlocked else None,
            notes=layout.notes,
        )

    def _interval(self, number: int) -> Interval:
        return Interval(
            op=self.layout.ids[number],
            ready=self.ready[number],
            begin=self.begin.get(number),
            running=self.running.get(number),
            end=self.end.get(number),
            held=tuple(self.steps.get(number, ())),
        )
