"""The order of a program without its cores: what starts after what, and what can never start; pure.

Proofs, findings and plans begin with its `Graph`. Every operator has two nodes, its start and its finish; the members
of a collective share one finish but keep their own starts, because a member takes its cores before its peers are
ready. A start follows its own predecessors' finishes, a finish follows the starts of all of its members. A cycle in
this graph is a deadlock that no number of cores fixes. The nodes are what docs/core_proof.md proves with; how they are
numbered and walked is free, in time linear in the program. Tests: tests/cores/test_cores_order.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from toprope.cores.model import OpId, Program

__all__ = ["Graph", "cycle", "furthest", "starts"]


@dataclass(frozen=True, slots=True)
class Graph:
    """The start/finish graph of a program; its operators are numbered stream by stream.

    Attributes:
        program: what it is the graph of.
        first: number of the first operator of each stream; one more at the end, the number of operators.
        ids: the operator of each number.
        after: by operator, the operators whose start follows its finish.
        before: by operator, the operators whose finishes its start follows.
        group: by operator, its place in `members`; -1 for a local operator.
        members: the members of each collective.
        incomplete: whether each collective lacks a member, and so never finishes.
    """

    program: Program
    first: tuple[int, ...]
    ids: list[OpId]
    after: list[list[int]]
    before: list[tuple[int, ...]]
    group: list[int]
    members: list[tuple[int, ...]]
    incomplete: list[bool]

    @classmethod
    def of(cls, program: Program) -> Graph:
        """The graph of a program; O(operators + waits)."""
        first = [0]
        for stream in program.streams:
            first.append(first[-1] + len(stream.ops))
        ids = [id for id, _ in program.ops()]
        before = [tuple(first[stream] + place for stream, place in program.before(id)) for id in ids]
        after: list[list[int]] = [[] for _ in ids]
        for op, sources in enumerate(before):
            for source in sources:
                after[source].append(op)
        group, members = [-1] * len(ids), []
        for number, found in enumerate(program.members.values()):
            members.append(tuple(first[stream] + place for stream, place in found))
            for op in members[-1]:
                group[op] = number
        incomplete = [each in program.incomplete for each in program.members]
        return cls(program, tuple(first), ids, after, before, group, members, incomplete)

    def peers(self, op: int) -> tuple[int, ...]:
        """The operators that finish together with this one, itself among them."""
        return (op,) if self.group[op] < 0 else self.members[self.group[op]]


def starts(graph: Graph) -> list[int]:
    """The operators in an order in which they can start, cores and lacking members aside.

    Those that are missing can never start: they wait in a circle, or for one.
    """
    return _run(graph, pretend=True)[0]


def furthest(graph: Graph) -> tuple[int, ...]:
    """Operators of each stream that finish when there are cores for all: fewer than all is a deadlock of order."""
    return tuple(_run(graph, pretend=False)[1])


def _run(graph: Graph, pretend: bool) -> tuple[list[int], list[int]]:
    """The operators that start, in order, and their number in each stream; `pretend` that none lacks a member."""
    waiting = [len(sources) for sources in graph.before]
    lacking = [len(members) for members in graph.members]
    queue = [op for op, count in enumerate(waiting) if not count]
    finished = [0] * len(graph.program.streams)
    for op in queue:
        group = graph.group[op]
        ends: tuple[int, ...] = (op,)
        if group >= 0:
            lacking[group] -= 1
            if lacking[group] or (graph.incomplete[group] and not pretend):
                continue
            ends = graph.members[group]
        for end in ends:
            finished[graph.ids[end][0]] += 1
            for follower in graph.after[end]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    queue.append(follower)
    return queue, finished


def cycle(graph: Graph) -> tuple[OpId, ...]:
    """Operators of which each waits for the next and the last for the first, whatever the cores; empty without one.

    An operator waits for what its stream and its events make it follow, and a member of a collective for its peers.
    """
    order = starts(graph)
    if len(order) == len(graph.ids):
        return ()
    started = set(order)
    stuck = next(op for op in range(len(graph.ids)) if op not in started)
    seen: set[int] = set()
    while stuck not in seen:  # whatever never starts or never ends waits for another such
        seen.add(stuck)
        stuck = _waits_for(graph, stuck, started)[0]
    return tuple(graph.ids[op] for op in _shortest(graph, stuck, started))


def _waits_for(graph: Graph, op: int, started: set[int]) -> list[int]:
    """The reason why an operator never ends: peers that never start, or predecessors that never end."""
    if op in started:
        return [peer for peer in graph.peers(op) if peer not in started]
    return [source for source in graph.before[op] if not started.issuperset(graph.peers(source))]


def _shortest(graph: Graph, start: int, started: set[int]) -> list[int]:
    """The shortest way from an operator back to itself along what waits for what."""
    came: dict[int, int] = {}
    queue = [start]
    for op in queue:
        for other in _waits_for(graph, op, started):
            if other == start:
                path = [op]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return path[::-1]
            if other not in came:
                came[other] = op
                queue.append(other)
    return []
