"""One test for each public thread about models larger than memory, numbered as the specification of tiers lists them.

`thread` is the number there, `field` that of Ascend's users in test_doctor_threads. Tests that need a card, if only a
simulated one, are in simulated/test_tiers_threads.py.

The list at the end holds all of them together. What is not tried here of them: how many tokens or TFLOPS a card made
(19, 22, 24), and how fast their disks were (23): benchmarks/tiers.py and benchmarks/tiers_training.py measure that on
the machine at hand. Here it is what was at fault: links that are idle, memory that is not used, bytes that go twice.
"""

import contextlib
import gc
import os
import re
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tiers_training_run import Run
from toprope.device import Capabilities
from toprope.errors import PlanError, WeightsError
from toprope.tiers import attach, pages, skeleton
from toprope.tiers.store import disk_file as disk
from toprope.tiers.store import headers
from toprope.tiers.store import memory as memory_module
from toprope.tiers.store.host import HostStore
from toprope.tiers.store.transfer import Transfers
from toprope.tiers.training.blocks import drop_freed

KB = 1000
MIB = 2**20


pytestmark = pytest.mark.usefixtures("one_thread")


def chain(layers=8, width=64, bias=False, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(width, width, bias=bias) for _ in range(layers)))


def batch(width=64):
    return torch.linspace(-1, 1, 3 * width).view(3, width)


def out(model, x=None):
    with torch.no_grad():
        return model(batch() if x is None else x)


def equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def small(model, device=60 * KB, host="10MB", folder=None, **options):
    """Attached with room for some of its weights; those of 1 kB come and go."""
    return attach(model, device, host, folder, **{"small": KB, "poison": True, "limit": 30} | options)


def saved(tmp_path, model, **more):
    save_file({name: each.contiguous() for name, each in model.state_dict().items()} | more, tmp_path / "w.safetensors")
    return tmp_path


