"""The best limits that the exact test proves safe, by CP-SAT; needs the extra `plan`.

For `toprope cores plan --exact` and users. The sums of S1 ask for more than safety needs. Here limits are proposed by
what they do to the makespan, in the order of the program; the checker proves them safe or shows a deadlock; and all
limits that give each stream of that deadlock at least as much are ruled out (a deadlock stays one when demands grow).
The search begins with the plan by sums, and returns that one if nothing better is found in time. No limits are returned
that `cores.check` has not proven; how they are proposed is free.

Not modelled: operators that get their cores at chosen times (a moldable-task schedule). A card has nothing that would
keep to such a schedule; limits it does keep. Tests: tests/cores/test_cores_plan_exact.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toprope.cores.check import Result, Verdict, check
from toprope.cores.findings import assuming_cores
from toprope.cores.model import Cores, Discipline, Op, Program
from toprope.cores.order import Graph
from toprope.cores.planning.limits import Limit, Plan, cores_for
from toprope.cores.planning.order import order_of
from toprope.cores.planning.program import Sources, beyond, demands_of, limited, plan_by_sums, stream_names, with_order
from toprope.cores.planning.safe import as_it_is, strictest
from toprope.cores.planning.search import KINDS, Choices, by_block
from toprope.cores.planning.times import Times, Work, weakest
from toprope.errors import PlanError
from toprope.extras import advice

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["plan_exact"]

_HORIZON = 2**40
"""Times are whole numbers in the solver: the most steps that the longest may have."""


def plan_exact(
    program: Program,
    sources: Sources | None = None,
    *,
    disciplines: Sequence[Discipline] | None = None,
    seconds: float = 30.0,
) -> Plan:
    """Limits with the shortest makespan that the exact test proves safe.

    Args:
        program: the streams and their operators.
        sources: where times and minima come from; None: from the program alone.
        disciplines: how cores may be handed out; None: in any of the four ways.
        seconds: when to stop and give back the best so far.

    Returns:
        A plan by method "exact", or the plan by sums where none better was found; its notes say whether better limits
        were ruled out, or the time was up.

    Raises:
        PlanError: OR-tools is not installed; the operators wait for each other in a circle; or the fewest cores that
            the streams can do with do not fit the card.
    """
    solver_module = _cp_model()
    sources, program = sources or Sources(), assuming_cores(program)
    deadline = time.thread_time() + seconds
    disciplines = strictest(program) if disciplines is None else tuple(disciplines)
    unlimited = as_it_is(program, sources, disciplines, deadline)
    if unlimited is not None:
        return unlimited
    incumbent = plan_by_sums(program, sources)
    search = _Search(solver_module, program, sources, incumbent)
    unproven = 0
    while (left := deadline - time.thread_time()) > 0:
        proposed = search.propose(left)
        if proposed is None:
            break
        results = [_check(limited(program, proposed), each, deadline) for each in disciplines]
        doubt = next((each for each in results if each.verdict is not Verdict.SAFE), None)
        if doubt is None:
            return search.plan(proposed, results, unproven)
        unproven += doubt.verdict is Verdict.UNKNOWN
        if not search.forbid(proposed, doubt):
            break
    found = "the time was up before better limits were found or ruled out"
    if search.exhausted:
        found = "no better limits are safe" if not unproven else "no better limits could be proven safe"
    return replace(incumbent, notes=(*incumbent.notes, f"exact search, {search.proposals} proposals: {found}"))


def _check(program: Program, discipline: Discipline, deadline: float) -> Result:
    left = max(deadline - time.thread_time(), 0.1)
    return check(program, discipline=discipline, seconds=left, findings=False, further=False)


class _Search:
    """The limits that have not been ruled out, and what they do to the makespan."""

    def __init__(self, cp: Any, program: Program, sources: Sources, incumbent: Plan) -> None:
        self.cp, self.program, self.sources, self.incumbent = cp, program, sources, incumbent
        self.proposals = 0
        self.exhausted = False
        self.names = stream_names(program)
        self.demands = {demand.stream: demand for demand in demands_of(program, sources)}
        self.graph = Graph.of(program)
        self.order = order_of(self.graph)
        self.model: cp_model.CpModel = cp.CpModel()
        self.limits: dict[tuple[str, int], cp_model.IntVar] = {}
        for name, demand in self.demands.items():
            choices = Choices(demand, cores_for(demand, self.program.cards))
            for kind in (0, 1):
                self.limits[name, kind] = self.model.new_int_var(
                    choices.least[kind], choices.most[kind], f"{name} {KINDS[kind]}"
                )
        longest = sum(sources.times(op).on(1) for _, op in program.ops())
        self.scale = min(1000.0, _HORIZON / longest) if longest else 1.0
        self.durations: dict[object, cp_model.IntVar] = {}
        self.blocks: dict[object, cp_model.IntVar] = {}
        self.known: dict[object, Times] = {}
        most_cube, most_vector = (max((card.cores[kind] for card in program.cards), default=0) for kind in (0, 1))
        self._most: Cores = most_cube, most_vector
        makespan = self._makespan(math.ceil(longest * self.scale) + len(self.order))
        cores = sum(self.limits.values())
        most = 1 + sum(card.cube + card.vector for card in program.cards) * len(self.names)
        self.model.minimize(makespan * most + cores)
        # Only what is better by more than rounding counts.
        self.model.add(makespan < math.floor(incumbent.makespan * self.scale))
        for each in incumbent.limits:
            for kind in (0, 1):
                self.model.add_hint(self.limits[each.stream, kind], each.cores[kind])

    def propose(self, seconds: float) -> dict[str, Cores] | None:
        """The best limits that are left; None where there are none, or the time is up."""
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        self.exhausted = status == self.cp.INFEASIBLE
        if status != self.cp.OPTIMAL:
            return None
        self.proposals += 1
        return {name: (solver.value(self.limits[name, 0]), solver.value(self.limits[name, 1])) for name in self.demands}

    def forbid(self, proposed: dict[str, Cores], result: Result) -> bool:
        """Rule out these limits and all that are no smaller where it matters; False where that leaves none."""
        smaller = []
        for name, kind, below in self._deadlocked_limits(proposed, result):
            variable = self.limits[name, kind]
            if below > self.demands[name].least[kind]:
                is_smaller = self.model.new_bool_var("")
                self.model.add(variable <= below - 1).only_enforce_if(is_smaller)
                smaller.append(is_smaller)
        self.model.add_bool_or(smaller)
        self.exhausted = not smaller
        return bool(smaller)

    def plan(self, proposed: dict[str, Cores], results: Sequence[Result], unproven: int) -> Plan:
        """The plan for limits that were proven safe."""
        limits = tuple(self._limit(name, cores) for name, cores in proposed.items())
        note = f"exact search, {self.proposals} proposals: {self.incumbent.makespan:.1f} microseconds by sums (S1)" + (
            f"; {unproven} better ones could be neither proven nor refuted" if unproven else ""
        )
        found = Plan(
            limits=limits,
            makespan=max(each.microseconds for each in limits),
            timing=weakest(each.timing for each in limits),
            method="exact",
            proof=tuple(f"safe under {each.discipline.value}: {each.proof}" for each in results),
            bound="",
            notes=(*self.incumbent.notes, note),
        )
        over = beyond(self.program, found)
        if over:
            notes = (*self.incumbent.notes, f"{over}: operators may wait for cores, which the times do not count", note)
            found = replace(found, timing="estimate", notes=notes)
        slowest = max(limits, key=lambda each: each.microseconds)
        found = replace(found, bound=f"{slowest.stream} is the slowest stream: {slowest.microseconds:.1f} microseconds")
        return with_order(self.program, self.graph, self.order, self.sources, found)

    def _deadlocked_limits(self, proposed: dict[str, Cores], result: Result) -> list[tuple[str, int, int]]:
        """Stream, kind of core, and the limit below which it would ask for less than in the deadlock."""
        state = result.witness
        if state is None:
            return [(name, kind, cores[kind]) for name, cores in proposed.items() for kind in (0, 1)]
        found = []
        for id in state.active:
            op = state.program.op(id)
            if op.all_at_once:  # any other needs one block, whatever its limit
                found += [(self.names[id[0]], kind, op.cores[kind]) for kind in (0, 1) if op.cores[kind]]
        return found

    def _limit(self, name: str, cores: Cores) -> Limit:
        demand = self.demands[name]
        choices = Choices(demand, cores_for(demand, self.program.cards))
        cube, vector = (cores[kind] if choices.least[kind] else None for kind in (0, 1))
        return Limit(name, demand.cards, cube, vector, choices.given(cores), choices.timing(cores))

    # The model: a start and a finish for every piece of a stream, and a makespan after all.

    def _makespan(self, horizon: int) -> cp_model.IntVar:
        model, graph = self.model, self.graph
        pieces = self._pieces()
        piece_of = {number: place for place, piece in enumerate(pieces) for number in piece}
        shared = [model.new_int_var(0, horizon, "") for _ in graph.members]
        own = [model.new_int_var(0, horizon, "") for _ in pieces]
        finish = [
            own[place] if graph.group[piece[0]] < 0 else shared[graph.group[piece[0]]]
            for place, piece in enumerate(pieces)
        ]
        starts = [model.new_int_var(0, horizon, "") for _ in graph.members]
        makespan = model.new_int_var(0, horizon, "makespan")
        for place, piece in enumerate(pieces):
            group = graph.group[piece[0]]
            start = model.new_int_var(0, horizon, "") if group < 0 else starts[group]
            for before in graph.before[piece[0]]:
                model.add(start >= finish[piece_of[before]])
            model.add(finish[place] >= start + self._duration(piece))
            model.add(makespan >= finish[place])
        for stream in range(len(self.names)):
            # It follows from the rest, but lets the solver see at once what a limit costs.
            model.add(makespan >= self._duration(list(range(graph.first[stream], graph.first[stream + 1]))))
        return makespan

    def _pieces(self) -> list[list[int]]:
        """Operators that follow each other in a stream; only the first waits, only the last is waited for."""
        graph = self.graph
        pieces: list[list[int]] = []
        waited_for = {
            source for number, sources in enumerate(graph.before) for source in sources if source != number - 1
        }
        for number, (_, place) in enumerate(graph.ids):
            previous = number - 1
            joins = place > 0 and graph.group[number] < 0 and graph.group[previous] < 0
            if joins and len(graph.before[number]) == 1 and previous not in waited_for:
                pieces[-1].append(number)
            else:
                pieces.append([number])
        return pieces

    def _duration(self, piece: Sequence[int]) -> Any:
        """Time that operators of a stream take one after the other with its limit."""
        total: Any = 0
        if not piece:
            return total
        name = self.names[self.graph.ids[piece[0]][0]]
        works = [Work(self._times(op), op.block) for op in (self.program.op(self.graph.ids[each]) for each in piece)]
        for block, sums in by_block(works, self._most):
            times = [math.floor(value * self.scale) for value in sums]
            if len(set(times)) == 1:
                total += times[0]
                continue
            key = name, block, tuple(times)
            if key not in self.durations:
                self.durations[key] = duration = self.model.new_int_var(min(times), max(times), "")
                self.model.add_element(self._blocks(name, block, len(times)), [times[0], *times], duration)
            total += self.durations[key]
        return total

    def _times(self, op: Op) -> Times:
        key = op.name, op.cores, op.microseconds, op.timing, op.collective is None
        if key not in self.known:
            self.known[key] = self.sources.times(op)
        return self.known[key]

    def _blocks(self, name: str, block: Cores, most: int) -> cp_model.IntVar:
        """Number of blocks that the limit of a stream allows."""
        key = name, block, most
        if key not in self.blocks:
            self.blocks[key] = blocks = self.model.new_int_var(1, most, "")
            allowed: list[cp_model.IntVar | int] = [most]
            for kind in (0, 1):
                if block[kind]:
                    share = self.model.new_int_var(0, self._most[kind], "")
                    self.model.add_division_equality(share, self.limits[name, kind], block[kind])
                    allowed.append(share)
            self.model.add_min_equality(blocks, allowed)
        return self.blocks[key]


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except (ImportError, OSError) as error:
        raise PlanError(
            "the exact plan needs OR-tools, which cannot be imported.",
            looked_at=f"import ortools: {error}",
            do=f"{advice('plan')}, or plan by sums (S1), which needs nothing",
        ) from error
    return cp_model
