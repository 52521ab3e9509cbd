"""The report of a run, from counters made by hand.

Holds `cli.reports.run_report`. Pure.
"""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.cli.launch.select_target import Choice, Probe
from toprope.cli.reports.failure import ChainedError, FatalError
from toprope.cli.reports.run_report import Outcome, as_dict, as_json_line, as_text
from toprope.cli.reports.trace_file import TraceFile
from toprope.sim.dtypes import bits
from toprope.sim.metrics.counters import (
    BACKWARD,
    NO_PYTHON,
    Assumed,
    CardCounters,
    Counters,
    HostSite,
    Lack,
    LackRecord,
    Site,
)
from toprope.sim.spec import SimSpec

GIB = 2**30
SIM = Choice("sim", SimSpec("910B3"))


def card(index: int = 0, physical: int | None = None, peak: int = 40 * 2**20, **changes: int) -> CardCounters:
    figures = {
        "capacity": 64 * GIB, "allocated": 0, "peak_allocated": peak, "reserved": 0, "peak_reserved": peak,
        "allocations": 5, "oom_retries": 0, "ooms": 0,
    } | changes  # fmt: skip
    return CardCounters(index=index, physical=index if physical is None else physical, **figures)


def process(*cards: CardCounters, **changes: object) -> Counters:
    plain = Counters(
        pid=1, chip="910B3", torch_version="2.13.0+cpu", hbm_by_user=False, cards=cards or (card(),),
        copies_to_card=58, bytes_to_card=11_300_000, copies_from_card=14, bytes_from_card=2_100,
        copies_between=0, bytes_between=0, synchronisations=14, operator_calls=6310,
        operators={"aten::add": 6300, "aten::mm": 10},
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def idle(**changes: object) -> Counters:
    nothing = {
        "copies_to_card": 0, "bytes_to_card": 0, "copies_from_card": 0, "bytes_from_card": 0, "synchronisations": 0,
        "operator_calls": 0, "operators": {},
    }  # fmt: skip
    return process(card(peak=0), **(nothing | changes))


def text(*processes: Counters, choice: Choice = SIM) -> str:
    return as_text(Outcome(choice, 8.44, 0, processes))


def test_a_program_on_one_card() -> None:
    assert text(process()) == (
        "toprope: ran on npu:0, a simulated Ascend 910B3 (20 cube / 40 vector cores, 64.0 GiB), 1 card, torch 2.13.0\n"
        "  time          8.4 s here, on the host's CPU\n"
        "  memory        peak 40.0 MiB of 64.0 GiB, 0 out-of-memory retries\n"
        "  copies        58 to the card (11.3 MB), 14 back (2.1 kB), 0 between cards\n"
        "  operators     6 310 (2 kinds)\n"
        "  waits         14 synchronisations\n"
    )


def test_operators_whose_cores_nobody_says_are_reported() -> None:
    odd = {"aten::mm": 10, "aten::linalg_cholesky_ex": 2, "mine::special": 1}
    assert "  operators     6 310 (3 kinds); 2 assumed core counts\n" in text(process(operators=odd))
    (simulated,) = as_dict(Outcome(SIM, 8.44, 0, (process(operators=odd),)))["simulated"]
    assert simulated["operators"]["assumed_cores"] == ["aten::linalg_cholesky_ex", "mine::special"]
    assert "(1 kinds); 1 assumed core count\n" in text(process(operators={"mine::special": 1}))


def test_operators_on_the_host_are_named_with_their_place_and_the_release() -> None:
    one = HostSite("aten::hypot.out", "/work/train.py", 7, 2, 24_000, 8_000)
    other = HostSite("aten::isin.Tensor_Tensor_out", "/work/train.py", 12, 3, 100, 20)
    processes = (
        process(torch_npu="v2.1.0-6.0.rc2", host_sites=(one, other)),
        process(pid=2, torch_npu="v2.1.0-6.0.rc2", host_sites=(one,)),
    )
    seen = as_text(Outcome(SIM, 8.44, 0, processes, folder="/work"))
    release = "torch_npu 2.1.0.post6 (release 6.0.rc2, for torch 2.1.0)"
    assert f"  on host       2 operators without a kernel in {release}\n" in seen
    assert (
        "aten::hypot.out  train.py:7  4 times, 48.0 kB to the host, 16.0 kB back; write (x * x + y * y).sqrt()" in seen
    )
    (simulated,) = as_dict(Outcome(SIM, 8.44, 0, processes))["simulated"]
    assert simulated["torch_npu"] == release
    assert [(row["operator"], row["times"], row["bytes"], row["line"]) for row in simulated["on_host"]] == [
        ("aten::hypot.out", 4, 64_000, 7),
        ("aten::isin.Tensor_Tensor_out", 3, 120, 12),
    ]
    assert "2.1.0.post8" in simulated["on_host"][1]["advice"]


def test_operators_of_the_cards_own_cpu_are_known_to_be_slow() -> None:
    (simulated,) = as_dict(Outcome(SIM, 8.44, 0, (process(operators={"aten::searchsorted": 2, "aten::mm": 1}),)))[
        "simulated"
    ]
    assert [row["operator"] for row in simulated["slow_on_card"]] == ["aten::searchsorted"]


def test_memory_set_by_the_user_is_marked() -> None:
    seen = text(process(card(capacity=256 * 2**20), hbm_by_user=True))
    assert "(20 cube / 40 vector cores, 256.0 MiB, set by the user)" in seen


def test_several_cards_have_a_line_each_and_unused_ones_have_none() -> None:
    seen = text(process(card(0), card(1, peak=GIB), card(2, peak=0), copies_between=3, bytes_between=12))
    assert "ran on npu:0 and npu:1, a simulated" in seen
    assert "3 cards" in seen
    assert "  memory        npu:0 peak 40.0 MiB of 64.0 GiB" in seen
    assert "                npu:1 peak 1.0 GiB of 64.0 GiB" in seen
    assert "npu:2" not in seen
    assert "3 between cards (12 B)" in seen


def test_processes_are_added_up_and_peaks_are_those_of_one_process() -> None:
    seen = text(process(), process(card(peak=GIB, oom_retries=2, ooms=1), operators={"aten::mm": 5}, operator_calls=5))
    assert "1 card, 2 processes, torch" in seen
    assert "peak 1.0 GiB of 64.0 GiB, 2 out-of-memory retries, 1 allocation failed" in seen
    assert "each peak is the largest of any one of the 2 processes" in seen
    assert "116 to the card (22.6 MB), 28 back (4.2 kB)" in seen
    assert "6 315 (2 kinds)" in seen
    assert "28 synchronisations" in seen


def test_masked_processes_are_merged_by_the_machines_own_numbers() -> None:
    seen = text(process(card(0, physical=2)), process(card(0, physical=3)))
    assert "ran on card 2 and card 3, a simulated" in seen
    assert "npu:" not in seen


def test_a_card_that_no_process_installed() -> None:
    seen = text(choice=Choice("sim", SimSpec("910B3", 2, hbm=GIB)))
    assert seen.startswith(
        "toprope: the program did not touch the card: none of its processes loaded it (it comes with `import torch`)\n"
    )
    assert "910B3 (20 cube / 40 vector cores, 1.0 GiB, set by the user), 2 of it" in seen
    assert "8.4 s" in seen


def test_a_card_that_was_installed_and_not_used() -> None:
    seen = text(idle())
    assert seen.startswith(
        "toprope: the program did not use its card, a simulated Ascend 910B3, 1 card, torch 2.13.0\n"
    )
    assert "memory" not in seen
    assert "8.4 s" in seen


def test_a_program_that_only_launched_kernels_has_used_its_card() -> None:
    seen = text(idle(cards=(card(peak=0, kernels=3),)))
    assert seen.startswith("toprope: ran on npu:0, a simulated Ascend 910B3")
    assert "  kernels       3 launched by the program\n" in seen
    assert "kernels" not in text(process())


def test_a_program_that_only_imported_torch_saw_no_number_of_cards() -> None:
    seen = text(dataclasses.replace(idle(), cards=()))
    assert seen.startswith("toprope: the program did not use its card, a simulated Ascend 910B3, torch 2.13.0\n")


FOUR = Choice("sim", SimSpec("910B3", 4))


def test_a_mask_that_shows_no_card_says_why() -> None:
    seen = text(dataclasses.replace(idle(), cards=(), mask="3,1"), choice=FOUR)
    assert seen == (
        "toprope: the program saw none of the simulated Ascend 910B3, torch 2.13.0\n"
        "  time          8.4 s here, on the host's CPU\n"
        "  visible       ASCEND_RT_VISIBLE_DEVICES=3,1 shows no card: numbers must rise, and 1 follows 3\n"
    )


def test_a_program_that_only_asked_had_the_mask_that_it_was_given() -> None:
    """Asking whether there is a card is no use of it, and leaves no mask in the counters."""
    asked = dataclasses.replace(idle(), cards=())
    outcome = Outcome(FOUR, 1.0, 0, (asked,), mask="1,0")
    line = "ASCEND_RT_VISIBLE_DEVICES=1,0 shows no card: numbers must rise, and 0 follows 1"
    assert as_text(outcome).startswith("toprope: the program saw none of the simulated Ascend 910B3, torch 2.13.0\n")
    assert f"  visible       {line}\n" in as_text(outcome)
    (simulated,) = as_dict(outcome)["simulated"]
    assert (simulated["visible_cards"], simulated["masks"]) == (0, [line])
    # a child that was given another is not blamed for it
    used = Outcome(FOUR, 1.0, 0, (process(),), mask="1,0")
    assert "visible" not in as_text(used)
    good = Outcome(FOUR, 1.0, 0, (asked,), mask="1,3")
    assert "did not use its card" in as_text(good)
    assert "visible" not in as_text(good)


def test_a_mask_that_shows_less_than_it_lists_says_why_and_a_good_one_says_nothing() -> None:
    cut, good = process(mask="0,99"), process(card(0, physical=1), mask="1")
    line = "  visible       ASCEND_RT_VISIBLE_DEVICES=0,99 shows 1 of 4 cards: there is no card 99"
    assert f"{line}\n" in text(cut, choice=FOUR)
    assert f"{line} (1 of 2 processes)\n" in text(cut, good, choice=FOUR)
    assert "visible" not in text(good, choice=FOUR)
    (simulated,) = as_dict(Outcome(FOUR, 1.0, 0, (cut, good)))["simulated"]
    assert simulated["masks"] == [line.removeprefix("  visible       ") + " (1 of 2 processes)"]


def test_operators_whose_dtype_no_document_mentions_are_counted_and_named_for_machines() -> None:
    one = process(undocumented={"aten::mm": bits(["float64"])})
    other = process(undocumented={"aten::mm": bits(["complex64"]), "aten::add": bits(["int64"])})
    wanted = "12 620 (2 kinds), 2 of them with a dtype that no document of the vendor mentions (assumed to run)\n"
    assert wanted in text(one, other)
    (simulated,) = as_dict(Outcome(SIM, 1.0, 0, (one, other)))["simulated"]
    assert simulated["operators"]["undocumented"] == {"aten::add": ["int64"], "aten::mm": ["float64", "complex64"]}


def test_the_three_most_frequent_dtypes_of_undocumented_operators_are_named() -> None:
    met = [Assumed("aten::mm", 1, "float64"), *(Assumed(name, None, "int64") for name in ("a", "b", "aten::add"))]
    figures = {"aten::add": 6300, "aten::mm": 10, "a": 2, "b": 1}
    odd = process(undocumented={one.operator: bits([one.dtype]) for one in met}, assumed=tuple(met), operators=figures)
    lines = text(odd, odd).splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("  operators"))
    assert lines[place + 1 : place + 5] == [
        "                aten::add  int64  the operator ran 12 600 times",
        "                aten::mm  matB  float64  the operator ran 20 times",
        "                a  int64  the operator ran 4 times",
        "  waits         28 synchronisations",
    ]
    (simulated,) = as_dict(Outcome(SIM, 1.0, 0, (odd,)))["simulated"]
    assert len(simulated["operators"]["undocumented_arguments"]) == 4


