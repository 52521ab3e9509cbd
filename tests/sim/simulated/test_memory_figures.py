"""Memory of the card: what tensors take, what is kept, the figures that torch.npu and torch.accelerator show.

Holds sim/npu/memory.py and csrc/core/memory.h against sizes by torch_npu's allocator rules. tests/sim/test_simulated.py
runs this module in a process with simulated cards.
"""

import gc
import threading
import warnings

import pytest
import torch

from card_memory import empty, left_over, start_afresh
from core_library import FIGURES, GROUPS, MIB, POOLS, block_size

KIB = 1024


@pytest.fixture(autouse=True)
def nothing_left():
    """Each test begins and ends with cards that hold nothing at all."""
    start_afresh()
    yield
    assert not any(left_over())


def test_the_sequence_measured_on_an_atlas_a2():
    # Measured on a card with torch-npu 2.8: sizes, where the blocks lie in their piece, what is reserved.
    kib = [512, 512, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2]
    offsets = [0, 524800, 1049600, 1051136, 1053696, 1058304, 1067008, 1083904, 1117184, 1183232, 1314816]
    tensors, reserved = [], []
    for size in kib:
        tensors.append(empty(size * KIB, "npu:3"))
        reserved.append(torch.npu.memory_reserved(3))
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert [address - addresses[0] for address in addresses[:11]] == offsets
    assert addresses[12] - addresses[0] == 1577472
    assert addresses[11] % (2 * MIB) == 0
    assert not addresses[0] <= addresses[11] < addresses[0] + 2 * MIB
    assert reserved == [2 * MIB] * 11 + [4 * MIB] * 2
    assert torch.npu.memory_allocated(3) == 2_104_832
    assert torch.npu.memory_reserved(0) == 0


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (480, 512, 2 * MIB),
        (481, 1024, 2 * MIB),
        (MIB - 32, MIB, 2 * MIB),
        (MIB - 31, MIB + 512, 20 * MIB),
        (10 * MIB - 544, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 32, 10 * MIB, 10 * MIB),
        (10 * MIB, 10 * MIB + 512, 12 * MIB),
        (33 * MIB, 33 * MIB + 512, 34 * MIB),
    ],
)
def test_sizes(size: int, allocated: int, reserved: int):
    tensor = empty(size)
    # What is left of a large piece is cut off only if it is more than 1 MiB.
    rest = reserved - allocated
    assert torch.npu.memory_allocated() == (reserved if size > MIB - 32 and rest <= MIB else allocated)
    assert torch.npu.memory_reserved() == reserved
    assert torch.npu.memory_stats()["requested_bytes.all.current"] == size
    del tensor


def test_an_empty_tensor_takes_nothing():
    tensors = [torch.empty(0, device="npu"), torch.empty(3, 0, 5, device="npu"), torch.zeros(0, device="npu") + 1]
    assert torch.npu.memory_allocated() == 0
    assert [tensor.data_ptr() for tensor in tensors] == [0, 0, 0]


def test_figures_of_memory_stats():
    tensors = [empty(size) for size in (100, 5 * MIB, 30 * MIB)]
    del tensors[1]
    stats = torch.npu.memory_stats()
    wanted = {f"{group}.{pool}.{figure}" for group in GROUPS for pool in POOLS for figure in FIGURES}
    wanted |= {f"{group}.{figure}" for group in ("oversize_allocations", "oversize_segments") for figure in FIGURES}
    assert wanted | {"num_alloc_retries", "num_ooms", "max_split_size"} <= set(stats)
    assert list(stats) == sorted(stats)
    assert all(isinstance(value, int) for value in stats.values())
    assert stats["max_split_size"] == -1
    assert (stats["allocation.all.current"], stats["allocation.small_pool.current"]) == (2, 1)
    assert stats["allocated_bytes.large_pool.current"] == block_size(30 * MIB)
    assert stats["segment.all.current"] == 3
    assert stats["reserved_bytes.all.current"] == (2 + 20 + 32) * MIB
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]
    nested = torch.npu.memory_stats_as_nested_dict()
    assert nested["reserved_bytes"]["small_pool"]["current"] == 2 * MIB
    for group in GROUPS:
        for pool in POOLS:
            for figure in FIGURES:
                assert nested[group][pool][figure] == stats[f"{group}.{pool}.{figure}"]
    for pool in ("small_pool", "large_pool"):
        assert stats[f"segment.{pool}.current"] == (1 if pool == "small_pool" else 2)


