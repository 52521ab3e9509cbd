"""What a program did to the cards, act by act: reading of the trace that the C++ core writes; pure.

The layout is that of csrc/core/trace.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toprope.sim.dtypes import NUMBERS

__all__ = [
    "CHROME_FRAME",
    "HEADER_SIZE",
    "RECORD_SIZE",
    "Record",
    "Trace",
    "chrome",
    "chrome_events",
    "parse",
    "parse_header",
    "read",
]

MAGIC = b"TRTRACE\x01"
_HEADER = struct.Struct("<8sQQqQqQQ")
_RECORD = struct.Struct("<qqQQIiHBbbbBB")
HEADER_SIZE = _HEADER.size
RECORD_SIZE = _RECORD.size

_ACTS = (
    "",
    "operator",
    "copy to card",
    "copy from card",
    "copy between cards",
    "allocate",
    "free",
    "event record",
    "event wait",
    "synchronise",
    "task",
    "collective",
)
_DTYPES = {number: name for name, number in NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """One act.

    Attributes:
        act: "operator", "copy to card", "copy from card" (item() is one), "copy between cards", "allocate", "free",
            "event record", "event wait", "synchronise", "task" or "collective".
        name: the operator's ("aten::mm") or the collective's name; empty where there is none.
        begin_ns, end_ns: on the host's steady clock. The card's own time is not simulated.
        device: number of the card in the process; -1 where there is none.
        stream: number of the stream on that card; 0 is the default stream.
        thread: the system's number of the thread.
        bytes: of copies, allocations and collectives.
        address: of allocations; for events a number that names the event.
        dtype: of an operator's first tensor; empty where there is none.
        other_device: the card that a copy between cards comes from; -1 otherwise.
        cube_cores, vector_cores: cores the operator was given; 0 where they are not known.
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


@dataclass(frozen=True)
class Trace:
    """The records of one process, in the order in which the acts ended.

    Attributes:
        pid: the process.
        began_ns: steady clock when the trace began.
        wall_ns: wall clock at that moment, to lay traces of several processes side by side.
        records: the acts.
        lost: acts that the ring no longer holds, the oldest ones.
    """

    pid: int
    began_ns: int
    wall_ns: int
    records: tuple[Record, ...]
    lost: int

    def operators(self) -> tuple[Record, ...]:
        """The records of operators alone."""
        return tuple(record for record in self.records if record.act == "operator")


def parse(data: bytes | memoryview, names: Sequence[str]) -> Trace | None:
    """The trace in these bytes, None when they are none.

    Args:
        data: header and ring, as the core writes them.
        names: names of operators and collectives by the index that records hold.
    """
    head = parse_header(data)
    return None if head is None else replace(head, records=tuple(read(data, names)))


def parse_header(data: bytes | memoryview) -> Trace | None:
    """The trace in these bytes without its records, None when they are none."""
    if len(data) < HEADER_SIZE:
        return None
    magic, capacity, written, began_ns, pid, wall_ns, _, _ = _HEADER.unpack_from(data)
    if magic != MAGIC or capacity == 0 or len(data) < HEADER_SIZE + capacity * RECORD_SIZE:
        return None
    return Trace(pid, began_ns, wall_ns, (), max(written - capacity, 0))


def read(data: bytes | memoryview, names: Sequence[str]) -> Iterator[Record]:
    """The records in the bytes of a trace one by one, the oldest first, so that a long trace need not be held."""
    _, capacity, written, *_ = _HEADER.unpack_from(data)
    for place in range(max(written - capacity, 0), written):
        begin, end, size, address, thread, stream, kind, act, device, other, dtype, cube, vector = _RECORD.unpack_from(
            data, HEADER_SIZE + place % capacity * RECORD_SIZE
        )
        if 0 < act < len(_ACTS):
            name = names[kind] if kind < len(names) else ""
            where = (device, stream, thread, size, address)
            source = other if _ACTS[act] == "copy between cards" else -1
            yield Record(_ACTS[act], name, begin, end, *where, _DTYPES.get(dtype, ""), source, cube, vector)


def chrome(traces: Iterable[Trace]) -> dict[str, Any]:
    """Traces as one Chrome trace (JSON object format), which Perfetto and chrome://tracing open.

    A process is a process there; each stream of a card is a track, and the host's waits are one more. What another
    host thread does on a stream has a track of its own, because acts of one track must not overlap.
    """
    traces = list(traces)
    first = min((trace.wall_ns for trace in traces), default=0)
    events = [event for trace in traces for event in chrome_events(trace, trace.records, first)]
    return {"traceEvents": events, **CHROME_FRAME}


CHROME_FRAME = {"displayTimeUnit": "ms", "otherData": {"clock": "host, measured; not the card's"}}
"""What a Chrome trace of a card holds beside its events."""


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
        yield _event(record, trace.pid, tracks[key], shift)


def _named(what: str, pid: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": track, "args": {"name": name}}


def _event(record: Record, pid: int, track: int, shift: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": record.name if record.act in ("operator", "collective") else record.act,
        "cat": record.act,
        "pid": pid,
        "tid": track,
        "ts": (record.begin_ns + shift) / 1000,
        "args": {
            key: value
            for key, value in (
                ("bytes", record.bytes),
                ("dtype", record.dtype),
                ("host thread", record.thread),
                ("cube cores", record.cube_cores),
                ("vector cores", record.vector_cores),
                ("event", f"{record.address:#x}" if record.act.startswith("event") else ""),
            )
            if value
        },
    }
    if record.act in ("allocate", "free", "event record", "event wait"):
        return {**event, "ph": "i", "s": "t"}
    return {**event, "ph": "X", "dur": (record.end_ns - record.begin_ns) / 1000}
