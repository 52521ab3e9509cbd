"""Limits for streams by sums (`planning.limits`, `program`, `times`): as good as trying all, never beyond the card.

Random tables of times are compared with an exhaustive search over all limits.
"""

import itertools
import json
import subprocess
import sys
import time
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.cores import Card, Collective, Communicator, Discipline, Op, Program, Stream, hunt, simulate
from toprope.cores.check import Verdict, check
from toprope.cores.order import Graph, furthest
from toprope.cores.planning.limits import Limit, Plan, plan
from toprope.cores.planning.program import Sources, limited, plan_by_sums, stream_names
from toprope.cores.planning.times import Demand, Times, Work, profile_times
from toprope.cores.proof.bounds import largest_of_streams
from toprope.errors import PlanError

pytestmark = pytest.mark.process

CARD = Card("0", 24, 48)


def vector(*works, **more):
    return tuple(Work(times, (0, 1)) for times in works)


def demand(name, *works, minimum=(0, 0), maximum=None):
    return Demand(name, tuple(works), minimum, maximum)


@st.composite
def tables(draw, cores):
    """Times on 1 to so many cores, not always falling."""
    length = draw(st.integers(1, cores))
    return Times(tuple(draw(st.lists(st.integers(0, 40).map(float), min_size=length, max_size=length))))


def brute_force(demands, cores):
    """The best makespan over all limits, one pair of numbers per stream."""

    def options(each):
        least, most = each.least, each.maximum or cores
        ranges = (
            range(low, min(high, have) + 1) if low else [0] for low, high, have in zip(least, most, cores, strict=True)
        )
        for limits in itertools.product(*ranges):
            yield limits, sum(work.count * work.times.on(work.blocks(limits)) for work in each.work)

    best = None
    for chosen in itertools.product(*map(options, demands)):
        sums = [sum(limits[kind] for limits, _ in chosen) for kind in (0, 1)]
        if sums[0] <= cores[0] and sums[1] <= cores[1]:
            makespan = max((time for _, time in chosen), default=0.0)
            best = makespan if best is None else min(best, makespan)
    return best


def check_plan(found, demands, cores):
    """What must hold of every plan; the times it tells are those of its limits."""
    for kind, field in enumerate(("cube", "vector")):
        assert sum(getattr(limit, field) or 0 for limit in found.limits) <= cores[kind]
    for each, limit in zip(demands, found.limits, strict=True):
        assert limit.stream == each.stream
        for kind in (0, 1):
            assert limit.cores[kind] >= each.least[kind]
            assert limit.cores[kind] <= (each.maximum or cores)[kind]
        assert limit.microseconds == pytest.approx(
            sum(work.count * work.times.on(work.blocks(limit.cores)) for work in each.work)
        )
        assert all(work.blocks(limit.cores) >= 1 for work in each.work)
    assert found.makespan == max((limit.microseconds for limit in found.limits), default=0.0)


