"""A stack with a level on a disk: it takes no memory, comes back bit for bit, and is never lost.

The numbers in names are those of the assertions on the tier stack (12 to 19) that are tested here; 12, 13 and 17 are in
test_apt_vgpu_stack.py, the rules of 19 in test_tiers_levels.py.
"""

import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from device_stand_ins import told
from toprope.errors import TierCapacityError, TierError, TierReadError, TierWriteError, UsageError
from toprope.tiers import Tier, TierLinear, TierStack
from toprope.tiers.stack import disk as stack_disk
from toprope.tiers.store import chunks
from toprope.tiers.store.disk_file import DiskFile
from toprope.tiers.store.memory import Memory

pytestmark = [pytest.mark.native, pytest.mark.process]

MIB = 2**20
SOAK = bool(os.environ.get("TOPROPE_SOAK"))


@pytest.fixture
def stack_of(tmp_path):
    made = []

    def make(*capacities, folder=tmp_path):
        memory = [Tier.named("cpu", capacity) for capacity in capacities[:-1]]
        made.append(TierStack([*memory, Tier.named("ssd", capacities[-1], 7e9, folder)]))
        return made[-1]

    yield make
    for each in made:
        each.close()


def data(mib, seed=0):
    """Bytes of which no four that belong together are the same in a place or for a seed."""
    return torch.arange(int(mib * MIB) // 4, dtype=torch.int32).add_(seed * 100_003_000).view(torch.uint8)


def used(stack):
    return [level.used for level in stack.stats().levels]


def file_of(folder):
    (found,) = Path(folder).glob("toprope-stack-*")
    return found


def bits(tensor):
    return Memory.of(tensor).tensor


def settled(stack, key):
    """Waits until a prefetched tensor has arrived, without asking for it, as computing beside it would."""
    deadline = time.monotonic() + 20
    while (kept := stack._contents.kept[key]) and isinstance(kept, stack_disk.Arriving) and not kept.load.done:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_13_forty_tensors_on_three_levels_are_all_there(stack_of):
    stack = stack_of(10 * MIB, 12 * MIB, 200 * MIB)
    originals = [data(1, number) for number in range(40)]
    for number, tensor in enumerate(originals):
        stack.put(number, tensor.clone())
    assert used(stack) == [10 * MIB, 12 * MIB, 18 * MIB]
    assert stack.stats().demotions == 30 + 18
    for number, tensor in enumerate(originals):
        assert torch.equal(stack.access(number), tensor)
        assert used(stack)[0] <= 10 * MIB
    assert len(stack) == 40


@pytest.mark.slow
def test_14_what_lies_on_the_disk_is_a_file_and_no_memory(stack_of, tmp_path):
    stack = stack_of(MIB, 300 * MIB)
    assert not list(tmp_path.iterdir())  # the file comes with the first tensor
    stack.put("warm", data(8), level=1)  # threads and buffers are there
    tensor = data(100)
    watched, first = weakref.ref(tensor), tensor[:1000].clone()
    gc.collect()
    before = psutil.Process().memory_info().rss
    stack.put("large", tensor)
    assert stack.level_of("large") == 1
    assert file_of(tmp_path).stat().st_size >= 100 * MIB
    del tensor
    gc.collect()
    assert watched() is None
    until = time.monotonic() + 120  # the thread that wrote it may still hold it
    while before - psutil.Process().memory_info().rss <= 90 * MIB:  # its memory is given back, and nothing came for it
        assert time.monotonic() < until
        time.sleep(0.01)
    back = stack.access("large")  # no level of memory has room: a copy of the caller's own
    assert torch.equal(back[:1000], first)
    assert torch.equal(back, data(100))
    assert stack.level_of("large") == 1
    stack.close()
    assert not list(tmp_path.iterdir())


def test_14_every_kind_of_tensor_comes_back_bit_for_bit(stack_of):
    stack = stack_of(64 * MIB, 64 * MIB)
    kinds = [torch.randn(37, 41), torch.randn(1000).bfloat16(), torch.randn(33).to(torch.float8_e4m3fn)]
    kinds += [torch.randint(-128, 127, (7, 9), dtype=torch.int8), torch.randn(5, dtype=torch.complex64).conj()]
    kinds += [torch.randint(0, 255, (10, 5), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)]
    kinds += [torch.empty(0, 4), torch.tensor(3.5), torch.tensor(True), torch.randn(3, 1).expand(3, 4)]
    kinds += [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(20, 30).t()]
    kinds += [torch.randn(5, dtype=torch.complex64).conj().imag, torch.randn(3 * MIB // 4 + 5)]
    with torch.inference_mode():
        kinds.append(torch.randn(4))
    for number, tensor in enumerate(kinds):
        stack.put(number, tensor, level=1)
    for number, tensor in enumerate(kinds):
        for back in (stack.access_at(number, 1), stack.access(number)):
            want = tensor.clone() if tensor.is_conj() or tensor.is_neg() or number == 9 else tensor
            assert (back.dtype, back.shape) == (want.dtype, want.shape)
            assert not back.is_inference()
            assert torch.equal(bits(back.contiguous()), bits(want.contiguous())), number
        assert stack.level_of(number) == 0
    assert stack.access(10).is_contiguous(memory_format=torch.channels_last)
    assert stack.access(11).stride() == (1, 30)


def test_15_one_key_counts_once_and_everything_comes_back(stack_of):
    stack = stack_of(4 * MIB, 16 * MIB)
    for number in range(8):
        stack.put("a", data(1, number), level=1)
    assert used(stack) == [0, MIB]
    assert stack._contents.disks[1].used == MIB
    assert torch.equal(stack.remove("a"), data(1, 7))
    assert (used(stack), stack._contents.disks[1].used, stack.remove("a")) == ([0, 0], 0, None)
    stack.put("a", data(1), level=1)
    stack.prefetch(["a"])
    stack.clear()
    assert (used(stack), stack._contents.disks[1].used) == ([0, 0], 0)


@pytest.mark.slow
def test_15_four_threads_with_3000_operations_each(stack_of, tmp_path):
    stack, failures = stack_of(40_000, 60_000, 400_000), []

    def work(seed):
        draw = random.Random(seed)
        try:
            for _ in range(3000):
                key, what = draw.randrange(24), draw.randrange(20)
                try:
                    if what < 4:
                        stack.put(key, torch.full((draw.randrange(3000),), key, dtype=torch.int32))
                    elif what < 16:
                        found = stack.access(key)
                        if found is not None and not bool((found == key).all()):
                            failures.append(key)
                    elif what == 16:
                        stack.prefetch([key, draw.randrange(24)])
                    elif what == 17:
                        stack.remove(key)
                    else:
                        stack.stats()
                except TierCapacityError:
                    pass
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    held = [0, 0, 0]
    for key in range(24):
        level = stack.level_of(key)
        if level is not None:
            held[level] += stack.access_at(key, level).nbytes
    stats = stack.stats()
    assert [level.used for level in stats.levels] == held
    assert stats.levels[2].taken == stack._contents.disks[2].used <= 400_000
    assert file_of(tmp_path).stat().st_size <= 400_000  # pieces of any size, and no gaps that make it longer
    assert stats.levels[2].evictions == 0 < stats.levels[1].evictions
    stack.clear()
    assert (used(stack), stack._contents.disks[2].used) == ([0, 0, 0], 0)


def test_16_what_is_too_large_for_all_levels_changes_nothing(stack_of, tmp_path):
    stack = stack_of(MIB, 2 * MIB, 4 * MIB)
    stack.put("a", data(1))
    before = stack.stats()
    with pytest.raises(TierCapacityError, match=r"no room on any level") as caught:
        stack.put("b", data(5))
    assert "level 2 (ssd) holds 0 B of 4.0 MiB" in str(caught.value)
    assert (stack.stats(), "b" in stack, list(tmp_path.iterdir())) == (before, False, [])
    with pytest.raises(TierCapacityError, match="has less free space than its level"):
        stack_of(MIB, 2**60)
    with pytest.raises(TierCapacityError):  # whole blocks count
        stack_of(0, 4097).put("c", torch.zeros(4097, dtype=torch.uint8))


def test_18_what_was_prefetched_is_there(stack_of):
    stack = stack_of(64 * MIB, 64 * MIB)
    waits, returns = {False: [], True: []}, []
    for round in range(6):
        stack.put("a", data(24, round), level=1)
        if round % 2:
            begin = time.perf_counter()
            stack.prefetch(["a"])
            returns.append(time.perf_counter() - begin)
            settled(stack, "a")
        begin = time.perf_counter()
        found = stack.access("a")
        waits[bool(round % 2)].append(time.perf_counter() - begin)
        assert torch.equal(found, data(24, round))
        assert stack.level_of("a") == 0
    assert min(waits[True]) < 0.1 * min(waits[False])
    assert min(returns) < 0.5 * min(waits[False])  # it is read in the background
    assert stack.stats().levels[1].hits == 3  # those that were prefetched are hits of level 0


def test_18_a_failure_in_the_background_is_told_at_the_next_call(stack_of, monkeypatch):
    stack = stack_of(4 * MIB, 16 * MIB)
    stack.put("a", data(2), level=1)
    real = DiskFile.read

    def crash(self, *arguments):
        raise ZeroDivisionError("in the thread")

    monkeypatch.setattr(DiskFile, "read", crash)
    stack.prefetch(["a"])
    settled(stack, "a")
    monkeypatch.setattr(DiskFile, "read", real)
    with pytest.raises(ZeroDivisionError, match="in the thread"):
        stack.put("other", data(0.1))
    assert used(stack) == [0, 2 * MIB]
    assert "other" not in stack
    assert torch.equal(stack.access("a"), data(2))


@pytest.mark.parametrize("way", ["there", "there and back"])
def test_19_an_order_that_comes_again_is_learned(stack_of, way):
    count, room = 16, 8
    order = list(range(count)) if way == "there" else [*range(count), *reversed(range(count))]
    stack = stack_of(room * 4096, count * 4096)
    for number in range(count):
        stack.put(number, torch.full((4096,), number, dtype=torch.uint8))
    hits = []
    for _ in range(6):
        before = stack.stats().levels[0].hits
        for number in order:
            assert int(stack.access(number)[0]) == number
        hits.append(stack.stats().levels[0].hits - before)
    assert min(hits[2:]) >= room - 2, hits
    if way != "there":
        assert min(hits[2:]) >= 0.95 * 2 * (room - 1), hits


# What goes wrong


@pytest.mark.parametrize("seed", range(3))
def test_a_disk_that_fails_now_and_then_loses_nothing_and_mixes_up_nothing(stack_of, monkeypatch, seed):
    fails_now_and_then(stack_of(30_000, 40_000, 160_000), monkeypatch, seed)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="make soak")
def test_a_disk_that_fails_a_thousand_times(stack_of, monkeypatch):
    for seed in range(1000):
        fails_now_and_then(stack_of(30_000, 40_000, 160_000), monkeypatch, seed)
        monkeypatch.undo()


def fails_now_and_then(stack, monkeypatch, seed):
    """400 operations, with errors and a full disk among the transfers of most of them."""
    draw, values = random.Random(seed), {}
    read, write = os.preadv, os.pwritev
    chance = [0.0]

    def fails(call):
        def maybe(*arguments):
            if draw.random() < chance[0]:
                raise OSError(draw.choice([5, 28]), "an error")
            return call(*arguments)

        return maybe

    monkeypatch.setattr("toprope.tiers.store.disk_file.os.preadv", fails(read))
    monkeypatch.setattr(chunks.os, "pwritev", fails(write))
    told = 0
    for step in range(400):
        chance[0] = 0.15 if step % 50 > 10 else 0.0
        key, what = draw.randrange(20), draw.randrange(10)
        try:
            if what < 3:
                value = torch.full((draw.randrange(14_000),), step % 251, dtype=torch.uint8)
                stack.put(key, value, level=draw.choice([None, None, 0, 1, 2]))
                values[key] = value.clone()
            elif what < 7:
                assert (found := stack.access(key)) is None or torch.equal(found, values[key])
                assert (found is None) == (key not in values)
            elif what < 9:
                stack.prefetch([draw.randrange(20) for _ in range(3)])
            elif (found := stack.remove(key)) is not None:
                assert torch.equal(found, values.pop(key))
        except (TierError, TierCapacityError):
            told += 1
        levels = stack.stats().levels
        assert all(level.taken <= level.capacity for level in levels), [each.taken for each in levels]
        assert stack._contents.disks[2].used <= 160_000
    chance[0] = 0.0
    with suppress(TierError):  # of a prefetch
        stack.access("nobody")
    assert told > 5
    assert len(stack) == len(values)
    for key, value in values.items():
        for _ in range(3):
            with suppress(TierError):
                found = stack.access(key)
        assert torch.equal(found, value)
    stack.clear()
    assert (used(stack), stack._contents.disks[2].used) == ([0, 0, 0], 0)


def test_a_full_disk_is_told_and_nothing_is_lost(stack_of, monkeypatch):
    stack = stack_of(2 * MIB, 64 * MIB)
    for number in range(4):
        stack.put(number, data(1, number))
    before = stack.stats()

    def full(descriptor, buffers, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chunks.os, "pwritev", full)
    with pytest.raises(TierCapacityError, match="the disk is full"):
        stack.put("more", data(1))
    with pytest.raises(TierCapacityError, match="the disk is full"):
        stack.access(0)
    assert [(each.used, each.taken) for each in stack.stats().levels] == [
        (each.used, each.taken) for each in before.levels
    ]
    monkeypatch.undo()
    assert stack._contents.disks[1].used == 2 * MIB
    assert all(torch.equal(stack.access(number), data(1, number)) for number in range(4))


def test_a_disk_with_errors_is_told_and_nothing_is_lost(stack_of, monkeypatch):
    stack = stack_of(2 * MIB, 64 * MIB)
    for number in range(4):
        stack.put(number, data(1, number))

    def broken(descriptor, buffers, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(chunks.os, "pwritev", broken)
    with pytest.raises(TierWriteError, match="Input/output error"):
        stack.put("more", data(1))
    monkeypatch.undo()
    monkeypatch.setattr("toprope.tiers.store.disk_file.os.preadv", broken)
    for what in (stack.access, stack.remove, lambda key: stack.access_at(key, 1)):
        with pytest.raises(TierReadError, match="Input/output error"):
            what(0)
    monkeypatch.undo()
    assert sorted(stack.level_of(number) for number in range(4)) == [0, 1, 1, 1]  # one had made room, and stays there
    assert all(torch.equal(stack.access(number), data(1, number)) for number in range(4))


def test_a_file_that_was_cut_short_is_told(stack_of, tmp_path):
    stack = stack_of(2 * MIB, 64 * MIB)
    stack.put("a", data(1), level=1)
    os.truncate(file_of(tmp_path), 4096)
    with pytest.raises(TierReadError, match="ends before"):
        stack.access("a")
    stack.put("a", data(1, 5), level=0)  # in its place
    assert torch.equal(stack.access("a"), data(1, 5))


def test_levels_that_are_full_change_places_without_more_room(stack_of, tmp_path, monkeypatch):
    stack = stack_of(MIB, 2 * MIB)
    for number in range(3):
        stack.put(number, data(1, number))
    disk = stack._contents.disks[1]
    for number in (0, 1, 2, 0, 2, 1):
        assert torch.equal(stack.access(number), data(1, number))
        assert used(stack) == [MIB, 2 * MIB]
    assert disk._held.file.peak == file_of(tmp_path).stat().st_size == 2 * MIB
    stack.put(0, data(1, 9), level=1)  # in place of one that is in the full file
    stack.put(0, data(1, 8), level=1)
    assert torch.equal(stack.access(0), data(1, 8))
    low = 1
    assert stack.level_of(low) == 1
    monkeypatch.setattr(chunks.os, "pwritev", lambda *arguments: (_ for _ in ()).throw(OSError(5, "broken")))
    with pytest.raises(TierWriteError):  # it is out of the file, and cannot go back into it
        stack.access(low)
    assert used(stack) == [MIB, 2 * MIB]
    assert torch.equal(stack.access_at(low, 1), data(1, low))
    monkeypatch.undo()
    assert torch.equal(stack.access(low), data(1, low))


CTRL_C = """
import os, signal, sys, threading, time
import torch
from toprope.tiers import Tier, TierStack
from toprope.tiers.store import chunks

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
MIB = 2**20

def data(mib, seed=0):
    return torch.arange(mib * MIB // 4, dtype=torch.int32).add_(seed * 100_003_000).view(torch.uint8)

stack = TierStack([Tier.named("cpu", 4 * MIB), Tier.named("ssd", 64 * MIB, 7e9, sys.argv[1])])
stack.put("a", data(3))
real, main, once = os.pwritev, threading.get_ident(), iter([True])

def slow(*arguments):
    if next(once, False):  # a second one would come when nobody expects it any more
        signal.pthread_kill(main, signal.SIGINT)
    time.sleep(0.1)
    return real(*arguments)

chunks.os.pwritev = slow
caught = False
try:
    stack.put("b", data(2))
except KeyboardInterrupt:
    caught = True
chunks.os.pwritev = real
found = [caught, stack.level_of("a"), "b" in stack]
stack.put("b", data(2, 1))
found += [torch.equal(stack.access("a"), data(3)), torch.equal(stack.access("b"), data(2, 1))]
deadline = time.monotonic() + 5
while stack._contents.disks[1].used != stack.stats().levels[1].taken and time.monotonic() < deadline:
    time.sleep(0.01)
print(*found, stack._contents.disks[1].used == stack.stats().levels[1].taken)
stack.close()
"""


@pytest.mark.slow
def test_ctrl_c_in_a_transfer_leaves_everything_as_it_was(tmp_path):
    """In a process of its own: a Ctrl-C that came late would end the one that runs the tests."""
    done = subprocess.run([sys.executable, "-c", CTRL_C, tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 0 False True True True\n", "")


def test_files_go_with_their_stack_and_those_of_the_dead_with_the_next(stack_of, tmp_path):
    def kept(folder):
        stack = TierStack([Tier.named("ssd", MIB, None, folder)])
        stack.put("a", torch.ones(4))
        return stack

    first = kept(tmp_path)
    left = tmp_path / "toprope-stack-1-dead"
    left.write_bytes(b"x")
    second = kept(tmp_path)
    assert not left.exists()
    assert len(list(tmp_path.iterdir())) == 2  # of the two that live
    if not (child := os.fork()):
        second.close()  # not its own
        os._exit(len(list(tmp_path.iterdir())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    threads = [each for made in second._contents.disks[0]._held.transfers.values() for each in made._threads]
    del first
    gc.collect()
    assert len(list(tmp_path.iterdir())) == 1
    second.close()
    second.close()
    assert not list(tmp_path.iterdir())
    assert not any(each.is_alive() for each in threads)
    for call in (lambda: second.access("a"), lambda: second.put("b", torch.ones(1)), lambda: second.prefetch("a")):
        with pytest.raises(TierError, match="is closed"):
            call()
    assert (len(second), second.stats().levels[0].used) == (0, 0)


class Wrapper(torch.Tensor):
    """What torch takes for a tensor made of others."""

    def __tensor_flatten__(self):
        raise NotImplementedError

    def __tensor_unflatten__(self):
        raise NotImplementedError


def test_folders_and_tensors_that_cannot_be_used(stack_of, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(UsageError, match="needs a folder"):
            Tier.named("ssd", MIB, None, folder)
    stack = stack_of(MIB)
    with pytest.raises(UsageError, match="has no memory"):
        TierLinear(3, 4, stack)
    with pytest.raises(UsageError, match="more than its bytes"):
        stack.put("q", torch.ones(3).as_subclass(Wrapper))
    layered = stack_of(100, 1000 * 4096)
    with pytest.raises(TierCapacityError):  # weights live in memory
        TierLinear(30, 4, layered)


def test_speeds_are_measured_by_what_was_moved(stack_of):
    stack = stack_of(32 * MIB, 64 * MIB)
    before = stack.stats().levels[1]
    assert (before.speed, before.speed_source, before.write_speed) == (7e9, "configured", None)
    begin = time.perf_counter()
    for number in range(4):
        stack.put(number, data(2, number), level=1)
    wrote = time.perf_counter()
    for number in range(4):
        stack.access(number)
    read = time.perf_counter()
    after = stack.stats().levels[1]
    assert after.speed_source == "measured"
    assert after.write_speed >= 8 * MIB / (wrote - begin)  # what is measured is a part of what the calls took
    assert after.speed >= 8 * MIB / (read - wrote)
    assert (after.brought, after.written) == (8 * MIB, 8 * MIB)


CARD = """
import toprope.sim, tempfile
toprope.sim.install("910B3", count=1, hbm="64MiB")
import torch
from toprope import device
from toprope.tiers import Tier, TierStack
MIB = 2**20
card = device.get("npu:0")
folder = tempfile.mkdtemp()
stack = TierStack([Tier.named("npu:0", 8 * MIB), Tier.named("cpu", 4 * MIB), Tier.named("ssd", 64 * MIB, 7e9, folder)])
originals = [torch.randint(0, 255, (MIB,), dtype=torch.uint8) for _ in range(24)]
before, most = card.memory_allocated(), 0
for number, tensor in enumerate(originals):
    stack.put(number, tensor.to("npu:0"))
answers = {"levels": [level.used // MIB for level in stack.stats().levels]}
wrong = []
for number in (*range(24), *range(24), *reversed(range(24))):
    if number % 3 == 0:
        stack.prefetch([number, (number + 1) % 24])
    found = stack.access(number)
    most = max(most, card.memory_allocated() - before)
    if not torch.equal(found.cpu(), originals[number]) or str(found.device) != "npu:0":
        wrong.append(number)
    del found
answers["wrong"] = wrong
answers["most"] = most
answers["sources"] = [level.speed_source for level in stack.stats().levels]
stack.close()
import os
answers["left"] = [os.listdir(folder), card.memory_allocated() - before]
os.rmdir(folder)
tell(answers)
"""


@pytest.mark.slow
def test_13_on_a_card_with_the_host_and_a_disk_below_it():
    card = told(CARD)
    assert card["levels"] == [8, 4, 12]
    assert card["wrong"] == []
    assert card["most"] <= 8 * MIB + 2**14
    assert card["sources"] == ["measured", "measured", "measured"]
    assert card["left"] == [[], 0]
