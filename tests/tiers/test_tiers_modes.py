"""Modes (`tiers.modes`): the effect of each can be seen, and is gone afterwards. If a figure decides, it is given."""

import copy
import io
import logging
import os
import pickle
import warnings
from fractions import Fraction
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_pre_hooks

from device_stand_ins import told
from toprope.device import FallbackWarning
from toprope.errors import ModeUnavailable, PlanError, SettingError, SizeError, TierAbsentError, UsageError
from toprope.tiers import attach, modes
from toprope.tiers.modes import budgets, recompute, switch
from toprope.tiers.modes.models import needs_of
from toprope.tiers.modes.names import effects_of
from toprope.tiers.modes.quantised import QuantisedInPlace
from toprope.tiers.quant import measure as measured
from toprope.tiers.store.memory import placeholder

pytestmark = [pytest.mark.native, pytest.mark.process]

FASTER = modes.Verdict("cpu", "nvfp4", torch.float32, ((1, 4.0), (32, 2.0)))
SLOWER = modes.Verdict("cpu", "nvfp4", torch.float32, ((1, 4.0), (32, 0.9)))
BUDGET = "30%"
WIDTH = 256


@pytest.fixture(autouse=True)
def off_afterwards(monkeypatch):
    monkeypatch.setenv(
        "TOPROPE_CACHE_DIR", os.environ.get("TOPROPE_CACHE_DIR", str(Path.home() / ".cache" / "toprope"))
    )
    monkeypatch.delenv(budgets.VARIABLE, raising=False)
    memory = psutil.virtual_memory()._replace(available=2**35)  # other programs do not decide what is free
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    modes.disable()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)


def enable(mode, tmp_path=None, device=None, measured=FASTER, **options):
    config = {}
    if tmp_path is not None:
        config["disk"] = str(tmp_path)
    if device is not None:
        config["device"] = device
    return modes.enable(mode, config=config or None, on="cpu", measured=measured, **options)


def mlp(layers=2, width=WIDTH):
    torch.manual_seed(42)
    made = nn.Sequential()
    for number in range(layers):
        made.append(nn.Linear(width, 4 * width))
        made.append(nn.ReLU())
        made.append(nn.Linear(4 * width, width))
        if number + 1 < layers:
            made.append(nn.ReLU())
    return made


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, *, scale=1.0):
        return x + scale * self.down(functional.gelu(self.up(self.norm(x))))


class Deep(nn.Module):
    def __init__(self, blocks=6, width=128):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x


def train(model, steps=2, width=WIDTH, rows=16, clip=False):
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(rows, width), torch.randn(rows, width)
        loss = functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.detach())
    state = model.state_dict()
    return losses, [state[name].clone() for name, _ in model.named_parameters()], optimizer


def same(first, second):
    return all(map(torch.equal, first, second))


def seen(model):
    return next(each for each in modes.active().models() if each["model"] == type(model).__name__)


# Names and budgets, pure


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, None),
        ({"VB_MODE": "speed"}, None),
        ({"ENABLE_VIRTUAL_BLACKWELL": "0", "VB_MODE": "nonsense"}, None),
        ({"ENABLE_VIRTUAL_BLACKWELL": "yes"}, "balanced"),
        ({"ENABLE_VIRTUAL_BLACKWELL": "True", "VB_MODE": " Full "}, "full"),
    ],
)
def test_what_the_variables_ask_for(variables, mode):
    assert modes.asked_for(variables) == mode


def test_what_they_cannot_ask_for():
    with pytest.raises(SettingError, match="no mode 'fast'") as caught:
        modes.asked_for({"ENABLE_VIRTUAL_BLACKWELL": "1", "VB_MODE": "fast"})
    assert "give full, speed, memory, balanced" in str(caught.value)
    with pytest.raises(SettingError, match="not a truth value"):
        modes.asked_for({"ENABLE_VIRTUAL_BLACKWELL": "perhaps"})
    with pytest.raises(UsageError, match="no mode 'fast'"):
        effects_of("fast")


