"""toprope.device on a real GPU; skipped, with the reason, where torch sees none.

Holds `device.cuda` and `device.accelerator`. The project's CI has no GPU, so these run by hand where there is one.
"""

import concurrent.futures
import gc
import json

import pytest
import torch
from safetensors.torch import save_file

from toprope import device
from toprope.errors import DeviceIndexError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
MIB = 2**20


@pytest.fixture
def card():
    return device.get("cuda:0")


def test_the_gpus_are_found():
    count = torch.cuda.device_count()
    assert [str(each) for each in device.available("cuda")] == [f"cuda:{index}" for index in range(count)]
    assert device.get("cuda").index == torch.cuda.current_device()
    with pytest.raises(DeviceIndexError) as caught:
        device.get(f"cuda:{count}")
    assert caught.value.code == "101 (cudaErrorInvalidDevice)"
    assert "built for" in caught.value.looked_at


@pytest.mark.parametrize("spelling", ["cuda:0", "CUDA:0", torch.device("cuda:0")])
def test_every_spelling_is_the_same_device(card, spelling):
    assert device.get(spelling) is card
    assert card.torch_device == torch.device("cuda", 0)


def test_what_it_is(card):
    properties = card.properties()
    assert card.name == torch.cuda.get_device_name(0)
    assert properties.total_memory == torch.cuda.get_device_properties(0).total_memory
    assert properties.version == torch.cuda.get_device_capability(0)
    assert properties.cores > 0
    assert card.capabilities.separate_memory
    assert card.capabilities.streams
    assert not card.capabilities.simulated
    torch.ones(2).pin_memory()


def test_memory(card):
    torch.ones(1, device=card.torch_device)
    card.empty_cache()
    before = card.memory()
    tensor = torch.ones(64 * MIB // 4, device=card.torch_device)
    during = card.memory()
    assert during.allocated - before.allocated >= 64 * MIB
    assert during.reserved >= during.allocated
    assert during.peak == card.max_memory_allocated() >= during.allocated
    assert 0 < during.free < during.total
    assert json.loads(json.dumps(during.as_dict())) == during.as_dict()
    del tensor
    gc.collect()
    card.empty_cache()
    assert card.memory_allocated() == before.allocated
    card.reset_peak_memory()
    assert card.max_memory_allocated() == card.memory_allocated()


def test_running_out_of_memory_is_known(card):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**50, device=card.torch_device)
    assert device.is_out_of_memory(caught.value)


def test_streams_and_events(card):
    first, second = card.event(timing=True), card.event(timing=True)
    with device.use(card):
        x = torch.zeros(1000, device=card.torch_device)
        first.record()
        for _ in range(20):
            x += 1
            with card.side_stream() as stream:
                assert card.current_stream() == stream != card.default_stream()
                x *= 2
        second.record()
        assert x[0].item() == 2**21 - 2
    card.synchronize()
    assert second.query()
    assert first.elapsed_time(second) > 0


def test_generators_and_seeds(card):
    generator = card.generator(7)
    assert (generator.device, generator.initial_seed()) == (torch.device("cuda:0"), 7)
    first = torch.randn(5, generator=generator, device=card.torch_device)
    assert torch.equal(torch.randn(5, generator=card.generator(7), device=card.torch_device), first)
    card.manual_seed(3)
    state = card.rng_state()
    first = torch.randn(5, device=card.torch_device)
    card.set_rng_state(state)
    assert torch.equal(torch.randn(5, device=card.torch_device), first)
    device.seed_all(5)
    first = torch.randn(5, device=card.torch_device)
    device.seed_all(5)
    assert torch.equal(torch.randn(5, device=card.torch_device), first)


def test_dtypes(card):
    assert card.best_dtype() in (torch.bfloat16, torch.float16)
    assert card.probe(torch.float32).works
    assert not card.probe(torch.int8).works


def test_threads_take_the_device_along():
    last = device.available("cuda")[-1]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = pool.submit(device.use(last)(lambda: torch.ones(1, device="cuda").device.index)).result()
    assert found == last.index


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_weights(card, tmp_path, dtype):
    made = {"large": torch.randn(20 * MIB), "small": torch.randn(3, 4), "whole": torch.arange(5)}
    save_file(made, tmp_path / "w.safetensors")
    torch.save(made | {"tied": made["small"]}, tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        found = device.load(tmp_path / name, "cuda:0", dtype=dtype)
        for key, tensor in made.items():
            assert found[key].device == card.torch_device
            assert torch.equal(found[key].cpu(), tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor)
    assert found["tied"].data_ptr() == found["small"].data_ptr()
