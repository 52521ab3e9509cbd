"""The longest chain of a program, and streams that never run together, next to their definitions."""

from functools import cache
from itertools import combinations, pairwise

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

from cores_programs import programs
from toprope.cores.order import Graph, cycle
from toprope.cores.planning.order import longest_chain, never_together, order_of


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