@given(percent=st.integers(1, 400), needs=st.integers(1, 10**12))
def test_a_percentage_is_of_the_needs(percent, needs):
    budget = budgets.Budget.read(f"{percent}%", "test")
    assert budget.bytes_for(needs) == int(Fraction(percent, 100) * needs)
    assert budget.given
    assert budgets.Budget.read("8GB", "test").bytes_for(needs) == 8 * 10**9
    assert budgets.Budget.read("auto", "test").bytes_for(needs) is None


def test_where_budgets_come_from():
    assert not budgets.read_room(None, {}).device.given
    room = budgets.read_room(None, {budgets.VARIABLE: "25%"})
    assert (room.device.share, room.device.source) == (Fraction(1, 4), budgets.VARIABLE)
    levels = [
        {"capacity_mb": 20, "device": "npu:0"},
        {"capacity_mb": 64, "device": "cpu"},
        {"capacity_mb": 100, "device": "ssd", "path": "/x"},
    ]
    room = budgets.read_room({"levels": levels}, {budgets.VARIABLE: "25%"})
    assert (room.device.size, room.host, room.folder, room.disk) == (20 * 2**20, 64 * 2**20, "/x", 100 * 2**20)
    room = budgets.read_room({"levels": levels, "device": "50%", "host": "1GB", "disk": "/y:2GB"}, {})
    assert (room.device.share, room.host, room.folder, room.disk) == (Fraction(1, 2), 10**9, "/y", 2 * 10**9)
    for wrong in ("0%", "many", "-3GB"):
        with pytest.raises(SizeError):
            budgets.Budget.read(wrong, "test")
    with pytest.raises(SettingError, match="neither a size nor a percentage") as caught:
        budgets.read_room(None, {budgets.VARIABLE: "a lot"})
    assert f"{budgets.VARIABLE}=a lot" in str(caught.value)
    with pytest.raises(UsageError, match="vgpu_config has no 'gpu'"):
        budgets.read_room({"gpu": "8GB"}, {})


def test_needs_count_tied_weights_once_and_two_states_for_what_trains():
    model = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100, bias=False), nn.Linear(100, 4, bias=False))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    needs = needs_of(model)
    assert (needs.weights, needs.trained) == (800 * 4 + 400 * 4, 800 * 4)
    assert (needs.total(False), needs.total(True)) == (4800, 4800 + 3 * 3200)


# Balanced


def test_balanced_is_lossless_with_a_part_of_what_training_needs():
    """Weights, gradients and the states of the program's own optimizer come and go; all is given back. (22, 20)"""
    plain = train(mlp(), clip=True)
    enable("balanced", device=BUDGET)
    model = mlp()
    losses, _, optimizer = train(model, clip=True)
    told_of = seen(model)
    assert (told_of["attached"], told_of["training"], told_of["needs_bytes"]) == (
        True, True, 4 * sum(each.nbytes for each in model.parameters()),
    )  # fmt: skip
    assert hasattr(optimizer, "plain_class")  # taken over in its first step
    modes.disable()
    assert same(losses, plain[0])
    assert same([each.detach() for each in model.parameters()], plain[1])
    assert type(optimizer) is torch.optim.Adam
    for mine, other in zip(optimizer.state.values(), plain[2].state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], other["exp_avg"])
    x = torch.randn(3, WIDTH)
    assert torch.equal(model(x), copy.deepcopy(model)(x))


def test_the_first_step_of_an_optimizer_returns_what_its_closure_returned():
    enable("balanced", device=BUDGET)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, WIDTH)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[2]


def test_what_fits_is_left_alone_and_what_cannot_fit_is_refused():
    enable("balanced", device="100%")
    model, x = mlp(), torch.randn(2, WIDTH)
    model(x)
    assert not seen(model)["attached"]
    enable("balanced", device="100kB")
    with pytest.raises(PlanError):
        mlp()(x)
    modes.disable()
    assert torch.equal(model(x), mlp()(x))


