"""The sums S1, S2 and S3 of `cores.proof.bounds`: examples by hand, and random programs against exhaustive search.

A sum that is too small would call a program safe that can deadlock. scripts/mutants.py checks that these tests find
mistakes in the module.
"""

import random
import time
from itertools import combinations

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cores_exhaustive import TooMany, deadlocks
from cores_programs import collectives, elastic, every_rank_the_same, figure, local, member, on, programs, shared_stream
from toprope.cores import Card, Discipline, Op, Program, Stream
from toprope.cores.order import Graph, cycle
from toprope.cores.proof.bounds import KINDS, alike, heaviest_sets, largest_of_streams, one_local_sets

ONE = {"0": (24, 48)}


def precedes(program):
    """Whether an operator has finished before another starts, for all pairs; by walking what must have finished."""
    before = {}

    def finished(id, seen):
        """What has finished when this has; a collective only after all of its members have started."""
        collective = program.op(id).collective
        members = program.members[collective] if collective else (id,)
        for member_id in members:
            if member_id not in seen:
                seen.add(member_id)
                started(member_id, seen)

    def started(id, seen):
        for source in program.before(id):
            finished(source, seen)

    for id, _ in program.ops():
        before[id] = set()
        started(id, before[id])
    return before


def brute(program, card, kind, locals_at_most=99):
    """The most cores that operators need of which none has finished before another starts, by trying all sets."""
    before = precedes(program)
    ops = [id for id, op in program.ops() if program.card_of(id) == card and op.need[kind]]
    most = 0
    for size in range(1, len(ops) + 1):
        for some in combinations(ops, size):
            if any(a in before[b] or b in before[a] for a, b in combinations(some, 2)):
                continue
            if sum(program.op(id).collective is None for id in some) <= locals_at_most:
                most = max(most, sum(program.op(id).need[kind] for id in some))
    return most


def by_place(bounds):
    return {(bound.card.name, bound.kind): bound for bound in bounds}


def for_all_cards(program, bounds):
    """By card and kind; a card that is like another has that one's bounds."""
    found = by_place(bounds)
    return {
        (card.name, kind): found[cards[0].name, kind] for cards in alike(program) for card in cards for kind in KINDS
    }


def test_the_sum_of_the_figure():
    (_, vector, *_) = largest_of_streams(figure(8))
    assert (vector.total, vector.capacity, vector.fits) == (48, 48, True)
    assert vector.text(figure(8)) == "16 + 24 + 8 = 48 of 48 vector cores on card 0"
    assert not by_place(largest_of_streams(figure(9)))["1", "vector"].fits


def test_an_operator_without_a_barrier_counts_one_block():
    program = on(
        ONE, {}, [("0", [elastic("a", 48)]), ("0", [elastic("mix", vector=48, cube=24)]), ("0", [local("b", 45)])]
    )
    found = by_place(largest_of_streams(program))
    assert (found["0", "vector"].total, found["0", "cube"].total) == (1 + 2 + 45, 1)


def test_operators_in_turn_count_once():
    streams = [("0", [local("a", 40, records=["e"])]), ("0", [local("b", 40, waits=["e"])]), ("0", [local("c", 8)])]
    program = on(ONE, {}, streams)
    assert not all(bound.fits for bound in largest_of_streams(program))
    found = by_place(heaviest_sets(Graph.of(program)))["0", "vector"]
    assert found.fits
    assert found.total == 48
    assert (2, 0) in found.ops


def test_members_that_share_a_stream_are_active_together():
    """With one node for each collective, X would come before Y, and 30 be enough: it is not."""
    program = shared_stream()
    found = for_all_cards(program, heaviest_sets(Graph.of(program), beyond=True))
    assert found["0", "vector"].total == 60
    assert found["1", "vector"].total == 30
    assert deadlocks(small_shared_stream(), Discipline.D0)


def small_shared_stream():
    return on(
        {"0": (0, 5), "1": (0, 5)},
        {"x": "01", "y": "01"},
        [("0", [member("X", "x", 3)]), ("0", [member("Y", "y", 3)]), ("1", [member("X", "x", 3), member("Y", "y", 3)])],
    )


def test_collectives_alone_do_not_prove_safety_under_D2():
    """N;X beside M;Y on two cards: the collectives fit, but a local operator beside one of them does not."""
    streams = [
        (card, ops)
        for card in "01"
        for ops in ([local("N", 6), member("X", "x", 2)], [local("M", 6), member("Y", "y", 3)])
    ]
    program = on(dict.fromkeys("01", (0, 6)), {"x": "01", "y": "01"}, streams)
    assert brute(program, program.cards[0], 1, locals_at_most=0) <= 6
    assert not all(bound.fits for bound in one_local_sets(Graph.of(program)))
    assert deadlocks(program, Discipline.D2)


