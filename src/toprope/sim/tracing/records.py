"""Records of a trace: the acts of a program on the cards, read from the C++ core's file; pure.

For timelines, profiles, core checks and reports; also written as Chrome-trace JSON. The layout is `struct Trace` of
csrc/core/trace.h (see layouts.py); docs/trace.md describes the records. Tests: tests/sim/test_records.py.
"""

from __future__ import annotations

import csv
import ctypes
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from mmap import mmap
from typing import Any, TextIO

from toprope import chips
from toprope.estimate.cost.costs import Cost, cost_of
from toprope.estimate.cost.rates import Rates, UnknownRateError, rates_of
from toprope.estimate.cost.span import Span
from toprope.estimate.record.calls import OperatorCall
from toprope.sim import layouts
from toprope.sim.dtypes import NUMBERS
from toprope.support.operator_kinds import kind_of

__all__ = [
    "CHROME_FRAME",
    "GENERATED",
    "HEADER_SIZE",
    "KERNELS",
    "KERNEL_DETAILS",
    "RECORD_SIZE",
    "Record",
    "Trace",
    "capacity",
    "chrome",
    "chrome_events",
    "count",
    "kernel_name",
    "kernel_rows",
    "kernel_type",
    "microseconds",
    "parse",
    "parse_header",
    "read",
    "write_kernel_details",
]

Buffer = bytes | memoryview | mmap
"""Bytes of a trace."""

GENERATED = "inductor::generated_kernels"
"""Name of the kernels that Inductor generates for one graph, which are recorded together."""

MAGIC = b"TRTRACE\x01"
HEADER_SIZE = ctypes.sizeof(layouts.Trace)
RECORD_SIZE = ctypes.sizeof(layouts.Record)
_RECORD = struct.Struct("@" + "".join(kind._type_ for _, kind in layouts.Record._fields_))  # faster than the structure

