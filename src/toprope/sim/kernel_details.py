"""The operators of traces in the columns of the profiler's kernel_details.csv; pure but for `save`.

Columns: Ascend/pytorch, torch_npu/profiler/analysis/prof_common_func/_csv_headers.py, and the vendor's pages about
op_summary. "Block Num" and "Mix Block Num" were called "Block Dim" and "Mix Block Dim" before: both are written.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator
from typing import TextIO

from toprope.sim.records import Record, Trace

__all__ = ["COLUMNS", "save", "write"]

COLUMNS = (
    "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)",
    "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "Block Num", "Mix Block Num", "HF32 Eligible",
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
    "Context ID",
)  # fmt: skip
"""The header of the file."""

_NO_MODEL = 2**32 - 1
"""What the profiler writes for work that belongs to no model loaded as a whole."""

_SHOWN = ("operator", "kernel", "collective")
_NOTHING = "N/A"


def save(path: str | os.PathLike[str], traces: Iterable[Trace]) -> None:
    """Writes a kernel_details.csv."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        write(file, traces)


def write(file: TextIO, traces: Iterable[Trace]) -> None:
    """Writes the operators, kernels and collectives of traces, by their begin; each trace has its own card numbers.

    The times are the host's: they show order and overlap, not what a card would take.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trace in traces:
        writer.writerows(_rows(trace))


def _rows(trace: Trace) -> Iterator[tuple[object, ...]]:
    shown = sorted((record for record in trace.records if record.act in _SHOWN), key=lambda record: record.begin_ns)
    ends: dict[int, int] = {}
    for number, record in enumerate(shown):
        begin = trace.wall_ns + record.begin_ns - trace.began_ns
        end = begin + record.end_ns - record.begin_ns
        wait = max(begin - ends.get(record.device, begin), 0)
        ends[record.device] = max(end, ends.get(record.device, end))
        main, other = _blocks(record)
        yield (
            record.device, _NO_MODEL, number, record.stream, record.name, _type(record.name), "dynamic", record.kind,
            _microseconds(begin), _microseconds(end - begin), _microseconds(wait), main, other, main, other, "NO",
            _NOTHING, record.dtype.upper() or _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING,
        )  # fmt: skip


def _blocks(record: Record) -> tuple[int, int]:
    """Blocks of the main engine and of the other one, as the profiler counts them."""
    if record.kind == "MIX_AIC":
        return record.cube_cores, record.vector_cores
    return record.cube_cores + record.vector_cores, 0


def _type(name: str) -> str:
    """A name as a type of operator: "aten::add_" is Add, "aten::_log_softmax" is LogSoftmax."""
    plain = name.rpartition("::")[2].strip("_")
    return re.sub(r"(?:^|_)([a-z0-9])", lambda match: match[1].upper(), plain) or name


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
