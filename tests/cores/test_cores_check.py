"""`cores.check`: the verdict, its proof or witness, and the fix, for the figure of the documentation and for traps.

"The figure" is the deadlock of docs/cores.md: three streams, two cards and a collective.
"""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given

from cores_exhaustive import TooMany, deadlocks
from cores_programs import collectives, elastic, figure, local, member, on, programs, with_ops
from toprope.cores import Discipline, record, simulate
from toprope.cores.check import Verdict, check
from toprope.cores.fix import find_fixes, with_limit
from toprope.cores.proof import exact_solver

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cores"
TWO = dict.fromkeys("01", (24, 48))
SAFE, DEADLOCK, UNKNOWN = Verdict.SAFE, Verdict.DEADLOCK, Verdict.UNKNOWN


@pytest.fixture(autouse=True, scope="module")
def patience():
    """Every test and question gets as long as it needs: a loaded machine must not leave one undecided."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SIDE_SECONDS", "PLAIN_SECONDS", "FIX_SECONDS"):
            patch.setattr(sys.modules["toprope.cores.check"], name, 60)
        yield


def long_program(length=30, limits=(12, 12, 13)):
    """Two cards, three streams, cores for one too few of them at once; the plain test would need minutes."""
    streams = []
    for card in "01":
        for number, cores in enumerate(limits):
            name = f"c{number}"
            ops = [member(name, name, cores) if (place + number) % 2 else local("L", cores) for place in range(length)]
            streams.append((card, ops))
    return on(dict.fromkeys("01", (0, 36)), {f"c{number}": "01" for number in range(len(limits))}, streams)


def test_the_figure():
    result = check(figure())
    assert (result.verdict, result.discipline) == (DEADLOCK, Discipline.D0)
    assert result.witness.held == (16, 0, 32, 0, 24, 24)
    assert [result.witness.program.describe(id) for id in result.witness.cycle()] == [
        "NonZero(0)",
        "ReduceScatter(0)",
        "ReduceScatter(1)",
        "NonZero(1)",
        "DispatchCombine(1)",
        "DispatchCombine(0)",
    ]
    assert result.weaker == {Discipline.D0B: DEADLOCK, Discipline.D1: DEADLOCK, Discipline.D2: SAFE}


def test_the_fix_of_the_figure():
    fix = check(figure()).fix
    assert (fix.op, fix.cards) == ("NonZero", ("0", "1"))
    assert (fix.vector, fix.exact_vector) == (8, 9)
    assert check(with_limit(figure(), "NonZero", (fix.cube, fix.vector))).verdict is SAFE
    assert check(with_limit(figure(), "NonZero", (0, 9))).verdict is SAFE
    assert check(with_limit(figure(), "NonZero", (0, 10))).verdict is DEADLOCK
    assert check(figure(), discipline=Discipline.D1).fix.exact_vector == 32
    assert check(figure(), discipline=Discipline.D0B).fix.exact_vector == 32


@pytest.mark.parametrize("limit", [9, 8])
def test_the_figure_with_few_cores_is_safe_under_all(limit):
    result = check(figure(limit))
    assert result.verdict is SAFE
    assert set(result.weaker.values()) == {SAFE}
    assert (result.witness, result.fix) == (None, None)
    if limit == 8:
        assert result.proof == "sum of the streams' cores 16 + 24 + 8 = 48 of 48 vector cores on card 0"
    for discipline in Discipline:
        for seed in range(20):
            assert not simulate(figure(limit), discipline, seed).deadlocked


def test_the_figure_with_32_is_safe_for_bursts_and_keepers_only():
    result = check(figure(32))
    assert result.verdict is DEADLOCK
    assert result.weaker == {Discipline.D0B: SAFE, Discipline.D1: SAFE, Discipline.D2: SAFE}
    burst = check(figure(32), discipline=Discipline.D0B)
    assert (burst.verdict, burst.weaker[Discipline.D0]) == (SAFE, DEADLOCK)


def test_pairs_that_fit_are_no_proof():
    result = check(collectives("012", 3, 24))
    assert result.verdict is DEADLOCK
    assert set(result.weaker.values()) == {DEADLOCK}
    assert result.witness.held == (24, 24, 0, 24, 0, 24, 0, 24, 24)
    assert result.fix is None  # no limit of one of them is enough
    assert check(collectives("012", 3, 16)).verdict is SAFE


def test_operators_in_turn_are_proven_safe_by_what_can_be_active_together():
    program = on(
        TWO, {}, [("0", [local("a", 40, records=["e"])]), ("0", [local("b", 40, waits=["e"])]), ("0", [local("c", 8)])]
    )
    result = check(program)
    assert result.verdict is SAFE
    assert result.proof.startswith("most that operators active together need: ")
    assert result.proof.endswith(" = 48 of 48 vector cores on card 0")


def test_collectives_and_one_local_operator_are_a_proof_for_all_or_nothing():
    program = on({"0": (24, 48)}, {}, [("0", [local(name, 48)]) for name in "ABC"])
    assert check(program).verdict is DEADLOCK
    for discipline in (Discipline.D1, Discipline.D2):
        result = check(program, discipline=discipline)
        assert result.verdict is SAFE
        assert result.proof.startswith("most that collectives active together and one other operator need")


def test_a_circle_is_told_whatever_the_cores():
    program = on(
        TWO,
        {"x": "01", "y": "01"},
        [("0", [member("X", "x", 1), member("Y", "y", 1)]), ("1", [member("Y", "y", 1), member("X", "x", 1)])],
    )
    for discipline in Discipline:
        result = check(program, discipline=discipline)
        assert result.verdict is DEADLOCK
        assert result.proof.startswith("waits in a circle, whatever the cores: ")
        assert result.witness.is_stuck(discipline)
        assert result.fix is None
        assert set(result.weaker.values()) == {DEADLOCK}
    assert "cyclic-wait" in {finding.rule for finding in result.findings}


def test_a_collective_without_a_member_is_never_safe():
    program = on(TWO, {"x": "01"}, [("0", [member("X", "x", 8)]), ("1", [local("A", 8)])])
    for discipline in Discipline:
        result = check(program, discipline=discipline)
        assert result.verdict is DEADLOCK
        assert result.proof == "collective x#0 lacks a member on card 1 and never finishes"
        assert result.witness.is_stuck(discipline)
    assert "missing-rank" in {finding.rule for finding in result.findings}


def test_nothing_to_do_is_safe():
    assert check(on(TWO, {}, [("0", [])])).proof == "no operator needs cores of a card"
    assert check(on(TWO, {}, [])).verdict is SAFE
    assert check(on({}, {}, [])).verdict is SAFE


def test_what_is_not_decided_is_unknown_and_says_what_would_help(monkeypatch):
    monkeypatch.setattr(exact_solver, "available", lambda: False)
    result = check(long_program(), seconds=1)
    assert result.verdict is UNKNOWN
    assert (result.witness, result.fix) == (None, None)
    assert "no circular waits; S1: 12 + 12 + 13 = 37 of 36 vector cores on card 0; S2: " in result.proof
    assert "sets of finished operators looked at" in result.proof
    assert result.proof.endswith(exact_solver.INSTALL)
    assert set(result.weaker.values()) <= {SAFE, UNKNOWN}


def test_with_the_solver_it_is_decided(monkeypatch):
    pytest.importorskip("ortools", reason="needs the extra `plan` (ortools)")
    monkeypatch.setattr(sys.modules["toprope.cores.check"], "PLAIN_SECONDS", 0.3)
    result = check(long_program(), seconds=200)
    assert (result.verdict, result.proof) == (SAFE, "exact test, by CP-SAT: none in which nothing can go on")


def test_no_time_is_no_verdict():
    began = time.process_time()
    for discipline in Discipline:
        assert check(long_program(), discipline=discipline, seconds=0).verdict is UNKNOWN
    assert time.process_time() - began < 10
    assert check(figure(8), seconds=0).verdict is SAFE  # what costs next to nothing is asked anyhow


def test_findings_stand_beside_the_verdict():
    program = figure(8)
    assert check(program, findings=False).findings == ()
    result = check(dataclasses.replace(program, communicators=tuple(
        dataclasses.replace(group, engine="aiv") for group in program.communicators)))  # fmt: skip
    assert result.verdict is SAFE
    assert "two-aiv-communicators" in {finding.rule for finding in result.findings}


def test_a_local_operator_is_limited_before_a_collective():
    program = on(
        TWO,
        {"x": "01"},
        [(card, [op]) for card in "01" for op in (member("X", "x", 40), local("N", 40), elastic("E", 48))],
    )
    fix = check(program).fix
    assert (fix.op, fix.vector) == ("N", 7)


def test_the_operator_that_loses_least_is_limited():
    program = on({"0": (24, 48)}, {}, [("0", [local("A", 30)]), ("0", [local("B", 24)])])
    fix = check(program).fix
    assert (fix.op, fix.cards, fix.vector) == ("A", ("0",), 24)


@pytest.mark.parametrize(("monotone", "found"), [(False, 7), (True, None)])
def test_where_a_smaller_limit_may_be_less_safe_every_number_is_tried(monotone, found):
    """Under D0B one block can be unsafe where seven are safe: halving would not find them."""
    program = on({"0": (24, 48)}, {}, [("0", [local(name, 40)]) for name in "ABC"])  # no limit of one fits the sums
    witness = check(program).witness

    def safe_with_seven(limited):
        return next(op for _, op in limited.ops() if op.name == "A").vector == 7

    best = find_fixes(program, witness, safe_with_seven, monotone=monotone).best
    assert (best and best.vector) == found


def test_a_limit_of_both_kinds_keeps_their_ratio():
    program = on({"0": (24, 48)}, {}, [("0", [local("mix", 48, 24)]), ("0", [local("vector", 40)])])
    fix = check(program).fix
    assert fix.op == "vector" or (fix.vector == 2 * fix.cube)
    assert check(with_limit(program, fix.op, (fix.cube, fix.vector))).verdict is SAFE


def test_many_cards_that_run_the_same_are_quick():
    cards = [str(number) for number in range(64)]
    began = time.process_time()
    result = check(figure(cards=cards), findings=False)
    assert time.process_time() - began < 10
    assert result.verdict is DEADLOCK
    assert result.witness.is_stuck(Discipline.D0)
    assert result.fix.cards == tuple(cards)


def test_the_thinking_needs_no_extra():
    code = "import toprope.cores.check, sys; print([m for m in ('torch', 'numpy', 'ortools') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(programs())
def test_verdicts_hold_in_every_order_of_things(program):
    dead = {}
    for discipline in Discipline:
        try:
            dead[discipline] = deadlocks(program, discipline)
        except TooMany:
            hypothesis.reject()
    for discipline in Discipline:
        result = check(program, discipline=discipline, seconds=60, findings=False)
        assert result.verdict is (DEADLOCK if dead[discipline] else SAFE)
        assert result.weaker == {
            other: DEADLOCK if dead[other] else SAFE for other in Discipline if other is not discipline
        }
        if dead[discipline]:
            assert result.witness.is_stuck(discipline)
        if result.fix is not None:
            _holds(program, result)


def _holds(program, result):
    """A fix by sums is safe under all disciplines; one by the exact test, and the larger limit, under this one."""
    fix = result.fix
    disciplines = Discipline if fix.by_sums else [result.discipline]
    for discipline in disciplines:
        limited = with_limit(program, fix.op, (fix.cube, fix.vector))
        assert check(limited, discipline=discipline, seconds=60, findings=False, further=False).verdict is SAFE
    if fix.exact_vector is not None:
        larger = with_limit(program, fix.op, (fix.exact_cube, fix.exact_vector))
        assert check(larger, discipline=result.discipline, seconds=60, findings=False).verdict is SAFE


@pytest.mark.slow
@given(programs())
def test_no_fix_is_said_only_where_exhaustive_search_finds_none(program):
    result = check(program, seconds=60, findings=False)
    if result.verdict is not DEADLOCK or checked_by_order(program):
        hypothesis.reject()
    assert not result.fixes.undecided
    names = {op.name for _, op in program.ops() if op.blocks > 1}
    for name in names if result.fix is None else ():
        one_block = with_limit(program, name, (0, 0))
        try:
            still = any(deadlocks(one_block, discipline) for discipline in (Discipline.D0, Discipline.D1))
        except TooMany:
            hypothesis.reject()
        assert still, f"a limit on {name} makes it safe"


def checked_by_order(program):
    """Whether a circle or a missing rank makes it hang with any number of cores."""
    return (
        check(with_ops(program, lambda _, op: dataclasses.replace(op, cube=0, vector=0, kind="HOST"))).verdict
        is DEADLOCK
    )


@pytest.mark.parametrize("name", ["three-barriers", "pairwise-2-cards"])
def test_examples_were_said_to_have_no_fix(name):
    program = record.read(EXAMPLES / f"{name}.json")
    fix = check(program).fix
    assert not fix.by_sums
    for discipline in Discipline:
        assert check(with_limit(program, fix.op, (fix.cube, fix.vector)), discipline=discipline).verdict is SAFE
    assert check(with_limit(program, fix.op, (fix.cube + 1, fix.vector + 1))).verdict is DEADLOCK


def test_the_smallest_program_that_was_said_to_have_no_fix():
    program = on({"0": (0, 2)}, {}, [("0", [elastic("x", 1), local("y", 2)]), ("0", [local("a", 2), local("b", 2)])])
    assert check(program).fix.op == "y"


def test_members_of_a_collective_on_the_other_kind_of_core_were_not_limited():
    streams = [
        ("0", [member("g", "g", cube=2), *(local(f"a{number}", 1) for number in range(3))]),
        ("1", [local("b", 2), local("c", 2)]),
        ("1", [member("g", "g", vector=2), local("d", 1)]),
    ]
    program = on({"0": (2, 2), "1": (0, 2)}, {"g": "01"}, streams)
    fix = check(program).fix
    assert (fix.op, fix.cube, fix.vector) == ("g", 1, 1)
    assert check(with_limit(program, "g", (1, 1))).verdict is SAFE


def test_a_limit_without_effect_was_proposed():
    static = dataclasses.replace(local("N", 48), ignores_limit="static kernel")
    program = on({"0": (24, 48)}, {}, [("0", [static]), ("0", [local("M", 24)])])
    result = check(program)
    assert (result.fix.op, result.fix.vector, result.fixes.no_effect) == ("M", 1, {"N": "static kernel"})
    program = on({"0": (24, 48)}, {}, [("0", [static]), ("0", [static])])
    assert set(check(program).fixes.no_effect) == {"N"}


def test_the_search_for_a_fix_says_that_its_time_was_up(monkeypatch):
    monkeypatch.setattr(sys.modules["toprope.cores.check"], "FIX_SECONDS", 0)
    result = check(collectives("012", 3, 24))
    assert result.verdict is DEADLOCK
    assert (result.fix, set(result.fixes.undecided)) == (None, set("XYZ"))


@given(programs(), hypothesis.strategies.integers(0, 1000))
def test_no_run_refutes_a_proof(program, seed):
    result = check(program, seconds=60, findings=False)
    for discipline in Discipline:
        verdict = result.verdict if discipline is Discipline.D0 else result.weaker[discipline]
        if verdict is SAFE:
            assert not simulate(program, discipline, seed, keep=False).deadlocked


def test_with_limit_leaves_a_block_and_others_alone():
    program = with_limit(figure(), "NonZero", (0, 0))
    assert [op.vector for _, op in program.ops()] == [16, 24, 1] * 2
    assert with_ops(figure(), lambda id, op: op) == with_limit(figure(), "nobody", (0, 0))
