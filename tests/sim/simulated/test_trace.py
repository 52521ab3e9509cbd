"""The trace of a program's acts on the cards, from inside the process.

Holds sim/tracing and csrc/core/trace.h against acts known from the program. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import json
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch

import toprope.sim
from children import facts
from toprope.errors import SimulatorError
from toprope.sim import Record

SIM = "910B3x2,hbm=64MiB"


def operators(recorded) -> list[str]:
    return [record.name for record in recorded.trace.operators()]


def test_operators_have_names_dtypes_places_and_times() -> None:
    x = torch.ones(64, 64, device="npu:1", dtype=torch.float16)
    with toprope.sim.trace() as recorded:
        x @ x
        x.neg_()
    first, second = recorded.trace.operators()
    assert (first.name, second.name) == ("aten::mm", "aten::neg_")
    for record in (first, second):
        assert isinstance(record, Record)
        assert (record.dtype, record.device, record.stream) == ("float16", 1, 0)
        assert record.thread == threading.get_native_id()
        assert record.begin_ns <= record.end_ns
    assert first.end_ns <= second.begin_ns
    assert recorded.trace.began_ns <= first.begin_ns


@pytest.mark.parametrize(
    "name",
    [
        "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128", "bool",
        "bfloat16",
    ],
)  # fmt: skip
def test_each_dtype_has_its_own_name(name: str) -> None:
    x = torch.empty(2, dtype=getattr(torch, name), device="npu")
    with toprope.sim.trace() as recorded:
        x.zero_()
    assert {record.dtype for record in recorded.trace.operators()} == {name}


def test_copies_have_their_bytes_and_their_way() -> None:
    x = torch.ones(256)
    with toprope.sim.trace() as recorded:
        on_card = x.npu()
        on_card.cpu()
        on_card.to("npu:1")
    copies = [record for record in recorded.records if record.act.startswith("copy")]
    assert [(record.act, record.bytes) for record in copies] == [
        ("copy to card", 1024), ("copy from card", 1024), ("copy between cards", 1024),
    ]  # fmt: skip
    assert (copies[2].device, copies[2].other_device) == (1, 0)
    assert {copies[0].other_device, copies[1].other_device} == {-1}


def test_memory_is_taken_and_given_back_at_one_address() -> None:
    torch.npu.empty_cache()
    with toprope.sim.trace() as recorded:
        x = torch.empty(2**18, device="npu")
        address = x.data_ptr()
        del x
    taken, freed = (record for record in recorded.records if record.act in ("allocate", "free"))
    assert (taken.act, freed.act) == ("allocate", "free")
    assert taken.address == freed.address == address
    assert taken.bytes >= 2**20


def test_streams_and_events() -> None:
    side = torch.npu.Stream()
    event = torch.npu.Event()
    x = torch.ones(4, device="npu")
    with toprope.sim.trace() as recorded:
        with torch.npu.stream(side):
            x.add_(1)
            event.record()
        torch.npu.current_stream().wait_event(event)
        x.mul_(2)
        torch.npu.synchronize()
    by_act = {record.act: record for record in recorded.records}
    assert by_act["event record"].stream == side.stream_id
    assert by_act["event wait"].stream == 0
    assert by_act["event record"].address == by_act["event wait"].address != 0
    assert [record.stream for record in recorded.trace.operators()] == [side.stream_id, 0]
    assert "synchronise" in by_act


def test_the_host_waits_and_the_trace_says_so() -> None:
    x = torch.ones(4, device="npu")
    with toprope.sim.trace() as recorded:
        x.sum().item()
        torch.npu.current_stream().synchronize()
    assert [record.act for record in recorded.records if record.act in ("copy from card", "synchronise")] == [
        "copy from card", "synchronise",
    ]  # fmt: skip


def test_operators_are_counted_the_same_way_as_by_the_counters() -> None:
    code = """
        import collections, json, torch, toprope.sim
        from toprope.sim.metrics import counters
        from toprope.sim.native import native
        import ctypes
        def counts():
            return counters.parse(ctypes.string_at(native().counters(), counters.SIZE)).operators
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).npu()
        optimizer = torch.optim.AdamW(model.parameters())
        before = collections.Counter(counts())
        with toprope.sim.trace() as recorded:
            model(torch.randn(4, 8, device="npu")).mean().backward()
            optimizer.step()
        after = collections.Counter(counts())
        traced = collections.Counter(record.name for record in recorded.trace.operators())
        print(json.dumps([dict(after - before), dict(traced)]))
    """
    counted, traced = facts(code)
    assert counted == traced
    assert sum(counted.values()) > 10


def test_a_full_ring_keeps_the_newest_and_counts_the_others() -> None:
    x = torch.ones(4, device="npu")
    with toprope.sim.trace(capacity=8) as recorded:
        for _ in range(50):
            x.neg_()
        x.abs_()
    assert operators(recorded) == ["aten::neg_"] * 7 + ["aten::abs_"]
    assert recorded.lost == 51 - 8


def test_threads_write_into_one_trace() -> None:
    def work() -> None:
        x = torch.ones(4, device="npu")
        for _ in range(20):
            x.add_(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with toprope.sim.trace() as recorded:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counted = Counter(record.thread for record in recorded.trace.operators() if record.name == "aten::add_")
    assert len(counted) == 4
    assert set(counted.values()) == {20}


def test_what_lies_outside_the_block_is_not_in_it() -> None:
    x = torch.ones(4, device="npu")
    with toprope.sim.trace() as recorded:
        x.add_(1)
    x.mul_(2)
    with toprope.sim.trace() as again:
        x.sub_(1)
    assert operators(recorded) == ["aten::add_"]
    assert operators(again) == ["aten::sub_"]


def test_a_block_that_fails_has_a_trace_too() -> None:
    x, y = torch.ones(4, device="npu"), torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match="size of tensor"), toprope.sim.trace() as recorded:
        x.neg_().add_(y)
    assert operators(recorded)[0] == "aten::neg_"


def test_one_trace_at_a_time_and_nothing_is_read_before_its_end() -> None:
    with toprope.sim.trace() as recorded:
        with pytest.raises(SimulatorError, match="the trace is still being written"):
            recorded.records  # noqa: B018
        with pytest.raises(SimulatorError, match="a trace is already being written"), toprope.sim.trace():
            pass
        torch.ones(1, device="npu")
    assert "aten::fill_" in operators(recorded)


def test_it_is_saved_for_perfetto(tmp_path: Path) -> None:
    with toprope.sim.trace() as recorded:
        torch.ones(4, device="npu").add(1).cpu()
    recorded.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [event for event in events if event["ph"] != "M"]
    assert len(shown) == len(recorded.records)
    assert "aten::add" in {event["name"] for event in shown}


def test_tracing_changes_no_result() -> None:
    def step() -> list[float]:
        torch.manual_seed(3)
        x = torch.randn(16, 16, device="npu", requires_grad=True)
        (x.softmax(-1) @ x).square().mean().backward()
        return x.grad.flatten().tolist()

    plain = step()
    with toprope.sim.trace():
        traced = step()
    assert plain == traced
