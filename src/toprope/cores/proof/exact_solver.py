"""The exact test as a constraint problem, for OR-tools' CP-SAT: programs of more than a thousand operators.

`cores.check` calls it when plain Python (`proof.exact`) does not decide in time; both must agree, which
tests/cores/test_cores_exact.py compares. Needs the extra `plan`. Variables are whether each operator has finished,
whether it is active, and per stream the blocks that are held and whether these are all that are needed; both kinds of
core follow from the blocks. A solution is a moment in which nothing can go on. The conditions are those of the
stuck-cut theorem (docs/core_proof.md). Tests: tests/cores/test_cores_exact.py; the deadline in
tests/cores/test_cores_check.py.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from toprope.cores.model import Cores, Discipline
from toprope.cores.order import Graph
from toprope.cores.proof.exact import Outcome
from toprope.cores.proof.stuck_cuts import Cuts
from toprope.cores.state import State
from toprope.extras import advice

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["INSTALL", "available", "solve"]

INSTALL = advice("plan")
"""How to get the solver."""


def available() -> bool:
    """True if OR-tools is installed."""
    return find_spec("ortools") is not None


def solve(graph: Graph, discipline: Discipline, deadline: float, improve: float = 0.5) -> Outcome:
    """Look for a moment in which a program without circular waits is stuck, under D0, D1 or D2.

    Args:
        graph: the program's.
        discipline: how cards hand out cores; for D0b there is no such encoding.
        deadline: when to give up, in seconds of `time.thread_time`.
        improve: seconds to look for the shortest witness once there is one.
    """
    from ortools.sat.python import cp_model

    encoding = _Encoding(graph, discipline)
    solver = cp_model.CpSolver()
    # Measured: one thread without probing and without a search for symmetries is faster than two with both.
    solver.parameters.num_workers = 1
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    solver.parameters.max_time_in_seconds = max(deadline - time.thread_time(), 0.01)
    status = solver.solve(encoding.model)
    if status == cp_model.INFEASIBLE:
        return Outcome(None, True, 1)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome(None, False, 1)
    witness = encoding.state(solver)
    encoding.hint(solver)
    encoding.model.minimize(sum(done for stream in encoding.done for done in stream))
    solver.parameters.max_time_in_seconds = max(min(deadline - time.thread_time(), improve), 0.01)
    status = solver.solve(encoding.model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        witness = min(encoding.state(solver), witness, key=lambda state: sum(state.done))
    return Outcome(witness, status == cp_model.OPTIMAL, 1)


class _Encoding:
    """A moment in which a program is stuck, as variables and rules for the solver.

    `done` and `active` are by stream and operator: whether it has finished, and whether it may hold cores now.
    """

    def __init__(self, graph: Graph, discipline: Discipline) -> None:
        from ortools.sat.python import cp_model

        self.graph = graph
        self.discipline = discipline
        self.cuts = Cuts(graph, discipline)
        self.model = cp_model.CpModel()
        streams = range(len(graph.program.streams))
        new = self.model.new_bool_var
        self.done = [[new("") for _ in stream.ops] for stream in graph.program.streams]
        self.active = [[new("") for _ in stream.ops] for stream in graph.program.streams]
        # By stream: whether it has an active operator, its head, and whether that holds all blocks that it needs.
        self.any = [new("") for _ in streams]
        self.full = [new("") for _ in streams]
        # By stream and cores of one block: the number of blocks that its head holds.
        self.held: list[dict[Cores, cp_model.IntVar]] = [{} for _ in streams]
        self.totals: list[tuple[Any, Any]] = []
        self._order()
        for stream in streams:
            self._hold(stream)
        for card in range(len(self.cuts.cores)):
            self._card(card)
        self._collectives()
        self.model.add_bool_or([~done[-1] for done in self.done if done])

    def state(self, solver: cp_model.CpSolver) -> State:
        """The moment that has been found."""
        done = tuple(sum(map(solver.value, stream)) for stream in self.done)
        held = tuple(sum(map(solver.value, blocks.values())) for blocks in self.held)
        return State(self.graph.program, done, held)

    def hint(self, solver: cp_model.CpSolver) -> None:
        """Begin the next search at the moment that has been found."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for stream in self.done:
            for done in stream:
                self.model.add_hint(done, solver.value(done))

    def _order(self) -> None:
        """Rules of the order: predecessors finish first; a stream's head is active once all before it have finished."""
        graph, model = self.graph, self.model
        done = [each for stream in self.done for each in stream]
        active = [each for stream in self.active for each in stream]
        for op, sources in enumerate(graph.before):
            for source in sources:
                model.add_implication(done[op], done[source])
            conditions = [~done[op], *(done[source] for source in sources)]
            model.add_bool_and(conditions).only_enforce_if(active[op])
            model.add_bool_or([active[op], *(~each for each in conditions)])
        for stream, ops in enumerate(self.active):
            model.add_exactly_one([*ops, ~self.any[stream]])
        for members in graph.members:
            for op in members[1:]:
                model.add(done[op] == done[members[0]])

    def _hold(self, stream: int) -> None:
        """Rules for the blocks that a stream's head holds, and for whether these are all that it needs."""
        cuts, model, full = self.cuts, self.model, self.full[stream]
        shapes: dict[Cores, list[tuple[cp_model.IntVar, int]]] = {}
        for place, active in enumerate(self.active[stream]):
            op = self.graph.first[stream] + place
            if cuts.alone[op]:
                if not cuts.blocks[op]:
                    model.add(active == 0)  # it needs nothing, so it never waits
                model.add_implication(active, ~full)
            elif not cuts.blocks[op]:
                model.add_implication(active, full)
            if cuts.blocks[op]:
                shapes.setdefault(cuts.block[op], []).append((active, cuts.blocks[op]))
        model.add_implication(full, self.any[stream])
        for shape, ops in shapes.items():
            held = model.new_int_var(0, max(blocks for _, blocks in ops), "")
            here = sum(active for active, _ in ops)
            needed = sum(blocks * active for active, blocks in ops)
            if self.discipline is Discipline.D0:
                model.add(held <= needed - here).only_enforce_if(~full)
            else:
                model.add(held == 0).only_enforce_if(~full)
            model.add(held == needed).only_enforce_if(full)
            self.held[stream][shape] = held

    def _sums(self, streams: list[int], kind: int) -> Any:
        return sum(shape[kind] * held for stream in streams for shape, held in self.held[stream].items() if shape[kind])

    def _needs(self, stream: int, kind: int) -> Any:
        first, need = self.graph.first[stream], self.cuts.need
        return sum(
            need[first + place][kind] * active
            for place, active in enumerate(self.active[stream])
            if need[first + place][kind]
        )

    def _card(self, card: int) -> None:
        """The operators of a card hold no more than it has, and none that waits for cores can get them."""
        streams = [each for each, owner in enumerate(self.cuts.card_of_stream) if owner == card]
        idle = [self.cuts.cores[card][kind] - self._sums(streams, kind) for kind in (0, 1)]
        for kind in (0, 1):
            self.model.add(idle[kind] >= 0)
        if self.discipline is Discipline.D1:
            self._keeper(card, streams, idle)
            return
        # By kind of core and number N: fewer than N are idle. Then all that are active need more than there are.
        fewer: dict[tuple[int, int], cp_model.IntVar] = {}
        for stream in streams:
            for place, active in enumerate(self.active[stream]):
                op = self.graph.first[stream] + place
                wanted = self.cuts.block[op] if self.discipline is Discipline.D0 else self.cuts.need[op]
                for kind in (0, 1):
                    if wanted[kind] and (kind, wanted[kind]) not in fewer:
                        fewer[kind, wanted[kind]] = self._fewer(card, streams, idle, kind, wanted[kind])
                lacks = [fewer[kind, wanted[kind]] for kind in (0, 1) if wanted[kind]]
                self.model.add_bool_or([~active, self.full[stream], *lacks])

    def _fewer(self, card: int, streams: list[int], idle: list[Any], kind: int, number: int) -> cp_model.IntVar:
        """A variable that is only true if fewer cores than this number are idle, and the card can run short of them."""
        fewer = self.model.new_bool_var("")
        self.model.add(idle[kind] < number).only_enforce_if(fewer)
        needed = sum(self._needs(stream, kind) for stream in streams)
        self.model.add(needed > self.cuts.cores[card][kind]).only_enforce_if(fewer)
        return fewer

    def _keeper(self, card: int, streams: list[int], idle: list[Any]) -> None:
        """D1: where somebody waits, there is one whose cores are not all idle, and it keeps them from the others."""
        keepers = []
        for stream in streams:
            keeps = self.model.new_bool_var("")
            lacks = [self.model.new_bool_var("") for _ in (0, 1)]
            self.model.add_implication(keeps, ~self.full[stream])
            self.model.add_implication(keeps, self.any[stream])
            self.model.add_bool_or([~keeps, *lacks])
            for kind in (0, 1):
                self.model.add(self._needs(stream, kind) > idle[kind]).only_enforce_if(lacks[kind])
            keepers.append(keeps)
        for stream in streams:
            self.model.add_bool_or([~self.any[stream], self.full[stream], *keepers])

    def _collectives(self) -> None:
        """No collective has all of its members' cores."""
        ids, model = self.graph.ids, self.model
        for group, members in enumerate(self.graph.members):
            if self.graph.incomplete[group]:
                continue
            lacking = []
            for op in members:
                stream, place = ids[op]
                has_all = model.new_bool_var("")
                model.add_bool_or([~self.active[stream][place], ~self.full[stream], has_all])
                lacking.append(~has_all)
            model.add_bool_or(lacking)
