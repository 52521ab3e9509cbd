"""The start/finish graph of `cores.order`: circular waits, the shortest circle, and collectives that lack a member."""

from itertools import pairwise

import hypothesis
from hypothesis import given

from cores_exhaustive import deadlocks
from cores_programs import elastic, figure, local, member, on, programs, with_ops
from toprope.cores import Discipline, Op
from toprope.cores.order import Graph, cycle, furthest, starts

TWO = dict.fromkeys("01", (24, 48))


def without_cores(program):
    return with_ops(
        program, lambda _, op: Op(op.name, 0, 0, op.sync_all, op.collective, op.waits, op.records, microseconds=1.0)
    )


def names(program, ids):
    return [program.describe(id) for id in ids]


def test_a_program_without_circles_starts_whole():
    program = figure()
    graph = Graph.of(program)
    assert cycle(graph) == ()
    assert sorted(starts(graph)) == list(range(6))
    assert furthest(graph) == (1,) * 6


def test_two_collectives_in_opposite_order_are_a_circle_of_four():
    program = on(
        TWO,
        {"x": "01", "y": "01"},
        [("0", [member("X", "x", 1), member("Y", "y", 1)]), ("1", [member("Y", "y", 1), member("X", "x", 1)])],
    )
    found = names(program, cycle(Graph.of(program)))
    first = found.index("Y(0)")
    assert found[first:] + found[:first] == ["Y(0)", "X(0)", "X(1)", "Y(1)"]
    assert furthest(Graph.of(program)) == (0, 0)


def test_events_in_a_circle_across_streams():
    program = on(
        TWO,
        {},
        [
            ("0", [elastic("before", 1), elastic("a", 1, waits=["e2"], records=["e1"])]),
            ("0", [elastic("b", 1, waits=["e1"], records=["e2"]), elastic("after", 1)]),
        ],
    )
    assert sorted(names(program, cycle(Graph.of(program)))) == ["a(0)", "b(0)"]
    assert furthest(Graph.of(program)) == (1, 0)


def test_an_operator_that_waits_for_itself():
    program = on(TWO, {}, [("0", [elastic("a", 1, waits=["e"], records=["e"])])])
    assert names(program, cycle(Graph.of(program))) == ["a(0)"]


def test_the_shortest_circle_is_told_and_no_operator_that_only_waits_for_one():
    program = on(
        TWO,
        {},
        [
            ("0", [elastic("waiter", 1, waits=["e1"])]),
            ("0", [elastic("a", 1, waits=["e2"], records=["e1"])]),
            ("1", [elastic("b", 1, waits=["e1"], records=["e2"])]),
        ],
    )
    assert sorted(names(program, cycle(Graph.of(program)))) == ["a(0)", "b(1)"]


def test_a_collective_that_lacks_a_member_is_no_circle_but_the_end():
    program = on(TWO, {"x": "01"}, [("0", [local("A", 8), member("X", "x", 8), local("B", 8)]), ("1", [local("C", 8)])])
    graph = Graph.of(program)
    assert cycle(graph) == ()
    assert furthest(graph) == (1, 1)


def test_members_that_share_a_stream_with_another_collective_start_apart():
    """A member may take its cores before its peer's predecessors are done: one node for a collective would hide it."""
    program = on(
        TWO,
        {"x": "01", "y": "01"},
        [("0", [member("X", "x", 30)]), ("0", [member("Y", "y", 30)]), ("1", [member("X", "x"), member("Y", "y")])],
    )
    graph = Graph.of(program)
    y_on_0, y_on_1 = graph.ids.index((1, 0)), graph.ids.index((2, 1))
    assert graph.before[y_on_0] == ()
    assert graph.peers(y_on_0) == (y_on_0, y_on_1)
    assert cycle(graph) == ()


@given(programs())
def test_a_circle_is_a_deadlock_that_no_number_of_cores_mends(program):
    program = without_cores(program)
    graph = Graph.of(program)
    found = cycle(graph)
    for discipline in (Discipline.D0, Discipline.D2):
        assert deadlocks(program, discipline) is bool(found)
    done = furthest(graph)
    assert (done == tuple(len(stream.ops) for stream in program.streams)) is (not found)
    for waiter, other in pairwise((*found, *found[:1])):
        collective = program.op(waiter).collective
        peers = program.members[collective] if collective else ()
        assert other in program.before(waiter) or other in peers


@given(programs())
def test_operators_start_in_an_order_that_the_rules_allow(program):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    place = {op: number for number, op in enumerate(starts(graph))}
    assert len(place) == len(graph.ids)
    for op, sources in enumerate(graph.before):
        for source in sources:
            assert all(place[peer] < place[op] for peer in graph.peers(source))
