"""Limits for the streams of a program that are needed for safety, and no others; pure.

`plan_program`, for `toprope cores plan` and users. Begins with limits that are proven safe, takes away each one that
`cores.check` proves needless, and makes the others as large as can be. At every moment the limits at hand are proven
safe, so the deadline only decides how good they are; the order of the tries is free. Tests:
tests/cores/test_cores_plan_safe.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from toprope.cores.check import Result, Verdict, check
from toprope.cores.findings import assuming_cores, barriers_over_limit
from toprope.cores.model import Cores, Discipline, Op, Program
from toprope.cores.order import Graph
from toprope.cores.planning.limits import Limit, Plan, cores_for, plan
from toprope.cores.planning.order import order_of
from toprope.cores.planning.program import (
    Sources,
    beyond,
    demands_of,
    larger,
    limited,
    plan_by_sums,
    stream_names,
    unknown_times,
    with_order,
)
from toprope.cores.planning.search import Choices
from toprope.cores.planning.times import Demand, weakest
from toprope.errors import PlanError

__all__ = ["as_it_is", "plan_program", "strictest"]

_TRY_SECONDS = 2.0
"""Time for the question whether one limit can go, or be larger."""

Limits = dict[str, Cores]


def plan_program(program: Program, sources: Sources | None = None, *, seconds: float = 10.0) -> Plan:
    """Plan the limits without which the streams of a program can deadlock.

    A program that is safe is answered so, with no limits. Else the plan by sums is where it starts, or, where the sums
    do not fit, one block for each operator; then every limit that the exact test finds needless is dropped, and the
    others are raised as far as the program stays safe and gets faster.

    Args:
        program: the streams and their operators. Streams of the same name get the same limit on all cards.
        sources: where times and minima come from; None: from the program alone.
        seconds: time for the exact tests. What they do not decide in it stays limited, and the reason says so.

    Raises:
        PlanError: the operators wait for each other whatever the cores; or not even one block for each operator could
            be proven safe.
    """
    sources, program = sources or Sources(), assuming_cores(program)
    deadline = time.thread_time() + seconds
    order_of(Graph.of(program))
    for collective in sorted(program.incomplete, key=str):
        raise PlanError(
            f"collective {collective} never finishes, which no limit can change.",
            looked_at=f"it has no member on card {', '.join(program.missing(collective))}",
            do="check that every rank's record is there and complete",
        )
    for id in barriers_over_limit(program):
        raise PlanError(
            f"{program.describe(id)} never finishes: it has a barrier over more blocks than its limit.",
            looked_at=program.op(id).source or f"cores {program.op(id).cores}, limit {program.op(id).limit}",
            do="raise the limit that it was launched under, or launch it on fewer blocks",
        )
    disciplines = strictest(program)
    unlimited = as_it_is(program, sources, disciplines, time.thread_time() + seconds / 2)
    if unlimited is not None:
        return unlimited
    search = _Search(program, sources, disciplines, deadline)
    limits, note = search.start()
    return search.plan(limits, note)


def as_it_is(program: Program, sources: Sources, disciplines: Sequence[Discipline], deadline: float) -> Plan | None:
    """The plan without limits, where that is proven safe; None where it is not, or streams have maxima."""
    if sources.maxima:
        return None
    proof = _prove(program, disciplines, deadline)
    if not proof.safe:
        return None
    limits = tuple(
        Limit(demand.stream, demand.cards, None, None, *_unlimited_time(program, demand), "safe without a limit")
        for demand in demands_of(program, sources)
    )
    return _plan(program, sources, limits, "as it is", proof)


def strictest(program: Program) -> tuple[Discipline, ...]:
    """The disciplines that include all others: D0, and D1 where a card's operators use both kinds of core."""
    used: dict[str, set[int]] = {}
    for id, op in program.ops():
        used.setdefault(program.card_of(id).name, set()).update(kind for kind in (0, 1) if op.cores[kind])
    both = any(len(kinds) > 1 for kinds in used.values())
    return (Discipline.D0, Discipline.D1) if both else (Discipline.D0,)


