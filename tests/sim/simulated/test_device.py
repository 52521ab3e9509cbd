"""toprope.device on the simulated card: the same lines as on a real one.

Holds device/npu.py against the interface that toprope.device has for every kind of device. tests/sim/test_simulated.py
runs this module in a process with simulated cards.
"""

import concurrent.futures
import gc
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch

from toprope import device
from toprope.errors import DeviceIndexError, UnsupportedError

SIM = "910B3x3,hbm=256MiB"
MIB = 2**20


@pytest.fixture
def card():
    return device.get("npu:1")


def test_the_cards_are_found_and_the_first_is_chosen():
    assert [str(each) for each in device.available()] == ["npu:0", "npu:1", "npu:2", "cpu"]
    made = device.choose()
    assert (str(made.device), made.passed_over, made.source) == ("npu:0", (), "automatic")
    assert device.survey()[0] == device.Availability("npu", device.State.WORKS, 3)


@pytest.mark.parametrize("spelling", ["npu:1", "NPU:1", " npu:1\n", 1, torch.device("npu:1"), torch.device("npu", 1)])
def test_every_spelling_is_the_same_device(card, spelling):
    assert device.get(spelling) is card
    assert card.torch_device == torch.device("npu", 1)


def test_without_an_index_torchs_current_device_is_meant():
    assert [str(device.get(name)) for name in ("npu", torch.device("npu"), None)] == ["npu:0"] * 3
    torch.npu.set_device(2)
    assert [str(device.get(name)) for name in ("npu", torch.device("npu"), None)] == ["npu:2"] * 3
    device.get("npu:0").set_current()
    assert torch.npu.current_device() == 0


def test_an_index_that_is_not_there():
    with pytest.raises(DeviceIndexError) as caught:
        device.get("npu:3")
    assert str(caught.value).splitlines() == [
        "there is no npu:3, the program sees 3 devices (npu:0, npu:1, npu:2).",
        "  looked at  the simulated card",
        "  do         use npu:0 or npu:1 or npu:2",
        "  the card's own code for this is 107001 (invalid device id)",
        "  more       toprope explain device-index",
    ]
    assert pickle.loads(pickle.dumps(caught.value)).code == "107001 (invalid device id)"
    with pytest.raises(RuntimeError, match="107001"):  # the card says the same
        torch.npu.set_device(3)


def test_what_it_is(card):
    properties = card.properties()
    assert (card.name, properties.total_memory) == ("Ascend910B3", 256 * MIB)
    assert (properties.cube_cores, properties.cores, properties.version) == (20, 40, None)
    capabilities = card.capabilities
    assert capabilities == device.Capabilities(
        simulated=True, separate_memory=True, streams=True, generators=True, core_limits=True, pinned_memory=True,
        collectives="hccl",
    )  # fmt: skip
    torch.ones(2).pin_memory()  # pinned_memory is no empty word


def test_memory(card):
    card.empty_cache()
    before = card.memory()
    tensor = torch.ones(32 * MIB // 4, device=card.torch_device)
    during = card.memory()
    assert during.allocated - before.allocated == card.memory_allocated() - before.allocated >= 32 * MIB
    assert during.reserved >= during.allocated
    assert during.peak == card.max_memory_allocated() >= during.allocated
    assert before.free - during.free >= 32 * MIB
    assert during.total == 256 * MIB
    assert json.loads(json.dumps(during.as_dict()))["total"] == 256 * MIB
    assert device.get("npu:2").memory_allocated() == 0
    del tensor
    gc.collect()
    card.empty_cache()
    after = card.memory()
    assert (after.allocated, after.free) == (before.allocated, before.free)
    assert after.peak == during.peak
    card.reset_peak_memory()
    assert card.max_memory_allocated() == card.memory_allocated()


def test_running_out_of_memory_is_known(card):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.ones(2**30, device=card.torch_device)
    assert device.is_out_of_memory(caught.value)
    assert card.is_out_of_memory(caught.value)
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, device=card.torch_device) @ torch.ones(3, device=card.torch_device)
    assert not device.is_out_of_memory(caught.value)


