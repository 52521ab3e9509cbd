"""The longest chain of a program, and streams that never run together (`planning.order`), against their definitions."""

from functools import cache
from itertools import combinations, pairwise

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cores_programs import elastic, local, member, on, programs
from toprope.cores.order import Graph, cycle
from toprope.cores.planning.order import Chain, longest_chain, never_together, order_of
from toprope.errors import PlanError


def ended_before(graph):
    """By operator, those that have ended when it starts, whatever is fast: a collective's members end together."""

    @cache
    def ended(number):
        found = set()
        for source in graph.before[number]:
            for peer in graph.peers(source):
                found |= {peer} | ended(peer)
        return found

    return [ended(number) for number in range(len(graph.ids))]


@given(programs())
def test_streams_are_apart_if_of_each_pair_of_operators_with_cores_one_ends_before_the_other(program):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    ended = ended_before(graph)
    busy = [number for number, (stream, place) in enumerate(graph.ids) if any(program.streams[stream].ops[place].cores)]
    expected = set()
    for one, other in combinations(range(len(program.streams)), 2):
        pairs = [(a, b) for a in busy for b in busy if (graph.ids[a][0], graph.ids[b][0]) == (one, other)]
        is_one_card = program.streams[one].card == program.streams[other].card
        if is_one_card and all(a in ended[b] or b in ended[a] for a, b in pairs):
            expected.add(frozenset((one, other)))
    assert never_together(graph, order_of(graph)) == expected


@given(programs(), st.data())
def test_the_longest_chain_takes_as_long_as_the_program(program, data):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    count = len(graph.ids)
    times = data.draw(st.lists(st.integers(1, 9).map(float), min_size=count, max_size=count))

    @cache
    def finish(number):
        peers = graph.peers(number)
        starts = [max((finish(source) for source in graph.before[peer]), default=0.0) for peer in peers]
        return max(starts) + max(times[peer] for peer in peers)

    chain = longest_chain(graph, order_of(graph), times)
    numbers = [graph.ids.index(each) for each in chain.ops]
    assert chain.microseconds == max(map(finish, range(count)), default=0.0)
    assert bool(numbers) == bool(count)
    ended = ended_before(graph)
    for earlier, later in pairwise(numbers):
        assert any(earlier in ended[peer] for peer in graph.peers(later))
    assert sum(max(times[peer] for peer in graph.peers(number)) for number in numbers) == chain.microseconds


def test_a_circle_of_operators_is_refused_with_its_operators():
    program = on({"0": (2, 4)}, {}, [
        ("0", [local("First", 1, waits=["b"], records=["a"])]), ("0", [local("Second", 1, waits=["a"], records=["b"])]),
    ])  # fmt: skip
    with pytest.raises(PlanError, match="wait for each other in a circle") as caught:
        order_of(Graph.of(program))
    names = caught.value.looked_at.split(" -> ")
    assert names[0] == names[-1]
    assert len(names) == 3
    assert all(any(name in each for each in names) for name in ("First", "Second"))
    assert "toprope cores check" in caught.value.do


def test_a_program_without_operators_takes_no_time():
    assert longest_chain(Graph.of(on({"0": (2, 4)}, {}, [("0", [])])), [], []) == Chain(0.0, ())


def test_the_chain_of_a_collective_goes_through_its_last_member():
    """The members end together, once the slowest has started and the longest has run."""
    program = on({"0": (2, 4), "1": (2, 4)}, {"x": "01"}, [
        ("0", [local("Early", 1), member("X", "x", 1)]),
        ("1", [local("Late", 1), member("X", "x", 1), local("After", 1)]),
    ])  # fmt: skip
    graph = Graph.of(program)
    times = {"Early": 2.0, "Late": 5.0, "After": 1.0}
    seconds = [times.get(program.streams[stream].ops[place].name, 3.0 + stream) for stream, place in graph.ids]
    chain = longest_chain(graph, order_of(graph), seconds)
    assert chain.microseconds == 5.0 + 4.0 + 1.0
    assert [program.streams[stream].ops[place].name for stream, place in chain.ops] == ["Late", "X", "After"]


def pairs_apart(streams, cards="0", groups=None):
    graph = Graph.of(on(dict.fromkeys(cards, (2, 4)), groups or {}, streams))
    return {tuple(sorted(each)) for each in never_together(graph, order_of(graph))}


def test_streams_are_apart_only_where_events_order_all_their_operators_with_cores():
    first, second = local("A", 1, records=["a"]), local("B", 1, waits=["a"])
    assert pairs_apart([("0", [first]), ("0", [second])]) == {(0, 1)}
    assert pairs_apart([("0", [second]), ("0", [first])]) == {(0, 1)}
    assert pairs_apart([("0", [first]), ("0", [local("C", 1), second])]) == set()
    assert pairs_apart([("0", [first, local("C", 1)]), ("0", [second])]) == set()
    assert pairs_apart([("0", [first]), ("0", [elastic("none"), second])]) == {(0, 1)}  # without cores it is no matter
    assert pairs_apart([("0", [first, elastic("none")]), ("0", [second])]) == {(0, 1)}


def test_streams_that_take_turns_are_apart():
    """Each operator of either stream is between two of the other."""
    one = [local("A", 1, records=["a"]), local("C", 1, waits=["b"], records=["c"])]
    other = [local("B", 1, waits=["a"], records=["b"]), local("D", 1, waits=["c"])]
    assert pairs_apart([("0", one), ("0", other)]) == {(0, 1)}
    assert pairs_apart([("0", [one[0], local("C", 1, waits=["b"])]), ("0", [other[0], local("D", 1)])]) == set()


def test_streams_of_two_cards_are_not_compared():
    first, second = local("A", 1, records=["a"]), local("B", 1, waits=["a"])
    assert pairs_apart([("0", [first]), ("1", [second])], "01") == set()
    assert pairs_apart([("1", []), ("0", [first]), ("0", [second])], "01") == {(1, 2)}


def test_what_follows_a_member_of_a_collective_follows_all_that_came_before_the_other_members():
    streams = [("0", [local("A", 1)]), ("0", [member("X", "x"), local("B", 1)]), ("1", [member("X", "x")])]
    assert (0, 1) not in pairs_apart(streams, "01", {"x": "01"})
    streams[0] = ("0", [local("A", 1, records=["a"])])
    streams[2] = ("1", [member("X", "x", waits=["a"])])
    assert (0, 1) in pairs_apart(streams, "01", {"x": "01"})


def test_an_operator_starts_after_the_last_of_those_that_it_waits_for():
    program = on({"0": (2, 4)}, {}, [
        ("0", [local("Short", 1, records=["a"])]), ("0", [local("Long", 1, records=["b"])]),
        ("0", [local("Both", 1, waits=["a", "b"])]),
    ])  # fmt: skip
    chain = longest_chain(graph := Graph.of(program), order_of(graph), [2.0, 5.0, 1.0])
    assert (chain.microseconds, chain.ops) == (6.0, ((1, 0), (2, 0)))


def test_streams_that_take_turns_are_apart_from_each_other_and_not_from_a_third():
    third = ("0", [local("T", 1), local("U", 1)])
    one = [local("A", 1, records=["a"]), local("C", 1, waits=["b"], records=["c"])]
    other = [local("B", 1, waits=["a"], records=["b"]), local("D", 1, waits=["c"])]
    assert pairs_apart([third, ("0", one), ("0", other)]) == {(1, 2)}
    assert pairs_apart([third, ("0", one), ("0", [other[0], local("D", 1)])]) == set()
