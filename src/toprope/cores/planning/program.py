"""Limits for the streams of a program, by sums: their demands are taken from the program's operators; pure.

`plan_by_sums`, for users; the other planners (`safe`, `exact`) take demands, names and their first plan from here. An
operator without a time counts as `UNKNOWN_MICROSECONDS` of the simulation, and the plan says so. Tests:
tests/cores/test_cores_plan.py, tests/cores/test_cores_plan_safe.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from toprope.collectives import hccl_minimum
from toprope.cores.model import Cores, Op, OpId, Program
from toprope.cores.order import Graph
from toprope.cores.planning.limits import Plan, plan
from toprope.cores.planning.order import Chain, longest_chain, never_together, order_of
from toprope.cores.planning.search import KINDS
from toprope.cores.planning.times import Demand, Times, Work, profile_times
from toprope.cores.simulation.simulate import UNKNOWN_MICROSECONDS
from toprope.errors import PlanError

__all__ = [
    "Sources",
    "beyond",
    "demands_of",
    "larger",
    "limited",
    "plan_by_sums",
    "stream_names",
    "unknown_times",
    "with_order",
]

_ALL = 2**30
"""As a limit: more cores than any card has."""


@dataclass(frozen=True)
class Sources:
    """Sources of times and minima of a program's streams, in addition to the program itself.

    An operator's time on other numbers of cores comes from the table of its name; without one, where `profiles` is
    set, from what others measured of operators like it; else it is estimated as its own time, times its blocks,
    divided by the blocks that it gets. An operator never gets more cores than it was launched on.

    Attributes:
        tables: times by an operator's name; the blocks of a table are the operator's.
        profiles: whether to use the figures of others in profiles.toml.
        minima: cores that a stream must have, by its name.
        maxima: cores that a stream must not exceed, by its name.
        hccl: whether collectives in AIV mode get what HCCL recommends, or what they were launched on if that is less.
    """

    tables: Mapping[str, Times] | None = None
    profiles: bool = False
    minima: Mapping[str, Cores] | None = None
    maxima: Mapping[str, Cores] | None = None
    hccl: bool = True

    def times(self, op: Op) -> Times:
        """The times of an operator on 1 to all of its blocks."""
        blocks = max(op.blocks, 1)
        if self.tables and op.name in self.tables:
            return self.tables[op.name].up_to(blocks)
        time = UNKNOWN_MICROSECONDS if op.microseconds is None else op.microseconds
        timing = (op.timing or "estimate") if op.microseconds is not None else "estimate"
        if self.profiles and op.collective is None and (op.cube == 0) != (op.vector == 0):
            return profile_times("gemm" if op.cube else "elementwise", time, blocks)
        return Times(tuple(time * blocks / count for count in range(1, blocks + 1)), timing, blocks)


def stream_names(program: Program) -> list[str]:
    """Name of each stream in a plan; where a card has two streams of one name, with their numbers."""
    twice = Counter((stream.card, stream.name) for stream in program.streams)
    unclear = {name for (_, name), count in twice.items() if count > 1}
    return [
        f"{each.name}[{number}]" if each.name in unclear else each.name for number, each in enumerate(program.streams)
    ]


def limited(program: Program, limits: Plan | Mapping[str, Cores]) -> Program:
    """The program with its streams limited: each operator launched on as many blocks as fit, at least one.

    Args:
        program: the program.
        limits: a plan, or cube and vector cores by the name of a stream; streams not named stay as they are.
    """
    if isinstance(limits, Plan):
        limits = {
            each.stream: (_ALL if each.cube is None else each.cube, _ALL if each.vector is None else each.vector)
            for each in limits.limits
            if each.is_limited
        }
    streams = []
    for name, stream in zip(stream_names(program), program.streams, strict=True):
        limit = limits.get(name)
        streams.append(stream if limit is None else replace(stream, ops=tuple(op.within(limit) for op in stream.ops)))
    return replace(program, streams=tuple(streams))


def demands_of(program: Program, sources: Sources) -> list[Demand]:
    """The demands of a program's streams; streams of the same name on several cards are one demand."""
    names = stream_names(program)
    for given in (sources.minima, sources.maxima):
        unknown = sorted(set(given or ()) - set(names))
        if unknown:
            raise PlanError(f"there is no stream {unknown[0]}.", looked_at=f"streams {', '.join(sorted(set(names)))}")
    by_name: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        by_name.setdefault(name, []).append(number)
    return [_demand(program, sources, name, numbers) for name, numbers in by_name.items()]


def _demand(program: Program, sources: Sources, name: str, numbers: list[int]) -> Demand:
    works: list[tuple[Work, ...]] = []
    least, most = (0, 0), (0, 0)
    for number in numbers:
        alike: dict[object, tuple[Op, int]] = {}
        for place, op in enumerate(program.streams[number].ops):
            key = _signature(op)
            alike[key] = op, alike.get(key, (op, 0))[1] + 1
            least = larger(least, _hccl(program, (number, place)) if sources.hccl else (0, 0))
            least = larger(least, op.cores if op.ignores_limit else (0, 0))
            most = larger(most, op.cores)
        works.append(tuple(Work(sources.times(op), op.block, count, op.name) for op, count in alike.values()))
    given = (sources.minima or {}).get(name, (0, 0))
    cap = (sources.maxima or {}).get(name)
    # Cores of a kind that it does not use are not reserved for it.
    least = larger(least, (given[0] if most[0] else 0, given[1] if most[1] else 0))
    most = larger(most, least)
    if cap is not None:
        most = (min(most[0], cap[0]), min(most[1], cap[1]))
    different = list(dict.fromkeys(works))
    cards = tuple(program.streams[number].card for number in numbers)
    return Demand(name, different[0], least, most, cards, tuple(different[1:]))