PLACES = (
    Site("aten::_local_scalar_dense", "/work/train.py", 61, 12, 12),
    Site("aten::copy_ to the host", "/venv/lib/python3.11/site-packages/timm/a.py", 70, 2, 2),
    Site("aten::copy_ to the card", BACKWARD, 0, 0, 1),
    Site("torch.npu.synchronize", NO_PYTHON, 0, 0, 1),
)


def test_the_three_most_frequent_places_of_copies_back_and_waits_are_named() -> None:
    outcome = Outcome(SIM, 1.0, 0, (process(sites=PLACES), process(sites=PLACES[:1])), folder="/work")
    assert as_text(outcome).splitlines()[4:] == [
        "  copies        116 to the card (22.6 MB), 28 back (4.2 kB), 0 between cards",
        "                back: aten::_local_scalar_dense  train.py:61  24 times",
        "                back: aten::copy_ to the host  timm/a.py:70  2 times",
        "  operators     12 620 (2 kinds)",
        "  waits         28 synchronisations",
        "                aten::_local_scalar_dense  train.py:61  24 times",
        "                aten::copy_ to the host  timm/a.py:70  2 times",
        "                aten::copy_ to the card  backward  once",
    ]
    (simulated,) = as_dict(outcome)["simulated"]
    assert not simulated["places"]["estimated"]
    assert [one["times"] for one in simulated["places"]["synchronisations"]] == [24, 2, 1, 1]


