"""Operators and names whose lack ended a program, and the vendor's documents about them: from records made by hand.

Holds `cli.reports.failure`; tests/cli/test_run_failed.py has the same with real programs.
"""

import json
import signal
from pathlib import Path

import pytest

from toprope.cli.reports.failure import ChainedError, FatalError, find, on_card, read_fatal_errors
from toprope.sim.metrics.counters import Counters, Lack, LackRecord


def lack(name: str, which: Lack = Lack.DTYPE, dtype: str | None = None, at: int = 1) -> LackRecord:
    return LackRecord(name, which, dtype, 1, at, f"{name}: its text")


def process(*lacks: LackRecord, pid: int = 1, chip: str = "910B3") -> Counters:
    return Counters(pid, chip, "2.13.0", False, (), 0, 0, 0, 0, 0, 0, 0, 0, {}, lacks=lacks)


def fatal(*texts: str, type: str = "RuntimeError", rank: str = "") -> FatalError:
    return FatalError(1, rank, tuple(ChainedError(type, text, "/a/b.py:3") for text in texts))


@pytest.mark.parametrize(
    ("record", "verdict", "text"),
    [
        (lack("aten::histc", dtype="int32"), "has", "the card has one (aclnnHistc)"),
        (lack("aten::histc", Lack.KERNEL), "has", "the card has one (aclnnHistc)"),
        (lack("aten::histc", dtype="complex64"), "refuses", "the card refuses it too (aclnnHistc)"),
        (lack("aten::histc.out", dtype="int8"), "has", "the card has one (aclnnHistc)"),
        (
            lack("aten::atan_", dtype="int64"),
            "unknown",
            "not known whether the card has one for this dtype (aclnnInplaceAtan)",
        ),
        (lack("aten::searchsorted", dtype="int64"), "has", "the card has one (aclnnSearchSorted, aclnnSearchSorteds)"),
        (lack("aten::eye", Lack.KERNEL), "has", "the card has one (aclnnEye)"),
        (
            lack("aten::unique_dim", Lack.KERNEL),
            "unknown",
            "the vendor has such an operator, not known for which dtypes",
        ),
        (lack("mine::special", Lack.KERNEL, "float32"), "unknown", "not known whether the card has one"),
        (lack("aten::_to_sparse", Lack.LAYOUT, "float32"), "unknown", "not known whether the card has one"),
        (lack("aten::mm", Lack.REFUSED, "int32"), "refuses", "the card refuses it too (aclnnMm)"),
        (lack("npu::npu_swiglu", Lack.REFUSED, "float64"), "refuses", "the card refuses it too"),
        (lack("hccl::allreduce", Lack.REFUSED, "float64"), "refuses", "the card refuses it too (torch_npu)"),
        (lack("aten::contiguous", Lack.FORMAT), "refuses", "the card refuses it too (torch_npu)"),
        (lack("aten::copy_", Lack.DIMENSIONS), "refuses", "the card refuses it too (aclnnInplaceCopy)"),
        (lack("aten::add", Lack.BY_TEST, "int8"), "unknown", "the program asked for this refusal"),
        (lack("torch_npu.npu_grouped_matmul", Lack.NAME), "has", "the real torch_npu has it ("),
        (lack("torch_npu.npu_nothing", Lack.NAME), "unknown", "it is not one of the documented names"),
        (lack("torch_npu.contrib", Lack.NAME), "has", "the real torch_npu has it ("),
        (lack("torch.npu.NPUGraph", Lack.NAME), "has", "the real torch_npu has it"),
        (lack("torch.npu.nothing", Lack.NAME), "unknown", "it is not one of the documented names"),
    ],
    ids=lambda value: value.name if isinstance(value, LackRecord) else None,
)
def test_the_documents_decide_and_unknown_never_becomes_has(record: LackRecord, verdict: str, text: str) -> None:
    found = on_card(record, "910B3")
    assert found.verdict == verdict
    assert found.text.startswith(text)


def test_a_chip_without_documents_is_not_known() -> None:
    assert on_card(lack("aten::batch_norm_stats", dtype="int32"), "910B3").verdict == "refuses"
    assert on_card(lack("aten::batch_norm_stats", dtype="int32"), "910A").verdict == "unknown"


def test_the_first_error_that_ended_a_process_is_found() -> None:
    late, early, caught = lack("late", at=9), lack("early", at=5), lack("caught", at=1)
    fatal_errors = [fatal(late.text, rank="0"), fatal("wrapped", f"and {early.text}, in a child", rank="1")]
    found = find([process(late, caught), process(early, pid=2)], fatal_errors, 1)
    assert found is not None
    # the place is the parent's, where it raised its child's error again
    assert (found.record, found.rank, found.place, found.certain) == (early, "1", "", True)
    found = find([process(late)], fatal_errors, 1)
    assert found is not None
    assert (found.record, found.rank, found.place) == (late, "0", "/a/b.py:3")


def test_nothing_is_said_where_something_else_ended_the_program() -> None:
    caught = process(lack("caught"))
    assert find([caught], [fatal("another text")], 1) is None
    assert find([caught], [], 0) is None
    assert find([caught], [fatal("caught: its text")], 0) is None
    assert find([process()], [], 1) is None


def test_where_no_process_says_what_ended_it_the_last_lack_is_uncertain() -> None:
    several = process(lack("first"), lack("last", at=2))
    for fatal_errors in ([], [fatal("worker 1 failed", type="ChildFailedError")]):
        found = find([several], fatal_errors, 1)
        assert found is not None
        assert (found.record.name, found.certain, found.place) == ("last", False, "")
    assert find([process(lack("torch.npu.nothing", Lack.NAME))], [], 1) is None
    assert find([several], [], -signal.SIGTERM) is None
    assert find([several], [], -signal.SIGABRT) is not None


def test_files_that_are_not_whole_are_passed_over(tmp_path: Path) -> None:
    facts = {"pid": 7, "rank": "1", "errors": [{"type": "E", "text": "t", "place": "a.py:1"}]}
    (tmp_path / "7-1.ended").write_text(json.dumps(facts))
    (tmp_path / "8-1.ended").write_text('{"pid": 8, "ra')
    (tmp_path / "9-1.ended").write_text('{"pid": 9}')
    assert read_fatal_errors(tmp_path) == (FatalError(7, "1", (ChainedError("E", "t", "a.py:1"),)),)


def test_a_refusal_that_newer_releases_lack_is_not_certain() -> None:
    found = on_card(lack("hccl::_reduce_scatter_base", Lack.REFUSED, "float64"), "950PR_9599")
    assert found.verdict == "unknown"
    assert found.text == "older torch_npu refuses it too; torch_npu 26.2.0-beta.1 for torch 2.7.1 to 2.12 takes it"
    assert on_card(lack("hccl::allreduce", Lack.REFUSED, "float8_e5m2"), "950PR_9599").verdict == "refuses"