@given(st.lists(tables(12), min_size=3, max_size=3), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_three_streams_of_12_cores_are_planned_as_well_as_by_trying_all(times, minima):
    demands = [
        demand(f"s{place}", Work(each, (0, 1)), minimum=(0, least))
        for place, (each, least) in enumerate(zip(times, minima, strict=True))
    ]
    found = plan(demands, Card("0", 0, 12))
    check_plan(found, demands, (0, 12))
    assert found.makespan == brute_force(demands, (0, 12))


@given(st.data())
def test_both_kinds_of_core_are_planned_as_well_as_by_trying_all(data):
    blocks = st.sampled_from([(1, 0), (0, 1), (1, 2), (1, 1), (0, 0)])
    work = st.lists(st.builds(Work, tables(4), blocks, st.integers(1, 3)), max_size=3)
    demands = [demand(f"s{place}", *data.draw(work)) for place in range(data.draw(st.integers(1, 3)))]
    cores = (4, 6)
    best = brute_force(demands, cores)
    if best is None:
        with pytest.raises(PlanError, match="the streams need more"):
            plan(demands, Card("0", *cores))
        return
    found = plan(demands, Card("0", *cores))
    check_plan(found, demands, cores)
    assert found.makespan == best


def test_the_figure_needs_16_24_and_8():
    demands = [
        demand("reduce", *vector(Times.estimate(0, 160, 16)), minimum=(0, 16)),
        demand("dispatch", *vector(Times.estimate(0, 240, 24)), minimum=(0, 24)),
        demand("main", *vector(Times.estimate(0, 240, 48))),
    ]
    found = plan(demands, CARD)
    assert [limit.cores for limit in found.limits] == [(0, 16), (0, 24), (0, 8)]
    assert [limit.cube for limit in found.limits] == [None] * 3
    assert found.proof == ("the sum of the streams' vector cores 16 + 24 + 8 = 48",)
    assert (found.makespan, found.timing, found.method) == (30.0, "estimate", "S1")
    assert found.bound == "main is the slowest stream: 30.0 microseconds (estimate) on 8 vector cores"


def test_eight_streams_are_planned_at_once():
    def work(place):
        block = [(1, 0), (0, 1), (1, 2)][place % 3]
        return Work(Times.estimate(1 + place % 5, 50 + 37 * place % 700, 48), block)

    demands = [demand(f"s{place}", *(work(7 * place + each) for each in range(6))) for place in range(8)]

    def seconds():
        started = time.process_time()
        plan(demands, CARD)
        return time.process_time() - started

    check_plan(plan(demands, CARD), demands, CARD.cores)
    assert any(seconds() < 0.1 for _ in range(20))


def test_times_that_grow_with_cores_are_said_and_used_at_their_best():
    found = plan([demand("odd", *vector(Times((9.0, 4.0, 7.0, 5.0))))], CARD)
    assert found.limits[0].vector == 2
    assert found.makespan == 4.0
    assert found.notes == ("the times of odd grow with more cores in places: the best time up to each number is taken",)
    assert plan([demand("even", *vector(Times((9.0, 4.0, 4.0))))], CARD).notes == ()


def test_measured_tables_with_gaps():
    times = Times.measured({8: 100.0, 16: 60.0})
    assert [times.on(count) for count in (8, 15, 16, 48)] == [100, 100, 60, 60]
    assert times.on(4) == 200
    assert [times.timing_on(count) for count in (4, 8, 16)] == ["estimate", "measured", "measured"]
    wide, narrow = (demand(name, *vector(times)) for name in ("a", "b"))
    found = plan([wide, narrow], Card("0", 0, 24))
    assert [(limit.vector, limit.timing) for limit in found.limits] == [(16, "measured"), (8, "measured")]
    assert plan([wide, narrow], Card("0", 0, 8)).timing == "estimate"


def test_fixed_streams_keep_their_cores():
    kept = Demand.fixed("kept", (4, 30), vector(Times.estimate(0, 60, 48)))
    found = plan([kept, demand("free", *vector(Times.estimate(0, 60, 48)))], CARD)
    assert [limit.cores for limit in found.limits] == [(4, 30), (0, 18)]


def test_streams_that_are_apart_share_cores_and_others_do_not():
    demands = [demand(name, *vector(Times.estimate(0, 480, 48))) for name in "abc"]
    found = plan(demands, CARD, apart=[("a", "b")])
    assert [limit.vector for limit in found.limits] == [24, 24, 24]
    assert found.method == "S2"
    assert found.proof == (
        "the sum of the streams' vector cores 24 + 24 = 48",
        "the sum of the streams' vector cores 24 + 24 = 48",
        "by the order, a and b never run at the same time",
    )


def test_nothing_to_plan():
    found = plan([], CARD)
    assert (found.limits, found.makespan, found.proof) == ((), 0.0, ("no stream uses cores",))
    assert plan([demand("host")], CARD).limits[0].cores == (0, 0)


@pytest.mark.parametrize(
    ("demands", "text"),
    [
        (
            [demand("a", minimum=(0, 24)), demand("b", minimum=(0, 24)), demand("c", *vector(Times((1.0,))))],
            "the streams need more vector cores than card 0 has.\n  looked at  at least a 24 + b 24 + c 1 = 49 of 48",
        ),
        ([demand("a", Work(Times((1.0,)), (25, 0)))], "stream a needs 25 cube cores and is allowed 24"),
        ([demand("a", minimum=(0, 9), maximum=(0, 8))], "stream a needs 9 vector cores and is allowed 8"),
        ([demand("a"), demand("a")], "two streams have the same name"),
        ([Demand("a", cards=("7",))], "stream a is on cards that are not there"),
    ],
)
def test_what_cannot_be_planned(demands, text):
    with pytest.raises(PlanError) as error:
        plan(demands, CARD)
    assert text in str(error.value)
    assert "toprope explain plan" in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Times(()),
        lambda: Times((1.0, -1.0)),
        lambda: Times((float("nan"),)),
        lambda: Times((1.0,), "guess"),
        lambda: Times.measured({}),
        lambda: Times.measured({0: 1.0}),
        lambda: profile_times("softmax", 1.0, 4),
    ],
)
def test_bad_tables(make):
    with pytest.raises(PlanError):
        make()


