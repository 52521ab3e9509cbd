"""The exact tests (`cores.proof.exact`, `bursts`, `exact_solver`) against exhaustive search, and against each other.

helpers/cores_exhaustive.py tries every order of events of small random programs; its answer decides.
"""

import importlib.util
import time

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cores_exhaustive import TooMany, deadlocks
from cores_programs import (
    collectives,
    elastic,
    every_rank_the_same,
    figure,
    local,
    local_before_collective,
    member,
    on,
    one_block_more,
    programs,
    shared_stream,
    with_ops,
)
from toprope.cores import Discipline
from toprope.cores.order import Graph, cycle
from toprope.cores.proof.bounds import alike
from toprope.cores.proof.bursts import explore
from toprope.cores.proof.exact import search
from toprope.cores.proof.exact_solver import solve
from toprope.cores.proof.fewer_cards import FewerCards

CUTS = (Discipline.D0, Discipline.D1, Discipline.D2)
SOLVER = importlib.util.find_spec("ortools") is not None
needs_solver = pytest.mark.skipif(not SOLVER, reason="needs the extra `plan` (ortools)")

# Vector limits of NonZero in the figure, and under which disciplines it then deadlocks (by search, and by hand).
FIGURE = {
    (48, 47, 40, 33): {"D0", "D0b", "D1"},
    (32, 31, 25, 24, 17, 16, 10): {"D0"},
    (9, 8, 1): set(),
}


def soon():
    return time.thread_time() + 60


def found(program, discipline):
    """Whether the plain exact test finds a deadlock; its witness is held to be one."""
    graph = Graph.of(program)
    outcome = search(graph, discipline, soon())
    if discipline is Discipline.D0B and outcome.witness is None:
        outcome = explore(graph, soon())
    assert outcome.whole or outcome.witness
    if outcome.witness is not None:
        assert outcome.witness.is_stuck(discipline)
        assert not outcome.witness.finished
    return outcome.witness is not None


def truth(program, discipline):
    try:
        return deadlocks(program, discipline)
    except TooMany:
        hypothesis.reject()


@pytest.mark.parametrize(("limits", "expected"), FIGURE.items())
def test_the_figure_by_limit_and_discipline(limits, expected):
    for limit in limits:
        assert {each.value for each in Discipline if found(figure(limit), each)} == expected, limit


@pytest.mark.parametrize("limit", range(1, 7))
def test_a_small_figure_by_every_order_of_things(limit):
    program = figure(limit, scatter=2, combine=3, vector=6)
    for discipline in Discipline:
        assert found(program, discipline) is deadlocks(program, discipline, most=500_000)


def test_the_witness_of_the_figure_is_that_of_the_mission():
    witness = search(Graph.of(figure()), Discipline.D0, soon()).witness
    assert witness.held == (16, 0, 32, 0, 24, 24)
    assert witness.done == (0,) * 6


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (collectives("012", 3, 24), {"D0", "D0b", "D1", "D2"}),  # every pair of streams fits
        (collectives("01", 4, 24), {"D0", "D0b", "D1", "D2"}),
        (collectives("01", 3, 24), {"D0"}),
        (collectives("012", 3, 16), set()),
        (on({"0": (24, 48)}, {}, [("0", [local(name, 24)]) for name in "ABC"]), {"D0"}),
        (local_before_collective(), {"D0", "D0b", "D1", "D2"}),
        (shared_stream(), {"D0", "D0b", "D1", "D2"}),
        (on({"0": (24, 48)}, {}, [("0", [elastic(name, 48)]) for name in "ABC"]), set()),
        (on({"0": (24, 48)}, {}, [("0", [local(name, 48, 24)]) for name in "AB"]), {"D0"}),  # MIX: 24 blocks of 1 and 2
    ],
)
def test_traps(program, expected):
    assert {each.value for each in Discipline if found(program, each)} == expected


def keeper():
    """An operator that lacks vector cores keeps the cube core from one that would let it have them."""
    return on(
        {"0": (1, 3), "1": (1, 3)},
        {"x": "01"},
        [
            ("0", [member("X", "x", 1)]),
            ("0", [local("W", 3)]),
            ("0", [local("C", cube=1, records=["e"])]),
            ("1", [member("X", "x", 1, waits=["e"])]),
        ],
    )


def test_with_both_kinds_of_core_D1_may_deadlock_where_D0_cannot():
    program = keeper()
    assert {each.value for each in Discipline if deadlocks(program, each)} == {"D1"}
    assert {each.value for each in Discipline if found(program, each)} == {"D1"}


def test_under_D2_a_larger_operator_may_end_a_deadlock():
    """F and G together keep W waiting, which both need; a larger F does not fit beside G, and W goes ahead."""

    def program(cores):
        return on(
            dict.fromkeys("01", (0, 10)),
            {"f": "01", "g": "01"},
            [
                ("0", [member("F", "f", cores)]),
                ("0", [member("G", "g", 4)]),
                ("0", [local("W", 3, records=["e"])]),
                ("1", [member("F", "f", 1, waits=["e"])]),
                ("1", [member("G", "g", 1, waits=["e"])]),
            ],
        )

    for cores, expected in ((4, {"D0", "D1", "D2"}), (7, {"D0", "D1"}), (8, {"D0", "D1", "D2"})):
        assert {each.value for each in CUTS if deadlocks(program(cores), each)} == expected
        assert {each.value for each in CUTS if found(program(cores), each)} == expected


