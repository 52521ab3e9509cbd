"""Tables of the vendor's profiler: columns and rows of its CSV files; pure.

analysis.py writes them; tests/sim/test_profiler_files.py holds the columns. Sources of the columns: Ascend/pytorch,
torch_npu/profiler/analysis (prof_common_func/_csv_headers.py, prof_view, prof_bean), and the vendor's pages about
msprof's op_summary, op_statistic and task_time. All times are the host's, in microseconds. A value that only a card
could count is N/A, and one that was not recorded is empty, as in the vendor's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toprope.sim.profiler.capture import Capture, HostOperator
from toprope.sim.profiler.relations import Relations
from toprope.sim.profiler.step_time import HEADER as STEP_HEADER
from toprope.sim.profiler.step_time import step_times
from toprope.sim.tracing.records import KERNEL_DETAILS, KERNELS, Record, kernel_rows, kernel_type, microseconds

__all__ = ["Table", "call_stack", "tables"]

_AI_CORE = "AI_CORE"
_NOTHING = "N/A"
_MIB = 2**20

_PIPE_UTILIZATION = (
    "aicore_time(us)", "aic_total_cycles", "aic_mac_time(us)", "aic_mac_ratio", "aic_scalar_time(us)",
    "aic_scalar_ratio", "aic_mte1_time(us)", "aic_mte1_ratio", "aic_mte2_time(us)", "aic_mte2_ratio",
    "aic_fixpipe_time(us)", "aic_fixpipe_ratio", "aic_icache_miss_rate", "aiv_time(us)", "aiv_total_cycles",
    "aiv_vec_time(us)", "aiv_vec_ratio", "aiv_scalar_time(us)", "aiv_scalar_ratio", "aiv_mte2_time(us)",
    "aiv_mte2_ratio", "aiv_mte3_time(us)", "aiv_mte3_ratio", "aiv_icache_miss_rate", "cube_utilization(%)",
)  # fmt: skip
"""Figures that the cores of a card count with AiCMetrics.PipeUtilization, the default of the higher levels."""

_OPERATOR_DETAILS = (
    "Name", "Input Shapes", "Call Stack", "Host Self Duration(us)", "Host Total Duration(us)",
    "Device Self Duration(us)", "Device Total Duration(us)", "Device Self Duration With AICore(us)",
    "Device Total Duration With AICore(us)",
)  # fmt: skip
_OP_STATISTIC = (
    "Device_id", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)",
    "Ratio(%)",
)  # fmt: skip
_TASK_TIME = (
    "Device_id", "kernel_name", "kernel_type", "stream_id", "task_id", "task_time(us)", "task_start(us)",
    "task_stop(us)",
)  # fmt: skip
_OPERATOR_MEMORY = (
    "Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
    "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
    "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
    "Release Total Active(MB)", "Stream Ptr", "Device Type",
)  # fmt: skip
_MEMORY_RECORD = (
    "Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)", "Stream Ptr",
    "Device Type",
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One file.

    Attributes:
        name: of the file.
        header: its columns.
        rows: its rows.
    """

    name: str
    header: tuple[str, ...]
    rows: list[tuple[object, ...]]


def tables(capture: Capture, relations: Relations) -> Iterator[Table]:
    """The tables of a capture; the vendor writes those alone that have rows, and so it is here."""
    options = capture.options
    if options.host:
        yield Table("operator_details.csv", _OPERATOR_DETAILS, list(_operator_details(relations)))
    if options.card and options.level != "Level_none":
        header, rows = _kernel_details(capture, relations)
        yield Table("kernel_details.csv", header, rows)
        yield Table("step_trace_time.csv", STEP_HEADER, step_times(capture, relations))
        yield Table("task_time.csv", _TASK_TIME, list(_task_time(capture)))
        if options.level != "Level0":
            yield Table("op_statistic.csv", _OP_STATISTIC, list(_op_statistic(capture)))
    if options.memory:
        used = _memory(capture, relations)
        yield Table("operator_memory.csv", _OPERATOR_MEMORY, [block.row for block in used.blocks])
        yield Table("memory_record.csv", _MEMORY_RECORD, used.records)


