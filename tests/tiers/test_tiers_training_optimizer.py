"""Optimizers with states in a store (`training.optimizer`, `stepping`): the same bits as torch's own step."""

import copy
import io
import warnings
from contextlib import contextmanager

import pytest
import torch

from tiers_kept import Done, Kept
from toprope.errors import TierCapacityError, UnsupportedError, UsageError
from toprope.tiers.training.blocks import drop_freed
from toprope.tiers.training.gradients import Gradients, clip_grad_norm_, total_norm
from toprope.tiers.training.offloaded_tensor import StoredTensor, store_tensor
from toprope.tiers.training.optimizer import Optimizers, kind_of
from toprope.tiers.training.tiles import tiles

O = torch.optim  # noqa: E741

CASES = [
    (O.SGD, {"lr": 0.1}),
    (O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (O.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (O.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (O.Adam, {"foreach": True}),
    (O.AdamW, {"fused": True}),
    (O.AdamW, {"maximize": True}),
    (O.RMSprop, {"momentum": 0.9, "centered": True}),
    (O.Adagrad, {}),
    (O.NAdam, {}),
    (O.RAdam, {}),
    (O.Adamax, {}),
    (O.ASGD, {}),
    (O.Adadelta, {}),
    (O.Rprop, {}),
    (O.Adafactor, {}),
]


class ResidentWeights:
    """All weights stay on the device; room for a step is allocated."""

    def __init__(self, device):
        self.device = device

    def resident(self, parameter):
        return parameter.data

    def updated(self):
        pass

    def room(self):
        return None

    @contextmanager
    def borrow(self, nbytes):
        yield torch.empty(nbytes, dtype=torch.uint8, device=self.device)


class Away(ResidentWeights):
    """Weights that come and go: the values are here, the parameters hold nothing that a step may look at."""

    def __init__(self, parameters):
        super().__init__(torch.device("cpu"))
        self.values = {each: each.data.clone() for each in parameters}
        for each in parameters:
            each.data.fill_(float("nan"))

    def resident(self, parameter):
        return None if parameter in self.values else parameter.data

    def read(self, parameter, start, stop, out):
        out.copy_(self.values[parameter].view(-1)[start:stop])
        return Done()

    def write(self, parameter, start, values):
        self.values[parameter].view(-1)[start : start + values.numel()] = values

    def now(self, parameter):
        return self.values.get(parameter, parameter.data)


def parameters(dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(331, 307), (7, 11), (65536,), (1,), ()]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradients(some, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(each.shape, generator=generator).to(each.dtype) for each in some]


def taken(optimizer, weights, room=2**22, tile=2**17, **options):
    store = Kept()
    optimizers = Optimizers(weights, lambda *_: store, store, room=room, tile=tile, smallest=4096)
    return optimizers, optimizers.take(optimizer, **options)


@pytest.mark.parametrize(("cls", "options"), CASES)
def test_the_same_bits(cls, options):
    # The momentum that torch 2.13's fused SGD keeps in bfloat16 is another one in each run of the plain step.
    for dtype in (torch.float32,) if cls is O.SGD and "fused" in options else (torch.float32, torch.bfloat16):
        plain, ours = parameters(dtype), parameters(dtype)
        expected = cls(plain, **options)
        weights = Away(ours[:2])
        optimizers, optimizer = taken(cls(ours, **options), weights)
        assert isinstance(optimizer, cls)
        for step in range(3):
            for some in (plain, ours):
                for each, gradient in zip(some, gradients(some, step), strict=True):
                    each.grad = gradient
            expected.step()
            optimizer.step()
            for p, q in zip(plain, ours, strict=True):
                assert torch.equal(p.data, weights.now(q)), (dtype, step, p.shape)
        assert optimizers.stepper.peak <= 2**22
        for p, q in zip(plain, ours, strict=True):
            for name, value in expected.state[p].items():
                kept = optimizer.state[q][name]
                assert torch.equal(value, kept) if isinstance(value, torch.Tensor) else value == kept
                if isinstance(value, torch.Tensor) and value.nbytes >= 4096:
                    assert isinstance(kept, StoredTensor)
        told, says = expected.state_dict(), optimizer.state_dict()
        assert told["param_groups"] == says["param_groups"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("cls", "options"), [CASES[1], CASES[4], CASES[5], CASES[7]])
def test_the_same_bits_with_other_threads(cls, options, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plain = [torch.nn.Parameter(torch.randn(700_001).bfloat16())]
        ours = copy.deepcopy(plain)
        expected, (_, optimizer) = cls(plain, **options), taken(cls(ours, **options), weights := Away(ours))
        for step in range(3):
            for some in (plain, ours):
                some[0].grad = gradients(some, step)[0]
            expected.step()
            optimizer.step()
        assert torch.equal(plain[0].data, weights.now(ours[0]))
    finally:
        torch.set_num_threads(before)


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(160, 400), torch.nn.GELU(), torch.nn.Linear(400, 160))


class Run:
    """Training with the gradients and states of a model in a store, or as torch does it."""

    def __init__(self, cls, options, moved, schedule_first=False):
        self.model = model()
        self.optimizer = cls(self.model.parameters(), **options)
        if schedule_first:
            self.scheduler = O.lr_scheduler.OneCycleLR(self.optimizer, 0.1, 20)
        if moved:
            weights = ResidentWeights(torch.device("cpu"))
            self.optimizers, _ = taken(self.optimizer, weights)
            store = self.optimizers.store
            self.moves = Gradients(
                list(self.model.named_parameters()), lambda *_: store, self.optimizers.cut, smallest=4096
            )
        if not schedule_first:
            self.scheduler = O.lr_scheduler.OneCycleLR(self.optimizer, 0.1, 20)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=3)
        self.norms = []

    def steps(self, first, last, clip=torch.nn.utils.clip_grad_norm_):
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            for _ in range(2):
                x, y = torch.randn(2, 8, 160, generator=generator)
                self.scaler.scale((self.model(x) - y).square().mean()).backward()
            self.scaler.unscale_(self.optimizer)
            self.norms.append(clip(self.model.parameters(), 0.05))
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def values(self):
        return [each.detach().clone() for each in self.model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("clip", [torch.nn.utils.clip_grad_norm_, clip_grad_norm_])
@pytest.mark.parametrize("first", [True, False])
def test_accumulation_scaling_clipping_and_schedules(first, clip):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of")  # the scaler passes over the first steps
        plain, ours = (Run(O.AdamW, {"lr": 1e-3}, moved, first) for moved in (False, True))
        for run in (plain, ours):
            run.steps(0, 8, *([clip] if run is ours else []))
    assert plain.scaler.get_scale() == ours.scaler.get_scale()
    assert all(map(torch.equal, plain.norms, ours.norms))
    assert all(map(torch.equal, plain.values(), ours.values()))
    drop_freed(ours.optimizers.store)
    assert not any(key.startswith("gradient") for key in ours.optimizers.store.tensors)
    assert plain.optimizer.param_groups[0]["lr"] == ours.optimizer.param_groups[0]["lr"]


def test_state_is_saved_and_loaded_with_torchs_own_calls():
    plain, ours = (Run(O.Adam, {"lr": 1e-3}, moved) for moved in (False, True))
    for run in (plain, ours):
        run.steps(6, 9)
        file = io.BytesIO()
        torch.save(run.optimizer.state_dict(), file)
        file.seek(0)
        run.optimizer.state.clear()
        run.optimizer.load_state_dict(torch.load(file))
        run.steps(9, 12)
    assert all(map(torch.equal, plain.values(), ours.values()))
    assert sum(isinstance(v, StoredTensor) for s in ours.optimizer.state.values() for v in s.values()) == 4


def test_what_is_left_when_gradients_are_moved_no_more():
    ours = Run(O.SGD, {"lr": 1e-3}, True)
    ours.model(torch.ones(1, 160)).sum().backward()
    weight = ours.model[0].weight
    assert isinstance(weight.grad, StoredTensor)
    values = weight.grad.clone()
    ours.moves.close()
    assert type(weight.grad) is torch.Tensor
    assert torch.equal(weight.grad, values)
    drop_freed(ours.optimizers.store)
    assert not ours.optimizers.store.tensors


def test_norms_of_several_dtypes_are_added_in_torchs_order():
    for seed in range(50):  # with the norms in the order of the gradients, 14 of these differ in the last bit
        torch.manual_seed(seed)
        gradients = [torch.randn(37, dtype=(torch.float32, torch.bfloat16)[number % 2]) for number in range(40)]
        assert torch.equal(total_norm(gradients), torch.nn.utils.get_total_norm(gradients))


def test_the_next_write_frees_what_nobody_has_any_more():
    store = Kept()
    kept = [store_tensor(store, "state", torch.ones(1000), tiles(1000, 256, 1)) for _ in range(2)]
    count = len(store.tensors)
    kept.pop()
    kept[0].add_(1)
    assert len(store.tensors) == count // 2 == 4
    assert torch.equal(kept[0].clone(), torch.full((1000,), 2.0))


def test_closures_hooks_and_no_gradient():
    ours = Run(O.Adam, {"lr": 1e-3}, True)
    calls = []
    ours.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    before = ours.values()

    def closure():
        ours.optimizer.zero_grad()
        loss = ours.model(torch.ones(1, 160)).sum()
        ours.model[0].weight.requires_grad_(False)
        loss.backward()
        return loss

    assert ours.optimizer.step(closure).requires_grad
    assert calls == ["after"]
    ours.optimizer.zero_grad(set_to_none=False)
    assert ours.model[2].weight.grad.abs().sum() == 0
    ours.optimizer.zero_grad()
    after = ours.values()
    ours.optimizer.step()
    assert all(map(torch.equal, after, ours.values()))
    assert not torch.equal(before[2], after[2])


def test_what_cannot_be_done_is_refused():
    assert kind_of(O.AdamW([torch.nn.Parameter(torch.ones(2))])) == "elementwise"
    some = parameters(torch.float32)
    with pytest.raises(UnsupportedError, match="LBFGS is not known to update"):
        taken(O.LBFGS(some), Away(some[:1]))
    with pytest.raises(UsageError, match="differentiable"):
        taken(O.Adam(some, differentiable=True), Away([]))
    optimizers, optimizer = taken(O.Adafactor(some), Away(some[:1]), room=2**16)
    with pytest.raises(UsageError, match="already"):
        optimizers.take(optimizer)
    some[0].grad = torch.ones_like(some[0])
    with pytest.raises(TierCapacityError, match="no room for a part"):
        optimizer.step()
    some[0].grad = torch.full_like(some[0], float("inf"))
    with pytest.raises(RuntimeError, match="gradients is inf"):
        clip_grad_norm_(some, 1.0, error_if_nonfinite=True)


def test_lbfgs_where_everything_stays():
    results = []
    for moved in (False, True):
        net = model()
        optimizer = O.LBFGS(net.parameters(), max_iter=3)
        if moved:
            _, optimizer = taken(optimizer, ResidentWeights(torch.device("cpu")))

        def closure(net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = net(torch.ones(2, 160)).square().sum()
            loss.backward()
            return loss

        results.append([optimizer.step(closure).item() for _ in range(2)])
    assert results[0] == results[1]
