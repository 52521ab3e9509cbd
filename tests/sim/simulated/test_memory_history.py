"""The history of the allocator, its snapshot as torch's memory visualiser reads it, and the summary's layout.

Holds sim/npu/history.py and memory_pieces.py against torch's visualiser, which must read the snapshot.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import pickle
import threading

import pytest
import torch
from torch.cuda import _memory_viz

from toprope.sim.native import native
from toprope.sim.npu import memory_pieces

SIM = "910B3"


@pytest.fixture(autouse=True)
def stopped():
    yield
    torch.npu.memory._record_memory_history(None)


def allocate():
    return torch.ones(1 << 20, device="npu")


def test_events_with_their_places():
    torch.npu.memory._record_memory_history(max_entries=1000)
    x = allocate()
    address = x.data_ptr()
    del x
    kept = allocate()
    found = torch.npu.memory._snapshot()
    events = [event for event in found["device_traces"][0] if event["addr"] == address]
    assert [event["action"] for event in events][:4] == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    alloc = events[1]
    assert alloc["size"] >= 4 << 20
    frame = next(frame for frame in alloc["frames"] if frame["name"] == "allocate")
    assert (frame["filename"], frame["line"]) == (__file__, allocate.__code__.co_firstlineno + 1)
    assert alloc["time_us"] > 1.6e15
    block = next(
        block for segment in found["segments"] for block in segment["blocks"] if block["address"] == kept.data_ptr()
    )
    assert any(frame["name"] == "allocate" for frame in block["frames"])


def test_an_allocation_that_fails_is_an_event():
    torch.npu.memory._record_memory_history()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 45, device="npu", dtype=torch.int8)
    assert torch.npu.memory._snapshot()["device_traces"][0][-1]["action"] == "oom"


def test_the_visualiser_reads_it(tmp_path):
    torch.npu.memory._record_memory_history()
    kept = [allocate() for _ in range(3)]
    del kept[1]
    path = tmp_path / "snapshot.pickle"
    torch.npu.memory._dump_snapshot(str(path))
    found = pickle.loads(path.read_bytes())
    assert "<html>" in _memory_viz.trace_plot(found).lower()
    assert "cudaMalloc" in _memory_viz.trace(found)
    assert _memory_viz.segsum(found)


def test_the_number_of_events_is_bounded_and_stopping_forgets_them():
    torch.npu.memory._record_memory_history(max_entries=5)
    for _ in range(20):
        allocate()
    assert len(torch.npu.memory._snapshot()["device_traces"][0]) == 5
    torch.npu.memory._record_memory_history(None)
    allocate()
    assert torch.npu.memory._snapshot()["device_traces"] == [[]]
    with pytest.raises(RuntimeError, match="expected enabled to be one of"):
        torch.npu.memory._record_memory_history("everything")


def test_threads_that_allocate_and_free_while_it_records():
    torch.npu.memory._record_memory_history(max_entries=200)
    threads = [threading.Thread(target=lambda: [allocate() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        torch.npu.memory._snapshot()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_a_snapshot_holds_what_was_allocated_between_the_questions_for_its_length_and_its_content(monkeypatch):
    kept = [allocate()]
    asked = []

    class Growing:
        def __getattr__(self, name):
            return getattr(native(), name)

        def memory_snapshot(self, device, out, room):
            asked.append(room)
            length = native().memory_snapshot(device, out, room)
            if len(asked) in (1, 2):
                kept.extend(torch.empty(1 << 20, device="npu", dtype=torch.uint8) for _ in range(64))
            return length

    monkeypatch.setattr(memory_pieces, "native", Growing)
    blocks = [block for piece in torch.npu.memory_snapshot() for block in piece["blocks"]]
    assert len(asked) == 4
    assert {tensor.data_ptr() for tensor in kept} <= {block["address"] for block in blocks}


def test_settings_are_checked():
    torch.npu.memory._set_allocator_settings("expandable_segments:False,max_split_size_mb:64")
    with pytest.raises(RuntimeError, match="Unrecognized CachingAllocator option: expandable"):
        torch.npu.memory._set_allocator_settings("expandable:True")


def test_the_summary_has_the_vendors_layout():
    kept = allocate()
    text = torch.npu.memory_summary()
    lines = text.splitlines()
    assert {len(line) for line in lines} == {77}
    assert "PyTorch NPU memory summary, device ID 0" in lines[1]
    row = next(line for line in lines if line.startswith("| Allocated memory"))
    assert [cell.strip() for cell in row.strip("|").split("|")][1].endswith("KB")
    assert "from large pool" in text
    assert "from large pool" not in torch.npu.memory_summary(abbreviated=True)
    del kept