def test_streams_and_events(card):
    first, second = card.event(timing=True), card.event(timing=True)
    stream = card.stream()
    assert stream != card.current_stream() == card.default_stream()
    with card.as_current(), card.on_stream(stream):
        assert card.current_stream() == stream
        first.record()
        x = torch.ones(64, 64, device=card.torch_device) @ torch.ones(64, 64, device=card.torch_device)
        second.record()
    card.current_stream().wait_stream(stream)
    assert x.sum().item() == 64**3
    card.synchronize()
    assert second.query()
    assert first.elapsed_time(second) >= 0


def test_a_side_stream_begins_after_what_was_queued_and_ends_before_what_follows(card):
    with device.use(card):
        x = torch.zeros(1000, device=card.torch_device)
        for _ in range(20):
            x += 1
            with card.side_stream() as stream:
                assert card.current_stream() == stream
                x *= 2
            assert card.current_stream() == card.default_stream()
        assert x[0].item() == 2**21 - 2


def test_a_generator_keeps_the_index_and_the_seed(card):
    generator = card.generator(7)
    assert (generator.device, generator.initial_seed()) == (torch.device("npu:1"), 7)
    first = torch.randn(5, generator=generator, device=card.torch_device)
    again = torch.randn(5, generator=card.generator(7), device=card.torch_device)
    assert torch.equal(first.cpu(), again.cpu())
    on_cpu = card.generator(7, on="cpu")
    assert on_cpu.device == torch.device("cpu")
    assert torch.equal(torch.randn(5, generator=on_cpu), torch.randn(5, generator=device.get("cpu").generator(7)))
    assert card.generator("random").device == torch.device("npu:1")


def test_seeds(card):
    def draw():
        return [torch.randn(3, device=f"npu:{index}").tolist() for index in range(3)] + [torch.randn(3).tolist()]

    assert device.seed_all(11) == 11
    first = draw()
    device.seed_all(11)
    assert draw() == first
    card.manual_seed(99)
    changed = draw()
    card.manual_seed(99)
    assert draw()[1] == changed[1]
    state = card.rng_state()
    one = torch.randn(3, device="npu:1").tolist()
    card.set_rng_state(state)
    assert torch.randn(3, device="npu:1").tolist() == one
    assert torch.npu.current_device() == 0


def test_best_dtype_is_tried_on_the_card(card):
    assert card.best_dtype() is torch.bfloat16
    assert card.best_dtype(torch.float64, torch.float32) is torch.float32
    found = card.probe(torch.float64)
    assert (found.works, found.failed) == (False, "matmul")
    assert "DT_DOUBLE" in found.reason
    with pytest.raises(UnsupportedError, match="npu:1 computes in none of float64") as caught:
        card.best_dtype(torch.float64)
    assert "EZ1001" in caught.value.looked_at


def test_use_is_the_current_device_of_torch_too(card):
    with device.use("npu:1") as chosen:
        assert chosen is card is device.current() is device.get()
        assert torch.ones(1, device="npu").device == card.torch_device
        with device.use("npu:2"), device.use("cpu"):
            assert str(device.get()) == "cpu"
            assert torch.npu.current_device() == 2
        assert torch.npu.current_device() == 1
    assert torch.npu.current_device() == 0


def test_a_pool_of_threads_takes_the_device_along():
    def work(_):
        return str(device.current()), torch.ones(1, device="npu").device.index

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        with device.use("npu:2"):
            assert set(pool.map(work, range(8))) == {("npu:0", 0)}  # as torch's current device: a thread's own
            assert set(pool.map(device.use(device.current())(work), range(8))) == {("npu:2", 2)}
        mixed = [pool.submit(device.use(f"npu:{index % 3}")(work), None) for index in range(12)]
        assert [each.result() for each in mixed] == [(f"npu:{index % 3}", index % 3) for index in range(12)]


def test_a_device_travels_to_another_process_by_name(card):
    text = pickle.dumps(card).hex()
    code = f"import pickle\nprint(repr(pickle.loads(bytes.fromhex({text!r}))))"
    variables = {**os.environ, "TOPROPE_SIM": SIM}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=variables)
    assert done.stdout == "<toprope device npu:1>\n", done.stderr