_ACTS = {act: act.name.lower().replace("_", " ") for act in layouts.Act} | {
    layouts.Act.COPY_BETWEEN: "copy between cards"
}
_DTYPES = {number: name for name, number in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """One act.

    Attributes:
        act: "operator", "copy to card", "copy from card" (item() is one), "copy between cards", "allocate", "free",
            "event record", "event wait", "synchronise", "task", "collective", "launch" (of toprope.sim.launch),
            "kernel" (its run), "composite" (an operator of torch_npu that others compute, which have records of their
            own) or "step" (of a rehearsal: it has ended).
        name: the operator's ("aten::mm"), the collective's or the kernel's name; of a step "training", "inference" or
            "forward"; empty where there is none.
        begin_ns, end_ns: on the host's steady clock. The card's own time is not simulated.
        device: number of the card in the process; -1 where there is none.
        stream: number of the stream on that card; 0 is the default stream.
        thread: the system's number of the thread.
        bytes: of copies, allocations and collectives; of an operator that runs on the host, copied both ways.
        address: of allocations; for events a number that names the event; 0 otherwise.
        dtype: of an operator's first tensor; empty where there is none.
        other_device: the card that a copy between cards comes from; -1 otherwise.
        cube_cores, vector_cores: cores that an operator, kernel or collective was given: its blocks, times the cores of
            one. An operator takes all that the limits leave; a real one may take fewer.
        limit: of an operator, the cube and vector cores that it was allowed when it was launched; None otherwise.
        kind: of an operator, kernel or collective, the profiler's word for the cores: "AI_CORE", "AI_VECTOR_CORE",
            "MIX_AIC", "MIX_AIV", "AI_CPU", or "COMMUNICATION" for a collective that takes none.
        assumed: whether no source says on which cores the operator runs (operator_kinds.toml).
        sync_all: whether all blocks need their cores at the same time.
        communicator: of a collective, the name of its communicator, the same in all processes; empty otherwise.
        rank, ranks: this member's rank in the communicator, and how many there are; -1 and 0 otherwise.
        sequence: which collective of the communicator it is, counted from 0; -1 otherwise.
        signature: of an operator or composite, the number of its signature (see `signatures`); 0 for none.
        is_part: whether the operator computes a part of a composite, which is what the card would run.
        in_graph: whether a graph replays it, so that the host does not launch it.
        on_host: whether it runs on the host, because the release of torch_npu has no kernel of it.
    """

    act: str
    name: str
    begin_ns: int
    end_ns: int
    device: int
    stream: int
    thread: int
    bytes: int
    address: int
    dtype: str
    other_device: int
    cube_cores: int
    vector_cores: int
    limit: tuple[int, int] | None = None
    kind: str = ""
    assumed: bool = False
    sync_all: bool = False
    communicator: str = ""
    rank: int = -1
    ranks: int = 0
    sequence: int = -1
    signature: int = 0
    is_part: bool = False
    in_graph: bool = False
    on_host: bool = False

    @property
    def engine(self) -> str:
        """The engine of the collective: "aiv" for vector cores; empty where that is not known, or it is none."""
        return "aiv" if self.communicator and self.vector_cores else ""


@dataclass(frozen=True)
class Trace:
    """The records of one process, in the order in which the acts ended.

    Attributes:
        pid: the process.
        began_ns: steady clock when the trace began.
        wall_ns: wall clock at that moment, to lay traces of several processes side by side.
        records: the acts.
        lost: acts that the ring no longer holds, the oldest ones.
        chip: name of the chip, empty where it is not known.
        calls: the signatures that operators and composites number from 1.
        counts: how often each of them was called, also before the records that are held; empty where that is not known.
    """

    pid: int
    began_ns: int
    wall_ns: int
    records: tuple[Record, ...]
    lost: int
    chip: str = ""
    calls: tuple[OperatorCall, ...] = ()
    counts: tuple[int, ...] = ()

    @cached_property
    def rates(self) -> Rates:
        """Rates of the chip."""
        return rates_of(chips.get(self.chip))

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """Work of each of `calls`."""
        return tuple(map(cost_of, self.calls))

    @cached_property
    def times(self) -> tuple[Span, ...]:
        """Times of the card for each of `calls`.

        Raises:
            UnknownRateError: a figure of the chip is not known.
        """
        return tuple(map(self.rates.seconds, self.costs))

    @property
    def estimates(self) -> tuple[Span, ...]:
        """The same; none where a figure of the chip is not known."""
        try:
            return self.times if self.calls and self.chip else ()
        except UnknownRateError:
            return ()

    def estimate(self, record: Record) -> Span | None:
        """Return the time of the card for an operator or a composite of this trace; None where it is not known."""
        known = self.estimates
        return known[record.signature - 1] if 0 < record.signature <= len(known) else None

    def operators(self) -> tuple[Record, ...]:
        """The records of operators alone."""
        return tuple(record for record in self.records if record.act == "operator")

    def kernel_details(self, path: str | os.PathLike[str]) -> None:
        """Write the operators, kernels and collectives as a kernel_details.csv, in the columns of the profiler."""
        with open(path, "w", encoding="utf-8", newline="") as file:
            write_kernel_details(file, [self])


def parse(data: Buffer, names: Sequence[str], chip: str = "") -> Trace | None:
    """The trace in these bytes, None when they are none.

    Args:
        data: header and ring, as the core writes them.
        names: names of operators, collectives and communicators by the index that records hold.
        chip: name of the chip, which decides how limits become cores; empty where it is not known.
    """
    head = parse_header(data)
    return None if head is None else replace(head, records=tuple(read(data, names, chip)), chip=chip)


def parse_header(data: Buffer) -> Trace | None:
    """The trace in these bytes without its records, None when they are none."""
    if len(data) < HEADER_SIZE:
        return None
    kept = _header(data)
    if data[: len(MAGIC)] != MAGIC or kept.capacity == 0 or len(data) < HEADER_SIZE + kept.capacity * RECORD_SIZE:
        return None
    return Trace(kept.pid, kept.began_ns, kept.wall_ns, (), max(kept.written - kept.capacity, 0))


def _header(data: Buffer) -> layouts.Trace:
    return layouts.Trace.from_buffer_copy(data[:HEADER_SIZE])


def count(data: Buffer) -> int:
    """Number of records that were ever written to the trace in these bytes; 0 where they are none."""
    return _header(data).written if len(data) >= HEADER_SIZE else 0


def capacity(data: Buffer) -> int:
    """Number of records that the trace has room for whose header is in these bytes."""
    return _header(data).capacity


def read(
    data: Buffer, names: Sequence[str], chip: str = "", first: int = 0, without: Collection[str] = ()
) -> Iterator[Record]:
    """The records in the bytes of a trace one by one, the oldest first, so that a long trace need not be held.

    Args:
        data: header and ring, as the core writes them.
        names: names by the index that records hold.
        chip: name of the chip; empty where it is not known.
        first: number of the first record to read, counted from the beginning of the trace.
        without: acts that are left out.
    """
    head = _header(data)
    capacity = head.capacity
    for place in range(max(head.written - capacity, first), head.written):
        begin, end, size, address, thread, stream, number, act, device, other, dtype, cube, vector = (
            _RECORD.unpack_from(data, HEADER_SIZE + place % capacity * RECORD_SIZE)
        )
        name, what = _name(names, number), _ACTS.get(act)
        if what is None or what in without:
            continue
        kept = _DTYPES.get(dtype, "")
        if what in _SIGNED:
            limit: tuple[int, int] | None = None
            word, assumed, sync_all = "", False, False
            if what == "operator":
                cube, vector, limit, word, assumed, sync_all = _cores_of(name, cube, vector, chip)
            yield Record(
                what, name, begin, end, device, stream, thread, size, 0, kept, -1, cube, vector, limit, word, assumed,
                sync_all, "", -1, 0, -1, address, *(other > 0 and bool(other & bit) for bit in (1, 2, 4)),
            )  # fmt: skip
            continue
        where = (device, stream, thread, size, 0 if what in _GATHERED else address)
        source = other if what == "copy between cards" else -1
        plain = Record(what, name, begin, end, *where, kept, source, cube, vector)
        if what in _GATHERED or (what == "event wait" and _name(names, address >> 48).startswith("hcom:")):
            yield _with_members(plain, names, address, sync_all=what != "collective" and other > 0)
        else:
            yield plain


_GATHERED = ("collective", "kernel", "launch")
_SIGNED = ("operator", "composite")
_SEQUENCE = 2**48 - 1


def _name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else ""


@lru_cache(maxsize=4096)
def _cores_of(name: str, cube: int, vector: int, chip: str) -> tuple[int, int, tuple[int, int], str, bool, bool]:
    """Cores that limits leave to an operator, these limits, the profiler's word, and the other facts of its kind."""
    kind = kind_of(name)
    given = kind.blocks((cube, vector), chip)
    return given.cube, given.vector, (cube, vector), kind.profiler, kind.assumed, kind.sync_all


def _with_members(record: Record, names: Sequence[str], address: int, *, sync_all: bool) -> Record:
    """The record of a collective or a kernel, with the collective that it is a member of (see csrc/core/trace.h)."""
    if record.cube_cores and record.vector_cores:
        kind = "MIX_AIC"
    elif record.cube_cores:
        kind = "AI_CORE"
    else:
        kind = "AI_VECTOR_CORE" if record.vector_cores else "COMMUNICATION"
    head, _, rest = _name(names, address >> 48).partition(":")
    communicator, _, place = rest.rpartition(":")
    rank, slash, ranks = place.partition("/")
    if record.act == "event wait":
        record, kind = replace(record, address=0), ""
    if head != "hcom" or not slash or not (rank + ranks).isdecimal():
        return replace(record, kind=kind, sync_all=sync_all)
    return replace(
        record, kind=kind, sync_all=sync_all, communicator=communicator, rank=int(rank), ranks=int(ranks),
        sequence=address & _SEQUENCE,
    )  # fmt: skip


def chrome(traces: Iterable[Trace]) -> dict[str, Any]:
    """Traces as one Chrome trace (JSON object format), which Perfetto and chrome://tracing open.

    A process is a process there; each stream of a card is a track, and the host's waits are one more. What another
    host thread does on a stream has a track of its own, because acts of one track must not overlap.
    """
    traces = list(traces)
    first = min((trace.wall_ns for trace in traces), default=0)
    events = [event for trace in traces for event in chrome_events(trace, trace.records, first)]
    return {"traceEvents": events, **CHROME_FRAME}


CHROME_FRAME: dict[str, Any] = {
    "displayTimeUnit": "ms",
    "otherData": {"clock": "host, measured; the card's own times are estimates, in the arguments of each operator"},
}
"""The parts of a card's Chrome trace other than its events."""


def chrome_events(trace: Trace, records: Iterable[Record], first_ns: int) -> Iterator[dict[str, Any]]:
    """The events of one process in a Chrome trace.

    Args:
        trace: whose clocks and number count.
        records: its records.
        first_ns: the wall clock at which the Chrome trace begins.
    """
    shift = trace.wall_ns - first_ns - trace.began_ns
    tracks: dict[tuple[int, int, int], int] = {}
    yield _named("process_name", trace.pid, 0, f"process {trace.pid}")
    for record in records:
        stream = -1 if record.act == "synchronise" else record.stream
        key = (record.device, stream, record.thread)
        if key not in tracks:
            shared = any(each[:2] == key[:2] for each in tracks)
            what = "waits of the host" if stream < 0 else f"stream {stream}"
            tracks[key] = len(tracks)
            thread = f", host thread {record.thread}" if shared else ""
            yield _named("thread_name", trace.pid, tracks[key], f"npu:{record.device} {what}{thread}")
        event = _event(record, trace.pid, tracks[key], shift)
        if (span := trace.estimate(record)) is not None:
            event["args"]["card us (estimate)"] = [round(span.low * 1e6, 2), round(span.high * 1e6, 2)]
        yield event


def _named(what: str, pid: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": track, "args": {"name": name}}


def _event(record: Record, pid: int, track: int, shift: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": record.name if record.act in (*_SIGNED, *_GATHERED, "step") else record.act,
        "cat": record.act,
        "pid": pid,
        "tid": track,
        "ts": (record.begin_ns + shift) / 1000,
        "args": dict(_arguments(record)),
    }
    if record.act in ("allocate", "free", "event record", "event wait", "launch", "step"):
        return {**event, "ph": "i", "s": "t"}
    return {**event, "ph": "X", "dur": (record.end_ns - record.begin_ns) / 1000}


def _arguments(record: Record) -> Iterator[tuple[str, object]]:
    """The fields of an event other than its place, as far as the act has them."""
    facts = {
        "bytes": record.bytes,
        "dtype": record.dtype,
        "host thread": record.thread,
        "cube cores": record.cube_cores,
        "vector cores": record.vector_cores,
        "limit": None if record.limit is None else list(record.limit),
        "kind": record.kind,
        "sync_all": record.sync_all,
        "assumed": record.assumed,
        "event": f"{record.address:#x}" if record.act.startswith("event") and not record.communicator else "",
        "communicator": record.communicator,
        "ranks": record.ranks,
        "engine": record.engine,
    }
    yield from ((name, value) for name, value in facts.items() if value)
    if record.sequence >= 0:
        yield "sequence", record.sequence


KERNEL_DETAILS = (
    "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)",
    "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "Block Num", "Mix Block Num", "HF32 Eligible",
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
    "Context ID", "Card Duration Estimate Low(us)", "Card Duration Estimate High(us)",
)  # fmt: skip
"""The header of the profiler's kernel_details.csv, and an estimate of the card's time.

Ascend/pytorch, torch_npu/profiler/analysis/prof_common_func/_csv_headers.py, and the vendor's pages about op_summary.
"Block Num" and "Mix Block Num" were called "Block Dim" and "Mix Block Dim" before: both are written.
"""

_NO_MODEL = 2**32 - 1
"""The profiler's number for work that belongs to no model loaded as a whole."""

KERNELS = ("operator", "kernel", "collective")
"""Acts that are kernels of the card to the profiler."""

_NOTHING = "N/A"


def write_kernel_details(file: TextIO, traces: Iterable[Trace]) -> None:
    """Write the operators, kernels and collectives of traces, by their begin; each trace has its own card numbers.

    The times are the host's: they show order and overlap. What a card would take is an estimate, in the last columns.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(KERNEL_DETAILS)
    for trace in traces:
        writer.writerows(row for _, row in kernel_rows(trace))


def kernel_rows(trace: Trace) -> Iterator[tuple[int, tuple[object, ...]]]:
    """The rows of a trace in the columns of `KERNEL_DETAILS`, by their begin, each with the index of its record."""
    shown = [index for index, record in enumerate(trace.records) if record.act in KERNELS]
    ends: dict[int, int] = {}
    for number, index in enumerate(sorted(shown, key=lambda index: trace.records[index].begin_ns)):
        record = trace.records[index]
        begin = trace.wall_ns + record.begin_ns - trace.began_ns
        end = begin + record.end_ns - record.begin_ns
        wait = max(begin - ends.get(record.device, begin), 0)
        ends[record.device] = max(end, ends.get(record.device, end))
        main, other = _blocks(record)
        yield index, (
            record.device, _NO_MODEL, number, record.stream, kernel_name(record), kernel_type(record), "dynamic",
            record.kind, microseconds(begin), microseconds(end - begin), microseconds(wait), main, other, main, other,
            "NO", *_shapes(trace, record), *_estimate(trace, record),
        )  # fmt: skip


_PROFILER_DTYPES = {"float32": "FLOAT", "bfloat16": "DT_BF16", "float64": "DOUBLE"}


def _shapes(trace: Trace, record: Record) -> tuple[str, ...]:
    """Shapes, dtypes and formats of the inputs, then of the outputs; N/A where they are not known."""
    if not 0 < record.signature <= len(trace.calls):
        return _NOTHING, record.dtype.upper() or _NOTHING, *[_NOTHING] * 5
    call = trace.calls[record.signature - 1]
    found: list[str] = []
    for tensors in (call.of("read", "written"), call.of("result") or call.of("written")):
        found.append(";".join(",".join(map(str, each.sizes)) for each in tensors) or _NOTHING)
        found.append(";".join(_PROFILER_DTYPES.get(each.dtype, each.dtype.upper()) for each in tensors) or _NOTHING)
        found.append(";".join("ND" for _ in tensors) or _NOTHING)
    return *found, _NOTHING


def _estimate(trace: Trace, record: Record) -> tuple[object, object]:
    span = trace.estimate(record)
    return (_NOTHING, _NOTHING) if span is None else (round(span.low * 1e6, 3), round(span.high * 1e6, 3))


def _blocks(record: Record) -> tuple[int, int]:
    """Blocks of the main engine and of the other one, as the profiler counts them."""
    if record.kind == "MIX_AIC":
        return record.cube_cores, record.vector_cores
    return record.cube_cores + record.vector_cores, 0


_COLLECTIVES = {
    "allgather_coalesced": "allGather", "allgather_into_tensor_coalesced": "allGather", "allreduce": "allReduce",
    "allreduce_coalesced": "allReduce", "allgather": "allGather", "_allgather_base": "allGather",
    "_reduce_scatter_base": "reduceScatter", "reduce_scatter": "reduceScatter",
    "reduce_scatter_tensor_coalesced": "reduceScatter", "alltoall_base": "alltoallv", "recv": "receive",
    "recv_anysource": "receive",
}  # fmt: skip
"""HCCL's names of torch's collectives, where they differ."""


def kernel_name(record: Record) -> str:
    """The name of a kernel in the profiler's files: of a collective HCCL's, such as "hcom_allReduce__606_0_1".

    The parts are the last three digits of the communicator's hash, the number of the collective and the iteration.
    """
    if not record.communicator or record.act != "collective":
        return record.name
    return f"{_hcom(record)}__{zlib.crc32(record.communicator.encode()) % 1000:03d}_{record.sequence}_1"


def kernel_type(record: Record) -> str:
    """A kernel's type of operator: of "aten::add_" Add, of "aten::_log_softmax" LogSoftmax, of a collective HCCL's."""
    if record.communicator and record.act == "collective":
        return f"{_hcom(record)}_"
    plain = record.name.rpartition("::")[2].strip("_")
    return re.sub(r"(?:^|_)([a-z0-9])", lambda match: match[1].upper(), plain) or record.name


def _hcom(record: Record) -> str:
    plain = record.name.rpartition("::")[2]
    return f"hcom_{_COLLECTIVES.get(plain, plain)}"


def microseconds(nanoseconds: int) -> str:
    """A time in ns as the profiler writes it, in microseconds with three decimals."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
