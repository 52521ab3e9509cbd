"""Runs of a program on a virtual clock (`cores.simulation`): they keep the rules of cores and agree with the checker.

Random programs: what deadlocks in a run must not be called safe by `cores.check`.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.cores import Card, Collective, Communicator, Discipline, Op, Program, Stream, hunt, simulate
from toprope.cores.check import Verdict, check
from toprope.cores.simulation.simulate import UNKNOWN_MICROSECONDS

DISCIPLINES = list(Discipline)


def figure(non_zero=48, chip="910B1"):
    """The mission's figure: two cards of 48 vector cores, ReduceScatter 16, DispatchCombine 24, NonZero 48."""
    streams = []
    for card in "01":
        streams += [
            Stream("reduce", card, (Op("ReduceScatter", vector=16, collective=Collective("rs", 0)),)),
            Stream("dispatch", card, (Op("DispatchCombine", vector=24, collective=Collective("dc", 0)),)),
            Stream("main", card, (Op("NonZero", vector=non_zero, sync_all=True),)),
        ]
    cards = tuple(Card(name, 24, 48, chip) for name in "01")
    return Program(cards, tuple(streams), (Communicator("rs", ("0", "1")), Communicator("dc", ("0", "1"))))


def one_card(*streams, cube=24, vector=48):
    card = Card("0", cube, vector)
    return Program((card,), tuple(Stream(f"s{place}", "0", tuple(ops)) for place, ops in enumerate(streams)))