def test_cards_that_run_the_same_are_looked_at_once():
    assert [[card.name for card in cards] for cards in alike(figure(cards="0123"))] == [list("0123")]
    assert len(heaviest_sets(Graph.of(collectives("0123", 3, 24)))) == len(KINDS)


@pytest.mark.parametrize("other", [{"waits": ["e"]}, {"vector": 9}, {"cube": 1}])
def test_cards_that_differ_are_not_alike(other):
    first = [local("a", 8, records=["e"])]
    other = {"vector": 8, **other}
    program = on(dict.fromkeys("01", (24, 48)), {}, [("0", first), ("1", [local("a", **other, records=["f"])])])
    assert len(alike(program)) == 2


def test_a_deadline_that_has_passed_ends_the_sums():
    graph = Graph.of(collectives("01", 3, 24))
    assert heaviest_sets(graph, deadline=time.thread_time() - 1) is None
    assert one_local_sets(graph, deadline=time.thread_time() - 1) is None


@pytest.mark.slow
@given(programs(most_ops=8))
def test_the_heaviest_set_is_the_heaviest(program):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    before = precedes(program)
    sums = by_place(largest_of_streams(program))
    for whole in (True, False):
        found = for_all_cards(program, heaviest_sets(graph, beyond=whole))
        for number, card in enumerate(program.cards):
            for kind, name in enumerate(KINDS):
                bound, truth = found[card.name, name], brute(program, program.cards[number], kind)
                assert bound.fits is (truth <= card.cores[kind])
                assert sums[card.name, name].total >= truth
                if whole:
                    assert bound.total == truth
                    assert sum(program.op(id).need[kind] for id in bound.ops) == truth
                    assert not any(a in before[b] or b in before[a] for a, b in combinations(bound.ops, 2))


@pytest.mark.slow
@given(programs(most_ops=8))
def test_one_local_operator_beside_collectives(program):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    found = for_all_cards(program, one_local_sets(graph))
    for card in program.cards:
        for kind, name in enumerate(KINDS):
            truth = brute(program, card, kind, locals_at_most=1)
            assert found[card.name, name].fits is (truth <= card.cores[kind])
            assert found[card.name, name].total >= min(truth, card.cores[kind] + 1)


@pytest.mark.slow
@given(programs())
def test_what_the_sums_prove_no_order_of_things_refutes(program):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    s1 = all(bound.fits for bound in largest_of_streams(program))
    s2 = all(bound.fits for bound in heaviest_sets(graph))
    s3 = all(bound.fits for bound in one_local_sets(graph))
    assert s2 or not s1
    assert s3 or not s2
    hypothesis.assume(s3)
    for discipline in Discipline if s2 else (Discipline.D1, Discipline.D2):
        try:
            assert not deadlocks(program, discipline)
        except TooMany:
            hypothesis.reject()


@pytest.mark.slow
@given(every_rank_the_same())
def test_one_of_the_cards_that_run_the_same_speaks_for_all(program):
    graph = Graph.of(program)
    (found,) = {bound.total for bound in heaviest_sets(graph, beyond=True) if bound.kind == "vector"}
    for card in program.cards:
        assert found == brute(program, card, 1)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from([5, 12]))
def test_as_many_cores_as_were_handed_on_are_enough(seed, streams, cores):
    """A program made by handing on so many cores, with an event from each giver, needs no more of them."""
    program = handed_on(seed, streams, 30, cores)
    bound = by_place(heaviest_sets(Graph.of(program)))["0", "vector"]
    assert bound.fits
    assert bound.total <= cores


def handed_on(seed, streams, length, cores):
    """Operators that take random cores of those left by random others before them, for which they wait."""
    chance = random.Random(seed)
    left, queues, events = {None: cores}, [[] for _ in range(streams)], []
    for _ in range(streams * length):
        stream = chance.randrange(streams)
        me, wants, got = (stream, len(queues[stream])), chance.randint(1, cores), 0
        for giver in chance.sample(list(left), len(left)):
            taken = min(left[giver], wants - got)
            got += taken
            left[giver] -= taken
            if taken and giver is not None and giver[0] != stream:
                events.append((giver, me))
        left = {giver: count for giver, count in left.items() if count} | {me: got}
        queues[stream].append(got)
    ops = [
        [
            Op(
                "op",
                0,
                needs,
                True,
                waits=tuple(f"e{n}" for n, (_, to) in enumerate(events) if to == (stream, place)),
                records=tuple(f"e{n}" for n, (of, _) in enumerate(events) if of == (stream, place)),
            )
            for place, needs in enumerate(queue)
        ]
        for stream, queue in enumerate(queues)
    ]
    return Program((Card("0", 0, cores),), tuple(Stream(f"s{n}", "0", tuple(each)) for n, each in enumerate(ops)))