def test_a_percentage_in_inference_is_of_the_weights_and_training_afterwards_is_planned_anew():
    plain, x = mlp(4), torch.randn(2, WIDTH)
    expected = plain(x).detach()
    enable("balanced", device="60%")
    model = mlp(4)
    with torch.no_grad():
        assert torch.equal(model(x), expected)
    weights = sum(each.nbytes for each in model.parameters())
    assert (seen(model)["training"], seen(model)["needs_bytes"], seen(model)["attached"]) == (False, weights, True)
    model(x).sum().backward()
    assert (seen(model)["training"], seen(model)["needs_bytes"]) == (True, 4 * weights)
    plain(x).sum().backward()
    modes.disable()
    assert same([each.grad for each in model.parameters()], [each.grad for each in plain.parameters()])


def test_a_part_that_was_called_first_goes_with_the_whole():
    model, x = Deep(8), torch.randn(2, 128)
    expected = Deep(8)(x).detach()
    enable("balanced", device="1.6MB")
    with torch.no_grad():
        model.blocks[0](x)
        assert torch.equal(model(x), expected)
        assert torch.equal(model(x), expected)
    assert [each["model"] for each in modes.active().models()] == ["Deep"]


def test_attention_goes_the_fused_way_and_the_weights_are_there_when_they_are_looked_at():
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(64, 4, batch_first=True), torch.randn(2, 10, 64)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[:, 8:] = True
    for training in (True, False):
        layer.train(training)
        plain, weights = layer(x, x, x, key_padding_mask=padding)
        enable("balanced")
        with mock.patch.object(
            functional, "scaled_dot_product_attention", wraps=functional.scaled_dot_product_attention
        ) as fused:
            out, looked_at = layer(x, x, x, key_padding_mask=padding)
            assert fused.call_count == 1
            assert layer(x, x, x, need_weights=True)[1].shape == (2, 10, 10)  # asked for by name: torch's own way
            assert fused.call_count == 1
        assert torch.allclose(out, plain, atol=1e-5)
        assert isinstance(looked_at, torch.Tensor)
        assert torch.allclose(looked_at, weights, atol=1e-6)
        assert looked_at.shape == (2, 10, 10)
        looked_at.square().sum().backward()
        assert layer.in_proj_weight.grad is not None
        layer.zero_grad()
        late = layer(x, x, x)[1]
        with torch.no_grad():
            layer.in_proj_weight.mul_(1.0)
        with pytest.raises(UsageError, match="attention weights are looked at after"):
            late.sum()
        modes.disable()
        assert torch.equal(layer(x, x, x, key_padding_mask=padding)[1], weights)
        assert not layer._forward_pre_hooks
        assert torch.backends.mha.get_fastpath_enabled()


def test_a_model_that_was_attached_by_hand_is_left_alone(tmp_path):
    model, x = mlp(4), torch.randn(2, WIDTH)
    expected = model(x).detach()
    with attach(model, "3MB", on="cpu") as handle:
        enable("full", tmp_path, device="2.5MB")
        with torch.no_grad():
            assert torch.allclose(model(x), expected, atol=0.02)
        assert handle.plan.budgets.device == 3 * 10**6
        assert (seen(model)["attached"], seen(model)["quantised_layers"]) == (False, 0)
        modes.disable()
        with torch.no_grad():
            assert torch.equal(model(x), expected)


# Memory


def saved_bytes(model, x):
    """Bytes that autograd saves for backward, without weights."""
    found, mine = {}, {each.untyped_storage()._cdata for each in model.parameters()}

    def pack(tensor):
        if tensor.untyped_storage()._cdata not in mine:
            found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = model(x)
    del kept
    return sum(found.values())


@pytest.mark.parametrize("build", [Deep, lambda: mlp(2, 128)], ids=["blocks", "layers"])
def test_blocks_are_computed_again_with_the_same_numbers_and_less_is_saved(build):
    plain, x = build(), torch.randn(64, 128)
    before, result = saved_bytes(plain, x), plain(x)
    result.sum().backward()
    enable(modes.Effects(recompute=True))
    model = build()
    assert saved_bytes(model, x) < before / 2
    out = model(x)
    assert torch.equal(out, result)
    out.sum().backward()
    assert same([each.grad for each in model.parameters()], [each.grad for each in plain.parameters()])
    modes.disable()
    assert saved_bytes(model, x) == before


