"""Those public threads of ../test_tiers_threads.py that are about a card: its memory, its streams, its name."""

import gc
import re
import time

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from toprope.errors import PlanError, TierCapacityError, UsageError
from toprope.tiers import attach, pages, skeleton

SIM = "910B3x1,hbm=64MiB"
MIB = 2**20


def chain(layers, width=512, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def batch(rows=4, width=512):
    return torch.linspace(-1, 1, rows * width).view(rows, width).npu()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    gc.collect()
    torch.npu.empty_cache()


def by_layers(model, x):
    """What the card computes, with as much of the model on it as one layer."""
    with torch.no_grad():
        for layer in model:
            x = nn.functional.linear(x, layer.weight.detach().npu())
    return x.cpu()


def test_field_32_a_model_of_200_mb_runs_on_a_card_of_64(tmp_path):
    """https://github.com/candle-org/MindAct/issues/2238: there is no offloading where a card's memory is short."""
    model, x = chain(200), batch()
    assert sum(each.nbytes for each in model.parameters()) > 200_000_000
    want = by_layers(model, x)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(torch.OutOfMemoryError):
        nn.Sequential(*model[:64]).npu()
    model.cpu()
    del model
    torch.npu.empty_cache()
    with skeleton():
        empty = chain(200)
    with torch.no_grad(), attach(empty, "16MB", "40MB", tmp_path, on="npu") as handle:
        assert torch.equal(empty(x).cpu(), want)
        assert torch.equal(empty(x).cpu(), want)
        assert torch.npu.max_memory_reserved() <= 64 * MIB
        assert handle.plan.disk


@pytest.fixture
def attached():
    model = chain(12)
    want = by_layers(model, batch())
    made = []

    def attached_with(**options):
        handle = attach(model, **{"device": "5MB", "host": "40MB", "on": "npu", "poison": True} | options)
        made.append(handle)
        return model, handle, want

    yield attached_with
    for each in made:
        each.detach()


class Wide(nn.Module):
    """Gives what it gets, by way of some MiB of the card."""

    def forward(self, x):
        return x.repeat(1 + self.mib * MIB // x.nbytes, 1)[: len(x)].clone()


@pytest.mark.parametrize("mib", [1, 18])
def test_thread_6_what_computing_takes_is_left_free(mib):
    """https://github.com/huggingface/accelerate/issues/473: the card is filled to the brim, and the first forward has
    no room; https://github.com/huggingface/transformers/pull/44565: the arithmetic of what is free."""
    layers, x = chain(80), batch()  # 80 MiB
    want = by_layers(layers, x)
    wide = Wide()
    wide.mib = mib
    model = nn.Sequential(*layers[:40], wide, *layers[40:])
    torch.npu.empty_cache()
    with torch.no_grad(), attach(model, "auto", "200MB", on="npu") as handle:
        first = handle.stats().budget_bytes["device"]
        for _ in range(3):
            assert torch.equal(model(x).cpu(), want)
        free = 64 * MIB - torch.npu.memory_allocated() + handle.stats().peak_bytes["device"]
        budget = handle.stats().budget_bytes["device"]
        assert 15 * MIB < first <= 16 * MIB
        assert 0 <= free - mib * MIB - budget < 18 * MIB  # of which a quarter of the card is for the allocator


def test_thread_6_a_card_that_is_full_is_one_error_and_the_model_is_as_it_was():
    """https://github.com/huggingface/accelerate/issues/473, with a budget that the user gave."""
    model = chain(80)
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(TierCapacityError, match="has no room for its part of the model") as caught:
        attach(model, "64MB", "200MB", on="npu")
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert all(map(torch.equal, before, model.parameters()))
    assert {each.device.type for each in model.parameters()} == {"cpu"}


def test_thread_8_buffers_are_on_the_card_and_nowhere_else(tmp_path):
    """https://github.com/vllm-project/compressed-tensors/pull/731: they stay in the host's memory."""
    model = chain(8)
    for each in model:
        each.register_buffer("mask", torch.ones(512))
    with attach(model, "5MB", "20MB", on="npu"):
        assert {each.device.type for each in model.buffers()} == {"npu"}
        model(batch())
        assert {each.device.type for each in model.buffers()} == {"npu"}


def test_thread_11_nothing_is_read_that_was_freed(attached, tmp_path):
    """https://github.com/huggingface/diffusers/pull/14657: with a disk and a stream all is NaN."""
    model, handle, want = attached(host=0, disk=tmp_path)
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(model(batch()).cpu(), want)
    assert handle.stats().loads > 40


def test_thread_12_computing_waits_for_the_stream_of_transfers(attached):
    """https://github.com/huggingface/diffusers/pull/13502: it never does."""
    model, handle, want = attached(disturb=lambda: time.sleep(5e-4))
    x = batch()
    with torch.no_grad():
        found = [model(x) for _ in range(5)]
    assert all(torch.equal(each.cpu(), want) for each in found)
    assert handle.stats().loads > 40


def test_thread_13_the_stream_that_computes_may_be_any(attached):
    """https://github.com/huggingface/diffusers/pull/12721: `record_stream` is told the wrong one."""
    model, _, want = attached(slots=2, disturb=lambda: time.sleep(2e-4))
    x = batch()
    torch.npu.synchronize()
    streams = [torch.npu.Stream() for _ in range(2)] + [torch.npu.current_stream()]
    found = []
    with torch.no_grad():
        for turn in range(9):
            with torch.npu.stream(streams[turn % 3]):
                found.append(model(x))
    torch.npu.synchronize()
    assert all(torch.equal(each.cpu(), want) for each in found)


def test_thread_14_weights_that_were_only_read_are_not_copied_back(attached):
    """https://github.com/huggingface/diffusers/pull/12910, from a card: 54 s a step with, 4.8 s without."""
    model, handle, want = attached()
    handle.reset_stats()
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(batch()).cpu(), want)
    moved = handle.stats().moved
    assert moved["host_to_device"] > 0
    assert moved["device_to_host"] == moved["disk_write"] == 0


def test_field_36_a_second_offloading_is_refused_whatever_the_card_is_called(attached):
    """https://github.com/huggingface/diffusers/pull/14786: the guard lists cuda and xpu only."""
    model, handle, want = attached()
    for call in (lambda: attach(model, "5MB", "40MB", on="npu"), lambda: model.to("cpu"), lambda: model.cpu()):
        with pytest.raises(UsageError, match=r"attached already|cannot move from npu:0 to cpu"):
            call()
    assert model.to("npu") is model
    with torch.no_grad():
        assert torch.equal(model(batch()).cpu(), want)
        handle.detach()
        with attach(model, "5MB", "40MB", on="npu"):
            assert torch.equal(model(batch()).cpu(), want)


def test_field_33_a_weight_in_few_bits_has_either_layout_on_a_card():
    """https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1465: a 4-bit model fails at a transpose."""
    torch.manual_seed(0)
    weight, x = torch.randn(64, 32).t(), torch.randn(5, 64)
    for form in ("nvfp4", "mxfp4", "nf4", "int8"):
        page = pages.encode(weight, form)
        want = x @ pages.decode(page).t()
        linear = nn.Linear(64, 32, bias=False)
        linear.weight = nn.Parameter(weight)
        layer = pages.QuantisedLinear.from_linear(linear, form).npu()
        given = x.npu().t().contiguous().t().requires_grad_()
        found = layer(given)
        torch.testing.assert_close(found.detach().cpu(), want, rtol=1e-4, atol=1e-4)
        found.sum().backward()
        torch.testing.assert_close(given.grad.cpu(), pages.decode(page).sum(0).expand(5, 64), rtol=1e-4, atol=1e-4)


def test_thread_20_what_a_card_cannot_hold_is_refused_with_what_would_do():
    """https://github.com/deepspeedai/DeepSpeed/issues/3506: an assertion about a buffer, in the middle of a run."""
    model = nn.Sequential(nn.Linear(512, 9000, bias=False), nn.Linear(9000, 512, bias=False), *chain(3))
    data = [each.data_ptr() for each in model.parameters()]
    with pytest.raises(PlanError) as caught:
        attach(model, "3MB", "100MB", on="npu")
    assert re.search(r"give the device at least \d", str(caught.value))
    assert [each.data_ptr() for each in model.parameters()] == data
    assert torch.npu.memory_allocated() == 0