def test_figures_from_samples_are_marked() -> None:
    assert "train.py:61  about 12 times" in text(process(sites=PLACES, sampled=True))


def test_a_failure_comes_first_and_says_where() -> None:
    record = LackRecord("aten::histc", Lack.DTYPE, "int32", 1, 5, "aten::histc has no kernel")
    fatal = FatalError(1, "3", (ChainedError("NotImplementedError", record.text, "/work/train.py:7"),))
    failed = process(lacks=(record,))
    outcome = Outcome(SIM, 1.0, 1, (failed,), fatal_errors=(fatal,), folder="/work")
    line = "rank 3: an operator had no kernel here: aten::histc (int32), train.py:7; the card has one (aclnnHistc)"
    assert as_text(outcome).splitlines()[1] == f"  failed        {line}"
    facts = as_dict(outcome)
    assert (facts["failed"]["card"], facts["failed"]["rank"]) == ("has", "3")
    assert [lack["name"] for lack in facts["lacks"]] == ["aten::histc"]
    caught = dataclasses.replace(outcome, status=0)
    assert "failed" not in as_text(caught)
    assert as_dict(caught)["failed"] is None
    unsure = as_text(dataclasses.replace(outcome, fatal_errors=()))
    assert "  failed        perhaps because an operator had no kernel here: aten::histc (int32); the card" in unsure


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (TraceFile("t.json", 12345, 0, 1), "t.json holds 12 345 records; ui.perfetto.dev opens it"),
        (
            TraceFile("t.json", 2097152, 3000, 2),
            "t.json holds 2 097 152 records of 2 processes, the 3 000 oldest were lost; ui.perfetto.dev opens it",
        ),
        (TraceFile("t.json"), "t.json is empty: no process loaded the card"),
        (TraceFile("t.json", error="No space left on device"), "could not be written to t.json: No space left"),
    ],
)
def test_the_trace_is_the_last_line(trace: TraceFile, line: str) -> None:
    outcome = Outcome(SIM, 1.0, 0, (process(),), trace)
    assert as_text(outcome).splitlines()[-1].startswith(f"  trace         {line}")
    assert as_dict(outcome)["trace"] == dataclasses.asdict(trace)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Probe("not installed"), "  chosen        by itself: torch_npu is not installed\n"),
        (
            Probe("broken", "2.13.0", reason="libhccl.so is missing"),
            "  chosen        by itself: torch_npu 2.13.0 is installed but cannot be loaded: libhccl.so is missing\n",
        ),
        (Probe("no card", "2.13.0"), "  chosen        by itself: torch_npu 2.13.0 works but sees no card\n"),
    ],
)
def test_an_automatic_choice_says_why(found: Probe, line: str) -> None:
    choice = Choice("sim", SimSpec("910B3"), found, automatic=True)
    assert line in text(process(), choice=choice)
    assert line in text(choice=choice)