def test_profiles_are_the_figures_of_others():
    times = profile_times("gemm", 100.0, 24)
    assert [round(times.on(cores)) for cores in (24, 20, 16, 12, 8, 4, 2)] == [100, 116, 142, 192, 281, 559, 1118]
    assert times.timing == "profile"
    assert (times.timing_on(4), times.timing_on(3)) == ("profile", "estimate")
    assert profile_times("elementwise", 10.0, 48).on(24) == pytest.approx(11.0)
    assert profile_times("gemm", 142.0, 16).on(24) == pytest.approx(142.0)  # launched on 16: never more


# Programs.


def together(name, cores, group):
    return Op(name, vector=cores, collective=Collective(group, 0), microseconds=20.0)


def figure(chip="", non_zero=48):
    streams = []
    for card in "01":
        streams += [
            Stream("reduce", card, (Op("ReduceScatter", 0, 16, collective=Collective("rs", 0), microseconds=20.0),)),
            Stream(
                "dispatch", card, (Op("DispatchCombine", 0, 24, collective=Collective("dc", 0), microseconds=20.0),)
            ),
            Stream("main", card, (Op("NonZero", 0, non_zero, sync_all=True, microseconds=5.0, timing="measured"),)),
        ]
    groups = tuple(Communicator(name, ("0", "1"), "aiv") for name in ("rs", "dc"))
    return Program(tuple(Card(name, 24, 48, chip) for name in "01"), tuple(streams), groups)


KEPT = {"reduce": (0, 16), "dispatch": (0, 24)}


@pytest.mark.parametrize("chip", ["", "910B1"])
def test_a_plan_for_the_figure(chip):
    # HCCL recommends 24 cores for a ReduceScatter on a 910B; this one was launched on 16, and keeps them.
    program = figure(chip)
    found = plan_by_sums(program, Sources(minima=KEPT))
    assert [limit.cores for limit in found.limits] == [(0, 16), (0, 24), (0, 8)]
    assert [limit.cards for limit in found.limits] == [("0", "1")] * 3
    assert found.makespan == 30.0
    assert found.timing == "estimate"
    after = limited(program, found)
    assert [op.vector for _, op in after.ops()] == [16, 24, 8] * 2
    for discipline in Discipline:
        assert hunt(program, discipline, range(100)) is None or discipline is not Discipline.D2
        assert hunt(after, discipline, range(50)) is None


def test_minima_of_hccl():
    free = plan_by_sums(figure(""))
    held = plan_by_sums(figure("910B1"))
    assert free.limit("reduce").vector < 16
    assert held.limit("reduce").vector == 16
    assert plan_by_sums(figure("910B1"), Sources(hccl=False)) == free
    with pytest.raises(PlanError, match=r"reduce 16 \+ dispatch 33 \+ main 1 = 50 of 48"):
        plan_by_sums(figure("910B1"), Sources(minima={"dispatch": (0, 33)}))
    with pytest.raises(PlanError, match="there is no stream dispathc"):
        plan_by_sums(figure(), Sources(minima={"dispathc": (0, 24)}))


def test_tables_and_profiles_of_a_program():
    ops = (Op("MatMul", cube=24, microseconds=100.0, timing="measured"), Op("Add", vector=48, microseconds=10.0))
    program = Program((CARD,), (Stream("a", "0", ops), Stream("b", "0", ops)))
    assert plan_by_sums(program).limits[0].microseconds == pytest.approx(200 + 20)
    asked = plan_by_sums(program, Sources(profiles=True))
    assert asked.timing == "profile"
    assert asked.limits[0].microseconds == pytest.approx(192 + 11)
    tables = {"MatMul": Times.measured({12: 70.0, 24: 60.0}), "Add": Times.measured({24: 10.0})}
    given = plan_by_sums(program, Sources(tables=tables))
    assert (given.makespan, given.timing) == (80.0, "measured")