def test_the_shortest_witness_is_found():
    """The deadlock of the figure again, after operators that must have finished, and beside some that need not."""
    before = [local("first", 8), local("second", 8)]
    streams = [
        (card, ops)
        for card in "01"
        for ops in (
            [*before, member("ReduceScatter", "rs", 16)],
            [member("DispatchCombine", "dc", 24), local("later", 8)],
            [local("NonZero", 32), elastic("last", 48)],
        )
    ]
    graph = Graph.of(on(dict.fromkeys("01", (24, 48)), {"rs": "01", "dc": "01"}, streams))
    plain = search(graph, Discipline.D1, soon())
    assert plain.whole
    assert plain.witness is None
    streams[2][1][0] = streams[5][1][0] = local("NonZero", 48)
    graph = Graph.of(on(dict.fromkeys("01", (24, 48)), {"rs": "01", "dc": "01"}, streams))
    plain = search(graph, Discipline.D1, soon())
    assert plain.whole
    assert sum(plain.witness.done) == 2
    if SOLVER:
        assert sum(solve(graph, Discipline.D1, soon(), improve=20).witness.done) == 2


def test_a_deadline_that_has_passed_is_no_proof():
    graph = Graph.of(figure(9))
    for outcome in (search(graph, Discipline.D0, time.thread_time() - 1), explore(graph, time.thread_time() - 1)):
        assert (outcome.witness, outcome.whole) == (None, False)
    assert not explore(graph, soon(), most=100).whole


@pytest.mark.slow
@given(programs())
def test_the_search_agrees_with_every_order_of_things(program):
    hypothesis.assume(not cycle(Graph.of(program)))
    for discipline in CUTS:
        assert found(program, discipline) is truth(program, discipline), discipline


@pytest.mark.slow
@given(programs(most_ops=5))
def test_under_D0b_too(program):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    expected = truth(program, Discipline.D0B)
    assert (explore(graph, soon()).witness is not None) is expected
    early = search(graph, Discipline.D0B, soon())
    assert early.witness is None or expected
    assert not early.whole or early.witness


@pytest.mark.slow
@given(programs())
def test_what_deadlocks_under_the_weaker_discipline_does_under_the_stricter(program):
    hypothesis.assume(not cycle(Graph.of(program)))
    dead = {each for each in Discipline if truth(program, each)}
    assert Discipline.D2 not in dead or dead == set(Discipline)
    assert Discipline.D0B not in dead or Discipline.D0 in dead
    alone = all(len({op.block for id, op in program.ops() if program.card_of(id) == card and op.blocks}) < 2
                for card in program.cards)  # fmt: skip
    assert not alone or Discipline.D1 not in dead or {Discipline.D0, Discipline.D0B} <= dead


@pytest.mark.slow
@given(programs(), st.data())
def test_a_larger_demand_never_ends_a_deadlock(program, data):
    """Under D0 and D1; under D2 it may."""
    hypothesis.assume(not cycle(Graph.of(program)))
    larger = with_ops(
        program, lambda id, op: one_block_more(op, program.card_of(id)) if data.draw(st.booleans()) else op
    )
    for discipline in (Discipline.D0, Discipline.D1):
        assert found(larger, discipline) or not found(program, discipline)


@pytest.mark.slow
@needs_solver
@given(programs())
@hypothesis.settings(max_examples=max(20, hypothesis.settings().max_examples // 2))
def test_the_solver_agrees_with_the_search(program):
    graph = Graph.of(program)
    hypothesis.assume(not cycle(graph))
    for discipline in CUTS:
        outcome = solve(graph, discipline, soon())
        assert outcome.whole or outcome.witness
        assert (outcome.witness is not None) is found(program, discipline), discipline
        assert outcome.witness is None or outcome.witness.is_stuck(discipline)


@pytest.mark.slow
@given(every_rank_the_same())
def test_fewer_cards_decide_a_program_that_every_rank_runs(program):
    hypothesis.assume(not cycle(Graph.of(program)))
    fewer = FewerCards(program)
    assert len(alike(program)) == 1
    for discipline in CUTS:
        assert found(fewer.program, discipline) is found(program, discipline)
        outcome = search(Graph.of(fewer.program), discipline, soon())
        if outcome.witness is not None:
            assert fewer.back(outcome.witness).is_stuck(discipline)


def test_the_figure_on_64_cards_is_decided_on_two():
    fewer = FewerCards(figure(cards=[str(number) for number in range(64)]))
    assert [card.name for card in fewer.program.cards] == ["0", "1"]
    whole = fewer.back(search(Graph.of(fewer.program), Discipline.D0, soon()).witness)
    assert whole.is_stuck(Discipline.D0)
    assert whole.held[:9] == (16, 0, 32, 0, 24, 24, 0, 24, 24)