@pytest.mark.parametrize(("device", "name"), [("cpu", "the CPU"), ("cuda", "CUDA")])
def test_without_a_simulated_card_one_line_says_where_it_ran(device: str, name: str) -> None:
    assert text(choice=Choice(device)) == (
        f"toprope: ran with {name} (--device {device}), 8.4 s; there was no NPU, real or simulated\n"
    )


def test_a_real_card() -> None:
    seen = text(choice=Choice("npu", probe=Probe("works", "2.13.0", 2, "Ascend910B3")))
    assert seen.startswith("toprope: ran with the real card, 2 x Ascend910B3 (torch_npu 2.13.0), 8.4 s")
    assert len(seen.splitlines()) == 1


def test_notes_come_last_whatever_the_device() -> None:
    notes = ("one thing", "another")
    for outcome in (
        Outcome(SIM, 8.4, 0, (process(),), notes=notes),
        Outcome(Choice("npu", probe=Probe("works", "2.13.0", 2, "Ascend910B3")), 8.4, 0, notes=notes),
    ):
        assert as_text(outcome).endswith("  note          one thing\n  note          another\n")
        assert as_dict(outcome)["notes"] == list(notes)
    assert as_dict(Outcome(SIM, 8.4, 0))["notes"] == []


def test_json_is_one_line_with_the_same_facts() -> None:
    line = as_json_line(Outcome(SIM, 8.4449, -15, (process(),)))
    assert line.count("\n") == 1
    facts = json.loads(line)
    assert facts["device"] == "sim"
    assert facts["chosen_by"] == "user"
    assert facts["exit_status"] == -15
    assert facts["seconds"] == 8.445
    (simulated,) = facts["simulated"]
    assert simulated["chip"] == "910B3"
    assert (simulated["cube_cores"], simulated["vector_cores"]) == (20, 40)
    assert simulated["used_cards"][0]["peak_allocated"] == 40 * 2**20
    assert simulated["copies"]["to_card"] == {"number": 58, "bytes": 11_300_000}
    assert simulated["operators"] == {
        "calls": 6310, "kinds": 2, "by_name": {"aten::add": 6300, "aten::mm": 10}, "undocumented": {},
        "undocumented_arguments": [], "assumed_cores": [],
    }  # fmt: skip
    assert (simulated["visible_cards"], simulated["masks"]) == (1, [])
    assert facts["trace"] is None