def test_torch_accelerator_shows_the_same():
    tensors = [empty(size, "npu:1") for size in (1000, 3 * MIB)]
    del tensors[1]
    assert torch.accelerator.memory_allocated(1) == torch.npu.memory_allocated(1) == block_size(1000)
    assert torch.accelerator.memory_reserved(1) == torch.npu.memory_reserved(1) == 22 * MIB
    assert torch.accelerator.max_memory_allocated(1) == torch.npu.max_memory_allocated(1)
    assert torch.accelerator.max_memory_reserved(1) == torch.npu.max_memory_reserved(1)
    ours, theirs = torch.npu.memory_stats(1), torch.accelerator.memory_stats(1)
    assert {name: ours[name] for name in theirs if name in ours} == {n: v for n, v in theirs.items() if n in ours}
    assert {f"{group}.all.current" for group in GROUPS} <= set(theirs)
    assert torch.accelerator.get_memory_info(1) == torch.npu.mem_get_info(1)
    torch.accelerator.reset_peak_memory_stats(1)
    assert torch.npu.max_memory_allocated(1) == block_size(1000)
    torch.accelerator.empty_cache()
    assert torch.npu.memory_reserved(1) == 2 * MIB


def test_each_way_to_name_a_card():
    with torch.npu.device(2):
        tensor = empty(1000)
    size = block_size(1000)
    assert torch.npu.memory_allocated() == 0
    for device in (2, "npu:2", torch.device("npu", 2)):
        assert torch.npu.memory_allocated(device) == size
    with torch.npu.device(2):
        for device in (None, "npu", torch.device("npu")):
            assert torch.npu.memory_allocated(device) == size
    del tensor


def test_free_and_total_memory():
    assert torch.npu.mem_get_info() == (62423 * MIB, 62423 * MIB)
    tensor = empty(5 * MIB, "npu:1")
    assert torch.npu.mem_get_info(1) == (62423 * MIB - 20 * MIB, 62423 * MIB)
    assert torch.npu.mem_get_info(0)[0] == 62423 * MIB
    assert torch.npu.get_device_properties(1).total_memory == 62423 * MIB
    del tensor
    assert torch.npu.mem_get_info(1)[0] == 62423 * MIB - 20 * MIB
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info(1)[0] == 62423 * MIB


def test_peaks():
    first, second = empty(30 * MIB - 32), empty(40 * MIB - 32)
    del first
    assert torch.npu.memory_allocated() == 40 * MIB
    assert torch.npu.max_memory_allocated() == 70 * MIB
    assert torch.npu.max_memory_reserved() == torch.npu.memory_reserved() == 70 * MIB
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == 40 * MIB
    assert torch.npu.max_memory_reserved() == 70 * MIB
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_reserved() == 40 * MIB
    third = empty(20 * MIB - 32)
    assert torch.npu.max_memory_allocated() == 60 * MIB
    del second, third
    assert torch.npu.max_memory_allocated() == 60 * MIB
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # former names
        torch.npu.reset_max_memory_allocated()
        assert torch.npu.max_memory_allocated() == 0
        torch.npu.reset_max_memory_cached()
        assert torch.npu.memory_cached() == torch.npu.memory_reserved()
        assert torch.npu.max_memory_cached() == torch.npu.max_memory_reserved() == torch.npu.memory_reserved()


