"""The trace as bytes and as Chrome-trace JSON, from records made by hand.

Holds src/toprope/sim/tracing/records.py.
"""

import io
import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.sim import layouts
from toprope.sim.dtypes import NUMBERS
from toprope.sim.tracing import records
from toprope.sim.tracing.records import Record, Trace, chrome, parse
from toprope.sim.tracing.tracer import write_run
from toprope.support.operator_kinds import kind_of

NAMES = ["aten::add", "aten::mm", "allreduce"]
ACTS = list(records._ACTS.values())
NUMBER_OF = {act: number for number, act in records._ACTS.items()}
GATHERED = ("collective", "kernel", "launch")
SIGNED = ("operator", "composite")
NANOSECONDS = st.integers(0, 10**15)


@st.composite
def made(draw: st.DrawFn) -> Record:
    """A record as the core may write it."""
    begin = draw(NANOSECONDS)
    act = draw(st.sampled_from(ACTS))
    name = draw(st.sampled_from([*NAMES, ""]))
    plain = Record(
        act=act,
        name=name,
        begin_ns=begin,
        end_ns=begin + draw(st.integers(0, 10**9)),
        device=draw(st.integers(-1, 15)),
        stream=draw(st.integers(0, 40)),
        thread=draw(st.integers(1, 3)),
        bytes=draw(st.integers(0, 2**40)),
        address=0 if act in (*GATHERED, *SIGNED) else draw(st.integers(0, 2**63)),
        dtype=draw(st.sampled_from(["", *NUMBERS])),
        other_device=draw(st.integers(0, 15)) if act == "copy between cards" else -1,
        cube_cores=draw(st.integers(1, 25)),
        vector_cores=draw(st.integers(1, 50)),
    )
    if act in SIGNED:
        flags = {name: draw(st.booleans()) for name in ("is_part", "in_graph", "on_host")}
        plain = replace(plain, signature=draw(st.integers(0, 8192)), **flags)
    if act in GATHERED:
        return replace(plain, kind="MIX_AIC", sync_all=act != "collective" and draw(st.booleans()))
    if act != "operator":
        return plain
    kind = kind_of(name)
    cube, vector = plain.cube_cores, plain.vector_cores
    cores = (cube, 0) if kind.engine == "cube" else (0, vector)
    return replace(
        plain, cube_cores=cores[0], vector_cores=cores[1], limit=(cube, vector), kind=kind.profiler,
        assumed=kind.assumed,
    )  # fmt: skip


def limits(record: Record) -> tuple[int, int]:
    """What the core writes in the place of an operator's cores; the cores themselves for other acts."""
    if record.act == "operator":
        return record.limit or (0, 0)
    return record.cube_cores, record.vector_cores


def address(record: Record, communicators: Sequence[str] = ()) -> int:
    if not record.communicator:
        return 0xFFFF << 48 if record.act in GATHERED else record.signature or record.address
    return len(NAMES) + communicators.index(record.communicator) << 48 | record.sequence


def _other(record: Record) -> int:
    if record.act in GATHERED:
        return int(record.sync_all)
    parts = record.is_part + 2 * record.in_graph + 4 * record.on_host
    return (parts or -1) if record.act in SIGNED else record.other_device


def packed(
    capacity: int,
    written: list[Record],
    communicators: Sequence[str] = (),
    pid: int = 7,
    began: int = 100,
    wall: int = 10**18,
) -> bytes:
    """The bytes of a ring of this capacity after these records."""
    ring = [bytes(records.RECORD_SIZE)] * capacity
    for place, record in enumerate(written):
        ring[place % capacity] = records._RECORD.pack(
            record.begin_ns, record.end_ns, record.bytes, address(record, communicators), record.thread, record.stream,
            NAMES.index(record.name) if record.name else 0xFFFF, NUMBER_OF[record.act], record.device,
            _other(record),
            NUMBERS.get(record.dtype, -1), *limits(record),
        )  # fmt: skip
    header = struct.pack("<8sQQqQqQQ", records.MAGIC, capacity, len(written), began, pid, wall, 0, 0)
    return header + b"".join(ring)


