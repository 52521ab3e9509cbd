"""The CPU as a device: no question about memory, streams or dtypes is an error there. Seeds; what out of memory is.

Holds `device.cpu`, `device.memory` and `device.seeds`.
"""

import json
import random
import subprocess
import sys
import time
import types
from pathlib import Path
from unittest import mock

import numpy
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toprope import device
from toprope.device import Memory, is_out_of_memory
from toprope.device.memory import HostMemory
from toprope.errors import SeedError, UnsupportedError, UsageError

pytestmark = pytest.mark.process


@pytest.fixture
def cpu():
    return device.get("cpu")


def test_what_it_is(cpu):
    assert (str(cpu), cpu.index, cpu.torch_device, cpu.kind, cpu.title) == ("cpu", 0, torch.device("cpu"), "cpu", "CPU")
    properties = cpu.properties()
    assert cpu.name == properties.name != ""
    assert 1 <= properties.cores <= psutil.cpu_count()
    assert properties.total_memory <= psutil.virtual_memory().total
    assert cpu.capabilities == device.Capabilities(generators=True, collectives="gloo")


def test_memory_is_figures_and_json(cpu):
    found = cpu.memory()
    assert isinstance(found, Memory)
    figures = json.loads(json.dumps(found.as_dict()))
    assert sorted(figures) == ["allocated", "free", "peak", "reserved", "total"]
    assert all(each is None or isinstance(each, int) for each in figures.values())
    assert 0 < found.allocated <= found.peak <= found.total
    assert 0 < found.free <= found.total
    assert found.reserved is None
    assert abs(cpu.memory_allocated() - psutil.Process().memory_info().rss) < 2**26


def test_the_peak_can_begin_again(cpu):
    before = cpu.max_memory_allocated()
    block = bytearray(b"x") * 2**27
    assert cpu.max_memory_allocated() >= before
    grown = cpu.max_memory_allocated()
    del block
    cpu.reset_peak_memory()
    assert cpu.max_memory_allocated() <= grown


@pytest.mark.parametrize("psutil_there", [True, False])
def test_the_memory_of_the_machine_with_psutil_and_without(monkeypatch, psutil_there):
    if not psutil_there:
        monkeypatch.setitem(sys.modules, "psutil", None)

    def meminfo():
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        return {name: int(size) * 1024 for name, size, *_ in lines}

    for _ in range(20):  # other programs take and give back memory at any time
        before, found, after = meminfo(), HostMemory().machine(), meminfo()
        assert found.total == before["MemTotal:"]
        assert 0 < found.used < found.total
        near = pytest.approx(found.available, abs=0.02 * found.total)
        if before["MemAvailable:"] == near == after["MemAvailable:"]:
            break
    assert before["MemAvailable:"] == near == after["MemAvailable:"]


def test_the_memory_of_the_machine_is_an_error_where_nobody_tells_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(OSError, match="does not tell the memory"):
        HostMemory(tmp_path).machine()


def test_a_c_library_that_keeps_nothing_is_no_error(monkeypatch):
    calls = []
    library = types.SimpleNamespace(malloc_trim=lambda pad: calls.append(pad.value))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    HostMemory.trim()
    assert calls == [0]
    del library.malloc_trim
    HostMemory.trim()


def test_pinned_memory_is_given_back_only_where_a_card_was_used(cpu, monkeypatch):
    used, calls = [False], []
    accelerator = types.SimpleNamespace(is_initialized=lambda: used[0])
    monkeypatch.setattr(torch, "get_device_module", lambda device: accelerator)
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: calls.append("emptied"))
    cpu.empty_cache()  # no accelerator
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    cpu.empty_cache()
    assert calls == []
    used[0] = True
    cpu.empty_cache()
    assert calls == ["emptied"]
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", mock.Mock(side_effect=RuntimeError("no such cache")))
    cpu.empty_cache()
    monkeypatch.delattr(torch.accelerator, "empty_host_cache")
    cpu.empty_cache()


def test_nothing_on_the_cpu_raises(cpu):
    cpu.empty_cache()
    cpu.synchronize()
    cpu.reset_peak_memory()
    cpu.set_current()
    with cpu.as_current(), cpu.side_stream() as stream, cpu.on_stream(cpu.default_stream()):
        cpu.current_stream().wait_stream(stream)
    first, second = cpu.event(timing=True), cpu.event(timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(second)
    first.record()
    time.sleep(0.01)
    second.record(cpu.current_stream())
    second.wait()
    second.synchronize()
    assert second.query()
    assert 10 <= first.elapsed_time(second) < 5000


def test_best_dtype_is_float32_and_others_work_too(cpu):
    assert cpu.best_dtype() is torch.float32
    assert cpu.best_dtype(torch.bfloat16, torch.float32) is torch.bfloat16
    assert cpu.probe(torch.float64).works
    assert cpu.probe(torch.float64) is cpu.probe(torch.float64)  # tried once


def test_a_dtype_that_does_not_work_says_why(cpu):
    found = cpu.probe(torch.int8)
    assert not found.works
    assert found.failed in ("convolution", "attention")
    assert found.reason
    with pytest.raises(UnsupportedError, match="cpu computes in none of int8, bool") as caught:
        cpu.best_dtype(torch.int8, torch.bool)
    assert "int8: " in caught.value.looked_at


def test_random_numbers_of_the_cpu_alone(cpu):
    cpu.manual_seed(5)
    state = cpu.rng_state()
    first = torch.randn(3)
    cpu.set_rng_state(state)
    assert torch.equal(torch.randn(3), first)
    assert torch.equal(torch.randn(3, generator=cpu.generator(5)), first)


# Seeds


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**64 - 1, numpy.int64(3), numpy.uint8(200)])
def test_a_seed_is_kept(cpu, seed):
    assert device.concrete_seed(seed) == int(seed)
    generator = cpu.generator(seed)
    assert generator.initial_seed() == int(seed)
    assert generator.device == torch.device("cpu")


