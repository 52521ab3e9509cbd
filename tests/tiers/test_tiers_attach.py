"""Attached models (`tiers.attach`): the same bits as in memory as a whole, whatever the program does with the model.

Held: `tiers.engine` from outside: files, dtypes, adapters, state_dict, tied weights, other orders of layers.
"""

import copy
import gc
import random
import threading

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from toprope.errors import PlanError, TierBusyError, UsageError, WeightsError
from toprope.tiers import attach, pages, skeleton
from toprope.tiers.engine import attach as attaching

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
WIDTH = 64
KB = 1000


class Block(nn.Module):
    def __init__(self, number=0):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.register_buffer("scale", torch.tensor(1.0 + number))

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x)))) * self.scale


class Net(nn.Module):
    """An embedding tied to its head, blocks, and a parameter of the model itself."""

    def __init__(self, blocks=6):
        super().__init__()
        self.embed = nn.Embedding(200, WIDTH)
        self.start = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.layers = nn.ModuleList(Block(number) for number in range(blocks))
        self.head = nn.Linear(WIDTH, 200, bias=False)
        self.head.weight = self.embed.weight
        self.order = list(range(blocks))

    def forward(self, tokens):
        x = self.embed(tokens) + self.start
        for number in self.order:
            x = self.layers[number](x)
        return self.head(x)


def net(seed=0, blocks=6):
    torch.manual_seed(seed)
    return Net(blocks)


TOKENS = torch.arange(24).view(2, 12) * 7 % 200
PLACES = ["host", "disk", "spill", "mixed"]


def attached(model, place, tmp_path, device=250 * KB, **options):
    """A model attached with little room on the device, its other weights at this place."""
    options = {"small": 10 * KB, "poison": True, "limit": 20} | options
    if place == "host":
        return attach(model, device, "10MB", **options)
    if place == "spill":
        (tmp_path / "empty").mkdir(exist_ok=True)
        return attach(model, device, 0, tmp_path / "empty", **options)
    save(model, tmp_path)
    return attach(model, device, 0 if place == "disk" else 200 * KB, tmp_path, **options)


def save(model, folder):
    tensors = {name: each.contiguous() for name, each in model.state_dict().items() if name != "head.weight"}
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[::2]}, folder / "a.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, folder / "b.safetensors")


def outputs(model, count=1):
    with torch.no_grad():
        return [model(TOKENS) for _ in range(count)]


