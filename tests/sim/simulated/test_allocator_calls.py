"""Memory that other libraries take from the allocator, and the allocator's figures as a table.

Holds sim/npu/memory.py and memory_table.py against torch_npu's errors and table. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import pytest
import torch

from queued import Gate

SIM = "910B3x2,hbm=64MiB"
MIB = 2**20
npu = torch.npu


@pytest.fixture(autouse=True)
def empty_cards():
    npu.empty_cache()
    yield
    for card in range(2):
        npu.synchronize(card)
        assert npu.memory_allocated(card) == 0
    npu.empty_cache()


@pytest.mark.parametrize("device", [None, 1, "npu:1", torch.device("npu", 1)])
def test_memory_is_taken_and_given_back(device) -> None:
    card = 0 if device is None else 1
    address = npu.caching_allocator_alloc(3 * MIB, device)
    assert address % 512 == 0
    assert npu.memory_allocated(card) >= 3 * MIB
    assert npu.memory_allocated(1 - card) == 0
    npu.caching_allocator_delete(address)
    assert npu.memory_allocated(card) == 0
    assert npu.current_device() == 0


def test_the_stream_that_will_use_it() -> None:
    stream = npu.Stream(1)
    for given in (stream, stream.npu_stream):
        address = npu.caching_allocator_alloc(1000, 1, given)
        npu.caching_allocator_delete(address)
        with npu.stream(stream):  # the stream's own free blocks are its next
            again = torch.empty(1000, dtype=torch.uint8, device="npu:1")
        assert again.data_ptr() == address
        del again
    elsewhere = npu.caching_allocator_alloc(1000, 1)
    assert elsewhere != address
    npu.caching_allocator_delete(elsewhere)
    assert npu.current_stream(1) == npu.default_stream(1)


def test_what_is_no_stream() -> None:
    with pytest.raises(TypeError, match=r"^Invalid type for stream argument, must be(.|\n)*ERR00002 PTA invalid type$"):
        npu.caching_allocator_alloc(10, 0, "npu")
    with pytest.raises(RuntimeError, match="107003"):
        npu.caching_allocator_alloc(10, 0, 4096)
    with pytest.raises(RuntimeError, match="107001"):
        npu.caching_allocator_alloc(10, 2)


def test_no_bytes() -> None:
    assert npu.caching_allocator_alloc(0) == 0
    assert npu.caching_allocator_delete(0) is None


def test_an_address_that_was_not_given_out() -> None:
    tensor = torch.empty(10, device="npu")
    address = npu.caching_allocator_alloc(10)
    npu.caching_allocator_delete(address)
    for wrong in (tensor.data_ptr(), address, 12345):
        with pytest.raises(RuntimeError, match=f"^invalid device pointer: {wrong:#x}$"):
            npu.caching_allocator_delete(wrong)
    assert tensor.fill_(1).sum().item() == 10


def test_more_than_there_is() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 66\.00 MiB \(NPU 1; 64\.00 MiB"):
        npu.caching_allocator_alloc(65 * MIB, 1)


def test_the_allocators_name_and_what_it_need_not_do() -> None:
    assert npu.get_allocator_backend() == "native"
    before = npu.memory_reserved()
    assert npu.empty_virt_addr_cache() is npu.host_empty_cache() is None
    assert npu.memory_reserved() == before


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows by name, the first of each name."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [" ".join(cell.split()) for cell in line.strip("|").split("|")]
        found.setdefault(cells[0], cells[1:])
    return found


def test_the_table_of_memory() -> None:
    npu.reset_peak_memory_stats()
    npu.reset_accumulated_memory_stats()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(100 * MIB, dtype=torch.uint8, device="npu")
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    torch.empty(1000, dtype=torch.uint8, device="npu")
    text = npu.memory_summary()
    found = rows(text)
    assert found["Allocated memory"] == ["3072 KB", "3074 KB", "3074 KB", "1536 B"]
    assert found["Allocations"][:2] == ["1", "2"]
    assert found["NPU reserved memory"][0] == "22528 KB"
    assert found["NPU reserved segments"][:2] == ["2", "2"]
    assert "NPU OOMs: 1 " in text
    assert len({len(line) for line in text.splitlines()}) == 1
    assert len(npu.memory_summary(abbreviated=True).splitlines()) < len(text.splitlines())
    assert "device ID 1 " in npu.memory_summary("npu:1")
    del kept


@pytest.mark.parametrize(
    "query",
    [
        npu.memory_stats, npu.memory_allocated, npu.max_memory_allocated, npu.memory_reserved, npu.max_memory_reserved,
        npu.reset_peak_memory_stats, npu.reset_accumulated_memory_stats,
        npu.memory_summary,
    ],
    ids=lambda query: query.__name__,
)  # fmt: skip
def test_figures_of_a_card_that_is_not_there_raise_what_torch_npus_allocator_raises(query) -> None:
    """They raised an AssertionError about a device id, as queries of devices do."""
    torch.ones(1, device="npu")
    with pytest.raises(RuntimeError, match=r"^Invalid device argument 7: did you call init\?"):
        query("npu:7")


def test_former_names_say_so() -> None:
    for name, now in (
        ("memory_cached", "memory_reserved"),
        ("max_memory_cached", "max_memory_reserved"),
        ("reset_max_memory_allocated", "reset_peak_memory_stats"),
        ("reset_max_memory_cached", "reset_peak_memory_stats"),
    ):
        with pytest.warns(DeprecationWarning, match=f"{name} has become torch_npu.npu.{now}"):
            getattr(npu, name)()


def test_figures_of_torch_npu_beside_torchs() -> None:
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    stats = npu.memory_stats()
    assert stats["num_device_alloc"] - stats["num_device_free"] == stats["segment.all.current"] == 1
    assert stats["num_sync_all_streams"] == stats["num_oom_rejections"] == 0
    with Gate():
        assert npu.memory_stats()["segment.all.current"] == 1  # asking does not wait for the card
    del tensor


def test_there_are_no_figures_before_the_card_is_used() -> None:
    from children import facts

    assert facts("import json, torch; n = torch.npu; print(json.dumps([n.memory_stats(), n.memory_allocated()]))") == [
        {}, 0,
    ]  # fmt: skip