@pytest.mark.parametrize("seed", [None, "random", -1])
def test_a_seed_that_is_drawn_is_known(cpu, seed):
    drawn = {device.concrete_seed(seed) for _ in range(8)}
    assert len(drawn) == 8
    assert all(0 <= each < 2**63 for each in drawn)
    first = cpu.generator(seed)
    again = cpu.generator(first.initial_seed())
    assert torch.equal(torch.randn(9, generator=first), torch.randn(9, generator=again))


@pytest.mark.parametrize("seed", [-2, 2**64, 1.0, 1.5, "7", True, False, [], numpy.float32(1)])
def test_what_is_no_seed(cpu, seed):
    with pytest.raises(SeedError, match="is not a seed"):
        cpu.generator(seed)
    with pytest.raises(SeedError):
        device.seed_all(seed)


def test_a_generator_is_on_the_device_or_on_the_cpu(cpu):
    assert cpu.generator(1, on="cpu").device == torch.device("cpu")
    with pytest.raises(UsageError, match="not on 'gpu'"):
        cpu.generator(1, on="gpu")


@given(st.integers(0, 2**64 - 1))
def test_seed_all_seeds_everything_and_says_with_what(seed):
    def draw():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    assert device.seed_all(seed) == seed
    first = draw()
    assert device.seed_all(seed) == seed
    assert draw() == first
    assert device.seed_all(seed ^ (1 << 40)) != seed
    assert draw() != first


def test_seed_all_is_the_seeding_that_others_do():
    device.seed_all(42)
    ours = random.random(), numpy.random.rand(), torch.rand(1).item()
    random.seed(42), numpy.random.seed(42), torch.manual_seed(42)
    assert (random.random(), numpy.random.rand(), torch.rand(1).item()) == ours


def test_seed_all_changes_no_switch():
    switches = [torch.are_deterministic_algorithms_enabled, lambda: torch.backends.cudnn.deterministic]
    before = [each() for each in switches]
    device.seed_all(1)
    assert [each() for each in switches] == before


# Out of memory


class OutOfMemoryError(RuntimeError):
    """As other backends name theirs."""


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("x"),
        OutOfMemoryError("x"),
        MemoryError(),
        RuntimeError("NPU out of memory. Tried to allocate 3.47 GiB (NPU 0; 60.97 GiB total capacity; 58.92 GiB used)"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("malloc: NPU function error: aclrtMalloc, error code is 207001"),
        RuntimeError("EL0004: [PID: 1] Failed to allocate memory."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_errors_that_say_that_memory_ran_out(cpu, error):
    assert is_out_of_memory(error)
    assert cpu.is_out_of_memory(error)
    try:
        try:
            raise error
        except BaseException as inner:
            raise ValueError("the step failed") from inner
    except ValueError as outer:
        wrapped = outer
    assert is_out_of_memory(wrapped)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes (3, 4) and (5, 6) do not match"),
        RuntimeError("NPU function error: aclrtCreateStream, error code is 207005, storage space is short"),
        RuntimeError("NPU function error: aclrtCreateStream, error code is 207008"),
        RuntimeError("error code is 2070011"),
        ValueError("out of memory"),
        KeyboardInterrupt(),
    ],
)
def test_errors_that_say_something_else(error):
    assert not is_out_of_memory(error)


def test_a_chain_of_errors_that_bites_its_tail():
    one, two = RuntimeError("a"), RuntimeError("b")
    one.__cause__, two.__cause__ = two, one
    assert not is_out_of_memory(one)


@pytest.mark.slow
def test_the_allocator_of_the_cpu_itself():
    code = "import resource, torch; resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))\n"
    code += "from toprope.device import is_out_of_memory\n"
    code += "try: torch.ones(2**34)\nexcept RuntimeError as error: print(is_out_of_memory(error))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


# The host's memory, from files


def host(folder: Path, **files: str) -> HostMemory:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostMemory(folder)


def test_a_container_has_what_it_was_given(tmp_path):
    cgroup = {"sys__fs__cgroup__memory.max": "1000000\n", "sys__fs__cgroup__memory.current": "900000\n"}
    assert host(tmp_path, **cgroup).free_and_total() == (100_000, 1_000_000)
    stat = {"sys__fs__cgroup__memory.stat": "anon 1\ninactive_file 600000\nactive_file 2\n"}
    assert host(tmp_path, **stat).free_and_total() == (700_000, 1_000_000)


@pytest.mark.parametrize("limit", ["max\n", f"{2**62}\n", "", "x"])
def test_without_a_limit_it_is_the_machine(tmp_path, limit):
    free, total = host(tmp_path, **{"sys__fs__cgroup__memory.max": limit}).free_and_total()
    assert total == psutil.virtual_memory().total
    assert 0 < free <= total


def test_the_peak_is_the_systems(tmp_path):
    assert host(tmp_path, proc__self__status="Name:\tx\nVmHWM:\t  1234 kB\n").peak() == 1234 * 1024
    assert host(tmp_path / "empty").peak() > 2**20
    host(tmp_path / "empty").reset_peak()
