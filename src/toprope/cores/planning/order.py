"""The order of a program, for a plan: how long it takes, and which streams never run together; pure.

For the planners of a whole program. What starts after what is `cores.order`'s; here times are added to it. A plan is
safe only if streams that are said never to run together never do (condition S1), which scripts/mutants.py puts to the
test. Tests: tests/cores/test_cores_planning_order.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from toprope.cores.model import OpId
from toprope.cores.order import Graph, cycle, starts
from toprope.errors import PlanError

__all__ = ["Chain", "longest_chain", "never_together", "order_of"]


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators of which each starts only after the one before it.

    Attributes:
        microseconds: how long they take.
        ops: the operators.
    """

    microseconds: float
    ops: tuple[OpId, ...]


def order_of(graph: Graph) -> list[int]:
    """The operators in an order in which they can start.

    Raises:
        PlanError: they wait for each other in a circle.
    """
    order = starts(graph)
    if len(order) < len(graph.ids):
        circle = [graph.program.describe(id) for id in cycle(graph)]
        raise PlanError(
            "the operators wait for each other in a circle, which no limit can change.",
            looked_at=" -> ".join([*circle, circle[0]]),
            do="change the order of the events or collectives, as `toprope cores check` explains",
        )
    return order


def longest_chain(graph: Graph, order: Sequence[int], times: Sequence[float]) -> Chain:
    """Time of the program when no operator waits for cores, and the longest chain, which takes that time.

    Args:
        graph: the program.
        order: from `order_of`.
        times: microseconds of each operator.
    """
    start = [0.0] * len(order)
    finish = [0.0] * len(order)
    cause: list[int | None] = [None] * len(order)
    waiting = [len(members) for members in graph.members]
    for number in order:
        last = max(graph.before[number], key=finish.__getitem__, default=None)
        start[number], cause[number] = (0.0, None) if last is None else (finish[last], last)
        peers: Sequence[int] = graph.peers(number)
        if graph.group[number] >= 0:
            waiting[graph.group[number]] -= 1
            if waiting[graph.group[number]]:
                continue
        latest = max(peers, key=start.__getitem__)
        longest = max(times[peer] for peer in peers)
        for peer in peers:
            finish[peer], cause[peer] = start[latest] + longest, cause[latest]
    ops: list[OpId] = []
    number_or_none = max(range(len(order)), key=finish.__getitem__, default=None)
    total = finish[number_or_none] if number_or_none is not None else 0.0
    while number_or_none is not None:
        ops.append(graph.ids[number_or_none])
        number_or_none = cause[number_or_none]
    return Chain(total, tuple(reversed(ops)))


def never_together(graph: Graph, order: Sequence[int]) -> set[frozenset[int]]:
    """Pairs of streams of a card of which no two operators that use cores can be active at the same time."""
    program = graph.program
    ended = _ended_before(graph, order)
    uses = [list(accumulate((any(op.cores) for op in each.ops), initial=0)) for each in program.streams]
    apart = set()
    for one, stream in enumerate(program.streams):
        for other in range(one):
            if stream.card == program.streams[other].card and not _overlap(graph, ended, uses, one, other):
                apart.add(frozenset((one, other)))
    return apart


def _overlap(graph: Graph, ended: list[list[int]], uses: list[list[int]], one: int, other: int) -> bool:
    first, count = graph.first[other], len(graph.program.streams[other].ops)
    following = 0  # the first operator of `other` that starts only after the one looked at has finished
    for place in range(len(graph.program.streams[one].ops)):
        if uses[one][place + 1] == uses[one][place]:
            continue
        while following < count and ended[first + following][one] <= place:
            following += 1
        preceding = ended[graph.first[one] + place][other]
        if preceding < following and uses[other][following] > uses[other][preceding]:
            return True
    return False


def _ended_before(graph: Graph, order: Sequence[int]) -> list[list[int]]:
    """By operator, how many operators of each stream have finished when it starts, at the least."""
    streams = len(graph.program.streams)
    ended = [[0] * streams for _ in order]
    finish: list[list[int]] = [[] for _ in order]
    waiting = [len(members) for members in graph.members]
    for number in order:
        for before in graph.before[number]:
            ended[number] = list(map(max, ended[number], finish[before]))
        peers = graph.peers(number)
        if graph.group[number] >= 0:
            waiting[graph.group[number]] -= 1
            if waiting[graph.group[number]]:
                continue
        clock = [max(values) for values in zip(*(ended[peer] for peer in peers), strict=True)]
        for peer in peers:
            stream, place = graph.ids[peer]
            clock[stream] = max(clock[stream], place + 1)
        for peer in peers:
            finish[peer] = clock
    return ended
