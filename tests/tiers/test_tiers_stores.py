"""Stores in memory and in a file (`tiers.store`): the same bytes for any tensor, budgets, and errors at the next call.

The same tests run on every store of `store.base`.
"""

import gc
import mmap
import os
import random
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toprope.errors import TierCapacityError, TierChangedError, TierError, TierReadError, TierWriteError
from toprope.tiers.store import disk_file as disk_module
from toprope.tiers.store.base import Stacked, Store
from toprope.tiers.store.chunks import deliver
from toprope.tiers.store.disk_file import Buffer, DiskFile
from toprope.tiers.store.free_list import Extents
from toprope.tiers.store.host import HostStore
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.spill import SpillStore
from toprope.tiers.store.transfer import Load, Transfers

MIB = 2**20
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64, torch.int64]


@pytest.fixture
def transfers():
    made = Transfers()
    yield made
    made.close()


@pytest.fixture(params=["host", "disk", "stacked"])
def store(request, transfers, tmp_path):
    host, spill = HostStore(32 * MIB, transfers), SpillStore(tmp_path, 64 * MIB, transfers)
    made = {"host": host, "disk": spill, "stacked": Stacked([HostStore(2 * MIB, transfers), spill])}[request.param]
    yield made
    made.close()
    spill.close()


def tensors():
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        yield torch.randint(0, 2, (37, 41), generator=generator).to(dtype)
    yield torch.tensor(3.5)
    yield torch.empty(0, 4)
    yield torch.randint(0, 255, (10, 5), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    yield torch.randn(3 * MIB // 4 + 13, generator=generator)


def same(one, other):
    return one.shape == other.shape and torch.equal(Memory.of(one).tensor, Memory.of(other).tensor)


def empty(store):
    """What was dropped is given back when its last write or read has ended."""
    store.flush()
    deadline = time.monotonic() + 10
    while store.used and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.used == 0


def test_any_tensor_comes_back_with_the_same_bytes(store):
    assert isinstance(store, Store)
    kept = {str(number): each for number, each in enumerate(tensors())}
    for key, each in kept.items():
        store.put(key, each)
    for _ in range(2):  # on its way to the file, and from the file
        for key, each in kept.items():
            out = torch.empty_like(each)
            store.read(key, out).wait()
            assert same(out, each), (store.name, each.dtype)
        store.flush()
    changed = torch.randn(1000)
    store.put("0", changed)
    changed_before = changed.clone()
    changed.zero_()
    out = torch.empty(1000)
    store.read("0", out).wait()
    assert torch.equal(out, changed_before)
    for key in kept:
        store.drop(key)
        assert not store.contains(key)
    empty(store)
    with pytest.raises(KeyError):
        store.read("0", out)


def test_no_room_is_a_typed_error_and_what_was_there_stays(store):
    small = torch.arange(1000.0)
    store.put("a", small)
    with pytest.raises(TierCapacityError, match="room for"):
        store.put("a", torch.empty(70 * MIB, dtype=torch.uint8))
    out = torch.empty(1000)
    store.read("a", out).wait()
    assert torch.equal(out, small)


def test_many_threads_mix_what_they_like(store):
    failed = []

    def work(number):
        chosen = random.Random(number)
        mine = {}
        try:
            for _ in range(60):
                key = f"{number}/{chosen.randrange(5)}"
                if key in mine and chosen.random() < 0.6:
                    out = torch.empty_like(mine[key])
                    store.read(key, out).wait()
                    assert torch.equal(out, mine[key])
                elif key in mine and chosen.random() < 0.3:
                    store.drop(key)
                    del mine[key]
                else:
                    mine[key] = torch.full((chosen.randrange(1, 300_000),), chosen.random())
                    store.put(key, mine[key])
            for key in mine:
                store.drop(key)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    empty(store)


def test_a_failed_write_is_told_at_the_next_call_and_its_values_are_not_lost(transfers, tmp_path, monkeypatch):
    store = SpillStore(tmp_path, 64 * MIB, transfers)
    real, fail = os.pwritev, OSError(5, "Input/output error")

    def broken(descriptor, buffers, offset):
        raise fail

    monkeypatch.setattr("toprope.tiers.store.chunks.os.pwritev", broken)
    values = torch.randn(2 * MIB // 4)
    store.put("a", values)
    deadline = time.monotonic() + 10
    while store._error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    out = torch.empty_like(values)
    with pytest.raises(TierWriteError, match="Input/output error"):
        store.read("a", out)
    store.read("a", out).wait()
    assert torch.equal(out, values)
    monkeypatch.setattr("toprope.tiers.store.chunks.os.pwritev", real)
    store.put("a", values + 1)
    store.flush()
    store.read("a", out).wait()
    assert torch.equal(out, values + 1)
    store.close()
    assert not list(tmp_path.iterdir())


def test_what_the_host_has_to_spare_may_be_on_its_way_to_the_disk(transfers, tmp_path):
    host, held = HostStore(8 * MIB, transfers), threading.Event()
    slow = Transfers(threads=1, disturb=lambda: held.wait(30))
    store = SpillStore(tmp_path, 64 * MIB, slow, staged=MIB, spare=host.spare)

    def put(number):
        store.put(str(number), torch.full((MIB,), number, dtype=torch.uint8))

    for number in range(8):
        put(number)  # none of it waits for the disk, where nothing is written yet
    with pytest.raises(TierCapacityError):
        host.reserve(9 * MIB)
    host.reserve(8 * MIB)
    waits = threading.Thread(target=put, args=(8,))
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    held.set()
    waits.join(60)
    assert sum(each for _, each in store._writing) <= MIB
    store.flush()
    for number in range(9):
        out = torch.empty(MIB, dtype=torch.uint8)
        store.read(str(number), out).wait()
        assert out.unique().tolist() == [number]
    store.close()
    slow.close()


def test_a_full_disk_is_a_typed_error(transfers, tmp_path, monkeypatch):
    store = SpillStore(tmp_path, 2**40, transfers)

    def full(descriptor, offset, length):
        raise OSError(28, "No space left on device")

    store.put("a", torch.arange(10))
    monkeypatch.setattr("toprope.tiers.store.spill.os.posix_fallocate", full)
    with pytest.raises(TierCapacityError, match="the disk is full"):
        store.put("b", torch.empty(200 * MIB, dtype=torch.uint8))
    out = torch.empty(10, dtype=torch.int64)
    store.read("a", out).wait()
    assert torch.equal(out, torch.arange(10))
    store.close()


def test_a_spill_file_whose_free_room_is_in_pieces_is_no_longer_than_its_budget(transfers, tmp_path):
    block = 4096
    store = SpillStore(tmp_path, 8 * block, transfers)
    try:
        for number in range(8):
            store.put(str(number), torch.full((block,), number, dtype=torch.uint8))
        store.flush()
        for number in range(0, 8, 2):
            store.drop(str(number))
        values = torch.arange(4 * block, dtype=torch.int32).to(torch.uint8)
        store.put("large", values)  # four free blocks, no two of them neighbours
        for _ in range(2):
            out = torch.zeros_like(values)
            store.read("large", out).wait()
            assert torch.equal(out, values)
            store.flush()
        assert os.fstat(store.file.descriptor).st_size == store.used == 8 * block
        for number in range(1, 8, 2):
            out = torch.zeros(block, dtype=torch.uint8)
            store.read(str(number), out).wait()
            assert bool((out == number).all())
        store.drop("large")
        assert store.used == 4 * block
    finally:
        store.close()


def test_no_file_can_be_made_where_there_is_no_folder(transfers, tmp_path):
    with pytest.raises(TierWriteError, match="No such file"):
        SpillStore(tmp_path / "nowhere", MIB, transfers)


# Files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(random.Random(0).randbytes(300_000))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return path


def buffer():
    memory = Memory.host(MIB)
    return Buffer(memory.address, memory.nbytes, memory)


def test_any_part_of_a_file_is_read_to_any_address(file):
    opened, aside, whole = DiskFile(file), buffer(), file.read_bytes()
    os.posix_fadvise(opened._plain, 0, 0, os.POSIX_FADV_DONTNEED)
    chosen = random.Random(1)
    target = Memory.host(400_000)
    ways = set()
    for _ in range(200):
        offset = chosen.randrange(len(whole))
        nbytes = chosen.randrange(len(whole) - offset) if chosen.random() < 0.5 else min(700, len(whole) - offset)
        at = chosen.choice([0, 1, 64, offset % 512, offset % 4096 + 4096])
        target.fill(0)
        _, direct = opened.read(offset, nbytes, target.address + at, aside)
        ways.add(direct)
        found = bytes(target.tensor.numpy())
        assert found[at : at + nbytes] == whole[offset : offset + nbytes]
        assert not any(found[:at])
        assert not any(found[at + nbytes :])
        begin, _, _ = opened.read_aside(offset, nbytes, aside)
        assert bytes(aside.view[begin : begin + nbytes]) == whole[offset : offset + nbytes]
    if opened.direct:
        assert True in ways
        file.read_bytes()  # it is in the page cache now
        assert opened.cached(0, len(whole))
        assert opened.read(5, 1000, target.address, aside) == (0, False)
        assert opened.read(0, 100_000, target.address, aside) == (0, False)
        assert opened.cached(0, len(whole)), "what others had put there stays there"
    opened.close()


def test_a_disk_that_takes_memory_from_any_word_on_is_read_into_its_place(file, monkeypatch):
    """What statx says is believed; here the reads themselves are made by way of a buffer."""
    opened, aside, whole = DiskFile(file), buffer(), file.read_bytes()
    if not opened.direct:
        pytest.skip("this file system has no direct reads")
    os.posix_fadvise(opened._plain, 0, 0, os.POSIX_FADV_DONTNEED)
    seen, read = [], os.preadv

    def any_word(descriptor, views, offset):
        seen.append([len(each) for each in views])
        raw = bytearray(sum(len(each) for each in views))
        count = read(opened._plain, [raw], offset)
        for view in views:
            view[: len(raw)] = raw[: len(view)]
            del raw[: len(view)]
        return count

    monkeypatch.setattr(disk_module.os, "preadv", any_word)
    opened.memory_block, block = 4, opened.block
    target = Memory.host(MIB)
    opened.read(block + 200, 20 * block, target.address + 64, aside)
    assert seen == [[block, 19 * block, block]], "one request, and only its ends go through the buffer"
    assert bytes(target.tensor[64 : 64 + 20 * block].numpy()) == whole[block + 200 : 21 * block + 200]


def test_the_system_tells_what_lies_in_the_page_cache(tmp_path):
    path = tmp_path / "half"
    path.write_bytes(bytes(MIB))
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, MIB // 2, MIB // 2, os.POSIX_FADV_DONTNEED)
        parts = [(0, MIB // 2), (0, MIB), (MIB // 2, 1), (5, 100), (MIB // 2 - 10, 20)]
        for offset, nbytes in parts:
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            length = offset + nbytes - start
            before = disk_module._all_in_core(descriptor, start, length, -(-length // mmap.PAGESIZE))
            assert disk_module.all_cached(descriptor, offset, nbytes) == before
        assert disk_module.all_cached(descriptor, 0, MIB // 2)
    finally:
        os.close(descriptor)


def test_a_file_that_changed_is_told(file):
    opened = DiskFile(file)
    opened.check()
    os.utime(file, ns=(1, 1))
    with pytest.raises(TierChangedError, match="its time of change"):
        opened.check()
    opened = DiskFile(file)
    with file.open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(TierChangedError, match="now 300001"):
        opened.check()
    file.unlink()
    with pytest.raises(TierChangedError, match="is gone"):
        opened.check()
    with pytest.raises(TierReadError, match="cannot be read"):
        DiskFile(file)


def test_a_file_cut_short_and_a_disk_with_an_error_are_told(file, monkeypatch):
    opened, target = DiskFile(file), Memory.host(400_000)
    os.truncate(file, 100_000)
    with pytest.raises(TierChangedError, match="now 100000"):
        opened.read(90_000, 50_000, target.address, buffer())

    def broken(descriptor, buffers, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_module.os, "preadv", broken)
    with pytest.raises(TierReadError, match="Input/output error") as caught:
        opened.read(0, 1000, target.address, buffer())
    assert "bytes 0 to 1000" in str(caught.value)


# Parts


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=60))
def test_stretches_never_overlap_and_all_comes_back(actions):
    extents, taken = Extents(4096), []
    for take, number in actions:
        if take or not taken:
            offset, size = extents.take(number), extents.rounded(number)
            assert offset % 4096 == 0
            assert offset + size <= extents.end
            assert all(offset + size <= other or other + extents.rounded(length) <= offset for other, length in taken)
            taken.append((offset, number))
        else:
            extents.give_back(*taken.pop(number % len(taken)))
        assert extents.used == sum(extents.rounded(length) for _, length in taken)
    for each in taken:
        extents.give_back(*each)
    assert extents.used == 0
    assert extents._at == ({0: extents.end} if extents.end else {})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=60))
def test_a_space_of_a_fixed_length_is_used_to_the_last_block(actions):
    """As `SpillFile.take_parts`: what is free always suffices, in as many parts as it takes."""
    extents, limit, taken = Extents(4096), 100_000, []
    for take, number in actions:
        if taken and not take:
            for part in taken.pop(number % len(taken)):
                extents.give_back(*part)
        elif extents.used + extents.rounded(number) <= limit:
            parts, left = [], number
            while left or not parts:
                piece = min(left, extents.together(limit)) if left else 0
                assert piece or not left
                parts.append((extents.take(piece), piece))
                left -= piece
            taken.append(parts)
        assert extents.end <= limit
        assert extents.used == sum(extents.rounded(nbytes) for parts in taken for _, nbytes in parts) <= limit


def test_an_error_waits_in_its_load_and_the_threads_go_on(transfers):
    class Bad:
        def run(self, worker, load):
            raise TierReadError("gone.")

    class Slow:
        def run(self, worker, load):
            time.sleep(0.01)

    load = transfers.begin(Load("x", [Bad(), Slow(), Slow()]))
    with pytest.raises(TierReadError):
        load.wait()
    transfers.begin(Load("y", [Slow()])).wait()
    transfers.close()
    with pytest.raises(TierError, match="closed"):
        transfers.begin(Load("z", [Slow()]))


def test_a_copy_to_a_card_waits_once_for_the_work_that_still_uses_its_target():
    """A card runs streams side by side, which the simulated one does not: there the values are right without it."""
    calls = []
    stream = SimpleNamespace(wait_event=lambda event: calls.append(f"wait for {event}"))
    event = SimpleNamespace(record=lambda stream: calls.append("record"))
    device = SimpleNamespace(as_current=nullcontext, on_stream=lambda stream: nullcontext(), event=lambda: event)
    worker = mock.Mock(device=device, stream=stream)
    load = Load("x", [], after=["a", "b"])
    target = Memory.of(torch.zeros(4, dtype=torch.uint8))
    for value in (1, 2):
        deliver(worker, load, target, torch.full((4,), value, dtype=torch.uint8), stay=False)
    assert calls == ["wait for a", "wait for b", "record", "record"]
    assert (load.events, target.tensor.tolist()) == ([event], [2, 2, 2, 2])


def test_threads_end_with_their_owner():
    made = Transfers()
    threads = made._threads
    del made
    gc.collect()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
