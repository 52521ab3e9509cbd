"""The facts of a rehearsal from counters and records made by hand.

Holds src/toprope/sim/rehearsal/facts.py and record_file.py.
"""

import dataclasses
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.sim.metrics.counters import CardCounters, Counters, Lack, LackRecord, Site
from toprope.sim.rehearsal.facts import Rehearsal, advice, facts_of, place_text, schema
from toprope.sim.rehearsal.record_file import KINDS, STEPS, CardMemory, Held, Line, Record, SiteSteps, parse
from toprope.sim.spec import SimSpec

GIB, MIB = 2**30, 2**20
USABLE = 62423 * 2**20  # of a 910B3
NOWHERE = Line("", 0)
NO_STEPS = dict.fromkeys(STEPS, SiteSteps(0, 0))


def memory(peak: int, **changes: Any) -> CardMemory:
    held = (Held(Line("a.py", 7), {"weights": peak}),)
    return dataclasses.replace(CardMemory(peak, held, 0, NOWHERE, (), 0, ()), **changes)


def facts(
    peak: int = GIB, *, chip: str = "910B3", operators: dict[str, int] | None = None, capacity: int = USABLE,
    ooms: int = 0, processes: int = 1, lacks: tuple[LackRecord, ...] = (), by_user: bool = False, **changes: Any,
) -> Rehearsal:  # fmt: skip
    card = CardCounters(0, 0, capacity, 0, peak, 0, peak, 1, 0, ooms)
    one = Counters(
        pid=1, chip=chip, torch_version="2.13.0", hbm_by_user=by_user, cards=(card,), copies_to_card=0, bytes_to_card=0,
        copies_from_card=0, bytes_from_card=0, copies_between=0, bytes_between=0, synchronisations=0, operator_calls=1,
        operators=operators or {"aten::empty": 1}, lacks=lacks,
    )  # fmt: skip
    none = dict.fromkeys(STEPS, 0)
    record = Record(1, 0, none, none, (), (Line("b.py", 3),) * 32, {0: memory(peak, **changes)})
    several = [dataclasses.replace(one, pid=number + 1) for number in range(processes)]
    records = {each.pid: dataclasses.replace(record, pid=each.pid) for each in several}
    return facts_of(several, records, SimSpec(chip, hbm=capacity if by_user else None))


def fit(*arguments: Any, **changes: Any) -> str:
    (one,) = facts(*arguments, **changes).memory
    return one.fit


def test_memory_without_operators_fits_up_to_what_a_real_card_was_seen_to_give() -> None:
    assert fit(int(60.0 * GIB)) == "fits"
    assert fit(int(60.5 * GIB)) == "may not fit"
    assert fit(int(60.5 * GIB), ooms=1) == "does not fit"


def test_operators_have_workspace_that_nobody_knows() -> None:
    assert fit(50 * GIB, operators={"aten::mm": 1}) == "fits"
    assert fit(56 * GIB, operators={"aten::mm": 1}) == "may not fit"


def test_buffers_of_communicators_count() -> None:
    assert fit(int(60.2 * GIB)) == "fits"
    assert fit(int(60.2 * GIB), runtime=400 * 2**20) == "may not fit"
    assert fit(int(60.2 * GIB), runtime=1000 * 2**20) == "does not fit"


def test_a_chip_whose_usable_memory_is_not_known_may_not_fit_within_a_tenth() -> None:
    assert fit(28 * GIB, chip="910A", capacity=32 * GIB) == "fits"
    found = facts(29 * GIB, chip="910A", capacity=32 * GIB)
    assert (found.memory[0].fit, found.memory[0].basis) == ("may not fit", "nominal")
    assert "not published" in found.memory[0].why
    assert fit(29 * GIB, chip="910A", capacity=32 * GIB, by_user=True) == "fits"


