"""Plans that limit only what must be limited (`planning.safe`), compared with exhaustive search."""

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given, reject

from cores_exhaustive import TooMany, deadlocks
from cores_programs import elastic, local, member, on, programs
from toprope.cores import Card, Discipline, Op, Program, Stream, check, limited, plan_by_sums, plan_exact, plan_program
from toprope.cores.planning.program import Sources, stream_names
from toprope.cores.record import read
from toprope.errors import PlanError

FIGURE = Path(__file__).resolve().parents[2] / "examples" / "cores" / "figure.json"
CARD = {"0": (24, 48)}


def can_deadlock(program):
    try:
        return any(deadlocks(program, discipline) for discipline in (Discipline.D0, Discipline.D1))
    except TooMany:
        reject()


def one_block_each(program):
    streams = (
        Stream(stream.name, stream.card, tuple(op.within((0, 0)) for op in stream.ops)) for stream in program.streams
    )
    return Program(program.cards, tuple(streams), program.communicators)


@pytest.mark.slow
@given(programs())
def test_no_plan_is_false_and_no_limit_needless(program):
    """Exhaustive: a safe program gets no limit; a plan is safe; without any one of its limits it is not."""
    safe = not can_deadlock(program)
    try:
        found = plan_program(program, Sources(hccl=False), seconds=60)
    except PlanError:
        assert can_deadlock(one_block_each(program))
        return
    assert (found.method == "as it is") == safe
    assert not can_deadlock(limited(program, found))
    limits = _limits(found)
    for name in limits:
        assert can_deadlock(limited(program, {each: limits[each] for each in limits if each != name}))
    assert set(limits) <= set(stream_names(program))
    assert all(each.reason for each in found.limits)


def _limits(found):
    every = 10**6
    return {
        each.stream: (every if each.cube is None else each.cube, every if each.vector is None else each.vector)
        for each in found.limits
        if each.is_limited
    }


def test_a_safe_program_was_given_limits():
    program = on(CARD, {}, [("0", [local("N", 40)]), ("0", [Op("Add", 0, 40)])])
    found = plan_program(program)
    assert (found.method, [each.is_limited for each in found.limits]) == ("as it is", [False, False])
    assert "safe" in found.limits[0].reason
    assert found.proof[0].startswith("safe under D0: ")
    assert limited(program, found) == program
    assert "set_stream_limit" not in found.script()


def test_only_what_deadlocks_is_limited():
    program = on(CARD, {}, [("0", [local("A", 40)]), ("0", [local("B", 40)]), ("0", [elastic("Add", 48)])])
    first, second, third = plan_program(program).limits
    assert sorted((first.vector, second.vector)) == [24, 25]
    assert third.vector is None
    assert all(
        each.reason == "without it A and B can wait for each other's cores"
        for each in (first, second)
        if each.is_limited
    )
    assert third.reason == "safe without a limit"


def test_a_program_was_refused_whose_operators_fit_one_block_at_a_time():
    """The sums leave each stream the cores of its largest block, which are too many for three streams."""
    program = on({"0": (2, 48)}, {}, [("0", [local("mix", 24, 1), local("N", 48)]) for _ in range(3)])
    with pytest.raises(PlanError, match="more cube cores than card 0 has"):
        plan_by_sums(program)
    found = plan_program(program)
    assert check(limited(program, found)).verdict == "safe"
    assert any("the card warns" in note for note in found.notes)


def test_a_plan_for_collectives_that_lack_a_rank_is_refused():
    program = on({"0": (24, 48), "1": (24, 48)}, {"x": "01"}, [("0", [member("X", "x", 24)])])
    with pytest.raises(PlanError, match="never finishes"):
        plan_program(program)


def test_operators_that_ignore_limits_keep_their_cores():
    fixed = Op("N", 0, 40, True, ignores_limit="static kernel")
    program = Program((Card("0", 24, 48),), (Stream("a", "0", (fixed,)), Stream("b", "0", (Op("M", 0, 40, True),))))
    found = plan_program(program)
    assert [each.vector for each in found.limits] == [None, 9]  # 40 + 9 - 1 leaves one of 48 for either
    assert not can_deadlock(limited(program, found))
    both = Program(program.cards, (program.streams[0], Stream("b", "0", (fixed,))))
    with pytest.raises(PlanError, match="they have no effect on N"):
        plan_program(both)


def test_the_exact_plan_says_safe_as_it_is_too():
    pytest.importorskip("ortools")
    program = on(CARD, {}, [("0", [local("N", 40)]), ("0", [Op("Add", 0, 40)])])
    assert plan_exact(program).method == "as it is"


def test_streams_of_cards_that_lack_a_kind_of_core_were_refused():
    """The same stream uses cube cores on one card and vector cores on the other, which has no cube cores."""
    streams = (
        Stream("s", "0", (Op("a", 24, 0, True),)),
        Stream("s", "1", (Op("b", 0, 48, True),)),
        Stream("t", "0", (Op("c", 24, 0, True),)),
    )
    program = Program((Card("0", 24, 48), Card("1", 0, 48)), streams)
    found = plan_program(program)
    assert sorted(each.cube for each in found.limits) == [12, 13]
    assert check(limited(program, found)).verdict == "safe"


def test_a_plan_is_the_same_on_a_machine_that_has_no_time_for_it(monkeypatch):
    """It was not: a search ended 2 s after it began, though others had the processor meanwhile."""
    program = read(FIGURE)
    idle, (clock, real) = plan_program(program), (itertools.count(step=100), time.monotonic)
    monkeypatch.setattr(time, "monotonic", lambda: real() + next(clock))
    assert plan_program(program) == idle
    assert idle.method == "exact"