@st.composite
def programs(draw):
    """Small programs of every kind: circular waits and collectives without a member among them."""
    cube, vector = draw(st.sampled_from([(4, 8), (0, 5), (3, 3)]))
    cards = draw(st.integers(1, 2))
    communicators = [Communicator(name, tuple("01"[:cards])) for name in ("x", "y")]
    streams, sequence, events, recorded = [], {}, draw(st.integers(0, 3)), set()
    for place in range(draw(st.integers(1, 3)) * cards):
        card, ops = str(place % cards), []
        for step in range(draw(st.integers(0, 3))):
            kind = draw(st.sampled_from(["cube", "vector", "mix", "none"]))
            wide = draw(st.integers(1, max(1, min(cube, vector // 2))))
            shape = {
                "cube": {"cube": min(cube, draw(st.integers(0, cube)))},
                "vector": {"vector": draw(st.integers(1, vector))},
                "mix": {"cube": min(wide, cube), "vector": min(2 * wide, vector)},
                "none": {},
            }[kind]
            collective = None
            name = draw(st.sampled_from([None, None, "x", "y"]))
            if name is not None:
                number = sequence.setdefault((name, card), 0)
                sequence[name, card] += 1
                collective = Collective(name, number)
            event = draw(st.integers(0, events))
            records = (f"e{event}",) if event < events and event not in recorded else ()
            recorded.update([event] if records else [])
            ops.append(
                Op(
                    f"op{step}",
                    sync_all=draw(st.booleans()),
                    collective=collective,
                    records=records,
                    waits=tuple(f"e{each}" for each in recorded if draw(st.integers(0, 5)) == 0),
                    microseconds=draw(st.sampled_from([None, 0.0, 1.0, 2.5, 10.0])),
                    **shape,
                )
            )
        streams.append(Stream(f"s{place}", card, tuple(ops)))
    shape = tuple(Card(str(card), cube, vector) for card in range(cards))
    return Program(shape, tuple(streams), tuple(communicators))


def check_rules(run):
    """What must hold of every run: no core given twice, each operator within its own blocks, the order kept."""
    program = run.program
    for moment in run.moments:
        state = run.state(moment)
        for card in program.cards:
            assert min(state.idle(card)) >= 0
        for stream, blocks in enumerate(moment.held):
            head = state.head(stream)
            assert 0 <= blocks <= (program.op(head).blocks if head else 0)
            assert not blocks or head in state.active
    times = {interval.op: interval for interval in run.intervals}
    assert len(times) == len(run.intervals)
    for id, interval in times.items():
        for other in program.before(id):
            assert times[other].end <= interval.ready
        if interval.end is not None:
            assert interval.ready <= interval.begin <= interval.running <= interval.end
    assert [moment.microseconds for moment in run.moments] == sorted({each.microseconds for each in run.moments})
    if run.moments:
        assert run.state(run.moments[-1]) == run.end


@given(programs(), st.sampled_from(DISCIPLINES), st.integers(0, 2**32))
def test_a_run_ends_stuck_or_with_everything_done(program, discipline, seed):
    run = simulate(program, discipline, seed)
    assert run.deadlocked == run.end.is_stuck(discipline)
    assert run.deadlocked != run.end.finished
    check_rules(run)


@given(programs(), st.sampled_from(DISCIPLINES), st.integers(0, 2**32))
def test_the_checker_agrees_with_what_runs(program, discipline, seed):
    found = hunt(program, discipline, range(seed, seed + 10))
    verdict = check(program, discipline=discipline, findings=False, further=False).verdict
    if found is not None:
        assert verdict is Verdict.DEADLOCK


@pytest.mark.slow
@given(programs(), st.sampled_from(DISCIPLINES), st.integers(0, 100))
def test_the_same_seed_gives_the_same_run(program, discipline, seed):
    run = simulate(program, discipline, seed)
    assert simulate(program, discipline, seed) == run
    quiet = simulate(program, discipline, seed, keep=False)
    assert (quiet.end, quiet.microseconds, quiet.moments, quiet.intervals) == (run.end, run.microseconds, (), ())


@pytest.mark.slow
@given(programs(), st.sampled_from(DISCIPLINES), st.integers(0, 100), st.floats(0, 30))
def test_a_run_can_be_stopped(program, discipline, seed, until):
    whole = simulate(program, discipline, seed)
    part = simulate(program, discipline, seed, until=until)
    assert part.microseconds <= until
    assert part.moments == tuple(moment for moment in whole.moments if moment.microseconds <= until)
    assert part.deadlocked == (whole.deadlocked and whole.microseconds <= until)
    check_rules(part)


def test_the_figure_deadlocks_with_its_own_holds():
    holds = set()
    for seed in range(300):
        run = simulate(figure(), Discipline.D0B, seed, keep=False)
        if run.deadlocked:
            assert run.end.is_stuck(Discipline.D0B)
            holds.add(run.end.held)
    # ReduceScatter, DispatchCombine, NonZero of card 0, then of card 1
    assert (16, 0, 32, 0, 24, 24) in holds


def test_the_figure_is_reported_after_the_documented_time():
    started = time.process_time()
    run = hunt(figure(), Discipline.D0B)
    assert time.process_time() - started < 1
    assert run is not None
    assert run.moments
    assert run.end.cycle()
    assert run.time_out is not None
    assert (run.time_out.seconds, run.time_out.code) == (1091, 507034)
    assert run.time_out.at_microseconds >= 1091e6
    assert run.end.held[run.time_out.op[0]] > 0


SEEDS = pytest.mark.parametrize("seeds", [300, pytest.param(10_000, marks=pytest.mark.soak)])


@SEEDS
def test_limited_to_32_the_figure_completes_by_bursts_and_by_reservation(seeds):
    for discipline in (Discipline.D0B, Discipline.D1, Discipline.D2):
        assert hunt(figure(32), discipline, range(seeds)) is None
    assert hunt(figure(32), Discipline.D0) is not None


@SEEDS
def test_limited_to_8_the_figure_completes_under_every_discipline(seeds):
    for discipline in DISCIPLINES:
        assert hunt(figure(8), discipline, range(seeds)) is None


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_three_collectives_that_fit_in_pairs_deadlock_on_three_cards(discipline):
    def ring(vector):
        names = "012"
        streams = [
            Stream(each, card, (Op(each, vector=vector, collective=Collective(each, 0)),))
            for card in names
            for each in "xyz"
        ]
        communicators = tuple(Communicator(each, tuple(names)) for each in "xyz")
        return Program(tuple(Card(name, 24, 48) for name in names), tuple(streams), communicators)

    assert hunt(ring(24), discipline) is not None
    assert hunt(ring(16), discipline) is None


@pytest.mark.parametrize(
    ("chip", "op", "seconds", "code"),
    [
        ("910B3", Op("x", vector=4, collective=Collective("g", 0)), 1091, 507034),
        ("Ascend910_9391", Op("x", cube=4, vector=8, collective=Collective("g", 0)), 1091, 507014),
        ("910_9391", Op("x", collective=Collective("g", 0)), 1836, 507048),
        ("910A", Op("x", vector=4, collective=Collective("g", 0)), 1836, 507034),
        ("", Op("x", vector=4, collective=Collective("g", 0)), 1091, 507034),
    ],
)
def test_which_time_out_reports_a_collective_without_its_peer(chip, op, seconds, code):
    cards = (Card("0", 24, 48, chip), Card("1", 24, 48, chip))
    run = simulate(Program(cards, (Stream("s", "0", (op,)),), (Communicator("g", ("0", "1")),)))
    assert run.deadlocked
    assert run.time_out is not None
    assert (run.time_out.seconds, run.time_out.code) == (seconds, code)
    assert run.time_out.setting == "HCCL_EXEC_TIMEOUT"


@pytest.mark.parametrize(("chip", "seconds"), [("910B1", 1091), ("310P3", 547), ("910A", 68), ("950PR_9599", 1091)])
def test_which_time_out_reports_operators_that_hold_each_others_cores(chip, seconds):
    barrier = Op("barrier", vector=5, sync_all=True)
    streams = tuple(Stream(name, "0", (barrier,)) for name in "ab")
    run = hunt(Program((Card("0", 8, 8, chip),), streams), Discipline.D0)
    assert run is not None
    assert run.time_out is not None
    assert (run.time_out.seconds, run.time_out.setting) == (seconds, "operator time-out")


def test_no_time_out_ends_a_circle_of_events():
    first = Op("first", vector=1, waits=("b",), records=("a",))
    second = Op("second", vector=1, waits=("a",), records=("b",))
    run = simulate(one_card([first], [second]))
    assert run.deadlocked
    assert run.time_out is None
    assert run.intervals == ()


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_times_follow_the_cores(discipline):
    # One operator alone has all of its blocks at once; two of 48 blocks share 48 cores, so that the work of both
    # takes twice the time, however it is shared.
    alone = simulate(one_card([Op("x", vector=48, microseconds=10.0)]), discipline)
    assert alone.microseconds == alone.intervals[0].ready + 10
    elastic = Op("x", vector=48, microseconds=10.0)
    for seed in range(20):
        run = simulate(one_card([elastic], [elastic]), discipline, seed)
        begin = min(interval.ready for interval in run.intervals)
        late = max(interval.ready for interval in run.intervals)
        assert 20 - 1e-9 <= run.microseconds - begin <= 20 + (late - begin) + 1e-9
    barrier = one_card([Op("x", vector=48, sync_all=True, microseconds=10.0)])
    assert simulate(barrier, discipline).intervals[0].held[0][1] == 48


def test_an_elastic_operator_runs_on_what_it_gets():
    fills = Op("fills", vector=36, sync_all=True, microseconds=6.0, records=("filled",))
    elastic = Op("elastic", vector=48, microseconds=10.0)
    for seed in range(50):
        run = simulate(one_card([fills], [elastic]), Discipline.D0B, seed)
        interval = next(each for each in run.intervals if run.program.op(each.op).name == "elastic")
        done = sum(
            blocks * (until - since)
            for (since, blocks), (until, _) in zip(interval.held, interval.held[1:], strict=False)
        )
        assert done == pytest.approx(48 * 10.0)


def test_unknown_times_are_said():
    run = simulate(one_card([Op("x", vector=1), Op("y", vector=1, microseconds=2.0)]))
    assert run.notes[0].startswith("1 of 2 operators have no time")
    assert run.intervals[0].end - run.intervals[0].begin == UNKNOWN_MICROSECONDS
    assert simulate(one_card([Op("y", vector=1, microseconds=2.0)])).notes == ()


def test_collectives_run_together_for_the_longest_time():
    ops = [Op("x", vector=4, collective=Collective("g", 0), microseconds=time) for time in (3.0, 7.0)]
    streams = tuple(Stream("s", card, (op,)) for card, op in zip("01", ops, strict=True))
    program = Program((Card("0", 4, 8), Card("1", 4, 8)), streams, (Communicator("g", ("0", "1")),))
    for discipline in DISCIPLINES:
        first, second = simulate(program, discipline, 3).intervals
        assert first.running == second.running == max(first.ready, second.ready)
        assert first.end == second.end == first.running + 7


def test_an_empty_program_has_finished():
    run = simulate(one_card())
    assert (run.finished, run.deadlocked, run.microseconds, run.moments) == (True, False, 0, ())
    assert hunt(one_card(), seeds=range(3)) is None