def _signature(op: Op) -> object:
    """The properties that decide the times of an operator."""
    return op.name, op.cores, op.microseconds, op.timing, op.collective is None


def _hccl(program: Program, id: OpId) -> Cores:
    op, card = program.op(id), program.card_of(id)
    if op.collective is None or not op.vector:
        return 0, 0
    (group,) = (each for each in program.communicators if each.name == op.collective.communicator)
    minimum = hccl_minimum(op.name, card.chip, len(group.cards)) if group.engine in ("", "aiv") else None
    return 0, min(minimum.cores, op.vector) if minimum else 0


def larger(one: Cores, other: Cores) -> Cores:
    """The larger number of each kind of core."""
    return max(one[0], other[0]), max(one[1], other[1])


def plan_by_sums(program: Program, sources: Sources = Sources(), *, condition: str = "S1") -> Plan:
    """Limits for the streams of a program with which the sums of S1 or S2 prove it safe.

    Streams of the same name get the same limit on all cards. What is made as short as can be is the slowest stream;
    the plan has the makespan of the order, which can be longer: `plan_exact` takes it into account.

    Args:
        program: the streams and their operators.
        sources: where times and minima come from; None: from the program alone.
        condition: "S1": all streams of a card share its cores; "S2": streams that by their order never run at the same
            time can have the same cores.

    Raises:
        PlanError: the operators wait for each other in a circle, or the fewest cores that the streams can do with do
            not fit.
    """
    if condition not in ("S1", "S2"):
        raise PlanError(f"there is no condition {condition}.", looked_at="conditions S1, S2")
    sources = sources or Sources()
    graph = Graph.of(program)
    order = order_of(graph)
    apart = _apart(program, graph, order) if condition == "S2" else []
    found = plan(demands_of(program, sources), program.cards, apart=apart, notes=unknown_times(program))
    return with_order(program, graph, order, sources, found)


def with_order(program: Program, graph: Graph, order: list[int], sources: Sources, found: Plan) -> Plan:
    """The plan with the makespan that the order of the program gives it."""
    known: dict[object, Times] = {}
    times = []
    for (_, op), (_, short) in zip(program.ops(), limited(program, found).ops(), strict=True):
        key = _signature(op)
        if key not in known:
            known[key] = sources.times(op)
        times.append(known[key].on(max(short.blocks, 1)))
    chain = longest_chain(graph, order, times)
    slowest = max((each.microseconds for each in found.limits), default=0.0)
    if chain.microseconds <= slowest * (1 + 1e-9):
        return found
    return replace(found, makespan=chain.microseconds, bound=_bound(program, chain))


def beyond(program: Program, found: Plan) -> str:
    """Sums of the cores that streams of a plan can hold and a card does not have; empty if all fit."""
    totals = {card.name: [0, 0] for card in program.cards}
    for stream in limited(program, found).streams:
        for kind in (0, 1):
            totals[stream.card][kind] += max((op.cores[kind] for op in stream.ops), default=0)
    sums = [
        f"{totals[card.name][kind]} of {card.cores[kind]} {KINDS[kind]} cores of card {card.name}"
        for card in program.cards
        for kind in (0, 1)
        if totals[card.name][kind] > card.cores[kind]
    ]
    more = f" and {len(sums) - 4} more" if len(sums) > 4 else ""
    return f"the streams can ask for {', '.join(sums[:4])}{more}" if sums else ""


def _bound(program: Program, chain: Chain) -> str:
    names = list(dict.fromkeys(program.streams[stream].name for stream, _ in chain.ops))
    first, last = program.describe(chain.ops[0]), program.describe(chain.ops[-1])
    return (
        f"the longest chain of operators that wait for each other: {len(chain.ops)} operators from {first} to {last}, "
        f"through {', '.join(names)}: {chain.microseconds:.1f} microseconds"
    )


def _apart(program: Program, graph: Graph, order: list[int]) -> list[tuple[str, str]]:
    """Names of streams that never run at the same time on any of their cards."""
    names = stream_names(program)
    apart = never_together(graph, order)
    pairs: dict[tuple[str, str], bool] = {}
    for one, stream in enumerate(program.streams):
        for other in range(one):
            if program.streams[other].card == stream.card:
                first, second = sorted((names[one], names[other]))
                pairs[first, second] = pairs.get((first, second), True) and frozenset((one, other)) in apart
    return [pair for pair, never in pairs.items() if never]


def unknown_times(program: Program) -> list[str]:
    """Note on operators of which no time is known."""
    ops = [op for _, op in program.ops()]
    unknown = sum(op.microseconds is None for op in ops)
    if not unknown:
        return []
    return [f"{unknown} of {len(ops)} operators have no time: each is taken to run {UNKNOWN_MICROSECONDS} microseconds"]