def test_recomputing_a_model_that_comes_and_goes_holds_no_weights():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            for number in range(8):
                setattr(self, f"layer{number}", nn.Linear(512, 512))

        def forward(self, x):
            for layer in self.children():
                x = torch.relu(layer(x))
            return x

    plain = train(Flat(), width=512)
    enable(modes.Effects(recompute=True), device="7MB")
    model = Flat()
    losses, _, _ = train(model, width=512)
    assert seen(model)["attached"]
    modes.disable()
    assert same(losses, plain[0])
    assert same(list(model.parameters()), plain[1])


def test_memory_multiplies_in_bf16_and_moves_activations_to_the_disk(tmp_path):
    plain = train(Deep(), width=128, rows=256)
    active = enable("memory", tmp_path, device="60%")
    assert (active.effects, active.reasons) == (modes.MODES["memory"], {})
    model, dtypes = Deep(), set()
    model.blocks[0].up.register_forward_hook(lambda module, args, output: dtypes.add(output.dtype))
    losses, _, _ = train(model, width=128, rows=256)
    assert dtypes == {torch.bfloat16}
    handle = next(iter(switch._state.managed.values())).handle
    assert handle.activations == "disk"
    assert handle.training.stats()["activations_moved_bytes"] > 0
    assert model(torch.randn(2, 128)).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert all(torch.allclose(mine, other, rtol=0.02) for mine, other in zip(losses, plain[0], strict=True))
    assert not same(losses, plain[0])
    modes.disable()
    x = torch.randn(2, 128)
    assert torch.equal(model(x), copy.deepcopy(model)(x))
    assert not model.blocks[0]._forward_pre_hooks
    assert "_apply" not in vars(model)


def test_after_an_interrupted_call_nothing_stays_on(tmp_path):
    class Stopped(Deep):
        stop = True

        def forward(self, x):
            x = self.blocks[0](x)
            if self.stop:
                raise KeyboardInterrupt
            return super().forward(x)

    enable("memory", tmp_path)
    model, x = Stopped(), torch.randn(2, 128)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    model.stop = False
    model(x).sum().backward()
    assert all(each.grad is not None for each in model.parameters())
    assert not torch.is_autocast_enabled("cpu")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        nn.Linear(7, 7)(torch.randn(2, 5))
    assert not torch.is_autocast_enabled("cpu")


# Speed


def test_speed_keeps_weights_in_few_bits_and_nothing_else_changes(tmp_path):
    """Weight bytes <= 0.57 a parameter; state_dict, copies, moves and training have the plain weights. (20)"""
    plain, x = mlp(), torch.randn(4, WIDTH)
    result = plain(x).detach()
    active = enable("speed", tmp_path)
    assert active.effects == modes.Effects(quantise=True)
    model = modes.optimize(mlp())
    layers = [each for each in model if isinstance(each, nn.Linear)]
    assert all(isinstance(each, QuantisedInPlace) for each in layers)
    with torch.no_grad():
        out = model(x)
    assert 0.01 < float((out - result).norm() / result.norm()) < 0.25
    count = sum(each.weight.numel() for each in layers)
    assert sum(each._kept.page.nbytes for each in layers) <= 0.57 * count
    assert all(each._kept.origin.tensor is None for each in layers)  # on the disk, not in memory
    assert (seen(model)["quantised_layers"], seen(model)["plain_bytes_in_memory"]) == (4, 0)
    assert 0.05 < seen(model)["largest_weight_error"] < 0.12
    assert same(model.state_dict().values(), plain.state_dict().values())
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(made[0]) is nn.Linear
        assert torch.equal(made[0].weight, plain[0].weight)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    other = {name: 2 * each for name, each in plain.state_dict().items()}
    model.load_state_dict(other)
    with torch.no_grad():
        model(x)
    assert type(model[0]) is QuantisedInPlace
    assert torch.equal(model.state_dict()["0.weight"], other["0.weight"])
    model.load_state_dict(plain.state_dict())
    model.double()
    assert model[0].weight.dtype == torch.float64
    model.float()
    with torch.no_grad():
        assert torch.equal(model(x), out)
    modes.disable()
    assert torch.equal(model(x), result)
    assert [type(each) for each in model] == [type(each) for each in plain]