def test_json_of_a_failed_search_for_a_real_card() -> None:
    choice = Choice("sim", SimSpec(), Probe("broken", "2.13.0", reason="libatb.so is missing"), automatic=True)
    facts = as_dict(Outcome(choice, 1.0, 0))
    assert facts["chosen_by"] == "toprope"
    assert facts["real_card"]["state"] == "broken"
    assert facts["real_card"]["reason"] == "libatb.so is missing"
    assert facts["simulated"] == []


def test_two_chips_are_reported_apart() -> None:
    seen = text(process(), process(chip="310P3"))
    assert "a simulated Ascend 310P3" in seen
    assert "a simulated Ascend 910B3" in seen
    assert seen.count("  time ") == 1


CARDS = st.builds(
    lambda physical, peak, retries: card(0, physical, peak, oom_retries=retries),
    st.integers(0, 3), st.integers(0, 64 * GIB), st.integers(0, 5),
)  # fmt: skip
PROCESSES = st.lists(
    st.builds(
        lambda one, copies, operators: process(
            one, copies_to_card=copies, operators=operators, operator_calls=sum(operators.values())
        ),
        CARDS, st.integers(0, 10**6), st.dictionaries(st.sampled_from("abc"), st.integers(1, 99)),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@pytest.mark.slow
@given(PROCESSES)
def test_merging_loses_nothing_and_does_not_depend_on_the_order(processes: list[Counters]) -> None:
    (merged,) = as_dict(Outcome(SIM, 1.0, 0, tuple(processes)))["simulated"]
    assert merged["processes"] == len(processes)
    assert merged["operators"]["calls"] == sum(merged["operators"]["by_name"].values())
    assert merged["copies"]["to_card"]["number"] == sum(one.copies_to_card for one in processes)
    for one in merged["used_cards"]:
        seen = [each.cards[0] for each in processes if each.cards[0].physical == one["card"] and each.cards[0].used]
        assert one["peak_allocated"] == max(each.peak_allocated for each in seen)
        assert one["oom_retries"] == sum(each.oom_retries for each in seen)
    assert text(*processes) == text(*reversed(processes))


@pytest.mark.slow
@given(PROCESSES)
def test_every_report_is_whole_lines(processes: list[Counters]) -> None:
    seen = text(*processes)
    assert seen.endswith("\n")
    assert all(line.strip() and line == line.rstrip() for line in seen.splitlines())