def out_of_the_page_cache(file):
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_thread_1_training_updates_weights():
    """https://github.com/huggingface/accelerate/issues/3770, https://github.com/huggingface/accelerate/issues/3785:
    it runs, there is no error, and nothing is updated."""
    plain, ours = chain(), chain()
    before = [each.detach().clone() for each in plain.parameters()]
    handle = small(ours, 70 * KB, training=True)
    assert handle.plan.slots
    out(ours).sum()
    # the optimizer alone, as their users had it
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (plain, ours)]
    for _ in range(3):
        for model, optimizer in zip((plain, ours), optimizers, strict=True):
            model(batch()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    handle.detach()
    assert equal(ours.parameters(), plain.parameters())
    assert not any(map(torch.equal, before, ours.parameters()))


def test_thread_2_a_checkpoint_is_streamed_from_where_it_is(tmp_path):
    """https://github.com/huggingface/accelerate/issues/4016: the whole state in memory, and a second copy on disk."""
    model = chain(16, 256)  # 4 MB
    want = out(model, batch(256))
    saved(tmp_path, model)
    with skeleton():
        empty = chain(16, 256)
    with small(empty, "1MB", "500kB", tmp_path) as handle:
        for _ in range(2):
            assert torch.equal(out(empty, batch(256)), want)
        stats = handle.stats()
        assert stats.moved["disk_write"] == 0
        assert stats.peak_bytes["device"] + stats.peak_bytes["host"] <= 1_500_000
        assert [each.name for each in tmp_path.iterdir()] == ["w.safetensors"]


def test_thread_3_a_weight_without_a_value_is_named_before_anything_runs(tmp_path):
    """https://github.com/huggingface/accelerate/issues/1289, https://github.com/huggingface/transformers/issues/36766:
    "weight is on the meta device, we need a `value` to put in on"."""
    model = chain()
    saved(tmp_path, model)
    with skeleton():
        empty = nn.Sequential(*chain(), nn.Linear(64, 64))
    with pytest.raises(WeightsError, match=r"2 weights of the model are not in the files") as caught:
        small(empty, 60 * KB, 0, tmp_path)
    assert "8.weight" in str(caught.value)
    assert all(each.is_meta for each in empty.parameters())
    empty[8] = nn.Linear(64, 64)  # its user makes a new head
    with torch.no_grad(), small(empty, 60 * KB, 0, tmp_path):
        assert torch.equal(empty(batch()), empty[8](out(model)))


class Tied(nn.Module):
    """Three names of one weight, as in an encoder and a decoder with a head."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(128, 64)
        self.encoder = nn.ModuleDict({"embed": nn.Embedding(128, 64), "layers": chain(4)})
        self.head = nn.Linear(64, 128, bias=False)
        self.encoder["embed"].weight = self.head.weight = self.shared.weight

    def forward(self, tokens):
        return self.head(self.encoder["layers"](self.encoder["embed"](tokens) + self.shared(tokens)))


@pytest.mark.parametrize("name", ["shared.weight", "encoder.embed.weight", "head.weight"])
def test_thread_4_tied_weights_are_found_by_any_of_their_names(name, tmp_path):
    """https://github.com/huggingface/transformers/issues/46566: they are left on meta, or the planner crashes."""
    torch.manual_seed(0)
    model, tokens = Tied(), torch.arange(6)
    want = out(model, tokens)
    tensors = {key: each for key, each in model.state_dict().items() if "layers" in key}
    save_file(tensors | {name: model.shared.weight.detach()}, tmp_path / "w.safetensors")
    with skeleton():
        empty = Tied()
    with small(empty, 120 * KB, 0, tmp_path) as handle:
        assert torch.equal(out(empty, tokens), want)
        assert handle.stats().budget_bytes["device"] == 120 * KB
        assert empty.head.weight is empty.shared.weight


class Nested(nn.Module):
    """A block in a block, one block in two places, a list in a dictionary, and a parameter of each level's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.randn(64))
        inner = nn.ModuleDict({"0": nn.ModuleList([chain(2), nn.Linear(64, 64)]), "gate": nn.Linear(64, 64)})
        inner.register_parameter("bias", nn.Parameter(torch.randn(64)))
        self.blocks = nn.ModuleList([inner, chain(2), inner])
        self.blocks[1][0].weight = inner["gate"].weight

    def forward(self, x):
        for block in self.blocks:
            if isinstance(block, nn.ModuleDict):
                x = block["0"][1](block["0"][0](x)) * torch.sigmoid(block["gate"](x)) + block.bias
            else:
                x = block(x)
        return x * self.scale


def test_thread_5_oddly_nested_and_tied_modules_have_a_plan():
    """https://github.com/huggingface/accelerate/issues/1510, https://github.com/huggingface/accelerate/issues/1592."""
    model, twin = Nested(), Nested()
    with small(model, 75 * KB) as handle:
        assert handle.plan.slots
        for _ in range(2):
            assert torch.equal(out(model), out(twin))
            for each in (model, twin):
                each.zero_grad()
                each(batch()).square().sum().backward()
            assert equal([each.grad for each in model.parameters()], [each.grad for each in twin.parameters()])


def test_thread_7_a_model_may_lie_on_the_disk_as_a_whole(tmp_path):
    """https://github.com/huggingface/accelerate/issues/1600: refused, and garbage once it was not."""
    model = chain(bias=True)
    want = out(model)
    saved(tmp_path, model)
    with skeleton():
        empty = chain(bias=True)
    with small(empty, 38 * KB, 0, tmp_path) as handle:
        assert len(handle.plan.disk) == 8
        for _ in range(3):
            assert torch.equal(out(empty), want)


def test_thread_8_files_are_looked_into_once_however_many_layers_there_are(tmp_path, monkeypatch):
    """https://github.com/vllm-project/compressed-tensors/pull/752: every key is listed again for every hook."""
    looked = []
    real = headers.read_header
    monkeypatch.setattr(headers, "read_header", lambda path: looked.append(path) or real(path))
    opened = []
    initial = disk.DiskFile.__init__
    monkeypatch.setattr(disk.DiskFile, "__init__", lambda self, *args: opened.append(args) or initial(self, *args))
    model = chain(60)
    saved(tmp_path, model)
    with skeleton():
        empty = chain(60)
    with small(empty, 100 * KB, 0, tmp_path):
        assert torch.equal(out(empty), out(model))
        out(empty)
    assert len(looked) == len(opened) == 1


class Adapter(nn.Module):
    """LoRA, as peft puts it in a layer's place."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, 4, bias=False)
        self.lora_B = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def test_thread_9_lora_is_loaded_and_unloaded_after_offloading(tmp_path):
    """https://github.com/huggingface/diffusers/issues/11791."""
    model, twin = chain(), chain()
    handle = small(model, folder=saved(tmp_path, model), host=0)
    want = out(model)
    for round in range(2):
        for each in (model, twin):
            torch.manual_seed(round)
            for number in (1, 5):
                each[number] = Adapter(each[number])
        assert torch.equal(out(model), out(twin))
        assert not torch.equal(out(model), want)
        assert list(model.state_dict()) == list(twin.state_dict())
        assert equal(model.state_dict().values(), twin.state_dict().values())
        for each in (model, twin):
            for number in (1, 5):
                each[number] = each[number].base_layer
        assert torch.equal(out(model), want)
    handle.detach()


def test_thread_10_results_are_those_without_offloading_each_time(tmp_path):
    """https://github.com/huggingface/diffusers/issues/11981: group offloading changes results."""

    def build():
        layers = [nn.Sequential(each, nn.BatchNorm1d(64), nn.GELU()) for each in chain()]
        return nn.Sequential(*layers, nn.Dropout(0.1))

    model, twin = build(), build()
    handle = small(model, folder=tmp_path, host=0, disturb=lambda: time.sleep(2e-4))
    for mode in (True, False, True):
        for seed in range(3):
            for each in (model.train(mode), twin.train(mode)):
                torch.manual_seed(seed)
                each.found = out(each)
            assert torch.equal(model.found, twin.found)
    handle.detach()
    assert equal(model.state_dict().values(), twin.state_dict().values())


def test_thread_14_weights_that_were_only_read_are_never_written_back(tmp_path):
    """https://github.com/huggingface/diffusers/pull/12910: 54 s a step with, 4.8 s without."""
    for host in (0, "10MB"):
        model = chain()
        (tmp_path / str(host)).mkdir()
        handle = small(model, host=host, folder=tmp_path / str(host))
        handle.reset_stats()
        for _ in range(4):
            out(model)
            model(batch()).sum().backward()
        moved = handle.stats().moved
        assert moved["disk_read" if host == 0 else "host_to_device"] + moved["page_cache"] > 0
        assert moved["disk_write"] == moved["device_to_host"] == 0
        handle.detach()


def resident():
    """Of the process, without pages of files: those of code may have to be read again."""
    whole, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(whole) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def test_thread_15_memory_does_not_grow_and_holds_a_model_once():
    """https://github.com/huggingface/diffusers/issues/7970: with each generation;
    https://github.com/vladmandic/sdnext/pull/5092: the encoder is there twice."""
    model = chain(16, 512)  # 16 MiB
    data = [each.data_ptr() for each in model.parameters()]
    gc.collect()
    before = resident()
    handle = small(model, "4MB", "64MB")
    for _ in range(5):
        out(model, batch(512))
    assert resident() - before < 4_000_000 + 8 * MIB  # the slots, and nothing like a second model
    before, held = resident(), handle.stats().peak_bytes["host"]
    for _ in range(40):
        out(model, batch(512))
    assert resident() - before < 2 * MIB
    assert handle.stats().peak_bytes["host"] == held <= 16 * MIB
    handle.detach()
    assert sum(one == each.data_ptr() for one, each in zip(data, model.parameters(), strict=True)) >= 12


def test_thread_16_quantised_weights_go_to_the_disk_as_they_are(tmp_path):
    """https://github.com/huggingface/diffusers/pull/13721: they cannot; and patched, 87 ms become 1592."""

    class Int8(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randint(-127, 128, (64, 64), dtype=torch.int8), requires_grad=False)
            self.scale = nn.Parameter(torch.rand(64, 1), requires_grad=False)

        def forward(self, x):
            return x @ (self.weight * self.scale).t()

    torch.manual_seed(0)
    model = nn.Sequential(*(Int8() for _ in range(8)))
    want = out(model)
    handle = small(model, 15 * KB, 0, tmp_path)
    assert handle.plan.disk
    handle.reset_stats()
    for _ in range(2):
        assert torch.equal(out(model), want)
    moved = handle.stats().moved
    assert 0 < moved["disk_read"] + moved["page_cache"] <= 4 * 8 * 2**12  # a byte a value, with what is read ahead
    handle.detach()
    assert {each.weight.dtype for each in model} == {torch.int8}


def test_thread_17_the_host_takes_as_much_as_there_is_to_keep():
    """https://github.com/vllm-project/vllm/issues/56410, https://github.com/pytorch/pytorch/issues/150517,
    https://github.com/pytorch/pytorch/issues/95823: pinned memory in powers of two, 1.9 times the bytes."""
    transfers = Transfers()
    store = HostStore(80 * MIB, transfers)
    store.put("first", torch.ones(1000))
    store.drop("first")
    gc.collect()
    before, sizes = resident(), [MIB + 100 * KB + number for number in range(60)]
    for number, size in enumerate(sizes):
        store.put(str(number), torch.ones(size, dtype=torch.uint8))
    assert store.peak <= 1.05 * sum(sizes)
    assert resident() - before <= 1.05 * sum(sizes) + 4 * MIB
    store.close()
    transfers.close()


def test_thread_17_pinned_memory_is_registered_and_not_rounded_up(monkeypatch):
    """The same threads, with CUDA's calls noted by a stand-in: no card is here."""
    from toprope.device.cuda import CudaDevice

    calls = []

    class Runtime:
        def cudaHostRegister(self, address, nbytes, flags):
            calls.append(("register", address, nbytes))
            return 0 if nbytes < MIB else 2

        def cudaHostUnregister(self, address):
            calls.append(("unregister", address))

    class Card:
        torch_device, capabilities = torch.device("cuda", 0), Capabilities(pinned_memory=True)
        as_current = staticmethod(contextlib.nullcontext)
        register_memory = CudaDevice.register_memory

        def synchronize(self):
            calls.append(("synchronize",))

    asked = []
    real = torch.empty

    def empty(size, *, dtype, pin_memory):
        asked.append(size)
        return real(size, dtype=dtype)

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    memory = memory_module.Memory.host(300_001, Card(), lasting=True)
    memory.tensor.fill_(7)
    assert memory.nbytes == 300_001
    assert calls == [("register", memory.address, 303_104)]
    part = memory.tensor[5:]
    del memory
    assert len(calls) == 1
    assert bool((part == 7).all())
    del part
    assert calls[1:] == [("synchronize",), ("unregister", calls[0][1])]

    monkeypatch.setattr("toprope.tiers.store.memory.torch.empty", empty)
    memory_module.Memory.host(2 * MIB, Card(), lasting=True)  # refused: torch's allocator, and no page more at first
    memory_module.Memory.host(MIB, Card())
    assert asked[0] == 2 * MIB
    assert MIB in asked


def test_thread_18_loading_weights_and_computing_do_not_race(tmp_path):
    """https://github.com/vllm-project/vllm/issues/47282: weights are copied while others are loaded; garbled text."""
    model, twin = chain(), chain()
    handle = small(model, folder=tmp_path, host=70 * KB, disturb=lambda: time.sleep(1e-3))
    for seed in range(4):
        out(model)  # what comes next is on its way now
        other = chain(seed=seed).state_dict()
        model.load_state_dict(other)
        twin.load_state_dict(other)
        assert torch.equal(out(model), out(twin))
    handle.detach()
    assert equal(model.parameters(), twin.parameters())


def test_thread_19_weights_are_on_their_way_while_others_are_computed():
    """https://github.com/deepspeedai/DeepSpeed/issues/1130, https://github.com/deepspeedai/DeepSpeed/issues/2159:
    copies that block, 2.3 of 30 TFLOPS."""
    model = chain()
    handle = small(model, slots=2, device=40 * KB)
    out(model)
    out(model)
    since = handle.timeline.spans()[-1].end
    for each in model:
        each.register_forward_hook(lambda *_: time.sleep(0.003))
    for _ in range(20):  # other programs make threads late: one try without them is enough
        handle.reset_stats()
        for _ in range(3):
            out(model)
        stats = handle.stats()
        assert stats.loads >= 24
        assert stats.unexpected <= 1
        if stats.overlap > 0.5:
            break
    assert stats.overlap > 0.5
    spans = [each for each in handle.timeline.spans() if each.begin > since]
    uses = [each for each in spans if each.what == "use"]
    begun = [each for each in spans if each.what == "load"]
    for load in begun[2:]:  # another one was used from its beginning to its end since this one is on its way
        own = next((each.begin for each in uses if each.unit == load.unit and each.begin >= load.begin), None)
        assert own is None or any(load.begin <= each.begin and each.end <= own for each in uses)
    handle.detach()


def test_thread_20_the_largest_tensor_has_no_fixed_buffer_to_fit_into():
    """https://github.com/deepspeedai/DeepSpeed/issues/3506: "More elements than buffer size 100,000,000"."""
    torch.manual_seed(0)
    large = [layer for _ in range(3) for layer in (nn.Linear(64, 8000), nn.Linear(8000, 64))]
    model = nn.Sequential(nn.Linear(64, 64), *large, *chain(3))
    want = out(model)
    data = [each.data_ptr() for each in model.parameters()]
    with pytest.raises(PlanError) as caught:
        small(model, 1000 * KB, "20MB")
    assert [each.data_ptr() for each in model.parameters()] == data
    enough = re.search(r"at least ([\d.]+ MB)", str(caught.value))
    assert enough, str(caught.value)
    with small(model, enough[1], "20MB") as handle:
        assert handle.plan.slots
        for _ in range(2):
            assert torch.equal(out(model), want)


def test_thread_21_a_run_with_states_on_the_disk_has_checkpoints_and_keeps_to_the_host_that_it_has(tmp_path):
    """https://github.com/deepspeedai/DeepSpeed/issues/2082: no checkpoints with NVMe;
    https://github.com/deepspeedai/DeepSpeed/issues/3000: NVMe runs out of memory where the CPU does not."""
    options = {"disk": tmp_path, "states": "disk", "activations": "disk", "host": 300 * KB}
    ours = Run(**options).steps(0, 2)
    ours.save(tmp_path / "run.safetensors", 2)
    want = ours.steps(2, 3).losses[-3:]
    stats = ours.handle.stats()
    assert stats.peak_bytes["host"] <= 300 * KB
    assert stats.moved["disk_write"] > MIB
    ours.handle.close()
    again = Run(**options)
    assert again.restore(tmp_path / "run.safetensors") == 2
    assert again.steps(2, 3).losses[-3:] == want
    again.handle.close()


@pytest.mark.parametrize("device", [40 * KB, 75 * KB, 120 * KB])
def test_thread_22_memory_that_is_free_is_used(device):
    """https://github.com/lyogavin/airllm/issues/325, https://github.com/lyogavin/airllm/issues/44: it stays unused;
    https://github.com/lyogavin/airllm/issues/364, https://github.com/lyogavin/airllm/issues/186: 28 s a token."""
    model, size = chain(12), 64 * 64 * 4
    handle = small(model, device)
    plan = handle.plan
    assert device - size < plan.resident_bytes + plan.slots * plan.slot_bytes <= device
    out(model)
    out(model)
    handle.reset_stats()
    for _ in range(5):
        out(model)
    assert handle.stats().loads <= 5 * (12 - (device // size - 2)) + plan.slots
    handle.detach()


def test_thread_23_files_are_read_in_large_pieces_past_the_page_cache(tmp_path, monkeypatch):
    """https://github.com/ggml-org/llama.cpp/issues/9244, https://github.com/ggml-org/llama.cpp/issues/10478,
    https://github.com/ggml-org/llama.cpp/pull/14396: a page at a time by way of mmap, far below the disk's speed."""
    model = chain(6, 768)
    saved(tmp_path, model)
    with skeleton():
        empty = chain(6, 768)
    out_of_the_page_cache(tmp_path / "w.safetensors")
    pieces = []
    real = os.preadv

    def preadv(descriptor, buffers, offset):
        count = real(descriptor, buffers, offset)
        pieces.append(count)
        return count

    monkeypatch.setattr("toprope.tiers.store.disk_file.os.preadv", preadv)
    with small(empty, "6MB", 0, tmp_path) as handle:
        assert torch.equal(out(empty, batch(768)), out(model, batch(768)))
        moved = handle.stats().moved
        if moved["page_cache"]:
            pytest.skip("this file system has no direct reads")
        assert moved["disk_read"] >= 6 * 768 * 768 * 4
    large = [each for each in pieces if each >= MIB]
    assert sum(large) > 0.95 * sum(pieces)


def test_thread_24_a_step_of_adam_moves_each_state_once(tmp_path):
    """https://github.com/pytorch/pytorch/issues/74588, https://github.com/pytorch/ao/pull/584: 3 to 10 times slower."""
    model = chain(6, 256)
    weights = sum(each.nbytes for each in model.parameters())
    handle = attach(model, "10MB", "10MB", tmp_path, training=True, states="disk", small=KB)
    optimizer = handle.optimizer(torch.optim.Adam(model.parameters()))
    for step in range(3):
        model(batch(256)).square().sum().backward()
        if step == 2:
            handle.training.optimizers.store.flush()
            handle.reset_stats()
        optimizer.step()
        optimizer.zero_grad()
    for each in handle.training.optimizers.store.stores:
        each.flush()
    moved = handle.stats().moved
    read = moved["disk_read"] + moved["page_cache"]
    assert max(moved["disk_write"], read) <= 2.05 * weights  # with what rounding to blocks adds
    assert moved["disk_write"] >= 2 * weights
    handle.detach()


def test_thread_25_activations_neither_leak_nor_lose_their_memory_too_early(tmp_path):
    """https://github.com/Comfy-Org/ComfyUI/pull/10501: used after it was freed, black images;
    https://github.com/huggingface/trl/pull/7195, https://github.com/huggingface/trl/pull/5700: races, and 5 GB lost."""

    def build():
        return nn.Sequential(*(nn.Sequential(each, nn.GELU()) for each in chain()))

    model, twin = build(), build()
    handle = small(
        model, 70 * KB, 150 * KB, tmp_path, activations="disk", training=True, disturb=lambda: time.sleep(1e-4)
    )
    x = torch.linspace(-1, 1, 600 * 64).view(600, 64)
    activations = handle.training.activations
    store = activations.store

    def used():
        model.zero_grad()
        for each in (store, handle.training.optimizers.store):
            drop_freed(each)
        activations.forget_released()
        for _ in range(2000):
            if not store.used:
                break
            time.sleep(0.01)
        return store.used, activations.on_device, len(activations._entries)

    for step in range(6):
        loss = model(x).square().mean()
        if step % 3 == 2:  # forward alone: its graph is thrown away
            assert store.used > 8 * 600 * 64 * 4
            del loss
            gc.collect()
        else:
            loss.backward()
            twin.zero_grad()
            twin(x).square().mean().backward()
            assert equal([each.grad for each in model.parameters()], [each.grad for each in twin.parameters()])
            del loss
        assert used() == (0, 0, 0)
    model[5].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(x)
    gc.collect()
    assert used() == (0, 0, 0)
    handle.close()


@pytest.mark.parametrize("form", ["nvfp4", "nf4", "int8"])
def test_field_33_a_weight_in_few_bits_has_either_layout(form):
    """https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1465: a 4-bit model fails at a transpose."""
    torch.manual_seed(0)
    weight, x = torch.randn(96, 64), torch.randn(5, 64)
    across = weight.t().contiguous().t()
    assert not across.is_contiguous()
    want = x @ pages.decode(pages.encode(weight, form)).t()
    for each in (weight, across):
        page = pages.encode(each, form)
        torch.testing.assert_close(pages.product(x, page), want, rtol=1e-4, atol=1e-4)
        linear = nn.Linear(64, 96, bias=False)
        linear.weight = nn.Parameter(each)
        given = x.clone().t().contiguous().t().requires_grad_()
        layer = pages.QuantisedLinear.from_linear(linear, form)
        layer(given).sum().backward()
        torch.testing.assert_close(layer(given).detach(), want, rtol=1e-4, atol=1e-4)
        decoded = pages.decode(page)
        torch.testing.assert_close(given.grad, decoded.sum(0).expand(5, 64), rtol=1e-4, atol=1e-4)


# Every thread that can be tried without a real card, by its name here.
THREADS = {
    "thread_1": ["huggingface/accelerate/issues/3770", "huggingface/accelerate/issues/3785"],
    "thread_2": ["huggingface/accelerate/issues/4016"],
    "thread_3": ["huggingface/accelerate/issues/1289", "huggingface/transformers/issues/36766"],
    "thread_4": ["huggingface/transformers/issues/46566"],
    "thread_5": ["huggingface/accelerate/issues/1510", "huggingface/accelerate/issues/1592"],
    "thread_6": ["huggingface/accelerate/issues/473", "huggingface/transformers/pull/44565"],
    "thread_7": ["huggingface/accelerate/issues/1600"],
    "thread_8": ["vllm-project/compressed-tensors/pull/752", "vllm-project/compressed-tensors/pull/731"],
    "thread_9": ["huggingface/diffusers/issues/11791"],
    "thread_10": ["huggingface/diffusers/issues/11981"],
    "thread_11": ["huggingface/diffusers/pull/14657"],
    "thread_12": ["huggingface/diffusers/pull/13502"],
    "thread_13": ["huggingface/diffusers/pull/12721"],
    "thread_14": ["huggingface/diffusers/pull/12910"],
    "thread_15": ["huggingface/diffusers/issues/7970", "vladmandic/sdnext/pull/5092"],
    "thread_16": ["huggingface/diffusers/pull/13721"],
    "thread_17": ["vllm-project/vllm/issues/56410", "pytorch/pytorch/issues/150517", "pytorch/pytorch/issues/95823"],
    "thread_18": ["vllm-project/vllm/issues/47282"],
    "thread_19": ["deepspeedai/DeepSpeed/issues/1130", "deepspeedai/DeepSpeed/issues/2159"],
    "thread_20": ["deepspeedai/DeepSpeed/issues/3506"],
    "thread_21": ["deepspeedai/DeepSpeed/issues/2082", "deepspeedai/DeepSpeed/issues/3000"],
    "thread_22": [f"lyogavin/airllm/issues/{number}" for number in (364, 186, 325, 44)],
    "thread_23": [f"ggml-org/llama.cpp/{each}" for each in ("issues/9244", "issues/10478", "pull/14396")],
    "thread_24": ["pytorch/pytorch/issues/74588", "pytorch/ao/pull/584"],
    "thread_25": ["Comfy-Org/ComfyUI/pull/10501", "huggingface/trl/pull/7195", "huggingface/trl/pull/5700"],
    "field_32": ["candle-org/MindAct/issues/2238"],
    "field_33": ["bitsandbytes-foundation/bitsandbytes/issues/1465"],
    "field_36": ["huggingface/diffusers/pull/14786"],
}


def test_every_thread_has_a_test_that_is_named_for_it():
    folder = Path(__file__).parent
    tests = [
        test
        for file in (Path(__file__), folder / "simulated" / "test_tiers_threads.py")
        for test in re.split(r"^(?=def test_)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    ]
    for name, links in THREADS.items():
        mine = [each for each in tests if each.startswith(f"def test_{name}_")]
        for link in links:
            address = rf"https://github.com/{re.escape(link)}\b"
            assert any(re.search(address, each) for each in mine), f"no test is named for {link}"