def test_nothing_trains_in_few_bits(tmp_path, caplog):
    """Layers have their weights back where these get gradients, and train; frozen ones stay in few bits."""
    plain = train(mlp())
    enable("speed", tmp_path)
    model = mlp()
    with torch.no_grad():
        model(torch.randn(1, WIDTH))
    assert type(model[0]) is QuantisedInPlace
    with caplog.at_level(logging.WARNING, "toprope"):
        losses, weights, _ = train(model)
    assert same(losses, plain[0])
    assert same(weights, plain[1])
    assert [each.message for each in caplog.records if each.name.startswith("toprope")] == [
        "weights are not quantised while they get gradients: use torch.no_grad() in inference"
    ]
    model.requires_grad_(False)
    x = torch.randn(2, WIDTH, requires_grad=True)
    model(x).sum().backward()
    assert type(model[0]) is QuantisedInPlace
    assert x.grad is not None
    model.requires_grad_(True)
    with torch.no_grad():
        model(x)
        with torch.enable_grad():
            inner = model[0](x)
    assert inner.grad_fn is not None
    inner.sum().backward()
    assert model[0].weight.grad is not None


def test_full_quantises_in_inference_and_gives_up_where_training_takes_turns_with_it(tmp_path, caplog):
    enable("full", tmp_path)
    model, x = mlp(1), torch.randn(2, WIDTH)
    quantised = []
    for _ in range(5):
        model(x).sum().backward()
        assert seen(model)["attached"]
        with torch.no_grad():
            model(x)
        quantised.append(seen(model)["quantised_layers"])
        with torch.no_grad():
            model(x)
    assert quantised == [2, 2, 2, 2, 0]
    assert "not quantised any more" in caplog.text


def test_tied_and_small_layers_and_those_of_other_classes_stay(tmp_path):
    enable("speed", tmp_path)
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(300, 64), "head": nn.Linear(64, 300, bias=False), "small": nn.Linear(64, 64),
            "attention": nn.MultiheadAttention(128, 4), "plain": nn.Linear(128, 256),
        }
    )  # fmt: skip
    model["head"].weight = model["embed"].weight
    modes.optimize(model)
    quantised = [name for name, each in model.named_modules() if isinstance(each, QuantisedInPlace)]
    assert quantised == ["plain"]
    with torch.no_grad():
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True).eval()
        x = torch.randn(2, 5, 128)
        out = layer(x)
    assert isinstance(layer.linear1, QuantisedInPlace)
    modes.disable()
    with torch.no_grad():
        assert float((out - layer(x)).norm() / layer(x).norm()) < 0.1


@pytest.mark.parametrize("rows", [1, 200])
def test_quantised_products_are_those_of_what_is_stored(tmp_path, rows):
    from toprope.tiers import pages
    from toprope.tiers.quant.matmul import multiply

    torch.manual_seed(0)
    page = pages.encode(torch.randn(96, 64))
    x, bias = torch.randn(rows, 64), torch.randn(96)
    expected = x @ pages.decode(page).T + bias
    found = multiply(x, page, bias)
    assert found.dtype == torch.float32
    assert float((found - expected).norm() / expected.norm()) < 0.005


@pytest.mark.parametrize("mode", ["speed", "full"])
def test_where_quantised_products_are_not_faster_the_mode_is_refused(mode, tmp_path, monkeypatch):
    enable("balanced")
    before = modes.active()
    with pytest.raises(ModeUnavailable, match=f"the {mode} mode is not available") as caught:
        enable(mode, tmp_path, measured=SLOWER)
    assert "4.00 times as fast with 1 row, 0.90 times as fast with 32 rows" in str(caught.value)
    assert modes.active() is before
    monkeypatch.setenv("TOPROPE_FALLBACK", "1")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        active = enable(mode, tmp_path, measured=SLOWER)
    assert [each.category for each in said] == [FallbackWarning]
    assert not active.effects.quantise
    assert "0.90 times" in active.reasons["quantise"]
    assert active.effects.mixed == (mode == "full")
    model = mlp()
    with torch.no_grad():
        model(torch.randn(1, WIDTH))
    assert type(model[0]) is nn.Linear