def test_totals():
    torch.npu.reset_accumulated_memory_stats()
    for _ in range(3):
        empty(1000)
    stats = torch.npu.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 3
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 3 * block_size(1000)
    torch.npu.reset_accumulated_memory_stats()
    stats = torch.npu.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocated_bytes.all.freed"] == 0


def test_freed_memory_is_used_again():
    for size in (100, 100_000, 3 * MIB, 30 * MIB):
        tensor = empty(size)
        address, reserved = tensor.data_ptr(), torch.npu.memory_reserved()
        del tensor
        tensor = empty(size)
        assert (tensor.data_ptr(), torch.npu.memory_reserved()) == (address, reserved)
        del tensor


def test_views_share_and_keep_their_memory():
    tensor = empty(3 * MIB)
    view = tensor[10:20]
    assert torch.npu.memory_allocated() == block_size(3 * MIB)
    assert view.data_ptr() == tensor.data_ptr() + 10
    del tensor
    assert torch.npu.memory_allocated() == block_size(3 * MIB)
    host = torch.ops.toprope_sim.host_view(view)
    del view
    assert torch.npu.memory_allocated() == block_size(3 * MIB)
    del host
    assert torch.npu.memory_allocated() == 0


def test_host_tensors_take_nothing_on_the_card():
    host = [torch.randn(1000), torch.randn(1000).pin_memory(), torch.empty(10, pin_memory=True)]
    assert sum(float((tensor @ tensor).sum()) for tensor in host[:2]) > 0
    tensor = torch.ones(1000, device="npu")
    back = tensor.cpu() + 1
    assert torch.npu.memory_allocated() == block_size(4000)
    del tensor
    assert torch.npu.memory_allocated() == 0
    assert back.sum() == 2000


def test_storages_that_grow_and_shrink():
    tensor = torch.ones(1000, device="npu")
    tensor.untyped_storage().resize_(0)
    assert torch.npu.memory_allocated() == 0
    tensor.untyped_storage().resize_(4000)
    assert torch.npu.memory_allocated() == block_size(4000)
    tensor.fill_(2)
    tensor.resize_(2000)
    assert torch.npu.memory_allocated() == block_size(8000)
    assert tensor[:1000].eq(2).all()
    tensor.resize_(10)
    assert torch.npu.memory_allocated() == block_size(8000)
    tensor.set_()
    assert torch.npu.memory_allocated() == 0
    result = torch.empty(0, device="npu")
    torch.add(torch.ones(50, device="npu"), 1, out=result)
    assert result.eq(2).all()
    del result
    moved = torch.ones(100, device="npu:1")
    moved.data = torch.ones(5, device="npu:1")
    assert torch.npu.memory_allocated(1) == block_size(20)


def test_results_take_what_their_size_asks_for_and_nothing_else():
    a, b = torch.ones(500, 1000, device="npu"), torch.ones(1000, 700, device="npu")
    made = {
        "sum": a.sum(),
        "product": a @ b,
        "comparison": a > 0,
        "sorted": a.sort(dim=1),
        "where": a.nonzero(),
        "copy": a.clone(),
        "half": a.half(),
        "moved": torch.ones(10).npu(),
        "filled": torch.full((100,), 3, device="npu"),
        "numbers": torch.arange(1000, device="npu"),
    }
    wanted = block_size(a.nbytes) + block_size(b.nbytes)
    for result in made.values():
        for tensor in result if isinstance(result, tuple) else (result,):
            wanted += block_size(tensor.numel() * tensor.element_size())
    gc.collect()
    # Large blocks may carry up to 1 MiB that was not worth cutting off: compare what was asked for, too.
    requested = torch.npu.memory_stats()["requested_bytes.all.current"]
    tensors = [a, b]
    for result in made.values():
        tensors += result if isinstance(result, tuple) else (result,)
    assert requested == sum(tensor.nbytes for tensor in tensors)
    assert 0 <= torch.npu.memory_allocated() - wanted <= len(tensors) * MIB