@dataclass(frozen=True)
class _Proof:
    """The answer if a program is safe under some disciplines, with its proof or refutation."""

    safe: bool
    results: tuple[Result, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(f"safe under {each.discipline.value}: {each.proof}" for each in self.results)

    @property
    def doubt(self) -> str:
        """The reason why it is not called safe."""
        result = self.results[-1]
        state = result.witness
        if state is None:
            return "it could not be proven safe in time"
        cycle = state.cycle()
        ops = [id for id in (cycle or state.active) if state.program.op(id).all_at_once] or list(cycle)
        names = list(dict.fromkeys(state.program.op(id).name for id in ops))
        if len(names) < 2:
            names = list(map(state.program.describe, ops))
        return f"{', '.join(names[:-1][:3])} and {names[-1]} can wait for each other's cores"


def _prove(program: Program, disciplines: Iterable[Discipline], deadline: float) -> _Proof:
    results = []
    for discipline in disciplines:
        left = max(deadline - time.thread_time(), 0.0)
        results.append(check(program, discipline=discipline, seconds=left, findings=False, further=False))
        if results[-1].verdict is not Verdict.SAFE:
            return _Proof(False, tuple(results))
    return _Proof(True, tuple(results))


class _Search:
    """Limits of the streams of one program that is not safe without."""

    def __init__(self, program: Program, sources: Sources, disciplines: Sequence[Discipline], deadline: float) -> None:
        self.program, self.sources, self.disciplines, self.deadline = program, sources, disciplines, deadline
        self.demands = {demand.stream: demand for demand in demands_of(program, sources)}
        self.ops: dict[str, list[Op]] = {name: [] for name in self.demands}
        """Of the streams of each name."""
        for name, stream in zip(stream_names(program), program.streams, strict=True):
            self.ops[name] += stream.ops
        self.choices: dict[str, Choices] = {}
        self.reasons: dict[str, str] = {}
        self.refused = _Proof(False, ())
        """Of the limits tried last that were not safe."""
        self.proven = _Proof(False, ())
        """Of the limits found so far."""

    def start(self) -> tuple[Limits, tuple[str, ...]]:
        """Limits that are proven safe, with notes: by sums, else one block for each operator.

        Raises:
            PlanError: there are none.
        """
        try:
            found = plan_by_sums(self.program, self.sources)
        except PlanError as error:
            refused = error
        else:
            limits = {each.stream: each.cores for each in found.limits}
            assert self._is_safe(limits, self.deadline)
            return limits, ()
        below = "some streams get fewer cores than HCCL recommends"
        warned = (
            "an operator with cores of both kinds gets one block, of which the card warns that it exceeds the limit"
        )
        for recommended, smallest, notes in ((True, False, ()), (False, False, (below,)), (False, True, (warned,))):
            sources = replace(self.sources, hccl=self.sources.hccl and recommended)
            limits = {each.stream: self._least(each, smallest) for each in demands_of(self.program, sources)}
            if self._is_safe(limits, self.deadline):
                return limits, notes
        fixed = sorted({f"{op.name} ({op.ignores_limit})" for _, op in self.program.ops() if op.ignores_limit})
        raise PlanError(
            f"no limit makes the program safe: they have no effect on {', '.join(fixed)}."
            if fixed
            else "not even with one block for each operator the program is safe.",
            looked_at=f"{self.refused.doubt}; by sums: {refused.looked_at}",
            do="let streams wait for each other's events, so that fewer of them run at the same time",
        ) from refused

    def plan(self, limits: Limits, notes: tuple[str, ...]) -> Plan:
        """The plan that keeps only the limits that are needed, as large as they can be."""
        self._drop_needless(limits)
        found = self._by_sums(limits)
        if found is not None:
            limits = found
            self._drop_needless(limits)
        for name in sorted(limits, key=lambda each: -self._loss(each, limits[each])):
            if self._loss(name, limits[name]):
                self._enlarge(limits, name)
        planned = []
        for name, demand in self.demands.items():
            limit = limits.get(name)
            if limit is None:
                time_, timing = _unlimited_time(self.program, demand)
                planned.append(Limit(name, demand.cards, None, None, time_, timing, "safe without a limit"))
                continue
            binds = [max(op.cores[kind] for op in self.ops[name]) > limit[kind] for kind in (0, 1)]
            cube, vector = (limit[kind] if binds[kind] else None for kind in (0, 1))
            choices = self._choices(name)
            least = larger(limit, choices.least)  # below it a card gives one block all the same
            microseconds, timing = choices.given(least), choices.timing(least)
            planned.append(Limit(name, demand.cards, cube, vector, microseconds, timing, self.reasons[name]))
        by_sums = all(each.proof.startswith("sum of") for each in self.proven.results)
        return _plan(self.program, self.sources, tuple(planned), "S1" if by_sums else "exact", self.proven, notes)

    def _drop_if_safe(self, limits: Limits, name: str) -> None:
        """Take a limit away if the program is safe without it; else note why not."""
        kept = limits.pop(name)
        if name in (self.sources.maxima or {}):
            self.reasons[name], limits[name] = "its maximum was given", kept
        elif all(op.within(kept).cores == op.cores for op in self.ops[name]):
            return
        elif not self._is_safe(limits, self._try_deadline()):
            self.reasons[name], limits[name] = f"without it {self.refused.doubt}", kept

    def _drop_needless(self, limits: Limits) -> None:
        for name in sorted(limits, key=lambda each: -self._loss(each, limits[each])):
            self._drop_if_safe(limits, name)

    def _by_sums(self, limits: Limits) -> Limits | None:
        """The limits of these streams by sums, where that is faster, now that others have none; else None."""
        demands = []
        for name, demand in self.demands.items():
            if name not in limits:
                needs = [op.need for op in self.ops[name]]
                cube, vector = (max((need[kind] for need in needs), default=0) for kind in (0, 1))
                demand = Demand(name, (), (cube, vector), (cube, vector), demand.cards)
            demands.append(demand)
        try:
            found = {
                each.stream: each.cores for each in plan(demands, self.program.cards).limits if each.stream in limits
            }
        except PlanError:
            return None
        after, before = (max((self._loss(name, each[name]) for name in each), default=0.0) for each in (found, limits))
        return found if after < before and self._is_safe(found, self._try_deadline()) else None

    def _enlarge(self, limits: Limits, name: str) -> None:
        """Raise a limit, one kind of core after the other, to the most with which the program is safe."""
        choices = self._choices(name)
        for kind in (1, 0):
            low, high = limits[name][kind], choices.most[kind]
            while low < high:
                middle = (low + high + 1) // 2
                cube, vector = limits[name]
                tried = (middle, vector) if kind == 0 else (cube, middle)
                if self._is_safe({**limits, name: tried}, self._try_deadline()):
                    low, limits[name] = middle, tried
                else:
                    high = middle - 1

    def _try_deadline(self) -> float:
        return min(self.deadline, time.thread_time() + _TRY_SECONDS)

    def _is_safe(self, limits: Limits, deadline: float) -> bool:
        proof = _prove(limited(self.program, limits), self.disciplines, deadline)
        if proof.safe:
            self.proven = proof
        else:
            self.refused = proof
        return proof.safe

    def _least(self, demand: Demand, smallest: bool) -> Cores:
        """One block for each operator; `smallest`: also for those with larger blocks than others of the stream."""
        cube, vector = demand.least
        if smallest:
            blocks = [op.block for op in self.ops[demand.stream] if op.blocks]
            cube, vector = (min((block[kind] for block in blocks if block[kind]), default=0) for kind in (0, 1))
        return cube, vector

    def _choices(self, name: str) -> Choices:
        if name not in self.choices:
            self.choices[name] = _choices(self.program, self.demands[name])
        return self.choices[name]

    def _loss(self, name: str, limit: Cores) -> float:
        """Microseconds that its limit costs a stream."""
        choices = self._choices(name)
        return choices.time(larger(limit, choices.least)) - choices.best


def _plan(
    program: Program,
    sources: Sources,
    limits: tuple[Limit, ...],
    method: str,
    proof: _Proof,
    notes: tuple[str, ...] = (),
) -> Plan:
    slowest = max(limits, key=lambda each: each.microseconds, default=None)
    graph = Graph.of(program)
    found = Plan(
        limits=limits,
        makespan=slowest.microseconds if slowest else 0.0,
        timing=weakest(each.timing for each in limits),
        method=method,
        proof=proof.texts,
        bound=f"{slowest.stream} is the slowest stream: {slowest.microseconds:.1f} microseconds ({slowest.timing})"
        if slowest
        else "there is nothing to run",
        notes=(*notes, *unknown_times(program)),
    )
    over = beyond(program, found)
    if over:
        note = f"{over}: operators may wait for cores, which the times do not count"
        found = replace(found, timing="estimate", notes=(*found.notes, note))
    return with_order(program, graph, order_of(graph), sources, found)


def _unlimited_time(program: Program, demand: Demand) -> tuple[float, str]:
    """Microseconds of a stream without a limit, and where they come from."""
    choices = _choices(program, demand)
    return choices.given(choices.most), choices.timing(choices.most)


def _choices(program: Program, demand: Demand) -> Choices:
    return Choices(demand, cores_for(demand, program.cards))