def test_the_measurement_is_taken_once_and_says_what_it_is(monkeypatch):
    from toprope import device

    monkeypatch.setattr(measured, "SIZE", 256)
    monkeypatch.setattr(measured, "_known", {})
    random = torch.get_rng_state()
    found = modes.verdict(device.get("cpu"))
    assert modes.verdict(device.get("cpu")) == found
    assert torch.equal(torch.get_rng_state(), random)
    assert [rows for rows, _ in found.speedups] == [1, 32]
    assert found.faster == all(each > 1 for _, each in found.speedups)
    assert "nvfp4 on cpu" in found.text
    with mock.patch("toprope.tiers.quant.kernels.kernels", return_value=None):
        monkeypatch.setattr(measured, "_known", {})
        without = modes.verdict(device.get("cpu"))
    assert not without.faster
    assert "there are no kernels" in without.text


def test_what_comes_in_few_bits_and_fits_so_is_not_made_to_come_and_go(tmp_path):
    enable("speed", tmp_path, device="40%")
    model, x = mlp(), torch.randn(2, WIDTH)
    with torch.no_grad():
        model(x)
    assert (seen(model)["attached"], seen(model)["quantised_layers"]) == (False, 4)
    enable("speed", tmp_path, device="2.2MB")  # its pages alone are 0.6 MB: too few for plain weights
    model = mlp()
    with torch.no_grad():
        model(x)
        assert torch.equal(model(x), model(x))
    assert (seen(model)["attached"], seen(model)["quantised_layers"]) == (False, 4)


# On and off


def test_optimizing_without_a_mode_is_refused_and_a_mode_is_off_by_default():
    assert modes.active() is None
    with pytest.raises(UsageError, match="no mode is on"):
        modes.optimize(mlp())
    modes.disable()


@pytest.mark.parametrize("mode", ["balanced", "full"])
def test_transforms_of_torch_func_are_as_without_a_mode(mode, tmp_path):
    model, x = mlp(1), torch.randn(3, WIDTH)
    given = {name: each.detach().clone() for name, each in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    def gradients():
        whole = torch.func.grad(loss)(given, x)
        return [*whole.values(), *torch.func.vmap(torch.func.grad(loss), (None, 0))(given, x[:, None]).values()]

    expected, plain = gradients(), model(x).detach()
    enable(mode, tmp_path)
    assert same(gradients(), expected)
    with torch.no_grad():
        model(x)
        assert isinstance(model[0], QuantisedInPlace) == (mode == "full")
        found = torch.func.vmap(lambda row: model(row))(x)
    assert float((found - plain).norm() / plain.norm()) < 0.25
    assert same(gradients(), expected)


def test_off_takes_every_hook_away():
    from torch.nn.modules import module as torchs

    def hooks():
        return [
            len(torchs._global_forward_pre_hooks), len(torchs._global_forward_hooks),
            len(torchs._global_module_registration_hooks), nn.Module._apply,
            len(_global_optimizer_pre_hooks), torch.backends.mha.get_fastpath_enabled(),
        ]  # fmt: skip

    before = hooks()
    enable("full")
    assert hooks() != before
    enable("balanced")
    modes.disable()
    assert hooks() == before


def test_a_model_that_is_gone_is_forgotten():
    enable("balanced")
    model = mlp()
    model(torch.randn(1, WIDTH))
    assert len(modes.active().models()) == 1
    del model
    assert modes.active().models() == []


def test_recomputed_blocks_are_the_outermost_that_are_more_than_a_layer():
    deep, layers = Deep(3), mlp()
    assert recompute.blocks(deep) == list(deep.blocks)
    assert recompute.blocks(layers) == [layers]
    nested = nn.Sequential(nn.Sequential(Deep(2), Deep(2)), nn.Linear(4, 4))
    assert recompute.blocks(nested) == [nested[0]]


def test_a_layer_that_is_quantised_in_its_own_first_call_gives_numbers(tmp_path):
    """torch calls the `forward` that it has looked up before the hook: it was NaN."""
    enable("speed", tmp_path)
    torch.manual_seed(0)
    layer, x = nn.Linear(256, 256), torch.randn(2, 256)
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x))
        assert not layer(x).isnan().any()