def _kernel_details(capture: Capture, relations: Relations) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The columns of the higher levels at every level: without Stream ID a reader could not tell streams apart."""
    counted: tuple[str, ...] = ()
    if capture.options.level in ("Level1", "Level2") and capture.options.metrics == "ACL_AICORE_PIPE_UTILIZATION":
        counted = _PIPE_UTILIZATION
    shapes = KERNEL_DETAILS.index("Input Shapes")
    rows = []
    for index, row in kernel_rows(capture.trace):
        record = capture.trace.records[index]
        node = relations.launched_by.get(index)
        # an operator of another name may have changed its inputs before it launched this kernel
        while node is not None and node.operator.name != record.name:
            node = node.parent
        if node is not None and (known := node.operator.shapes.rstrip(";")):
            row = (*row[:shapes], known, *row[shapes + 1 :])
        row = (*row, *(_NOTHING for _ in counted))
        if relations.steps:
            step = relations.step_of(capture.wall_ns(record.begin_ns))
            row = ("" if step is None else step, *row)
        rows.append(row)
    return (*(("Step Id",) if relations.steps else ()), *KERNEL_DETAILS, *counted), rows


def _operator_details(relations: Relations) -> Iterator[tuple[object, ...]]:
    for node in relations.nodes:
        operator = node.operator
        if operator.is_step:
            continue
        below = list(node.all_kernels())
        on_cores = [record for record in node.kernels if record.kind == _AI_CORE]
        below_on_cores = [record for record in below if record.kind == _AI_CORE]
        device = map(_total, (node.kernels, below, on_cores, below_on_cores))
        yield operator.name, operator.shapes, call_stack(operator), node.self_ns / 1000, _duration(operator), *device


def call_stack(operator: HostOperator) -> str:
    """The Python stack of an operator as the vendor writes it."""
    return ";\r\n".join(operator.stack)


def _duration(act: HostOperator | Record) -> float:
    return (act.end_ns - act.begin_ns) / 1000


def _total(records: Iterable[Record]) -> float:
    return sum(record.end_ns - record.begin_ns for record in records) / 1000


def _op_statistic(capture: Capture) -> Iterator[tuple[object, ...]]:
    durations: dict[tuple[int, str, str], list[int]] = {}
    for record in capture.trace.records:
        if record.act in KERNELS and record.act != "collective":
            key = record.device, kernel_type(record), record.kind
            durations.setdefault(key, []).append(record.end_ns - record.begin_ns)
    totals: dict[int, int] = {}
    for (card, _, _), each in durations.items():
        totals[card] = totals.get(card, 0) + sum(each)
    for (card, kind, core), each in sorted(durations.items(), key=lambda item: (item[0][0], -sum(item[1]))):
        total = sum(each)
        share = round(100 * total / totals[card], 3) if totals[card] else 0.0
        times = (total, min(each), total // len(each), max(each))
        yield card, kind, core, len(each), *map(microseconds, times), share


def _task_time(capture: Capture) -> Iterator[tuple[object, ...]]:
    for index, row in kernel_rows(capture.trace):
        record = capture.trace.records[index]
        fields = dict(zip(KERNEL_DETAILS, row, strict=True))
        yield (
            record.device, fields["Name"], record.kind, record.stream, fields["Task ID"], fields["Duration(us)"],
            fields["Start Time(us)"], microseconds(capture.wall_ns(record.end_ns)),
        )  # fmt: skip


@dataclass
class _Block:
    """A piece of memory of a card between its allocation and its release."""

    name: str
    allocated: Record
    begin_ns: int
    total: int
    end_ns: int | None = None
    total_at_end: int = 0

    @property
    def row(self) -> tuple[object, ...]:
        """Its row of operator_memory.csv; what is reserved and awaited by streams at a moment is not recorded."""
        ended = self.end_ns is not None
        return (
            self.name, self.allocated.bytes / 1024, microseconds(self.begin_ns),
            microseconds(self.end_ns) if self.end_ns is not None else "", "",
            microseconds(self.end_ns - self.begin_ns) if self.end_ns is not None else "", "", self.total / _MIB, "", "",
            self.total_at_end / _MIB if ended else "", "", "", self.allocated.stream, f"NPU:{self.allocated.device}",
        )  # fmt: skip


@dataclass(frozen=True)
class _Memory:
    blocks: list[_Block]
    records: list[tuple[object, ...]]


def _memory(capture: Capture, relations: Relations) -> _Memory:
    totals = dict(capture.allocated)
    names = _Names(relations)
    blocks: list[_Block] = []
    held: dict[tuple[int, int], _Block] = {}
    records: list[tuple[object, ...]] = []
    acts = (record for record in capture.trace.records if record.act in ("allocate", "free"))
    for record in sorted(acts, key=lambda record: record.begin_ns):
        moment = capture.wall_ns(record.begin_ns)
        key = record.device, record.address
        sign = 1 if record.act == "allocate" else -1
        total = totals[record.device] = totals.get(record.device, 0) + sign * record.bytes
        if record.act == "allocate":
            held[key] = _Block(names.at(record.thread, moment), record, moment, total)
            blocks.append(held[key])
        elif key in held:
            block = held.pop(key)
            block.end_ns, block.total_at_end = moment, total
        for component in ("PTA", "PTA+GE"):  # there is no graph engine, so both are the same
            place = record.stream, f"NPU:{record.device}"
            records.append((component, microseconds(moment), total / _MIB, "", "", *place))
    return _Memory(blocks, records)


class _Names:
    """The operator of the host that runs on a thread at a moment."""

    def __init__(self, relations: Relations) -> None:
        self._threads: dict[int, list[HostOperator]] = {}
        for node in relations.nodes:
            if not node.operator.is_step:
                self._threads.setdefault(node.operator.thread, []).append(node.operator)
        self._open: dict[int, list[HostOperator]] = {}
        self._places: dict[int, int] = {}

    def at(self, thread: int, moment: int) -> str:
        """The name of the innermost one; empty for none. Moments of a thread only grow."""
        operators = self._threads.get(thread, [])
        open_ = self._open.setdefault(thread, [])
        place = self._places.get(thread, 0)
        while place < len(operators) and operators[place].begin_ns <= moment:
            open_ = [each for each in open_ if each.end_ns > operators[place].begin_ns]
            open_.append(operators[place])
            place += 1
        self._open[thread] = [each for each in open_ if each.end_ns > moment]
        self._places[thread] = place
        return self._open[thread][-1].name if self._open[thread] else ""