def losses(model, seed=3):
    """Outputs and gradients of a training step."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    out = model(TOKENS)
    (out * torch.randn(out.shape, generator=generator)).sum().backward()
    return [out.detach(), *(each.grad.clone() for each in model.parameters())]


def equal(some, others):
    assert len(some) == len(others)
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("place", PLACES)
def test_outputs_and_gradients_are_those_of_the_model_in_memory(place, tmp_path):
    model = net()
    want, trained = outputs(model), losses(model)
    model.zero_grad()
    objects = list(model.parameters())
    handle = attached(model, place, tmp_path)
    assert handle.plan.slots
    for _ in range(3):
        assert equal(outputs(model), want)
        assert equal(losses(model), trained)
    stats = handle.stats()
    assert stats.peak_bytes["device"] <= stats.budget_bytes["device"]
    assert stats.loads > 10
    assert stats.unexpected == 1, "only the first load of all was not begun ahead"
    assert bool(stats.moved["disk_read"] + stats.moved["page_cache"]) == (place != "host")
    model.zero_grad()
    assert handle.detach() is model
    assert all(one is other for one, other in zip(model.parameters(), objects, strict=True))
    assert model.head.weight is model.embed.weight
    assert equal(losses(model), trained)
    assert not (list((tmp_path / "empty").iterdir()) if place == "spill" else [])


def test_a_model_on_meta_is_read_in_place_and_nothing_is_written(tmp_path):
    model = net()
    want, trained = outputs(model), losses(model)
    save(model, tmp_path)
    before = {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
    with skeleton():
        empty = net()
    objects = list(empty.parameters())
    assert all(each.device.type == "meta" for each in objects)
    with attach(empty, 250 * KB, 0, tmp_path, small=10 * KB, poison=True) as handle:
        assert equal(outputs(empty), want)
        assert equal(losses(empty), trained)
        assert handle.stats().moved["disk_write"] == 0
        assert all(one is other for one, other in zip(empty.parameters(), objects, strict=True))
    assert all(each.device.type == "meta" for each in empty.parameters())
    assert {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()} == before
    with attach(empty, 250 * KB, 0, tmp_path, small=10 * KB) as handle:
        handle.detach("cpu")
    assert equal(outputs(empty), want)


def test_files_with_other_weights_are_not_taken_for_the_models_own(tmp_path):
    model = net()
    save(net(seed=1), tmp_path)
    want = outputs(model)
    handle = attach(model, 250 * KB, 0, tmp_path, small=10 * KB)
    assert handle.stats().moved["disk_write"] > 0
    assert equal(outputs(model, 2), want * 2)
    handle.detach()


def test_files_of_another_dtype_are_converted_as_loading_them_would(tmp_path):
    model = net()
    state = {name: each.bfloat16() for name, each in model.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "model.safetensors")
    model.bfloat16().float()
    want = outputs(model)
    with skeleton():
        empty = net()
    handle = attach(empty, 250 * KB, 0, tmp_path, small=10 * KB, poison=True)
    assert equal(outputs(empty, 2), want * 2)
    handle.close()


@pytest.mark.parametrize("place", ["host", "disk", "spill"])
def test_dtype_moves_and_new_weights(place, tmp_path):
    model, twin = net(), net()
    handle = attached(model, place, tmp_path)
    outputs(model)
    for change in (lambda each: each.to(torch.bfloat16), lambda each: each.float(), lambda each: each.double()):
        assert change(model) is model
        change(twin)
        assert {each.dtype for each in model.parameters()} == {each.dtype for each in twin.parameters()}
        assert equal(outputs(model, 2), outputs(twin, 2))
        assert handle.stats().peak_bytes["device"] <= handle.stats().budget_bytes["device"]
    assert equal(losses(model), losses(twin))
    other = net(seed=5).double().state_dict()
    assert str(model.load_state_dict(other)) == "<All keys matched successfully>"
    twin.load_state_dict(other)
    assert equal(outputs(model, 2), outputs(twin, 2))
    state = model.state_dict()
    assert list(state) == list(twin.state_dict())
    assert equal(list(state.values()), list(twin.state_dict().values()))
    with pytest.raises(UsageError, match="there it is several"):
        model.load_state_dict(other | {"head.weight": torch.zeros(200, WIDTH)}, assign=True)
    model.load_state_dict({name: each.float() for name, each in net(seed=6).state_dict().items()}, assign=True)
    twin.load_state_dict({name: each.float() for name, each in net(seed=6).state_dict().items()}, assign=True)
    for each in (model, twin):
        each.head.weight = each.embed.weight
        each.float()
    assert equal(outputs(model, 2), outputs(twin, 2))
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(other | {"layers.0.up.weight": torch.zeros(3, 3)})
    with pytest.raises(UsageError, match="cannot move from cpu to meta"):
        model.to("meta")
    handle.detach()
    assert [each.dtype for each in model.parameters()] == [each.dtype for each in twin.parameters()]


@pytest.mark.parametrize("place", ["host", "disk"])
def test_a_weight_that_was_changed_before_backward_is_torchs_error(place, tmp_path):
    model = net()
    with attached(model, place, tmp_path) as handle:
        loss = model(TOKENS).sum()
        with handle.weights(model.layers[3]), torch.no_grad():
            model.layers[3].down.weight.mul_(2)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation: the weight layers\.3\.down\.weight"):
            loss.backward()


def test_layers_are_skipped_repeated_and_in_another_order(tmp_path):
    model, twin = net(blocks=8), net(blocks=8)
    handle = attached(model, "host", tmp_path)
    chosen = random.Random(0)
    for _ in range(12):
        model.order = twin.order = [chosen.randrange(8) for _ in range(chosen.randrange(1, 12))]
        if chosen.random() < 0.5:
            assert equal(outputs(model), outputs(twin))
        else:
            model.zero_grad()
            twin.zero_grad()
            for each in (model, twin):
                each(TOKENS).square().sum().backward()
            for one, other in zip(model.parameters(), twin.parameters(), strict=True):
                assert (one.grad is None) == (other.grad is None)
                assert one.grad is None or torch.equal(one.grad, other.grad)
    assert handle.stats().changed_orders > 3
    handle.detach()


class Lora(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = nn.Linear(base.in_features, 4, bias=False)
        self.b = nn.Linear(4, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def test_adapters_are_added_after_attaching_trained_and_taken_away(tmp_path):
    model, twin = net(), net()
    handle = attached(model, "disk", tmp_path)
    want = outputs(model)
    for each in (model, twin):
        each.requires_grad_(False)
        torch.manual_seed(1)
        for block in each.layers:
            block.up = Lora(block.up)
        each.optimizer = torch.optim.AdamW([p for p in each.parameters() if p.requires_grad], 0.01)
    for _ in range(3):
        for each in (model, twin):
            each.optimizer.zero_grad()
            each(TOKENS).square().mean().backward()
            each.optimizer.step()
        assert equal(outputs(model), outputs(twin))
    for block in model.layers:
        block.up = block.up.base
    assert equal(outputs(model), want)
    handle.detach()


def test_recomputation_and_gradients_of_gradients(tmp_path):
    model, twin = net(), net()
    handle = attached(model, "host", tmp_path)

    class Recomputed(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = [block]

        def forward(self, x):
            return checkpoint(self.block[0], x, use_reentrant=False)

    def run(each):
        x = (each.embed(TOKENS) + each.start).detach().requires_grad_()
        y = x
        for block in each.layers:
            y = Recomputed(block)(y)
        (first,) = torch.autograd.grad(y.square().sum(), x)
        y = x
        for block in list(each.layers)[:2]:
            y = block(y)
        (second,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        third = torch.autograd.grad(second.square().sum(), list(each.layers[0].parameters()))
        return [first, second.detach(), *third]

    for _ in range(2):
        assert equal(run(model), run(twin))
    handle.detach()


class Direct(nn.Module):
    """Uses its modules' weights without calling them, as torch's own attention does."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 5)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)

    def forward(self, x):
        x = self.encoder(x)
        x, _ = self.attention(x, x, x)
        return self.recurrent(x)[0]


