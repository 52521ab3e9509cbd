"""Traces written as kernel_details.csv, in the columns of the vendor's profiler.

Holds src/toprope/sim/tracing/records.py.
"""

import csv
import io

import pytest

from toprope.sim.tracing.records import KERNEL_DETAILS, Record, Trace, write_kernel_details


def record(act: str, name: str, begin: int, end: int, *, device: int = 0, cores=(0, 0), kind: str = "") -> Record:
    return Record(act, name, begin, end, device, 2, 9, 0, 0, "float16", -1, *cores, kind=kind)


def rows(*acts: Record) -> list[dict[str, str]]:
    file = io.StringIO()
    write_kernel_details(file, [Trace(7, 1000, 10**18, acts, 0)])
    return list(csv.DictReader(io.StringIO(file.getvalue())))


def test_the_columns_are_the_profilers() -> None:
    assert KERNEL_DETAILS[:12] == (
        "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core",
        "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim",
    )  # fmt: skip
    assert {"Mix Block Dim", "Block Num", "Mix Block Num", "Context ID"} <= set(KERNEL_DETAILS)
    assert rows() == []


def test_operators_kernels_and_collectives_by_their_begin() -> None:
    found = rows(
        record("kernel", "Attention, fused", 9000, 12500, cores=(4, 8), kind="MIX_AIC"),
        record("allocate", "", 1, 1),
        record("operator", "aten::mm", 1000, 5250, cores=(24, 0), kind="AI_CORE"),
        record("operator", "aten::add_", 7000, 8000, cores=(0, 48), kind="AI_VECTOR_CORE"),
        record("collective", "hccl::allreduce", 2000, 3000, device=1, kind="COMMUNICATION"),
    )
    assert [
        (row["Name"], row["Type"], row["Accelerator Core"], row["Block Dim"], row["Mix Block Num"]) for row in found
    ] == [
        ("aten::mm", "Mm", "AI_CORE", "24", "0"),
        ("hccl::allreduce", "Allreduce", "COMMUNICATION", "0", "0"),
        ("aten::add_", "Add", "AI_VECTOR_CORE", "48", "0"),
        ("Attention, fused", "Attention, fused", "MIX_AIC", "4", "8"),
    ]
    assert [row["Task ID"] for row in found] == ["0", "1", "2", "3"]
    assert found[0]["Start Time(us)"] == "1000000000000000.000"
    assert [row["Duration(us)"] for row in found] == ["4.250", "1.000", "1.000", "3.500"]
    assert [row["Wait Time(us)"] for row in found] == ["0.000", "0.000", "1.750", "1.000"]
    assert all(row["Block Dim"] == row["Block Num"] for row in found)
    assert {row["OP State"] for row in found} == {"dynamic"}


@pytest.mark.parametrize(
    ("name", "type_"),
    [("aten::_log_softmax", "LogSoftmax"), ("aten::max_pool2d_with_indices", "MaxPool2dWithIndices"), ("_", "_")],
)
def test_the_type_of_an_operator(name: str, type_: str) -> None:
    assert rows(record("operator", name, 1, 2))[0]["Type"] == type_