def test_placeholders_of_weights_take_no_memory(tmp_path):
    enable("speed", tmp_path)
    model = modes.optimize(mlp())
    with pytest.raises(TierAbsentError, match="quantised"):
        model[0].weight.isnan()
    assert placeholder(torch.empty(2, 2, device="meta"), switch._state.mode.device).shape == (2, 2)
    with pytest.raises(RuntimeError):
        model[0].weight.data.zero_()


# On the simulated card

SIMULATED = """
import gc, toprope.sim, torch
from torch import nn
toprope.sim.install("910B3", count=1)
from toprope import device
from toprope.errors import ModeUnavailable
from toprope.tiers import attach, modes
from toprope.tiers.quant import measure as measured
torch.set_num_threads(1)
card = device.get("npu:0")

def train(mode=None, built_there=False):
    torch.manual_seed(42)
    if mode:
        modes.enable(mode, config={"device": "25%"}, on="npu")
    model = nn.Sequential(nn.Linear(768, 3072), nn.ReLU(), nn.Linear(3072, 768)).to("npu:0")
    optimizer = torch.optim.Adam(model.parameters())
    card.reset_peak_memory()
    torch.manual_seed(1)
    losses = []
    for _ in range(2):
        x, y = torch.randn(8, 768).to("npu:0"), torch.randn(8, 768).to("npu:0")
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    peak = card.max_memory_allocated()
    there = {str(each.device) for each in model.parameters()}
    attached = [each["attached"] for each in modes.active().models()] if mode else []
    modes.disable()
    after = {str(each.device) for each in model.parameters()}
    x = torch.randn(2, 768).to("npu:0")
    out = model(x)
    model.cpu()
    return losses, peak, sorted(there), attached, sorted(after), out.cpu().tolist()

plain = train()
gc.collect()
found = train("balanced")
gc.collect()
memory = train("memory")
gc.collect()

modes.enable("balanced", config={"device": "4.5MB"}, on="npu")
with torch.device("npu:0"):
    torch.manual_seed(0)
    built = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
held = card.memory_allocated()
x = torch.ones(1, 512, device="npu:0")
with torch.no_grad():
    result = built(x).cpu()
modes.disable()
with torch.device("npu:0"):
    torch.manual_seed(0)
    other = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    right = torch.equal(other(x).cpu(), result)

guessed = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
expected = guessed(x.cpu()).detach()
modes.enable("balanced", config={"device": "20MB"}, on="npu")
guessed.to("npu:0")  # it may train: that takes 25 MB
first = modes.active().models()[0]["attached"]
with torch.no_grad():
    close = torch.allclose(guessed(x).cpu(), expected, atol=1e-5)
guess = [first, close, modes.active().models()[0]["attached"], str(guessed[0].weight.device)]
modes.disable()

measured.SIZE = 128
try:
    modes.enable("speed", on="npu")
    refused = ""
except ModeUnavailable as error:
    refused = str(error)
given = modes.Verdict("npu:0", "nvfp4", torch.float32, ((1, 2.0), (32, 2.0)))
modes.enable("speed", on="npu", measured=given)
layer = nn.Linear(256, 256).to("npu:0")
with torch.no_grad():
    y = layer(torch.ones(1, 256, device="npu:0"))
name = type(layer).__name__
modes.disable()
tell(plain, found, memory, held, right, guess, refused, name, str(layer.weight.device))
"""


@pytest.mark.slow
def test_on_a_simulated_card():
    plain, found, memory, held, right, guess, refused, name, where = told(SIMULATED)
    assert found[0] == plain[0]
    assert found[5] == plain[5]
    assert found[1] < plain[1]
    assert (found[2], found[3], found[4]) == (["npu:0"], [True], ["npu:0"])
    assert memory[0] != plain[0]
    assert memory[0] == pytest.approx(plain[0], rel=0.02)
    assert held <= 5 * 10**6
    assert right
    assert guess == [True, True, False, "npu:0"]
    assert "nvfp4 on npu:0" in refused or not refused
    assert (name, where) == ("QuantisedInPlace", "npu:0")