@pytest.mark.slow
@given(st.lists(made(), max_size=12), st.integers(1, 8))
def test_the_ring_gives_back_its_last_records_in_order(written: list[Record], capacity: int) -> None:
    trace = parse(packed(capacity, written), NAMES)
    assert trace is not None
    assert list(trace.records) == written[-capacity:]
    assert trace.lost == max(0, len(written) - capacity)
    assert (trace.pid, trace.began_ns, trace.wall_ns) == (7, 100, 10**18)
    assert trace.operators() == tuple(record for record in written[-capacity:] if record.act == "operator")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_are_no_trace(data: bytes) -> None:
    parse(data, NAMES)
    good = packed(2, [])
    assert parse(good[: len(good) - 1], NAMES) is None
    assert parse(b"X" + good[1:], NAMES) is None


@given(st.integers(0, 100), st.integers(0, 255))
def test_a_damaged_record_harms_no_other(place: int, value: int) -> None:
    record = Record(
        "operator",
        "aten::mm",
        1,
        2,
        0,
        0,
        1,
        0,
        0,
        "float32",
        -1,
        24,
        0,
        limit=(24, 48),
        kind="AI_CORE",
    )
    data = bytearray(packed(3, [record] * 3))
    data[records.HEADER_SIZE + place % records.RECORD_SIZE] = value
    trace = parse(bytes(data), NAMES)
    assert trace is not None
    assert trace.records[-2:] == (record, record)


def test_a_name_that_is_not_there_is_empty() -> None:
    record = Record("task", "allreduce", 1, 2, 0, 0, 1, 0, 0, "", -1, 0, 0)
    trace = parse(packed(1, [record]), NAMES[:1])
    assert trace is not None
    assert trace.records[0].name == ""


def test_a_member_of_a_collective_says_which(tmp_path: Path) -> None:
    communicators = ["ep-01", "a:b/3"]
    written = [
        Record("kernel", "allreduce", 1, 2, 1, 3, 1, 0, 0, "", -1, 0, 8, kind="AI_VECTOR_CORE", sync_all=True,
               communicator="ep-01", rank=1, ranks=2, sequence=7),
        Record("collective", "allreduce", 1, 2, 0, 0, 1, 64, 0, "", -1, 0, 0, kind="COMMUNICATION",
               communicator="a:b/3", rank=0, ranks=16, sequence=2**47),
    ]  # fmt: skip
    names = [*NAMES, "hcom:ep-01:1/2", "hcom:a:b/3:0/16"]
    trace = parse(packed(2, written, communicators), names)
    assert trace is not None
    assert list(trace.records) == written
    for other in (NAMES, [*NAMES, "hcom:ep-01", "hcom:a:x/y"], [*NAMES, "aten::a:1/2", "hcom::"]):
        without = parse(packed(2, written, communicators), other)
        assert without is not None
        assert [record.sequence for record in without.records] == [-1, -1]


TRACES = st.lists(
    st.builds(
        lambda pid, began, wall, kept: Trace(pid, began, wall, tuple(kept), 0),
        st.integers(1, 4), NANOSECONDS, st.integers(10**18, 10**18 + 10**12), st.lists(made(), max_size=6),
    ),
    max_size=3, unique_by=lambda trace: trace.pid,
)  # fmt: skip


@pytest.mark.slow
@given(TRACES)
def test_every_act_is_one_event_on_a_named_track(traces: list[Trace]) -> None:
    made = json.loads(json.dumps(chrome(traces)))
    events = [event for event in made["traceEvents"] if event["ph"] != "M"]
    assert len(events) == sum(len(trace.records) for trace in traces)
    tracks = [(event["pid"], event["tid"]) for event in made["traceEvents"] if event["name"] == "thread_name"]
    assert len(tracks) == len(set(tracks))
    assert {(event["pid"], event["tid"]) for event in events} == set(tracks)
    processes = [event["pid"] for event in made["traceEvents"] if event["name"] == "process_name"]
    assert processes == [trace.pid for trace in traces]
    for event in events:
        assert event["ph"] in ("X", "i")
        assert event["name"] or event["cat"] in (*GATHERED, *SIGNED, "step")
        assert ("dur" in event) == (event["ph"] == "X")


