"""Cases of the C++ core: its allocator against the vendor's rules.

Each case is a process, python FILE CASE LIBRARY, which tests/sim/simulated/test_core.py starts.
"""

import ctypes
import os
import random
import sys

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from core_library import MIB, OUT_OF_MEMORY, TASK, Core, Pattern, VendorHeap, block_size, run_case, soak
from core_settings import LARGE, MIDDLE, SETTINGS, SMALL

LIBRARY = sys.argv[2]


def _against_the_rules(sizes):
    core = Core(LIBRARY, cards=2)

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            core.reset_totals(0)
            self.heap = VendorHeap(64 * MIB)
            self.live = []

        @rule(size=sizes, stream=st.integers(0, 2))
        def allocate(self, size, stream):
            address = core.allocate(size, stream)
            if address is not None:
                assert core.device_of(address) == 0
                pattern = Pattern(address, size, len(self.live))
                pattern.write()
                self.live.append([address, pattern, None])
            block = self.heap.allocate(size, stream, address)
            if address is not None:
                self.live[-1][2] = block

        @precondition(lambda self: self.live)
        @rule(data=st.data())
        def release(self, data):
            address, pattern, block = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            pattern.check()
            core.release(address)
            self.heap.release(block)

        @precondition(lambda self: self.live)
        @rule(count=st.integers(2, 10))
        def release_many(self, count):
            for _ in range(min(count, len(self.live))):
                address, pattern, block = self.live.pop(0)
                pattern.check()
                core.release(address)
                self.heap.release(block)

        @rule()
        def empty_cache(self):
            core.empty_cache(0)
            self.heap.empty_cache()

        @invariant()
        def figures_are_exact(self):
            stats = core.stats()
            wanted = self.heap.figures()
            assert {name: stats[name] for name in wanted} == wanted
            assert stats["reserved_bytes.all.current"] <= 64 * MIB

        def teardown(self):
            for address, pattern, _ in self.live:
                pattern.check()
                core.release(address)
            core.empty_cache(-1)
            stats = core.stats()
            assert {name: value for name, value in stats.items() if name.endswith("current") and value} == {}
            assert core.stats(1)["reserved_bytes.all.peak"] == 0

    run_state_machine_as_test(Machine, settings=SETTINGS)


def large_blocks():
    _against_the_rules(MIDDLE | LARGE)


def all_blocks():
    _against_the_rules(SMALL | SMALL | MIDDLE | LARGE)