@pytest.mark.parametrize("device", [900 * KB, 620 * KB])
def test_torchs_own_layers_which_use_weights_in_their_own_way(device, tmp_path):
    torch.manual_seed(0)
    model = Direct()
    twin = copy.deepcopy(model)
    x = torch.randn(2, 9, WIDTH)
    handle = attach(model, device, "10MB", small=10 * KB, poison=True)
    assert handle.plan.slots
    for mode in (True, False):
        model.train(mode)
        twin.train(mode)
        with torch.no_grad():
            assert torch.equal(model(x), twin(x)), mode
        for each in (model, twin):
            each.zero_grad()
            each(x).square().sum().backward()
        assert equal([each.grad for each in model.parameters()], [each.grad for each in twin.parameters()])
    handle.detach()


def test_weights_that_share_memory_and_odd_strides(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5)), nn.Conv2d(3, 64, 5))
    model[3].weight.data = model[1].weight.data  # tied by memory, not by object
    flat = torch.randn(2, WIDTH, WIDTH)
    model[0].weight.data, model[4].weight.data = flat[0], flat[1].t()  # two parts of one memory; another order
    model[5].weight.data = model[5].weight.data.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    image = torch.randn(1, 3, 9, 9)

    def run(each, x):
        for number in range(5):
            x = each[number](x)
        return x, each[5](image)

    x = torch.randn(3, WIDTH)
    want = run(twin, x)
    handle = attach(model, 60 * KB, "10MB", small=10 * KB, poison=True)
    assert handle.plan.slots
    strides = [each.stride() for each in twin.parameters()]
    for _ in range(2):
        assert equal(run(model, x), want)
        assert [each.stride() for each in model.parameters()] == strides
    handle.detach()
    assert equal(run(model, x), want)


