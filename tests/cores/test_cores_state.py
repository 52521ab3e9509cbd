"""`cores.state`: when a moment is stuck, who waits for whom, and the shortest wait-for cycle, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cores_programs import elastic, figure, local, member, on, programs
from toprope.cores import Discipline, State

STUCK = State(figure(), (0,) * 6, (16, 0, 32, 0, 24, 24))


def names(state, ids):
    return [state.program.describe(id) for id in ids]


def test_the_figure_is_stuck_however_cores_are_handed_out_in_parts():
    assert STUCK.is_stuck(Discipline.D0)
    assert STUCK.is_stuck(Discipline.D0B)
    assert not STUCK.is_stuck(Discipline.D1)  # NonZero cannot hold a part
    assert not State(figure(), (0,) * 6, (16, 0, 31, 0, 24, 24)).is_stuck(Discipline.D0)
    assert State(figure(), (0,) * 6, (16, 0, 0, 0, 24, 0)).is_stuck(Discipline.D1)
    assert not State(figure(), (0,) * 6, (16, 0, 0, 0, 24, 0)).is_stuck(Discipline.D2)


def test_the_figure_says_who_waits_for_whom():
    told = {STUCK.program.describe(wait.op): wait for wait in STUCK.waits()}
    assert told["NonZero(0)"].lacking == (0, 16)
    assert told["DispatchCombine(0)"].lacking == (0, 24)
    assert told["ReduceScatter(0)"].reason == "peer"
    assert names(STUCK, told["ReduceScatter(0)"].on) == ["ReduceScatter(1)"]
    assert names(STUCK, told["NonZero(0)"].on) == ["ReduceScatter(0)"]


def test_the_six_steps_of_the_figure():
    assert names(STUCK, STUCK.cycle()) == [
        "NonZero(0)",
        "ReduceScatter(0)",
        "ReduceScatter(1)",
        "NonZero(1)",
        "DispatchCombine(1)",
        "DispatchCombine(0)",
    ]


def test_idle_cores_and_what_is_held():
    card = STUCK.program.cards[0]
    assert STUCK.idle(card) == (24, 0)
    assert STUCK.held_cores((2, 0)) == (0, 32)
    assert STUCK.has_all((0, 0))
    assert not STUCK.has_all((2, 0))


def test_the_end_is_not_stuck():
    end = State(figure(), (1,) * 6, (0,) * 6)
    assert end.finished
    assert not end.is_stuck(Discipline.D0)
    assert list(end.waits()) == []
    assert end.cycle() == ()
    assert end.head(0) is None


def test_an_operator_waits_for_its_event_and_its_event_for_cores():
    program = on(
        {"0": (1, 4)},
        {},
        [("0", [elastic("a", 4), local("b", 4, records=["e"])]), ("0", [local("c", 4, waits=["e"])])],
    )
    state = State(program, (0, 0), (0, 0))
    assert state.active == ((0, 0),)
    (first, second) = state.waits()
    assert (first.reason, first.lacking) == ("cores", (0, 1))  # one block is enough for it
    assert (second.reason, names(state, second.on)) == ("order", ["b(0)"])
    assert not state.is_stuck(Discipline.D2)
    assert State(program, (1, 0), (0, 0)).active == ((0, 1),)


def test_a_collective_that_lacks_a_member_waits_for_nobody_that_is_there():
    program = on({"0": (0, 4), "1": (0, 4)}, {"x": "01"}, [("0", [member("X", "x", 4)])])
    state = State(program, (0,), (4,))
    assert state.is_stuck(Discipline.D0)
    (wait,) = state.waits()
    assert (wait.reason, wait.on) == ("peer", ())


def test_a_block_of_both_kinds_needs_both():
    program = on({"0": (2, 4)}, {}, [("0", [local("mix", 4, 2)]), ("0", [local("cubes", 0, 2)])])
    state = State(program, (0, 0), (1, 1))
    assert state.held_cores((0, 0)) == (1, 2)
    assert state.idle(program.cards[0]) == (0, 2)
    assert state.is_stuck(Discipline.D0)
    assert {wait.lacking for wait in state.waits()} == {(1, 2), (1, 0)}
    assert names(state, state.cycle()) == ["mix(0)", "cubes(0)"]


def test_under_D1_who_fits_waits_for_the_one_that_does_not():
    program = on(
        {"0": (0, 6), "1": (0, 6)},
        {"x": "01"},
        [
            ("0", [member("X", "x", 2)]),
            ("0", [local("W", 6)]),
            ("0", [local("V", 4, records=["e"])]),
            ("1", [member("X", "x", 2, waits=["e"])]),
        ],
    )
    state = State(program, (0,) * 4, (2, 0, 0, 0))
    assert state.is_stuck(Discipline.D1)
    assert not state.is_stuck(Discipline.D2)
    waits = {program.describe(wait.op): names(state, wait.on) for wait in state.waits()}
    assert waits == {"X(0)": ["X(1)"], "W(0)": ["X(0)"], "V(0)": ["W(0)"], "X(1)": ["V(0)"]}
    assert sorted(names(state, state.cycle())) == ["V(0)", "W(0)", "X(0)", "X(1)"]


def some_moment(program, draw):
    """A moment after some operators have finished, with no cores handed out."""
    state = State(program, (0,) * len(program.streams), (0,) * len(program.streams))
    for _ in range(draw(st.integers(0, 8))):
        heads = [
            id for id in state.active if set(program.members.get(program.op(id).collective, ())) <= set(state.active)
        ]
        if not heads:
            break
        first = draw(st.sampled_from(heads))
        ended = program.members.get(program.op(first).collective, (first,))
        done = [count + any(stream == id[0] for id in ended) for stream, count in enumerate(state.done)]
        state = State(program, tuple(done), state.held)
    return state


@pytest.mark.slow
@given(programs(), st.data())
def test_who_waits_waits_for_what_has_not_finished(program, data):
    state = some_moment(program, data.draw)
    waiting = [wait.op for wait in state.waits()]
    assert waiting == sorted(set(waiting))
    for wait in state.waits():
        assert not state.is_done(wait.op)
        assert not any(map(state.is_done, wait.on))
        assert (wait.lacking != (0, 0)) is (wait.reason == "cores")
    cycle = state.cycle()
    assert len(set(cycle)) == len(cycle)
    assert set(cycle) <= set(waiting)
    assert state.finished is (not waiting and not state.active)