def sizes_of_blocks_and_pieces():
    core = Core(LIBRARY, capacity=200 * MIB)
    for size in (1, 479, 480, 481, 512, 2048, 65_504, 65_505, MIB - 32, MIB - 31, 5 * MIB, 10 * MIB - 544,
                 10 * MIB - 543, 10 * MIB, 20 * MIB - 32, 20 * MIB, 33 * MIB + 7):  # fmt: skip
        address = core.allocate(size)
        stats = core.stats()
        block = -(-(size + 32) // 512) * 512
        assert stats["allocated_bytes.all.current"] in range(block, block + (MIB if block > MIB else 0) + 1), size
        piece = 2 * MIB if block <= MIB else 20 * MIB if block < 10 * MIB else -(-block // (2 * MIB)) * 2 * MIB
        assert stats["reserved_bytes.all.current"] == piece, size
        assert stats["requested_bytes.all.current"] == size
        pool = "small_pool" if block <= MIB else "large_pool"
        assert stats[f"segment.{pool}.current"] == 1
        core.release(address)
        core.empty_cache(0)
        assert core.current("reserved_bytes") == 0


def without_padding():
    core = Core(LIBRARY, padding=0)
    for size, block in ((1, 512), (512, 512), (513, 1024), (MIB, MIB)):
        address = core.allocate(size)
        assert core.current("allocated_bytes") == block
        core.release(address)


def nothing_is_no_block():
    core = Core(LIBRARY)
    assert core.status_of_allocation(0) == (0, None)
    core.release(None)
    assert core.stats()["allocation.all.allocated"] == 0


def what_is_not_there():
    core = Core(LIBRARY, cards=2)
    for card in (-1, 2, 99, 2**31 - 1):
        assert core.status_of_allocation(10, 0, card) == (107001, None)
        assert core.set_device(card) == 107001
        assert core.physical_id(card) == -1
        assert core.launch(card, 0, TASK(lambda _: 0), None) == 107001
        assert not any(core.stats(card).values())
        core.empty_cache(card) if card >= 0 else None
        core.reset_peaks(card)
        core.set_fraction(card, 0.5)
        assert core.fraction(card) == 0.0
    for size in (65 * MIB, 2**40, 2**63, 2**64 - 1):
        assert core.status_of_allocation(size) == (OUT_OF_MEMORY, None), size
    for address in (None, 1, id(core), 2**47, 2**64 - 1):
        assert core.device_of(address) == -1
        core.release(address)
        core.used_by_stream(address, 1)
    assert core.configure(1, MIB, 0, 1) == 107000
    address = core.allocate(100)
    for _ in range(3):
        core.release(address)  # a second release of the same block is not one
    stats = core.stats()
    assert (stats["allocation.all.current"], stats["allocation.all.freed"]) == (0, 1)


def configurations_that_make_no_sense():
    core = Core(LIBRARY, cards=0)
    for cards, capacity in ((0, MIB), (-1, MIB), (17, MIB), (1, 0)):
        assert core.configure(cards, capacity, 32, 10) == 107000, (cards, capacity)
    assert core.configure(1, MIB, 32, 10) == 0


def sixteen_cards_of_the_largest_size():
    core = Core(LIBRARY, cards=16, capacity=128 * 1024 * MIB)
    assert core.device_count() == 16
    addresses = [core.allocate(100 * 1024 * MIB, 0, card) for card in range(16)]
    assert [core.device_of(address) for address in addresses] == list(range(16))
    assert [core.device_of(address + 100 * 1024 * MIB - 1) for address in addresses] == list(range(16))
    assert core.allocate(100 * 1024 * MIB, 0, 3) is None
    for address in addresses:
        Pattern(address, 100 * 1024 * MIB, 1).write()
        core.release(address)


def retries_and_failures_are_counted():
    core = Core(LIBRARY)
    first, second = core.allocate(30 * MIB), core.allocate(30 * MIB)
    core.release(first)
    assert (core.stats()["num_alloc_retries"], core.stats()["num_ooms"]) == (0, 0)
    third = core.allocate(34 * MIB - 32)  # fits once the cached 30 MiB are given back: 62 + 34 > 64 >= 30 + 34
    assert third is None or core.current("reserved_bytes") <= 64 * MIB
    stats = core.stats()
    assert stats["num_alloc_retries"] == 1
    assert stats["num_ooms"] == (third is None)
    assert stats["reserved_bytes.all.current"] == 32 * MIB + (34 * MIB if third else 0)
    if third:
        core.release(third)
    core.release(second)
    before = core.stats()
    assert core.allocate(64 * MIB) is None  # 64 MiB and the padding are more than 64 MiB
    after = core.stats()
    assert (after["num_alloc_retries"], after["num_ooms"]) == (before["num_alloc_retries"] + 1, before["num_ooms"] + 1)
    whole = core.allocate(64 * MIB - 32)
    assert core.current("reserved_bytes") == core.current("allocated_bytes") == 64 * MIB
    core.release(whole)
    core.reset_totals(0)
    stats = core.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["allocation.all.allocated"]) == (0, 0, 0)


def peaks():
    core = Core(LIBRARY)
    addresses = [core.allocate(3 * MIB) for _ in range(4)]
    size = block_size(3 * MIB)
    for address in addresses[1:]:
        core.release(address)
    assert core.stats()["allocated_bytes.all.peak"] == 4 * size
    assert core.current("allocated_bytes") == size
    core.reset_peaks(0)
    stats = core.stats()
    for group in ("allocation", "allocated_bytes", "reserved_bytes", "active_bytes", "segment", "requested_bytes"):
        assert stats[f"{group}.all.peak"] == stats[f"{group}.all.current"]
    assert stats["allocated_bytes.large_pool.peak"] == size
    assert stats["allocated_bytes.all.allocated"] == 4 * size
    assert stats["allocated_bytes.all.freed"] == 3 * size


def a_part_of_the_card():
    core = Core(LIBRARY, cards=2)
    assert core.fraction(0) == 1.0
    core.set_fraction(0, 0.5)
    assert core.fraction(0) == 0.5
    assert core.allocate(32 * MIB) is None
    half = core.allocate(32 * MIB - 32)
    assert half is not None
    assert core.allocate(1) is None
    assert core.allocate(60 * MIB, 0, 1) is not None
    core.release(half)
    core.set_fraction(0, 1.0)
    assert core.allocate(60 * MIB) is not None


def memory_is_the_same_after_a_failure():
    core = Core(LIBRARY)
    kept = core.allocate(MIB // 2)
    cached = core.allocate(3 * MIB)
    core.release(cached)
    before = core.stats()
    assert core.allocate(63 * MIB) is None
    after = core.stats()
    changed = {name for name in before if before[name] != after[name]}
    for name in changed:
        assert name.startswith(("num_", "reserved_bytes", "segment")), name
    assert after["reserved_bytes.all.current"] == 2 * MIB  # what was cached went back to the card
    core.release(kept)


def free_memory_between_pieces_is_still_free():
    """Pieces come and go in many sizes: addresses may not run out while the card has memory."""
    core = Core(LIBRARY)
    for seed in range(300 if soak() else 20):
        chance = random.Random(seed)
        live = []  # (address, MiB)
        for _ in range(200):
            size = 2 * chance.randint(5, 20 if chance.random() < 0.5 else 30)
            if chance.random() < 0.6:
                address = core.allocate(size * MIB - 32)
                taken = sum(other for _, other in live)
                assert (address is not None) == (taken + size <= 64), (taken, size)
                if address is not None:
                    live.append((address, size))
            elif live:
                address, _ = live.pop(chance.randrange(len(live)))
                core.release(address)
                core.empty_cache(0)
        for address, _ in live:
            core.release(address)
        core.empty_cache(0)


def freed_memory_goes_back_to_the_host():
    core = Core(LIBRARY, capacity=1024 * MIB)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    address = core.allocate(100 * MIB)
    ctypes.memset(address, 7, 100 * MIB)
    assert resident() - before > 90 * MIB
    core.release(address)
    assert resident() - before > 90 * MIB  # kept for reuse
    core.empty_cache(0)
    assert resident() - before < 10 * MIB
    address = core.allocate(100 * MIB)
    assert ctypes.string_at(address, 64) == bytes(64)


def a_host_without_memory():
    import resource

    core = Core(LIBRARY)
    core.release(core.allocate(100))
    used = 0
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmData:"):
                used = int(line.split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + 8 * MIB, used + 8 * MIB))
    status, address = core.status_of_allocation(40 * MIB)
    resource.setrlimit(resource.RLIMIT_DATA, (used + 8 * MIB, used + 8 * MIB))
    if status == 0:  # this system does not hold a process to that limit
        ctypes.memset(address, 1, 40 * MIB)
    else:
        assert status == OUT_OF_MEMORY
        assert core.stats()["num_ooms"] == 1


if __name__ == "__main__":
    run_case(globals())