@pytest.mark.slow
def test_views_that_are_kept_are_safe_and_too_many_of_them_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("toprope.tiers.engine.prefetch.prefetch_buffer.PATIENCE", 0.2)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    weights = [each.weight.detach().clone() for each in model]
    handle = attach(model, 70 * KB, "10MB", small=10 * KB, poison=True, slots=3)
    kept = []
    model[2].register_forward_pre_hook(lambda module, _: kept.append(module.weight.data))
    want = outputs_of(model)
    assert equal(outputs_of(model), want)
    kept = kept[:1]
    gc.collect()
    assert torch.equal(kept[0], weights[2])  # still there, whatever came since
    for number in (3, 4, 5):
        model[number].register_forward_pre_hook(lambda module, _: kept.append(module.weight.data))
    with pytest.raises(TierBusyError, match="views of its weights are kept"):
        outputs_of(model)
    kept.clear()
    for number in (2, 3, 4, 5):
        model[number]._forward_pre_hooks.popitem()
    assert equal(outputs_of(model), want)
    handle.detach()


def outputs_of(model):
    with torch.no_grad():
        return [model(torch.ones(2, WIDTH))]


def movers():
    return {each for each in threading.enumerate() if each.name.startswith("toprope-tiers")}


def test_what_cannot_fit_is_refused_and_nothing_has_changed(tmp_path):
    before = movers()
    model = net()
    want = outputs(model)
    data = [each.data_ptr() for each in model.parameters()]
    with pytest.raises(PlanError):
        attach(model, 20 * KB, "10MB", small=10 * KB)
    with pytest.raises(PlanError):
        attach(model, 250 * KB, 100 * KB, small=10 * KB)
    with pytest.raises(WeightsError, match="no values"), skeleton():
        attach(net(), 250 * KB, 0)
    with pytest.raises(UsageError, match="is not there"):
        attach(model, 250 * KB, 0, tmp_path / "nowhere")
    save(net(blocks=3), tmp_path)
    with skeleton():
        empty = net()
    with pytest.raises(WeightsError, match=r"such as layers\.3"):
        attach(empty, 250 * KB, 0, tmp_path)
    assert [each.data_ptr() for each in model.parameters()] == data
    assert not model._forward_pre_hooks
    assert movers() == before
    handle = attached(model, "host", tmp_path)
    with pytest.raises(UsageError, match="attached already"):
        attached(model, "host", tmp_path)
    handle.detach()
    handle.detach()
    assert equal(outputs(model), want)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch itself, of the twin
@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_blocks(when, tmp_path):
    model, twin = net(blocks=4), net(blocks=4)

    def compile_all(each):
        for number, block in enumerate(each.layers):
            if number % 2:
                block.compile(backend="aot_eager")
            else:
                each.layers[number] = torch.compile(block, backend="aot_eager")

    compile_all(twin)
    if when == "before":
        compile_all(model)
    handle = attach(model, 200 * KB, "10MB", small=10 * KB, poison=True)
    assert handle.plan.slots
    if when == "after":
        compile_all(model)
    for _ in range(2):
        assert equal(outputs(model), outputs(twin))
        assert equal(losses(model), losses(twin))
    handle.detach()
    torch._dynamo.reset()