def test_processes_of_one_card_are_added_up_where_nobody_knows_when_they_peak() -> None:
    assert fit(35 * GIB) == "fits"
    assert fit(35 * GIB, processes=2) == "may not fit"


def test_the_advice_of_a_shortage_is_computed() -> None:
    kinds = {"activations": 40 * GIB, "weights": 5 * GIB, "gradients": 5 * GIB, "optimizer": 10 * GIB}
    found = advice(kinds, 8 * GIB, 0, 61 * GIB)
    assert found[0].startswith("a batch of 0.5 times this one (estimate: 44.0 GiB of 61.0 GiB")
    assert "at most 41.0 GiB; activations are 48.0 GiB" in found[1]
    assert "10.0 GiB less, 58.0 GiB at this point" in found[2]
    assert found[3].startswith("FSDP over 2 cards")
    assert all("estimate" in each for each in found)


def test_fragmentation_is_told_apart_from_a_model_that_is_too_large() -> None:
    (text,) = advice({"others": 5 * GIB}, GIB, 0, 10 * GIB)
    assert "PYTORCH_NPU_ALLOC_CONF" in text


@given(st.dictionaries(st.sampled_from(KINDS), st.integers(0, 2**40)), st.integers(1, 2**40), st.integers(1, 2**40))
def test_advice_always_says_something(kinds: dict[str, int], wanted: int, capacity: int) -> None:
    assert advice(kinds, wanted, 0, capacity)


def test_a_refusal_is_a_finding_with_its_line_and_a_missing_kernel_here_is_none() -> None:
    refused = LackRecord("aten::mm", Lack.REFUSED, "float64", 3, 1, "text")
    found = facts(lacks=(refused, LackRecord("aten::histc", Lack.KERNEL, None, 1, 1, "text")))
    (one,) = found.findings
    assert (one.kind, one.file, one.line, one.times) == ("refused", "b.py", 3, 3)
    assert found.verdict == "will be refused (1 operator)"


@pytest.mark.parametrize(
    ("lack", "text", "advised"),
    [
        (Lack.DIMENSIONS, "The self tensor cannot be larger than 8 dimensions.", "merge dimensions of its tensors"),
        (Lack.FORMAT, "NPU contiguous operator only supported contiguous memory format.", "leave the memory format"),
        (Lack.FORMAT, "svd_npu only supported Float, but get double", ""),
    ],
)
def test_whatever_argument_was_refused_the_advice_was_about_memory_formats(lack: Lack, text: str, advised: str) -> None:
    (one,) = facts(lacks=(LackRecord("aten::clone", lack, None, 1, 1, text),)).findings
    assert one.kind == "refused"
    assert one.advice.startswith(advised)
    assert bool(one.advice) == bool(advised)


def loops(*, seen: int, first: int, total: int, kind: str = "training", operation: str = "aten::item") -> bool:
    site = Site(operation, "a.py", 5, seen, seen, 0)
    one = Counters(1, "910B3", "2.13.0", False, (), 0, 0, 0, 0, 0, 0, seen, 1, {"aten::mm": 1}, sites=(site,))
    steps = dict.fromkeys(STEPS, 0) | {kind: total}
    record = Record(1, 0, steps, steps, (NO_STEPS | {kind: SiteSteps(first, seen)},), (None,) * 32, {})
    (wait,) = facts_of([one], {1: record}, SimSpec()).waits
    return wait.in_loop


@pytest.mark.parametrize(
    ("seen", "first", "total", "expected"),
    [
        (100, 1, 100, True),  # after each step
        (100, 0, 100, True),  # before each step
        (10, 10, 100, False),  # every tenth
        (2, 1, 2, False),  # too few to say
        (3, 42, 126, False),  # at the end of each of three epochs
        (50, 51, 100, True),  # from the middle on
    ],
)
def test_a_loop_is_what_happens_in_nearly_every_step(seen: int, first: int, total: int, expected: bool) -> None:
    assert loops(seen=seen, first=first, total=total) is expected