def test_what_a_kernel_needs_meanwhile_counts_in_the_peak():
    x = torch.rand(1000, 1000, device="npu")
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    values, places = x.kthvalue(3, dim=1)  # works on a copy of the values and as many places
    after = torch.npu.memory_allocated()
    assert after - before == block_size(values.nbytes) + block_size(places.nbytes)
    assert torch.npu.max_memory_allocated() >= after + 4 * 10**6 + 8 * 10**6


def test_memory_freed_by_another_thread():
    tensors = [empty(3 * MIB)]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert torch.npu.memory_allocated() == 0


def test_an_exception_keeps_nothing():
    a = torch.ones(100, 100, device="npu")
    before = torch.npu.memory_allocated()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            a @ torch.ones(99, 3, device="npu")
        with pytest.raises(RuntimeError):
            torch.linalg.cholesky(-a @ a)
        with pytest.raises(IndexError):
            torch.cat([a, a], dim=5)
    gc.collect()
    assert torch.npu.memory_allocated() == before


def test_cards_that_are_not_there():
    queries = [torch.npu.memory_allocated, torch.npu.memory_reserved, torch.npu.max_memory_allocated,
               torch.npu.memory_stats, torch.npu.reset_peak_memory_stats, torch.npu.reset_accumulated_memory_stats,
               torch.npu.get_per_process_memory_fraction]  # fmt: skip
    for query in queries:
        with pytest.raises((AssertionError, RuntimeError), match=r"Invalid device|107001"):
            query(99)
    with pytest.raises((AssertionError, RuntimeError), match=r"Invalid device|107001"):
        torch.npu.set_per_process_memory_fraction(0.5, 99)
    for query in (torch.npu.memory_allocated, torch.npu.mem_get_info):
        with pytest.raises(ValueError, match="npu"):
            query("cpu")


def test_a_70_gb_tensor_does_not_fit_on_a_64_gb_card():
    kept = torch.ones(1000, device="npu")
    before = torch.npu.memory_stats()
    for make in (
        lambda: torch.empty(70 * 10**9, dtype=torch.int8, device="npu"),
        lambda: torch.zeros(7 * 10**9, 10, dtype=torch.int8, device="npu"),
        lambda: kept.expand(17_500_000, 1000).contiguous(),
        lambda: kept.repeat(17_500_000),
    ):
        with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate 65\.19 GiB") as caught:
            make()
        assert "60.96 GiB total capacity" in str(caught.value)
        assert "(NPU 0;" in str(caught.value)
    after = torch.npu.memory_stats()
    assert after["num_ooms"] == before["num_ooms"] + 4
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert kept.sum() == 1000
    free, total = torch.npu.mem_get_info()
    assert total - free == torch.npu.memory_reserved() == 2 * MIB


def test_programs_got_64_gib_of_a_card_that_gives_61():
    """What the driver keeps is not the program's: out-of-memory errors of real ones say 60.96 GiB."""
    kept = torch.empty(60 * 2**30, dtype=torch.int8, device="npu")
    del kept
    torch.npu.empty_cache()
    with pytest.raises(torch.OutOfMemoryError, match=r"allocate 61\.20 GiB \(NPU 0; 60\.96 GiB total capacity"):
        torch.empty(int(61.2 * 2**30), dtype=torch.int8, device="npu")


def test_64_gb_cards_cost_only_what_is_touched():
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1])
    tensors = [empty(60 * KIB * MIB, f"npu:{card}") for card in range(4)]
    for card, tensor in enumerate(tensors):
        tensor[-1] = card
        tensor[0] = card
    assert [int(tensor[-1]) for tensor in tensors] == [0, 1, 2, 3]
    with open("/proc/self/statm") as file:
        assert int(file.read().split()[1]) - before < 20 * MIB // 4096 * 2
    del tensors, tensor