def test_attaching_does_not_import_the_compiler():
    from device_stand_ins import told

    assert not told("""
        import sys, torch
        from toprope.tiers import attach
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
        attach(model, "50kB", "1MB", small=1)
        model(torch.ones(1, 64)).sum().backward()
        tell("torch._dynamo.eval_frame" in sys.modules)
    """)


def test_everything_fits_and_nothing_moves():
    model = net()
    want = outputs(model)
    data = [each.data_ptr() for each in model.parameters()]
    with attach(model, "1GB", "1GB") as handle:
        assert equal(outputs(model), want)
        assert handle.stats().loads == 0
        assert "nothing moves" in handle.plan.reasons[0]
    assert [each.data_ptr() for each in model.parameters()] == data


def test_two_threads_run_the_same_model(tmp_path):
    model = net()
    want = outputs(model)[0]
    handle = attached(model, "host", tmp_path, device=400 * KB)
    wrong = []

    def work():
        for _ in range(15):
            if not torch.equal(outputs(model)[0], want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    handle.detach()


def test_figures_a_picture_and_progress(tmp_path, monkeypatch):
    # Two seconds would be over soon on a busy machine.
    monkeypatch.setattr(attaching, "_QUIET_SECONDS", 600.0)
    model = net()
    told = []
    handle = attached(model, "spill", tmp_path, progress=lambda done, total: told.append((done, total)))
    outputs(model, 4)
    stats = handle.stats()
    assert stats.steps >= 3
    assert 0 <= stats.overlap <= 1
    assert stats.ratio >= 1
    assert '"waited_seconds"' in stats.to_json()
    handle.reset_stats()
    assert handle.stats().loads == 0
    outputs(model)
    per_pass = sum(each.bytes for each in handle.plan.loads)
    assert 0 < handle.stats().moved["disk_read"] + handle.stats().moved["page_cache"] <= 3 * per_pass
    handle.save_timeline(tmp_path / "timeline.svg")
    drawn = (tmp_path / "timeline.svg").read_text()
    assert drawn.startswith("<svg")
    assert 'class="use"' in drawn
    assert "layers.1" in drawn
    assert {each.what for each in handle.timeline.spans()} == {"load", "ready", "use"}
    handle.detach()
    assert not told  # it took less than that


@pytest.mark.parametrize("form", ["nvfp4", "int8"])
def test_weights_in_few_bits_come_and_go_as_few_bytes(form, tmp_path):
    torch.manual_seed(0)
    linears = [nn.Linear(256, 256) for _ in range(6)]
    model, twin = (nn.Sequential(*(pages.QuantisedLinear.from_linear(each, form) for each in linears)) for _ in "12")
    for one, other in zip(model, twin, strict=True):
        one.bias, other.bias = (nn.Parameter(one.bias.detach().clone()) for _ in "12")
    x = torch.randn(4, 256)
    stored = sum(each.page.nbytes for each in model)
    assert stored < 256 * 256 * 6 * 1.1
    with attach(model, stored // 2, 0, tmp_path, on="cpu", small=2048, poison=True) as handle:
        assert handle.plan.slots
        for _ in range(2):
            with torch.no_grad():
                assert torch.equal(model(x), twin(x))
        handle.reset_stats()
        with torch.no_grad():
            model(x)
        moved = handle.stats().moved
        assert 0 < moved["disk_read"] + moved["page_cache"] <= 2 * stored
        given = [x.clone().requires_grad_() for _ in "12"]
        model(given[0]).square().sum().backward()
        twin(given[1]).square().sum().backward()
        assert torch.equal(given[0].grad, given[1].grad)
        for one, other in zip(model, twin, strict=True):
            assert torch.equal(one.bias.grad, other.bias.grad)
    for one, other in zip(model, twin, strict=True):
        assert torch.equal(one.codes, other.codes)