@pytest.mark.slow
@given(st.lists(made(), min_size=1, max_size=6))
def test_one_track_has_one_card_stream_and_thread(kept: list[Record]) -> None:
    events = chrome([Trace(1, 0, 0, tuple(kept), 0)])["traceEvents"]
    where: dict[int, set[tuple[int, int, int]]] = {}
    for record, event in zip(kept, [event for event in events if event["ph"] != "M"], strict=True):
        stream = -1 if record.act == "synchronise" else record.stream
        where.setdefault(event["tid"], set()).add((record.device, stream, record.thread))
    assert all(len(each) == 1 for each in where.values())
    assert len({place for each in where.values() for place in each}) == len(where)
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert len(names) == len(set(names))


def test_processes_are_laid_side_by_side_by_the_wall_clock() -> None:
    """Their steady clocks may begin anywhere; what counts is when each began on the wall."""
    act = Record("operator", "aten::mm", 5_000, 9_000, 0, 0, 1, 0, 0, "float32", -1, 0, 0)
    early = Trace(1, 4_000, 1_000_000_000, (act,), 0)
    late = Trace(2, 0, 1_000_050_000, (act,), 0)
    first, second = [event for event in chrome([late, early])["traceEvents"] if event["ph"] == "X"][::-1]
    assert (first["pid"], first["ts"], first["dur"]) == (1, 1.0, 4.0)
    assert (second["pid"], second["ts"]) == (2, 55.0)


def test_an_operator_says_its_dtype_and_a_copy_its_bytes() -> None:
    acts = (
        Record("operator", "aten::mm", 1000, 3000, 1, 2, 44, 0, 0, "bfloat16", -1, 0, 0),
        Record("copy to card", "", 1000, 2000, 1, 0, 44, 4096, 0, "", -1, 0, 0),
        Record("allocate", "", 1000, 1000, 1, 0, 44, 512, 0x10, "", -1, 0, 0),
        Record("synchronise", "", 1000, 2000, 1, 0, 44, 0, 0, "", -1, 0, 0),
    )
    events = chrome([Trace(9, 0, 0, acts, 0)])["traceEvents"]
    named = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert named == {"npu:1 stream 2": 0, "npu:1 stream 0": 1, "npu:1 waits of the host": 2}
    shown = [event for event in events if event["ph"] != "M"]
    assert [(event["name"], event["cat"], event["ph"], event["tid"]) for event in shown] == [
        ("aten::mm", "operator", "X", 0),
        ("copy to card", "copy to card", "X", 1),
        ("allocate", "allocate", "i", 1),
        ("synchronise", "synchronise", "X", 2),
    ]
    assert shown[0]["args"] == {"dtype": "bfloat16", "host thread": 44}
    assert shown[1]["args"] == {"bytes": 4096, "host thread": 44}


def test_what_another_thread_does_on_a_stream_has_a_track_of_its_own() -> None:
    acts = tuple(Record("operator", "aten::mm", 1, 9, 0, 0, thread, 0, 0, "", -1, 0, 0) for thread in (5, 6, 5))
    events = chrome([Trace(9, 0, 0, acts, 0)])["traceEvents"]
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert named == ["npu:0 stream 0", "npu:0 stream 0, host thread 6"]
    assert [event["tid"] for event in events if event["ph"] == "X"] == [0, 1, 0]


def counters_file(names: list[str]) -> bytes:
    figures = layouts.Counters(kind_count=len(names))
    for kind, name in zip(figures.kinds, names, strict=False):
        kind.name, kind.calls = name.encode(), 1
    return bytes(figures)


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_a_run_is_written_as_the_same_trace_without_holding_it(tmp_path: Path, processes: int) -> None:
    act = Record("operator", "aten::mm", 5_000, 9_000, 0, 0, 1, 0, 0, "float32", -1, 0, 0)
    traces = []
    for pid in range(1, processes + 1):
        data = packed(2, [act] * 3, pid=pid, wall=10**18 + pid)
        (tmp_path / f"{pid}-1.trace").write_bytes(data)
        (tmp_path / f"{pid}-1.counters").write_bytes(counters_file(NAMES))
        trace = parse(data, NAMES)
        assert trace is not None
        traces.append(trace)
    (tmp_path / "9-1.trace").write_bytes(b"cut off")
    stream = io.StringIO()
    written = write_run(tmp_path, stream)
    assert json.loads(stream.getvalue()) == chrome(traces)
    assert (written.records, written.lost, written.processes) == (2 * processes, processes, processes)