@st.composite
def programs(draw):
    """Programs that can end: events from earlier to later streams, collectives in the same order on both cards."""
    shapes = st.sampled_from([(0, 3), (2, 0), (1, 2), (2, 4), (0, 8), (0, 0)])
    cards, events = draw(st.integers(1, 2)), 0
    columns = []
    for _ in range(draw(st.integers(1, 4))):
        column = []
        for _ in range(draw(st.integers(1, 3))):
            waits = tuple(f"{each}" for each in range(events) if draw(st.integers(0, 2)) == 0)
            column.append((draw(shapes), draw(st.booleans()), draw(st.booleans()), waits, f"{events}"))
            events += 1
        columns.append(column)
    streams, group = [], Communicator("g", tuple("01"[:cards]))
    for card in range(cards):
        number = 0
        for place, column in enumerate(columns):
            ops = []
            for (cube, vector_), sync_all, together, waits, event in column:
                collective = Collective("g", number) if together else None
                number += together
                ops.append(
                    Op(
                        f"op{event}",
                        cube,
                        vector_,
                        sync_all,
                        collective,
                        tuple(f"{each}@{card}" for each in waits),
                        (f"{event}@{card}",),
                        draw(st.sampled_from([None, 1.0, 5.0, 12.0])),
                        kind="" if cube or vector_ else "AI_CPU",
                    )
                )
            streams.append(Stream(f"s{place}", str(card), tuple(ops)))
    return Program(tuple(Card(str(card), 4, 8) for card in range(cards)), tuple(streams), (group,))


def one_block_each(program):
    """Cube and vector cores of the largest block of each stream of a card."""
    here = [stream for stream in program.streams if stream.card == "0"]
    return [[max(op.block[kind] for op in stream.ops) for stream in here] for kind in (0, 1)]


@given(programs(), st.sampled_from(["S1", "S2"]), st.integers(0, 1000))
def test_a_planned_program_never_waits_for_cores(program, condition, seed):
    try:
        found = plan_by_sums(program, condition=condition)
    except PlanError:
        assert any(sum(cores) > have for cores, have in zip(one_block_each(program), (4, 8), strict=True))
        return
    after = limited(program, found)
    for discipline in Discipline:
        assert check(after, discipline=discipline, further=False).verdict is Verdict.SAFE
    assert furthest(Graph.of(after)) == tuple(len(stream.ops) for stream in after.streams)
    if found.method == "S1":
        assert all(bound.fits for bound in largest_of_streams(after))
    assert hunt(after, Discipline.D0, range(seed, seed + 5)) is None
    # Every operator gets all that it is launched on as soon as it is ready: the limits of all that is active fit.
    for discipline in Discipline:
        run = simulate(after, discipline, seed)
        assert run.finished
        for interval in run.intervals:
            assert interval.begin == interval.ready
            if after.op(interval.op).all_at_once and after.op(interval.op).blocks:
                assert interval.held[0][1] == after.op(interval.op).blocks


@given(programs())
def test_sharing_is_never_slower(program):
    try:
        apart = plan_by_sums(program, condition="S1")
    except PlanError:
        return
    shared = plan_by_sums(program, condition="S2")
    slowest = [max((limit.microseconds for limit in each.limits), default=0.0) for each in (shared, apart)]
    assert slowest[0] <= slowest[1]


def test_streams_one_after_the_other_share_all_cores():
    first = Stream("first", "0", (Op("a", 0, 48, microseconds=10.0, records=("done",)),))
    second = Stream("second", "0", (Op("b", 0, 48, microseconds=10.0, waits=("done",)),))
    program = Program((CARD,), (first, second))
    summed, shared = plan_by_sums(program), plan_by_sums(program, condition="S2")
    assert [limit.vector for limit in summed.limits] == [24, 24]
    assert summed.makespan == 40.0
    assert [limit.vector for limit in shared.limits] == [48, 48]
    assert (shared.makespan, shared.method) == (20.0, "S2")
    assert "2 operators from a(0) to b(0), through first, second" in shared.bound
    assert "by the order, first and second never run at the same time" in shared.proof


