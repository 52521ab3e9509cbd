"""Traces of the simulator (`formats.trace`): the same program from records, from the Chrome trace, and from a run."""

import json
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_stand_ins import run_anew, told
from toprope.cores import Collective, Communicator, Program, record
from toprope.errors import ScheduleError
from toprope.sim.tracing.records import Record, Trace, chrome

pytestmark = [pytest.mark.native, pytest.mark.process]


def act(
    what: str, name: str = "", stream: int = 0, *, device: int = 0, event: int = 0, thread: int = 5, vector: int = 0,
    **known: Any,
) -> Record:  # fmt: skip
    return Record(what, name, 1000, 2000, device, stream, thread, 0, event, "", -1, 0, vector, **known)


def trace(*acts: Any, pid: int = 1, lost: int = 0) -> Trace:
    return Trace(pid, 0, 10**18 + pid, tuple(acts), lost)


def shown(program: Program) -> list[tuple[str, str, list[tuple[str, tuple[str, ...], tuple[str, ...]]]]]:
    """Streams with their operators, what each waits for and what it records."""
    return [
        (stream.card, stream.name, [(op.name, op.waits, op.records) for op in stream.ops]) for stream in program.streams
    ]


def test_operators_are_in_their_streams_and_events_order_them() -> None:
    recorded = trace(
        act("operator", "aten::mm", 0, vector=24),
        act("event record", stream=0, event=0xA),
        act("allocate", stream=0, event=0xB),
        act("event wait", stream=7, event=0xA),
        act("operator", "aten::relu", 7),
        act("event record", stream=7, event=0xA),  # the same event again: a later wait means this one
        act("event wait", stream=0, event=0xA),
        act("operator", "aten::add", 0),
        act("event record", stream=0, event=0xC),  # nobody waits for it
    )
    program = record.from_traces([recorded], "910B1")
    assert shown(program) == [
        ("0", "stream 0", [("aten::mm", (), ("1:10#0",)), ("aten::add", ("1:10#1",), ())]),
        ("0", "stream 7", [("aten::relu", ("1:10#0",), ("1:10#1",))]),
    ]
    mm = program.op((0, 0))
    assert (mm.cores, mm.microseconds, mm.timing, mm.sync_all) == ((0, 24), None, "", False)
    assert mm.source == "trace: process 1, record 0"


def test_an_operator_whose_cores_are_assumed_is_taken_to_need_all_of_them() -> None:
    recorded = trace(act("operator", "known", vector=24), act("operator", "assumed", vector=24, assumed=True))
    program = record.from_traces([recorded], "910B1")
    assert [(op.assumed, op.sync_all) for _, op in program.ops()] == [(False, False), (True, True)]


def test_a_wait_that_is_passed_on_without_an_operator_still_orders() -> None:
    recorded = trace(
        act("operator", "a", 1), act("event record", stream=1, event=1), act("event wait", stream=2, event=1),
        act("event record", stream=2, event=2), act("event wait", stream=3, event=2), act("operator", "b", 3),
    )  # fmt: skip
    program = record.from_traces([recorded], "910B1")
    assert [(op.name, op.kind) for _, op in program.ops()] == [("a", ""), ("event", "EVENT"), ("b", "")]
    assert list(program.before((2, 0))) == [(1, 0)]
    assert list(program.before((1, 0))) == [(0, 0)]


def test_events_of_empty_streams_and_those_never_recorded_are_no_waits() -> None:
    recorded = trace(
        act("event record", stream=1, event=1), act("event wait", stream=2, event=1),
        act("event wait", stream=2, event=9),
        act("operator", "b", 2),
    )  # fmt: skip
    assert shown(record.from_traces([recorded], "910B1")) == [("0", "stream 2", [("b", (), ())])]


def test_what_a_host_thread_gives_out_after_it_has_waited_for_a_stream_comes_after() -> None:
    recorded = trace(
        act("operator", "a", 1), act("synchronise", stream=1), act("operator", "b", 2),
        act("operator", "c", 3, thread=6), act("operator", "d", 2), act("synchronise", stream=-1),
        act("operator", "e", 4),
    )  # fmt: skip
    program = record.from_traces([recorded], "910B1")
    before = {op.name: [program.op(each).name for each in program.before(id)] for id, op in program.ops()}
    assert before == {"a": [], "b": ["a"], "c": [], "d": ["b"], "e": ["a"]}


def collective(name: str, **known: Any) -> SimpleNamespace:
    """A record as a simulator writes it that knows of communicators."""
    fields = {key: getattr(act("collective", name), key) for key in Record.__dataclass_fields__}
    return SimpleNamespace(**fields | known)


def test_processes_are_ranks_joined_by_communicator_and_number() -> None:
    ranks = [
        trace(
            collective("hccl::allreduce", communicator="tp", sequence=4, engine="aiv", vector_cores=24, limit=(24, 24)),
            collective("hccl::allgather", communicator="tp", sequence=5, engine="aiv", vector_cores=16, sync_all=True),
            pid=pid,
        )
        for pid in (20, 10)
    ]
    program = record.from_traces(ranks, "910B3")
    assert [card.name for card in program.cards] == ["10:0", "20:0"]  # both processes call their card 0
    assert program.communicators == (Communicator("tp", ("10:0", "20:0"), "aiv"),)
    assert sorted(map(str, program.members)) == ["tp#4", "tp#5"]
    assert (program.op((0, 0)).limit, program.op((0, 1)).sync_all) == ((24, 24), True)


