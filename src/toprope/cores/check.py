"""Can a program deadlock for want of cores: safe with what proves it, deadlock with a witness, or unknown; pure.

For `toprope cores check`, the report of `toprope run`, and the plans of `cores.planning`. The tests are tried in the
order of their cost: circular waits; the sums S1, S2 and, for D1 and D2, S3 (`proof.bounds`); the exact test in
plain Python (`proof.exact`); the exact test by CP-SAT if the extra `plan` is installed. Nothing is guessed: if none of
them decides in the time given, the verdict is unknown. What each test may claim is fixed by docs/core_proof.md; their
order, and the seconds at the top, are free choices. Times are of the thread's CPU, so that a busy machine changes no
verdict. Tests: tests/cores/test_cores_check.py; tests/cores/test_cores_exact.py, against exhaustive search.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from toprope.cores.findings import Finding, assuming_cores, barriers_over_limit
from toprope.cores.findings import findings as _findings
from toprope.cores.fix import Fix, Fixes, find_fixes
from toprope.cores.model import Cores, Discipline, Program
from toprope.cores.order import Graph, cycle, furthest
from toprope.cores.proof import exact_solver
from toprope.cores.proof.bounds import Bound, heaviest_sets, largest_of_streams, one_local_sets
from toprope.cores.proof.bursts import explore
from toprope.cores.proof.exact import Outcome, search
from toprope.cores.proof.fewer_cards import FewerCards
from toprope.cores.proof.stuck_cuts import Cuts
from toprope.cores.state import State

__all__ = ["Fix", "Fixes", "Result", "Verdict", "check"]

PLAIN_SECONDS = 0.3
"""Time of the plain exact test where the solver is there to go on."""

SOLVER_OPERATORS_A_SECOND = 2000
"""Operators for which the solver is tried, for each second of time: a larger program it could barely read in."""

SIDE_SECONDS = 1.0
"""Time for the verdict under each other discipline."""

FIX_SECONDS = 5.0
"""Time for the search for a fix."""


class Verdict(StrEnum):
    """Answer of a check: safe, deadlock or unknown."""

    SAFE = "safe"
    """No order of things ends in a deadlock."""

    DEADLOCK = "deadlock"
    """Some order of things does."""

    UNKNOWN = "unknown"
    """Not decided in the time given."""


@dataclass(frozen=True)
class Result:
    """Result of `check`: the verdict, its proof or witness, findings and fixes.

    Attributes:
        verdict: the answer.
        discipline: how cards are taken to hand out cores.
        proof: what proves it, with its sums; of an unknown verdict, what was tried and what would help.
        witness: a moment in which nothing can go on, of those found the one with the fewest operators finished; None
            unless the verdict is deadlock.
        fixes: what the search for a limit of one operator that makes it safe has found.
        weaker: what is true under the other disciplines, as far as a short look tells.
        findings: what else is wrong, or may be; they change no verdict.
    """

    verdict: Verdict
    discipline: Discipline
    proof: str
    witness: State | None = None
    fixes: Fixes = field(default_factory=Fixes)
    weaker: dict[Discipline, Verdict] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def fix(self) -> Fix | None:
        """The limit of one operator that makes it safe and costs least; None where none was found."""
        return self.fixes.best


def check(
    program: Program,
    *,
    discipline: Discipline = Discipline.D0,
    seconds: float = 10.0,
    findings: bool = True,
    further: bool = True,
) -> Result:
    """Find out whether a program can deadlock.

    Args:
        program: what to check.
        discipline: how cards hand out cores; what real cards do is not documented, and D0 is the strictest.
        seconds: time for all of it, as this thread computes, so that other work on the machine changes no answer. Of
            what is left after the verdict, the search for a fix gets 5 seconds and each other discipline one.
        findings: whether to look for what else is wrong as well.
        further: whether to answer the further questions: what fixes it, and the other disciplines.

    Returns:
        The verdict with its proof or its witness. A program with a collective that lacks a member is never safe. An
        operator of unknown cores counts as needing all cores of its card at once.
    """
    deadline = time.thread_time() + seconds
    checker = _Checker(assuming_cores(program))
    decision = checker.decide(discipline, deadline)
    if findings and decision.verdict is Verdict.SAFE and _moved_collectives(program):
        decision = _Decision(
            Verdict.UNKNOWN,
            "safe only if collectives run on the streams that call them, as they were recorded; a card gives those of "
            f"each group a stream of their own, so they can overlap more than is known here. {decision.proof}",
        )
    return Result(
        decision.verdict,
        discipline,
        decision.proof,
        decision.witness and checker.fewer.back(decision.witness),
        checker.fixes(decision, discipline, deadline) if further else Fixes(),
        checker.others(discipline, deadline) if further else {},
        _findings(program) if findings else (),
    )


def _moved_collectives(program: Program) -> bool:
    """Return True if collectives on vector cores were recorded on streams that a card does not run them on."""
    moved = {group.name for group in program.communicators if group.engine == "aiv" and group.on_callers_stream}
    return any(collective.communicator in moved for collective in program.members)


@dataclass(frozen=True, slots=True)
class _Decision:
    """A verdict under one discipline."""

    verdict: Verdict
    proof: str
    witness: State | None = None


class _Checker:
    """One program, and what is known of it. What decides it is the program with fewer cards."""

    def __init__(self, program: Program) -> None:
        self.whole = program
        self.fewer = FewerCards(program)
        self.program = self.fewer.program
        self.graph = Graph.of(self.program)
        self.sums = largest_of_streams(self.program)
        self.furthest = furthest(self.graph)
        self.hangs_by_order = self.furthest != tuple(len(stream.ops) for stream in self.program.streams)
        self.sets: list[Bound] | None = None
        self.local_sets: list[Bound] | None = None
        self.known: dict[Discipline, _Decision] = {}

    def decide(self, discipline: Discipline, deadline: float) -> _Decision:
        """The verdict under a discipline."""
        if discipline not in self.known:
            self.known[discipline] = self._decide(discipline, deadline)
        return self.known[discipline]

    def _decide(self, discipline: Discipline, deadline: float) -> _Decision:
        if self.hangs_by_order:
            return self._by_order(discipline)
        closed = next(barriers_over_limit(self.program), None)
        if closed is not None:
            name = self.program.describe(closed)
            return _Decision(Verdict.DEADLOCK, f"{name} has a barrier over more blocks than its limit: it never opens")
        if all(bound.fits for bound in self.sums):
            return _safe("sum of the streams' cores", self.sums, self.program)
        sets = self._heaviest_sets(deadline)
        if sets is not None and all(bound.fits for bound in sets):
            return _safe("most that operators active together need:", sets, self.program)
        if discipline in (Discipline.D1, Discipline.D2):
            if self.local_sets is None:
                self.local_sets = one_local_sets(self.graph, deadline)
            sets = self.local_sets
            if sets is not None and all(bound.fits for bound in sets):
                return _safe("most that collectives active together and one other operator need:", sets, self.program)
        if discipline is Discipline.D0B:
            return self._exact_bursts(deadline)
        return self._exact(discipline, deadline)

    def _heaviest_sets(self, deadline: float) -> list[Bound] | None:
        if self.sets is None:
            self.sets = heaviest_sets(self.graph, deadline=deadline)
        return self.sets

    def _by_order(self, discipline: Discipline) -> _Decision:
        """The deadlock of a program in which something can never start or end, whatever the cores."""
        describe = self.program.describe
        circle = cycle(self.graph)
        lacking = next(iter(sorted(self.program.incomplete, key=str)), None)
        if circle:
            proof = "waits in a circle, whatever the cores: " + " -> ".join(map(describe, (*circle, circle[0])))
        else:
            assert lacking is not None  # nothing else keeps a program without circular waits from its end
            missing = ", ".join(self.program.missing(lacking))
            proof = f"collective {lacking} lacks a member on card {missing} and never finishes"
        return _Decision(Verdict.DEADLOCK, proof, _hand_out(self.graph, discipline, self.furthest))

    def _exact(self, discipline: Discipline, deadline: float) -> _Decision:
        began = time.thread_time()
        solver = exact_solver.available() and len(self.graph.ids) <= SOLVER_OPERATORS_A_SECOND * (deadline - began)
        found = search(self.graph, discipline, min(deadline, began + PLAIN_SECONDS) if solver else deadline)
        by = f"exact test, {found.looked_at} sets of finished operators looked at"
        if found.witness is None and not found.whole and solver:
            found = exact_solver.solve(self.graph, discipline, deadline)
            by = "exact test, by CP-SAT"
        return self._decision(found, by, time.thread_time() - began)

    def _exact_bursts(self, deadline: float) -> _Decision:
        """D0b lies within D0; its own moments are searched only where D0 does not answer."""
        began = time.thread_time()
        strict = self.decide(Discipline.D0, began + (deadline - began) / 2)
        if strict.verdict is Verdict.SAFE:
            return _Decision(Verdict.SAFE, f"safe under D0, of which D0b is a part: {strict.proof}")
        found = search(self.graph, Discipline.D0B, began + 2 * (deadline - began) / 3)
        if found.witness is None:
            found = explore(self.graph, deadline)
        return self._decision(found, f"exact test, {found.looked_at} moments looked at", time.thread_time() - began)

    def _decision(self, found: Outcome, by: str, seconds: float) -> _Decision:
        if found.witness is not None:
            return _Decision(Verdict.DEADLOCK, f"{by}: a moment in which nothing can go on", found.witness)
        if found.whole:
            return _Decision(Verdict.SAFE, f"{by}: none in which nothing can go on")
        tried = "; ".join(
            f"{name}: {_tightest(bounds).text(self.program)}" if bounds is not None else f"{name} not done in time"
            for name, bounds in (("S1", self.sums), ("S2", self.sets))
        )
        text = f"not decided in {seconds:.1f} s: no circular waits; {tried}; {by}"
        if not exact_solver.available():
            text += f"; larger programs are decided with OR-tools: {exact_solver.INSTALL}"
        return _Decision(Verdict.UNKNOWN, text)

    def fixes(self, decision: _Decision, discipline: Discipline, deadline: float) -> Fixes:
        """Limits of one operator that make the program safe; their cards are those of the whole program.

        What is safe under D0 must be safe under D1 too, where that is no part of D0.
        """
        if decision.witness is None or self.hangs_by_order:
            return Fixes()
        side = min(deadline, time.thread_time() + FIX_SECONDS)
        disciplines = [discipline]
        if discipline is Discipline.D0 and (Discipline.D1, Discipline.D0) not in self._parts:
            disciplines.append(Discipline.D1)

        def is_safe(program: Program) -> bool | None:
            if time.thread_time() > side:
                return None
            checker = _Checker(program)
            verdicts = {checker.decide(each, side).verdict for each in disciplines}
            return False if Verdict.DEADLOCK in verdicts else None if Verdict.UNKNOWN in verdicts else True

        found = find_fixes(self.program, decision.witness, is_safe, monotone=discipline is not Discipline.D0B)
        if found.best is None:
            return found
        streams, op = self.whole.streams, found.best.op
        running = {stream.card for stream in streams if any(each.name == op for each in stream.ops)}
        cards = tuple(card.name for card in self.whole.cards if card.name in running)
        return replace(found, best=replace(found.best, cards=cards))

    def others(self, discipline: Discipline, deadline: float) -> dict[Discipline, Verdict]:
        """The verdicts under the other disciplines."""
        verdicts = {discipline: self.known[discipline].verdict}
        for other in (Discipline.D0, Discipline.D1, Discipline.D2, Discipline.D0B):
            _add_implied(verdicts, self._parts)
            if other not in verdicts:
                verdicts[other] = self.decide(other, min(deadline, time.thread_time() + SIDE_SECONDS)).verdict
        _add_implied(verdicts, self._parts)
        return {other: verdicts[other] for other in Discipline if other is not discipline}

    @cached_property
    def _parts(self) -> list[tuple[Discipline, Discipline]]:
        """Pairs of disciplines: whatever deadlocks under the first does under the second.

        Under D1 an operator that lacks one kind of core keeps the other kind from operators that need nothing else;
        under D0 it does not. So D1 is a part of D0 and D0b only where the blocks of a card are all alike.
        """
        parts = [
            (Discipline.D2, Discipline.D0B),
            (Discipline.D2, Discipline.D1),
            (Discipline.D2, Discipline.D0),
            (Discipline.D0B, Discipline.D0),
        ]
        blocks: dict[str, set[Cores]] = {}
        for id, op in self.program.ops():
            if op.blocks:
                blocks.setdefault(self.program.card_of(id).name, set()).add(op.block)
        if all(len(each) == 1 for each in blocks.values()):
            parts += [(Discipline.D1, Discipline.D0B), (Discipline.D1, Discipline.D0)]
        return parts


def _add_implied(verdicts: dict[Discipline, Verdict], parts: list[tuple[Discipline, Discipline]]) -> None:
    """Add what follows from verdicts."""
    for part, whole in parts:
        if verdicts.get(part) is Verdict.DEADLOCK and verdicts.get(whole) in (None, Verdict.UNKNOWN):
            verdicts[whole] = Verdict.DEADLOCK
        if verdicts.get(whole) is Verdict.SAFE and verdicts.get(part) in (None, Verdict.UNKNOWN):
            verdicts[part] = Verdict.SAFE


def _tightest(bounds: list[Bound]) -> Bound:
    """The one with the largest share of the card's cores."""
    return max(bounds, key=lambda bound: bound.total / bound.capacity if bound.capacity else bound.total)


def _safe(what: str, bounds: list[Bound], program: Program) -> _Decision:
    if not any(bound.total for bound in bounds):
        return _Decision(Verdict.SAFE, "no operator needs cores of a card")
    return _Decision(Verdict.SAFE, f"{what} {_tightest(bounds).text(program)}")


def _hand_out(graph: Graph, discipline: Discipline, done: tuple[int, ...]) -> State:
    """The moment when all that can finish has, and the others have got what cores they can get."""
    program = graph.program
    cuts = Cuts(graph, discipline)
    idle = list(cuts.cores)
    held = [0] * len(done)
    for op in cuts.active(done):
        card, (cube, vector), blocks = cuts.card[op], cuts.block[op], cuts.blocks[op]
        fits = [idle[card][kind] // size for kind, size in enumerate((cube, vector)) if size]
        got = min([blocks, *fits])
        if got < blocks and discipline in (Discipline.D1, Discipline.D2):
            got = 0
        held[graph.ids[op][0]] = got
        idle[card] = idle[card][0] - got * cube, idle[card][1] - got * vector
    return State(program, done, tuple(held))