def test_a_circle_cannot_be_planned():
    first = Stream("first", "0", (Op("a", 0, 4, waits=("y",), records=("x",)),))
    second = Stream("second", "0", (Op("b", 0, 4, waits=("x",), records=("y",)),))
    with pytest.raises(PlanError, match="wait for each other in a circle") as error:
        plan_by_sums(Program((CARD,), (first, second)))
    assert "a(0) -> b(0) -> a(0)" in str(error.value).replace("b(0) -> a(0) -> b(0)", "a(0) -> b(0) -> a(0)")
    with pytest.raises(PlanError, match="no condition S9"):
        plan_by_sums(figure(), condition="S9")


def test_streams_of_the_same_name_on_one_card_are_told_apart():
    ops = (Op("a", 0, 48, microseconds=1.0),)
    program = Program((CARD,), (Stream("s", "0", ops), Stream("s", "0", ops)))
    assert stream_names(program) == ["s[0]", "s[1]"]
    assert [limit.vector for limit in plan_by_sums(program).limits] == [24, 24]


def test_limits_of_an_operator():
    mix = Op("mix", cube=20, vector=40)
    program = Program((CARD,), (Stream("s", "0", (mix, Op("host"), Op("add", 0, 48))),))
    assert [op.cores for _, op in limited(program, {"s": (8, 10)}).ops()] == [(5, 10), (0, 0), (0, 10)]
    assert [op.cores for _, op in limited(program, {"s": (0, 1)}).ops()] == [(1, 2), (0, 0), (0, 1)]
    assert limited(program, {}) == program


# What a plan is written as.


def test_a_plan_goes_through_json():
    found = plan_by_sums(figure(), Sources(minima=KEPT))
    assert Plan.from_json(json.loads(json.dumps(found.to_json()))) == found


GOOD = plan([demand("a", *vector(Times((1.0,))))], CARD).to_json()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {**GOOD, "more": 1},
        {**GOOD, "limits": [{"stream": "a"}]},
        {**GOOD, "limits": [{**GOOD["limits"][0], "vector": "8"}]},
        {**GOOD, "limits": [{**GOOD["limits"][0], "vector": -8}]},
        {**GOOD, "limits": [{**GOOD["limits"][0], "cube": True}]},
        {**GOOD, "limits": [{**GOOD["limits"][0], "cards": 4}]},
        {**GOOD, "makespan": "long"},
        {**GOOD, "makespan": float("nan")},
        {**GOOD, "proof": [1]},
    ],
)
def test_what_is_not_a_plan(data):
    assert Plan.from_json(GOOD).to_json() == GOOD
    with pytest.raises(PlanError, match="this is not a plan") as error:
        Plan.from_json(data, "plan.json")
    assert "plan.json" in error.value.looked_at


def test_the_script_sets_the_limits(monkeypatch):
    calls = []
    torch = types.ModuleType("torch")
    torch.npu = types.SimpleNamespace(set_stream_limit=lambda stream, **limits: calls.append((stream, limits)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    limits = (
        Limit("both's", ("0",), 4, 16, 1.0, "measured"),
        Limit("vector", ("0",), None, 8, 1.0, "measured"),
        Limit("none\nat all", ("0",), None, None, 1.0, "measured"),
    )
    script = Plan(limits, 1.0, "measured", "S1", ("a proof\nof two lines",), "bound").script()
    module: dict[str, object] = {}
    exec(script, module)
    module["set_limits"]({"both's": "first", "vector": "second"})
    assert calls == [("first", {"cube_num": 4, "vector_num": 16}), ("second", {"vector_num": 8})]
    assert compile(plan_by_sums(figure()).script(), "script", "exec")


def test_a_plan_names_its_streams():
    found = plan_by_sums(figure())
    assert found.limit("main").stream == "main"
    with pytest.raises(PlanError, match="the plan has no stream side"):
        found.limit("side")


def test_planning_needs_neither_torch_nor_ortools():
    heavy = ("torch", "ortools", "numpy")
    code = f"import sys, toprope.cores.planning.program as _; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