def test_facts_are_as_their_schema_says() -> None:
    shortage = memory(GIB, wanted=5, wanted_line=Line("a.py", 2), at_shortage=(Held(NOWHERE, {"others": 1}),))
    found = facts(ooms=1, **{name: getattr(shortage, name) for name in ("wanted", "wanted_line", "at_shortage")})
    data = {"format": 1, "exit_status": 0, "seconds": 1.5, "cards": [found.as_dict()], "cores": None, "notes": []}
    jsonschema.validate(data, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"more": 1}, schema())


def test_bytes_that_are_no_record_are_none() -> None:
    assert parse(b"") is None
    assert parse(bytes(10**7)) is None


def test_advice_for_a_tensor_larger_than_the_card_was_a_batch_of_a_thousandth() -> None:
    assert advice({"activations": 10}, wanted=1 << 40, runtime=0, capacity=1 << 30) == [
        "a smaller tensor: 1024.0 GiB at once are more than the card has"
    ]


def test_advice_for_a_first_tensor_that_no_piece_fits_was_less_fragmentation() -> None:
    (text,) = advice({}, 3 * MIB, 0, 16 * MIB)
    assert text.startswith("more memory: ")
    assert "20 MiB for tensors of 1 to 10 MiB" in text
    assert "fits into 16.0 MiB" in text


def test_advice_named_a_setting_that_the_program_had(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("expandable_segments" in each for each in advice({"others": 10}, 10, 0, 100))
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")
    assert not any("expandable_segments" in each for each in advice({"others": 10}, 10, 0, 100))


def test_the_verdict_of_a_program_that_failed_was_that_it_runs() -> None:
    found = dataclasses.replace(facts(), stopped="signal 9")
    assert found.verdict == "ended with signal 9; until then: runs on the card"


def test_a_smaller_batch_was_advised_where_weights_gradients_and_states_alone_do_not_fit() -> None:
    kinds = {"activations": 256 * MIB, "weights": 128 * MIB, "others": 64 * MIB}
    to_come = {"gradients": 128 * MIB, "optimizer": 256 * MIB}
    found = advice(kinds, 32 * MIB, 0, 488 * MIB, to_come)
    assert found[0] == (
        "no batch is small enough: weights 128.0 MiB, gradients 128.0 MiB and optimizer states 256.0 MiB do not depend "
        "on it (estimate: 512.0 MiB of 488.0 MiB, 384.0 MiB of it still to come)"
    )
    assert not any("a batch of" in each or "less fragmentation" in each for each in found)
    assert any(
        each.startswith("optimizer states on the host (toprope.tiers; estimate: 256.0 MiB less") for each in found
    )
    assert any(each.startswith("FSDP over 2 cards or more") for each in found)
    assert advice(kinds, 32 * MIB, 0, 488 * MIB)[1].startswith("a batch of 0.5 times this one")


@given(*[st.integers(0, 1000)] * 6, st.integers(1, 1000), st.integers(1, 1000))
def test_no_batch_is_advised_that_what_every_batch_needs_rules_out(
    others: int, weights: int, gradients: int, states: int, activations: int, later: int, wanted: int, capacity: int
) -> None:
    kinds = {
        "others": others, "weights": weights, "gradients": gradients, "optimizer": states, "activations": activations
    }  # fmt: skip
    found = advice(kinds, wanted, 0, capacity, {"optimizer": later})
    assert found
    if weights + gradients + states + later > capacity:
        assert not any(each.startswith(("a batch", "gradient checkpointing", "less fragmentation")) for each in found)


def test_a_place_without_a_frame_of_the_program_is_no_line_of_pythons_start() -> None:
    """Stages of flow copied at "<frozen runpy>:198"."""
    assert place_text("<frozen runpy>", 198) == "no line of the program"
    assert place_text("/somewhere/main.py", 3, "/somewhere") == "main.py:3"