def test_collectives_without_a_communicator_need_its_name_and_are_counted() -> None:
    ranks = [
        trace(act("collective", "hccl::allreduce", device=pid), act("collective", "hccl::barrier", device=pid), pid=pid)
        for pid in (0, 1)
    ]
    with pytest.raises(
        ScheduleError, match="which communicator hccl::allreduce belongs to is not in the trace"
    ) as caught:
        record.from_traces(ranks, "910B3", source="run")
    assert "run: process 0, record 0" in caught.value.looked_at
    program = record.from_traces(ranks, "910B3", communicator="world")
    assert program.communicators == (Communicator("world", ("0", "1")),)
    assert program.members[Collective("world", 1)] == ((0, 1), (1, 1))


def test_a_rank_whose_trace_is_not_there_is_named() -> None:
    lonely = trace(collective("hccl::allreduce", communicator="tp", ranks=3, device=2))
    with pytest.raises(ScheduleError, match="communicator tp lacks the records of 2 of its 3 ranks") as caught:
        record.from_traces([lonely], "910B3", source="run")
    assert "run: process 1, record 0" in caught.value.looked_at


def test_messages_have_no_partner_in_the_record() -> None:
    program = record.from_traces([trace(act("collective", "hccl::send"))], "910B3")
    assert program.op((0, 0)).collective is None


def test_a_trace_that_lost_acts_or_has_none_is_an_error() -> None:
    with pytest.raises(
        ScheduleError, match="the trace of process 3 is cut short: it lost its 12 oldest acts"
    ) as caught:
        record.from_traces([trace(act("operator", "a"), pid=3, lost=12)], "910B3")
    assert "shorter piece" in caught.value.do
    with pytest.raises(ScheduleError, match="trace records nothing on a card"):
        record.from_traces([trace()], "910B3")


ACTS = st.builds(
    act, st.sampled_from(["operator", "event record", "event wait", "allocate", "copy to card"]), st.just("x"),
    st.integers(0, 3), device=st.integers(0, 1), event=st.integers(1, 3), thread=st.sampled_from([5, 6]),
    vector=st.integers(0, 40), assumed=st.booleans(), sync_all=st.booleans(), kind=st.sampled_from(["", "MIX_AIV"]),
    limit=st.sampled_from([None, (24, 40)]),
)  # fmt: skip


@given(st.lists(st.lists(ACTS, min_size=1, max_size=8), min_size=1, max_size=2))
def test_the_chrome_trace_gives_the_same_program_as_the_records(runs: list[list[Record]]) -> None:
    traces = [trace(*acts, pid=pid) for pid, acts in enumerate(runs)]
    data = json.loads(json.dumps(chrome(traces)))
    first, second = record.from_traces(traces, "910B3"), record.from_chrome(data, "910B3")
    assert (second.cards, len(second.streams)) == (first.cards, len(first.streams))
    for one, other in zip(first.streams, second.streams, strict=True):
        assert (one.name, one.card) == (other.name, other.card)
        assert [(op.name, op.cores, len(op.waits), len(op.records)) for op in one.ops] == [
            (op.name, op.cores, len(op.waits), len(op.records)) for op in other.ops
        ]
        assert [(op.assumed, op.sync_all, op.kind, op.limit) for op in one.ops] == [
            (op.assumed, op.sync_all, op.kind, op.limit) for op in other.ops
        ]
    for id, _ in first.ops():
        assert list(first.before(id)) == list(second.before(id))


def on_track(kind: str, **args: Any) -> dict[str, Any]:
    """A trace of one event on a track."""
    return {"traceEvents": [TRACK, {**TRACK, "ph": "X", "cat": kind, "args": args}]}


TRACK = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "npu:0 stream 0"}}


@pytest.mark.parametrize(
    ("data", "what", "where"),
    [
        ([], "t.json is no Chrome trace.", "t.json: traceEvents"),
        ({"traceEvents": [3]}, "t.json is no Chrome trace.", "t.json: traceEvents"),
        ({"traceEvents": [{"ph": "X"}]}, "is not one of the simulator", "t.json: traceEvents[0]"),
        (on_track("operator", **{"cube cores": "?"}), "is not one of the simulator", "t.json: traceEvents[1]"),
        (on_track("event wait"), "which event waits mean is not in the trace", "t.json: traceEvents[1]"),
    ],
)  # fmt: skip
def test_what_is_no_trace_of_the_simulator(data: Any, what: str, where: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        record.from_chrome(data, "910B3", source="t.json")
    assert what in caught.value.what
    assert where in caught.value.looked_at


REAL = """
    import toprope.sim
    toprope.sim.install("910B3")
    import torch
    side = torch.npu.Stream()
    x = torch.ones(64, 64, device="npu")
    with toprope.sim.trace() as recorded:
        y = x @ x
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            z = y.relu()
        torch.npu.current_stream().wait_stream(side)
        z.add_(1)
    recorded.save({path!r})
    from toprope.cores import record
    for program in (record.from_traces([recorded.trace], "910B3"), record.read({path!r}, chip="910B3")):
        seen.append([[op.name, [program.op(each).name for each in program.before(id)]] for id, op in program.ops()])
    tell(*seen)
"""


@pytest.mark.slow
def test_a_real_trace_has_the_order_of_the_program(tmp_path: Path) -> None:
    code = "seen = []\n" + textwrap.dedent(REAL).format(path=str(tmp_path / "t.json"))
    for program in told(code, by=run_anew):
        found = dict(program)
        assert found["aten::relu"] == ["aten::mm"]
        assert sorted(found["aten::add_"] if "aten::add_" in found else found["aten::add"]) == [
            "aten::mm",
            "aten::relu",
        ]
