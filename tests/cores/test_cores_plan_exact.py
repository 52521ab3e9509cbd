"""Limits that only the exact test proves safe (`planning.exact`): the best there are, never worse than by sums.

Needs OR-tools (the extra `plan`); compared with trying all limits of small programs.
"""

import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toprope.cores import Card, Collective, Communicator, Discipline, Op, Program, Sources, Stream, hunt, limited
from toprope.cores.check import Verdict, check
from toprope.cores.order import Graph
from toprope.cores.planning.exact import plan_exact
from toprope.cores.planning.order import longest_chain, order_of
from toprope.cores.planning.program import plan_by_sums
from toprope.errors import PlanError
from toprope.extras import advice


def needs_ortools(test):
    """Skip without OR-tools, which comes with the extra `plan`; with it, take it only when the test runs."""
    try:
        import ortools  # noqa: F401
    except ImportError:
        return pytest.mark.skip(reason="needs OR-tools")(test)
    return test


def figure(cores=6, reduce=2, dispatch=3, non_zero=6):
    """The mission's figure on smaller cards."""
    streams = []
    for card in "01":
        streams += [
            Stream("reduce", card, (Op("reduce", 0, reduce, collective=Collective("rs", 0), microseconds=20.0),)),
            Stream("dispatch", card, (Op("dispatch", 0, dispatch, collective=Collective("dc", 0), microseconds=20.0),)),
            Stream("main", card, (Op("NonZero", 0, non_zero, sync_all=True, microseconds=5.0),)),
        ]
    groups = tuple(Communicator(name, ("0", "1"), "aiv") for name in ("rs", "dc"))
    return Program(tuple(Card(name, 3, cores) for name in "01"), tuple(streams), groups)


def makespan(program, limits):
    """How long the program takes with its streams limited, when nobody waits for cores."""
    graph, sources = Graph.of(program), Sources()
    both = zip(program.ops(), limited(program, limits).ops(), strict=True)
    times = [sources.times(op).on(max(short.blocks, 1)) for (_, op), (_, short) in both]
    return longest_chain(graph, order_of(graph), times).microseconds


def best_by_trying(program, most):
    """The shortest makespan of all limits of vector cores that the checker calls safe."""
    names = list(dict.fromkeys(stream.name for stream in program.streams))
    found = []
    for cores in itertools.product(range(1, most + 1), repeat=len(names)):
        limits = {name: (0, count) for name, count in zip(names, cores, strict=True)}
        if check(limited(program, limits), findings=False, further=False).verdict is Verdict.SAFE:
            found.append(makespan(program, limits))
    return min(found)


@needs_ortools
def test_the_figure_runs_on_more_cores_than_the_sums_allow():
    by_sums, exact = plan_by_sums(figure()), plan_exact(figure())
    assert by_sums.makespan == 30.0
    assert exact.makespan == best_by_trying(figure(), 6) == 20.0
    assert [limit.vector for limit in exact.limits] == [2, 3, 2]
    assert exact.method == "exact"
    assert exact.proof[0].startswith("safe under D0: ")
    assert exact.notes[-2].startswith("the streams can ask for 7 of 6 vector cores of card 0")
    after = limited(figure(), exact)
    for discipline in Discipline:
        assert check(after, discipline=discipline, further=False).verdict is Verdict.SAFE
        assert hunt(after, discipline, range(50)) is None


@st.composite
def programs(draw):
    """Streams of barriers, collectives and elastic operators on two cards of 4 vector cores, with an order."""
    columns, events = [], 0
    for _ in range(draw(st.integers(2, 3))):
        column = []
        for _ in range(draw(st.integers(1, 2))):
            waits = tuple(each for each in range(events) if draw(st.integers(0, 3)) == 0)
            kind = draw(st.sampled_from(["barrier", "collective", "elastic"]))
            column.append((draw(st.integers(1, 4)), kind, waits, events, float(draw(st.integers(1, 9)))))
            events += 1
        columns.append(column)
    streams = []
    for card in "01":
        number = 0
        for place, column in enumerate(columns):
            ops = []
            for cores, kind, waits, event, time in column:
                collective = Collective("g", number) if kind == "collective" else None
                number += collective is not None
                waited, recorded = tuple(f"{each}@{card}" for each in waits), (f"{event}@{card}",)
                ops.append(Op(f"op{event}", 0, cores, kind == "barrier", collective, waited, recorded, time))
            streams.append(Stream(f"s{place}", card, tuple(ops)))
    return Program(tuple(Card(card, 0, 4) for card in "01"), tuple(streams), (Communicator("g", ("0", "1")),))


@needs_ortools
@settings(max_examples=15)
@given(programs())
def test_it_is_the_best_of_all_limits(program):
    exact = plan_exact(program)
    assert exact.makespan <= plan_by_sums(program).makespan
    assert exact.makespan == pytest.approx(makespan(program, exact))
    # To the thousandth of a microsecond that the solver counts in, for each operator of a chain.
    assert exact.makespan == pytest.approx(best_by_trying(program, 4), abs=0.02)
    for discipline in Discipline:
        assert check(limited(program, exact), discipline=discipline, further=False).verdict is Verdict.SAFE


@needs_ortools
def test_where_operators_use_both_kinds_of_core_d1_is_checked_as_well():
    mix = Op("mix", 2, 4, microseconds=10.0)
    both = Op("both", 2, 4, collective=Collective("g", 0), microseconds=10.0)
    streams = [Stream(name, card, (op,)) for card in "01" for name, op in (("a", mix), ("b", both))]
    cards = tuple(Card(card, 3, 6) for card in "01")
    program = Program(cards, tuple(streams), (Communicator("g", ("0", "1")),))
    found = plan_exact(program)
    assert (found.makespan, plan_by_sums(program).makespan) == (10.0, 20.0)
    assert [line.split(":")[0] for line in found.proof] == ["safe under D0", "safe under D1"]
    for discipline in Discipline:
        assert check(limited(program, found), discipline=discipline, further=False).verdict is Verdict.SAFE


@needs_ortools
def test_without_anything_better_the_sums_stay():
    barrier = Op("barrier", 0, 4, sync_all=True, microseconds=8.0)
    program = Program((Card("0", 0, 4),), tuple(Stream(name, "0", (barrier,)) for name in "ab"))
    found = plan_exact(program)
    assert (found.method, found.makespan) == ("S1", 16.0)
    assert "no better limits are safe" in found.notes[-1]


@needs_ortools
def test_when_the_time_is_up_the_sums_stay():
    found = plan_exact(figure(), seconds=0.0)
    assert found.limits == plan_by_sums(figure()).limits
    assert "the time was up" in found.notes[-1]


def test_without_ortools_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(PlanError, match="needs OR-tools") as error:
        plan_exact(figure())
    assert advice("plan") in error.value.do
