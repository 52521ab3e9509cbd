"""Reasons that a line of a log gives next to a code, and explanations computed from its numbers, at their borders.

Holds src/toprope/codes/reasons.py.
"""

import pytest

from toprope.codes.model import Explanation
from toprope.codes.reasons import LONGEST, SHORTEST, computed, fitting, of_line, process


def explanation(code="out-of-memory", causes=()):
    return Explanation(code, "", "as the catalogue has it", causes, ("the first try", "the second try"), ())


def of_memory(total, allocated, free, reserved=None):
    given = {"total": total, "allocated": allocated, "free": free, "reserved": reserved}
    return computed(explanation(), {name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize("length", [SHORTEST, SHORTEST + 1])
def test_a_short_reason_keeps_the_statement_before_it(length):
    line = f"EE1001: [PID: 7] Value [x] for [y] is invalid. Reason: {'r' * length}"
    alone = "r" * length
    assert of_line(line) == (alone if length > SHORTEST else f"Value [x] for [y] is invalid. Reason: {alone}")


@pytest.mark.parametrize("length", [LONGEST, LONGEST + 1])
def test_a_long_reason_is_cut(length):
    text = "r" * length
    assert of_line(f"Reason: {text}") == (text if length <= LONGEST else f"{text[:LONGEST]} ...")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "Possible Cause: 1. the device is lost; 2. the network is down for all.",
            "1. the device is lost; 2. the network is down for all",
        ),
        ("[ERROR] the call failed, reason=[no memory].", "the call failed, reason=[no memory]"),
        ("[rank3]: Tensor x must be contiguous. Solution: make it so", "Tensor x must be contiguous"),
        ("EZ9999: [PID: 7] x is larger than y. TraceBack (most recent call last): a", "x is larger than y"),
        ("x failed [FUNC:f][FILE:g]", "x failed"),
        ("nothing is said here", ""),
    ],
)
def test_of_a_line_the_statement_alone_is_kept(line, reason):
    assert of_line(line) == reason


@pytest.mark.parametrize(
    ("line", "prefix"),
    [
        ("[rank3]: x", "[rank3]"),
        (" rank 12: x", "rank 12"),
        ("(EngineCore pid=7) x", "(EngineCore pid=7)"),
        ("x rank3: y", ""),
    ],
)
def test_the_process_is_what_a_line_begins_with(line, prefix):
    assert process(line) == prefix


def test_causes_whose_words_are_not_there_are_left_out():
    what = explanation(causes=("`no memory`: too little", "`no route`: the network", "anything"))
    assert fitting(what, "there is No Memory").causes == ("`no memory`: too little", "anything")


@pytest.mark.parametrize(
    ("others", "holders", "causes"),
    [
        (2.0, "", 0),
        (3.2, "", 0),
        (3.4, "other processes, or CANN", 2),
        (8.0, "other processes, or CANN", 2),
        (8.2, "other processes hold", 1),
        (20.0, "other processes hold", 1),
    ],
)
def test_memory_that_this_process_has_not_is_that_of_others(others, holders, causes):
    found = of_memory("32 GiB", f"{31 - others} GiB", "1 GiB")
    if not holders:
        assert (
            found.means == f"this process itself has used up the card (of 32.0 GiB this process has {31 - others:.1f} "
            "and 1.00 are free)"
        )
        return
    assert found.means.startswith(holders)
    assert f"hold about {others:.1f} GiB of this card" in found.means
    assert len(found.causes) == causes
    assert "ASCEND_RT_VISIBLE_DEVICES" in found.try_[0]


def test_on_a_small_card_two_gib_of_others_are_no_finding():
    assert of_memory("16 GiB", "13.1 GiB", "1 GiB").means.startswith("this process itself")
    assert of_memory("16 GiB", "12.9 GiB", "1 GiB").means.startswith("other processes")


@pytest.mark.parametrize(("allocated", "is_in_pieces"), [(24.1, False), (23.9, True)])
def test_memory_that_is_reserved_and_not_allocated_is_in_pieces(allocated, is_in_pieces):
    found = of_memory("32 GiB", f"{allocated} GiB", "1.5 GiB", "30 GiB")
    assert ("in pieces" in found.means) is is_in_pieces
    if is_in_pieces:
        assert f"{30 - allocated:.1f} GiB are reserved and not allocated" in found.means
        assert found.try_ == ("export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", "the second try")


def test_of_little_memory_one_gib_may_be_in_pieces():
    assert "in pieces" not in of_memory("4 GiB", "2 GiB", "1 GiB", "2.9 GiB").means
    assert "in pieces" in of_memory("4 GiB", "1.8 GiB", "1 GiB", "2.9 GiB").means


def test_units_are_read_and_missing_figures_say_nothing():
    assert of_memory("32768 MiB", "31457280 KiB", "1073741824 B").means.endswith(
        "(of 32.0 GiB this process has 30.0 and 1.00 are free)"
    )
    assert of_memory("32 GiB", "30 GiB", None) == explanation()
    assert of_memory(None, "30 GiB", "1 GiB") == explanation()
    assert of_memory("32 GiB", None, "1 GiB") == explanation()


def test_a_mask_out_of_order_is_written_in_order():
    found = computed(explanation("mask-order"), {"mask": "3,10,1"})
    assert found.try_[0] == "export ASCEND_RT_VISIBLE_DEVICES=1,3,10 before the program starts"
    assert found.try_[1:] == explanation().try_


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [
        ("_ZN3atb5ErrorERKNSt7__cxx1112basic_stringE", 1),
        ("_ZN3atb5ErrorERKSs", 0),
        ("_ZN3atb5ErrorESs", 0),
        ("_ZN3atb5ErrorEi", None),
    ],
)
def test_the_abi_is_read_from_a_symbol(symbol, abi):
    found = computed(explanation("symbols-atb"), {"symbol": symbol})
    if abi is None:
        assert found == explanation("symbols-atb")
    else:
        assert f"C++ ABI {abi}" in found.causes[0]
        assert found.try_[-1].endswith(f"cxx_abi_{abi}")


def test_other_codes_are_left_as_they_are():
    assert computed(explanation("EE9999"), {"total": "1 GiB"}) == explanation("EE9999")
