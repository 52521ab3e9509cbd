"""scripts/library_tests: reading how tests ended, and counting differences."""

import json
from pathlib import Path

from library_tests.__main__ import _summary, _with_known
from library_tests.ends import Ends
from vendor_tests.suites import Suite

LINES = [
    ["a.py::one", "begins"], ["a.py::one", "passed", ""], ["a.py::one", "finished"],
    ["a.py::subtests", "begins"], ["a.py::subtests", "failed", "AssertionError: 3"], ["a.py::subtests", "passed", ""],
    ["a.py::subtests", "finished"],
    ["a.py::skips", "begins"], ["a.py::skips", "skipped", "needs a card"], ["a.py::skips", "finished"],
    ["a.py::dies", "begins"], ["a.py::dies", "passed", ""],
]  # fmt: skip


def ends(path: Path, lines: list[list[str]]) -> Ends:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return Ends.read(path)


def test_the_worst_end_of_a_test_counts_and_one_without_an_end_died(tmp_path: Path) -> None:
    found = ends(tmp_path / "a.jsonl", LINES)
    assert found.ended == {
        "a.py::one": "passed", "a.py::subtests": "failed", "a.py::skips": "skipped", "a.py::dies": "died",
    }  # fmt: skip
    assert found.texts["a.py::subtests"] == "AssertionError: 3"
    assert Ends.read(tmp_path / "missing").ended == {}


def test_differences_have_the_first_reason_that_fits(tmp_path: Path) -> None:
    on_card = [*LINES[:7], ["a.py::skips", "begins"], ["a.py::skips", "passed", ""], ["a.py::skips", "finished"]]
    both = {"cpu": ends(tmp_path / "cpu", LINES), "npu": ends(tmp_path / "npu", on_card)}
    reasons = [{"reason": "elsewhere", "test": "b.py"}, {"reason": "for cards", "text": "needs a card"}]
    found = _summary(Suite("a", "o/a", "c0ffee", ["a.py"]), both, 1, reasons)
    assert found["differences"] == {
        "a.py::dies": ["died", "not there", "not run on the card", ""],
        "a.py::skips": ["skipped", "passed", "for cards", "needs a card"],
    }


def test_why_a_test_is_skipped_on_the_cpu_is_no_reason_to_fail_on_the_card(tmp_path: Path) -> None:
    on_card = [["a.py::skips", "begins"], ["a.py::skips", "failed", "RuntimeError: no"], ["a.py::skips", "finished"]]
    both = {"cpu": ends(tmp_path / "cpu", LINES[7:10]), "npu": ends(tmp_path / "npu", on_card)}
    reasons = [{"reason": "for cards", "text": "needs a card"}]
    found = _summary(Suite("a", "o/a", "c0ffee", ["a.py"]), both, 1, reasons)
    assert found["differences"] == {"a.py::skips": ["skipped", "failed", "", "needs a card / RuntimeError: no"]}


def test_results_of_a_suite_without_a_copy_were_dropped() -> None:
    known = [{"suite": "a", "tests": 1}, {"suite": "b", "tests": 2}]
    found = _with_known([{"suite": "c", "tests": 3}, {"suite": "a", "tests": 4}], known)
    assert found == [{"suite": "a", "tests": 4}, {"suite": "b", "tests": 2}, {"suite": "c", "tests": 3}]
