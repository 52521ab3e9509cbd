"""Weights outside of their modules: metadata works, visits and optimizers work, all else is an error that names them.

Held: `store.absent`, `engine.visit` and the hooks, by ways in which programs reach a weight.
"""

import copy
import gc
import io
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_pre_hooks

from toprope import device as devices
from toprope.errors import TierAbsentError, TierCapacityError, UnsupportedError, UsageError
from toprope.tiers import attach
from toprope.tiers.store.memory import placeholder

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
WIDTH = 64


def net(layers=8):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])


def attached(model, folder=None, device=50_000, **options):
    return attach(model, device, "10MB" if folder is None else 1, folder, on="cpu", small=1000, **options)


def away(handle):
    """The name of a weight that comes and goes, and its module."""
    names = {one.name for unit in handle._engine._units for one in unit.weights}
    name = sorted(names)[len(names) // 2]
    return name, handle.model.get_submodule(name.rpartition(".")[0])


OTHER = torch.ones(WIDTH, WIDTH)
USES = {
    "sum": lambda w: w.sum(),
    "add": lambda w: OTHER + w,
    "linear": lambda w: functional.linear(OTHER, w),
    "index": lambda w: w[0],
    "item": lambda w: w.detach()[0, 0].item(),
    "numpy": lambda w: w.detach().numpy(),
    "numpy_force": lambda w: w.numpy(force=True),
    "to": lambda w: w.to(torch.bfloat16),
    "cpu": lambda w: w.cpu(),
    "view": lambda w: w.view(-1),
    "transpose": lambda w: w.t(),
    "cat": lambda w: torch.cat([OTHER, w]),
    "copy from": lambda w: OTHER.clone().copy_(w),
    "copy from data": lambda w: OTHER.clone().copy_(w.data),
    "clone": lambda w: w.detach().clone(),
    "equal": lambda w: torch.equal(w, OTHER),
    "data_ptr": lambda w: w.data_ptr(),
    "foreach": lambda w: torch._foreach_norm([w]),
    "vector": lambda w: nn.utils.parameters_to_vector([w]),
    "list": lambda w: w.tolist(),
    "deepcopy": lambda w: copy.deepcopy(w),
    "save": lambda w: torch.save(w, io.BytesIO()),
    "where": lambda w: torch.where(OTHER > 0, w, OTHER),
    "einsum": lambda w: torch.einsum("ij,jk", OTHER, w),
    "init": lambda w: nn.init.normal_(w),
    "copy": lambda w: w.copy_(OTHER),
    "data mul": lambda w: w.data.mul_(2),
    "data set": lambda w: setattr(w, "data", OTHER),
    "detach fill": lambda w: w.detach().fill_(1),
    "foreach mul": lambda w: torch._foreach_mul_([w.data], 2),
    "sub": lambda w: w.sub_(1),
    "out": lambda w: torch.add(OTHER, 1, out=w.data),
}


CHANGES = ("init", "copy", "data mul", "detach fill", "foreach mul", "sub")


@pytest.mark.parametrize("use", USES)
def test_an_absent_weight_is_an_error_that_names_it(use):
    model = net()
    with attached(model) as handle:
        name, module = away(handle)
        with torch.no_grad(), pytest.raises(TierAbsentError) as caught:
            USES[use](module.weight)
        text = str(caught.value)
        assert f"the weight {name} is not on the device" in text
        assert repr(name.rpartition(".")[0]) in text
        assert all(each in text for each in ("resident=[", "handle.detach()"))
        assert text.split("do  ")[1].strip().startswith("to read or change values: with handle.weights(module)")
        assert ("handle.optimizer" in text) == (use in CHANGES), "advice for training only where values change"


def test_an_absent_weight_has_its_metadata():
    model = net()
    with attached(model) as handle:
        _, module = away(handle)
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        assert (weight.shape, weight.dtype, weight.numel(), weight.nbytes) == ((64, 64), torch.float32, 4096, 16384)
        assert (weight.device.type, weight.requires_grad, weight.is_leaf, len(weight)) == ("cpu", True, True, 64)
        assert weight.grad is None
        assert weight in [weight]
        assert {weight: 1}[weight] == 1
        assert weight.data.shape == weight.detach().shape == (64, 64)
        assert "absent" in repr(weight)
        assert "absent" in repr(weight.data)
        weight.grad = torch.zeros_like(weight)
        weight.requires_grad_(False)
        assert not weight.requires_grad
    assert type(weight) is nn.Parameter
    assert weight.grad is not None


def test_the_memory_of_an_absent_weight_cannot_be_written_from_cpp():
    model = net()
    with attached(model) as handle:
        name, _ = away(handle)
        empty = handle._engine.model.weights[name].placeholder
        with torch.no_grad(), pytest.raises(RuntimeError):
            empty.add_(1)


COPIES = {
    "deepcopy": copy.deepcopy,
    "save": lambda model: torch.save(model, io.BytesIO()),
    "average": torch.optim.swa_utils.AveragedModel,
    "trace": lambda model: torch.jit.trace(model, torch.ones(1, WIDTH)),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("use", COPIES)
def test_a_copy_of_an_attached_model_is_an_error(use):
    model = net()
    want = model(OTHER).detach()
    with attached(model) as handle:
        with pytest.raises(TierAbsentError, match=r"handle\.detach"):
            COPIES[use](model)
        assert torch.equal(model(OTHER), want)
        assert torch.equal(net().load_state_dict(model.state_dict()) and model(OTHER), want)
        del handle
    assert torch.equal(copy.deepcopy(model)(OTHER), want)


def test_an_outer_module_of_an_attached_one_is_refused():
    model = net()
    outer = nn.Sequential(model)
    with attached(model), pytest.raises(UsageError, match="0 of this model is attached already"):
        attached(outer)


class Shared(nn.Module):
    """A module that gives a weight of another module to a function."""

    def __init__(self, others=()):
        super().__init__()
        self.layers = net()
        self.last = nn.Linear(WIDTH, WIDTH)
        self.others = others  # modules that are not in this one, as torch sees it

    def forward(self, x):
        x = functional.linear(self.layers(x), self.last.weight)
        for each in self.others:
            x = functional.linear(x, each.weight)
        return x


def test_a_weight_given_to_a_function_outside_of_its_module_is_no_nan():
    model = Shared()
    want = model(OTHER)
    with attached(model, device=70_000), torch.no_grad():
        assert torch.equal(model(OTHER), want)  # its code says that it needs the weight of `last`
        model.others = list(model.layers)
        with pytest.raises(TierAbsentError, match=r"layers\.\d\.weight is not on the device"):
            model(OTHER)


def test_a_users_forward_hook_sees_the_weights_of_its_module():
    """Calibrators and pruning read them there: it was NaN."""
    model = net()
    seen = []
    model[5].register_forward_hook(lambda module, args, output: seen.append(module.weight.sum().item()))
    want = [each.weight.sum().item() for each in model]
    with attached(model):
        for layer in model:
            layer.register_forward_hook(lambda module, args, output: seen.append(module.weight.sum().item()))
        with torch.no_grad():
            model(OTHER)
    assert seen == [*want[:5], want[5], want[5], *want[6:]]


# Visits


@pytest.mark.parametrize("place", ["host", "disk"])
def test_weights_can_be_read_and_changed_in_a_visit(place, tmp_path):
    model, same = net(), net()
    with attached(model, tmp_path if place == "disk" else None) as handle, torch.no_grad():
        for number, layer in enumerate(model):
            with handle.weights(layer):
                assert torch.equal(layer.weight, same[number].weight)
                layer.weight.mul_(1 + number)
            same[number].weight.mul_(1 + number)
            with handle.weights(layer):
                layer.weight.data.add_(1)  # has no version of its own
            same[number].weight.add_(1)
        assert torch.equal(model(OTHER), same(OTHER))
        with pytest.raises(RuntimeError, match="must match"), handle.weights(model[4]):
            model[4].weight.zero_().add_(torch.ones(3, 3))
        same[4].weight.zero_()
        with handle.weights(model[3]):
            assert torch.equal(model(OTHER), same(OTHER))  # the model runs meanwhile
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), same.parameters(), strict=True))


class Changing(nn.Module):
    """Changes weights while it runs: a table with a largest norm, and a layer that is clamped."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layers = nn.Embedding(WIDTH, WIDTH, max_norm=1.0), net()

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("place", ["host", "disk"])
def test_weights_that_are_changed_while_their_module_runs_keep_the_changes(place, tmp_path):
    """They were lost with the slot."""

    def clamp(layer, _args, _output):
        with torch.no_grad():
            layer.weight.clamp_(-0.05, 0.05)
            layer.weight.mul_(0.9)

    model, same, tokens = Changing(), Changing(), torch.arange(9)
    for each in (model, same):
        each.layers[4].register_forward_hook(clamp)
    with attached(model, None if place == "host" else tmp_path) as handle, torch.no_grad():
        streamed = {weight.name for unit in handle._engine._units for weight in unit.weights}
        assert {"embed.weight", "layers.4.weight"} & streamed
        for _ in range(3):
            assert torch.equal(model(tokens), same(tokens))
    assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))


class TiedNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layers, self.head = nn.Embedding(WIDTH, WIDTH), net(3), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.parametrize("name", ["embed", "head"])
def test_a_visit_changes_a_tied_weight_for_all_its_modules(name, place, tmp_path):
    """The slot of the other module had the former values already, and it computed with them."""
    model, same, tokens = TiedNet(), TiedNet(), torch.arange(9)
    with attached(model, None if place == "host" else tmp_path, device=36_000, slots=2) as handle, torch.no_grad():
        assert handle._engine.model.weights["embed.weight"].home is not None
        for number in range(4):
            assert torch.equal(model(tokens), same(tokens))
            with handle.weights(model.get_submodule(name)):
                model.embed.weight.data[number] = float(number)
            same.embed.weight.data[number] = float(number)
            assert torch.equal(model(tokens), same(tokens))


def test_a_visit_that_changes_nothing_writes_nothing(tmp_path):
    model = net()
    with attached(model, tmp_path) as handle, torch.no_grad():
        written = handle._engine.migration.written
        for layer in model:
            with handle.weights(layer):
                layer.weight.sum()
        assert handle._engine.migration.written == written


def test_a_visit_has_gradients():
    model, same = Shared(), Shared()
    same.load_state_dict(model.state_dict())
    with attached(model, device=70_000) as handle:
        with handle.weights(model.last):
            model(OTHER).sum().backward()
        same(OTHER).sum().backward()
        for one, other in zip(model.parameters(), same.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad) if other.grad is not None else one.grad is None


def test_a_visit_in_an_exit_stack_lasts_as_long_as_the_stack():
    """The frame that entered it has ended by then."""
    from contextlib import ExitStack

    model = net()
    with attached(model) as handle, torch.no_grad(), ExitStack() as stack:
        _, module = away(handle)
        stack.enter_context(handle.weights(module))
        model(OTHER)
        assert not module.weight.sum().isnan()


def test_a_visit_of_more_than_the_slots_hold_is_refused():
    model = net()
    with attached(model) as handle:
        with pytest.raises(TierCapacityError, match="slots"), handle.weights(model):
            pass
        with pytest.raises(UsageError, match="no module of the attached model"):
            handle.weights(nn.Linear(1, 1))
        model(OTHER)


# Optimizers


def train(model, optimizer, closure=False):
    for step in range(3):
        x = torch.full((4, WIDTH), 0.1 * step)

        def loss_of(x=x):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        if closure:
            assert optimizer.step(loss_of) is not None
        else:
            loss_of()
            optimizer.step()
    return [each.detach().clone() for each in model.state_dict().values()]


MAKES = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), 0.01),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "foreach": lambda model: torch.optim.RMSprop(model.parameters(), foreach=True),
}


@pytest.mark.parametrize("early", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("closure", [False, True], ids=["step", "closure"])
@pytest.mark.parametrize("name", MAKES)
def test_an_ordinary_optimizer_trains_an_attached_model(name, closure, early):
    """One that was not given to the handle was a segmentation fault on the simulated card."""
    want = train(plain := net(), MAKES[name](plain), closure)
    model = net()
    optimizer = MAKES[name](model) if early else None
    with attached(model, device=70_000, training=True):
        optimizer = optimizer or MAKES[name](model)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        found = train(model, optimizer, closure)
        scheduler.step()
        assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))


def test_an_optimizer_that_cannot_go_by_tiles_says_so_and_changes_nothing():
    model = net()
    with attached(model, device=70_000, training=True):
        before = model.state_dict()
        optimizer = torch.optim.LBFGS(model.parameters())
        model(OTHER).sum().backward()
        with pytest.raises(UnsupportedError, match="LBFGS"):
            optimizer.step(lambda: model(OTHER).sum())
        after = model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_one_optimizer_of_two_attached_models_is_refused_before_it_changes_anything():
    one, other = net(), net()
    with attached(one, device=70_000, training=True), attached(other, device=70_000, training=True):
        optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1)
        (one(OTHER).sum() + other(OTHER).sum()).backward()
        before = one.state_dict()
        with pytest.raises(UnsupportedError, match="two attached models"):
            optimizer.step()
        after = one.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_hand_written_update_works_module_by_module():
    model, same = net(), net()
    same(OTHER).sum().backward()
    with attached(model, device=70_000, training=True) as handle:
        model(OTHER).sum().backward()
        with pytest.raises(TierAbsentError), torch.no_grad():
            away(handle)[1].weight.sub_(away(handle)[1].weight.grad)
        for layer in model:
            with handle.weights(layer), torch.no_grad():
                for each in layer.parameters():
                    each -= 0.1 * each.grad
    with torch.no_grad():
        for each in same.parameters():
            each -= 0.1 * each.grad
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), same.parameters(), strict=True))


# On the simulated card


def test_an_attached_model_that_is_dropped_is_freed_with_its_threads_and_files(tmp_path):
    """A hook on all optimizers kept every model that was attached and not detached, as long as the program ran."""

    def use():
        model = net()
        handle = attach(model, 60_000, 40_000, tmp_path, on="cpu", small=1000)
        assert {"host", "disk"} <= {each.tier for each in handle.plan.homes}
        model(torch.randn(2, WIDTH))
        return weakref.ref(model), weakref.ref(handle)

    def held():
        threads = [each for each in threading.enumerate() if each.name.startswith("toprope-tiers")]
        files = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return len(threads), len([each for each in files if each.startswith(os.fspath(tmp_path))])

    gc.collect()
    before, hooks = held(), len(_global_optimizer_pre_hooks)
    gone = use()
    deadline = time.monotonic() + 20
    while (any(each() is not None for each in gone) or held() != before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert [each() for each in gone] == [None, None]
    assert held() == before
    assert len(_global_optimizer_pre_hooks) == hooks


TRANSFORMS = {
    "vmap": lambda model, x: torch.func.vmap(model)(x),
    "jvp": lambda model, x: torch.stack(torch.func.jvp(model, (x,), (x,))),
    "jacfwd": lambda model, x: torch.func.jacfwd(model)(x),
    "vmap of jacfwd": lambda model, x: torch.func.vmap(torch.func.jacfwd(model))(x),
    "functional_call": lambda model, x: torch.func.functional_call(
        model, {name: torch.ones(each.shape) for name, each in model.named_parameters()}, (x,)
    ),
}
GRADIENTS = {
    "grad": lambda model, x: torch.func.grad(lambda y: model(y).sum())(x),
    "vjp": lambda model, x: torch.func.vjp(model, x)[0],
    "jacrev": lambda model, x: torch.func.jacrev(model)(x),
    "hessian": lambda model, x: torch.func.hessian(lambda y: model(y).sum())(x),
    "parameters": lambda model, x: torch.func.grad(
        lambda some: torch.func.functional_call(model, some, (x,)).sum()
    )(dict(model.named_parameters())),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch.func.jvp uses it
@pytest.mark.parametrize("transform", [*TRANSFORMS, *GRADIENTS])
def test_torch_func_of_an_attached_model_is_right_or_refused(transform):
    """jvp ended the program by a segmentation fault; gradients ended in a RuntimeError of torch."""
    model, same, x = net(), net(), torch.randn(3, WIDTH)
    with attached(model) as handle:
        assert handle.plan.slots
        if transform in GRADIENTS:
            with pytest.raises(TierAbsentError, match=r"torch\.func.*detach"):
                GRADIENTS[transform](model, x)
        else:
            for _ in range(2):
                assert torch.equal(TRANSFORMS[transform](model, x), TRANSFORMS[transform](same, x))
        assert torch.equal(model(x), same(x))
        y = x.clone().requires_grad_()
        found, wanted = (torch.autograd.grad(each(y).sum(), y)[0] for each in (model, same))
        assert torch.equal(found, wanted)
    assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))


def fake(model, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return model(mode.from_tensor(x))


@pytest.mark.parametrize("trace", [lambda model, x: make_fx(model)(x), fake], ids=["make_fx", "FakeTensorMode"])
def test_a_trace_with_tensors_without_values_is_refused(trace):
    """It ended in torch's errors about storages."""
    model, same, x = net(), net(), torch.randn(3, WIDTH)
    with attached(model):
        with pytest.raises(TierAbsentError, match="cannot be traced"):
            trace(model, x)
        assert torch.equal(model(x), same(x))


def test_distributed_data_parallel_is_refused_and_gradients_are_averaged_by_hand(tmp_path):
    """It ended in torch's "Cannot access data pointer of Tensor"."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, same, x = net(), net(), torch.randn(3, WIDTH)
        with attach(model, 150_000, "10MB", on="cpu", small=1000, training=True) as handle:
            for wrapped in (model, nn.Sequential(model)):
                with pytest.raises(TierAbsentError, match="DistributedDataParallel needs all weights"):
                    nn.parallel.DistributedDataParallel(wrapped)
            optimizers = [handle.optimizer(torch.optim.AdamW(model.parameters())), torch.optim.AdamW(same.parameters())]
            for _ in range(2):
                for each, optimizer in zip((model, same), optimizers, strict=True):
                    optimizer.zero_grad()
                    each(x).square().sum().backward()
                    for parameter in each.parameters():
                        values = parameter.grad.clone()
                        torch.distributed.all_reduce(values)
                        parameter.grad.copy_(values / torch.distributed.get_world_size())
                    optimizer.step()
        assert all(torch.equal(*each) for each in zip(model.parameters(), same.parameters(), strict=True))
        nn.parallel.DistributedDataParallel(model)(x).sum().backward()  # detached, it is as any other
    finally:
        torch.distributed.destroy_process_group()


RANK = """
import sys, torch
from torch import nn
from toprope.errors import TierAbsentError
from toprope.tiers import attach

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

def net():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])

whole = nn.parallel.DistributedDataParallel(net())
model = net()
torch.manual_seed(rank)
batches = torch.randn(3, 5, 64)
with attach(model, 150_000, "10MB", on="cpu", small=1000, training=True) as handle:
    try:
        nn.parallel.DistributedDataParallel(model)
    except TierAbsentError as error:
        assert "torch.distributed.all_reduce" in str(error)
    else:
        raise AssertionError("accepted")
    assert handle.plan.slots
    optimizers = [torch.optim.AdamW(each.parameters(), 0.01) for each in (model, whole)]
    for batch in batches:
        for each, optimizer in zip((model, whole), optimizers):
            optimizer.zero_grad()
            each(batch).square().sum().backward()
            if each is model:
                for parameter in model.parameters():
                    values = parameter.grad.clone()
                    torch.distributed.all_reduce(values)
                    parameter.grad.copy_(values / 2)
            optimizer.step()
same = [torch.equal(*each) for each in zip(model.parameters(), whole.module.parameters(), strict=True)]
assert all(same), same
torch.distributed.barrier()
print("same")
"""


@pytest.mark.slow
def test_two_processes_that_average_gradients_train_as_distributed_data_parallel_does(tmp_path):
    program, store = tmp_path / "rank.py", tmp_path / "store"
    program.write_text(RANK)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, program, str(rank), store], env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        ended = [each.communicate(timeout=250) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert [out for out, _ in ended] == ["same\n", "same\n"], ended


CARD = """
import sys, torch
from torch import nn
from toprope.errors import TierAbsentError
from toprope.tiers import attach
from tests_absent import USES
import tests_absent

def net():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])

tests_absent.OTHER = tests_absent.OTHER.to("npu")
model, same = net(), net().to("npu")
x = torch.ones(2, 64, device="npu")
handle = attach(model, 70_000, "10MB", on="npu", small=1000, training=True)
names = {one.name for unit in handle._engine._units for one in unit.weights}
name = sorted(names)[len(names) // 2]
weight = model.get_parameter(name)
for use, call in USES.items():
    try:
        with torch.no_grad():
            call(weight)
    except TierAbsentError as error:
        assert name in str(error), error
    else:
        raise AssertionError(use)
empty = handle._engine.model.weights[name].placeholder
CPP = {
    "sum": lambda: empty.sum(), "add_": lambda: empty.add_(1), "to cpu": lambda: empty.cpu(),
    "from": lambda: torch.ones(64, 64).copy_(empty), "into": lambda: empty.copy_(torch.ones(64, 64)),
    "card": lambda: empty.copy_(x.new_ones(64, 64)), "fill": lambda: empty.fill_(1), "mm": lambda: x @ empty,
    "normal": lambda: empty.normal_(), "clone": lambda: empty.clone(),
}
for use, call in CPP.items():
    try:
        with torch.no_grad():
            call()
    except RuntimeError:
        pass
    else:
        raise AssertionError(use)
for each in (model, same):
    optimizer = torch.optim.AdamW(each.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        each(x).square().sum().backward()
        optimizer.step()
with torch.no_grad(), handle.weights(model[5]):
    model[5].weight.mul_(2)
    same[5].weight.mul_(2)
assert all(torch.equal(one.cpu(), other.cpu())
           for one, other in zip(model.state_dict().values(), same.state_dict().values(), strict=True))
assert torch.equal(model(x), same(x))
print("ended")
"""


@pytest.mark.native
def test_no_use_of_an_absent_weight_ends_a_program_on_the_simulated_card(tmp_path):
    """Each was exit status 139: an optimizer, `p -= lr * p.grad`, nn.init, copy_, weight.data.mul_."""
    (tmp_path / "tests_absent.py").symlink_to(__file__)
    environment = os.environ | {"TOPROPE_SIM": "910B3", "PYTHONPATH": os.fspath(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CARD], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("ended\n")


def test_a_placeholder_has_a_shape_and_no_memory():
    like = torch.empty_strided((2**14, 2**14), (1, 2**14), device="meta")
    made = placeholder(like, devices.get("cpu"))
    assert (made.shape, made.stride(), made.device.type) == (like.shape, like.stride(), "cpu")
    with pytest.raises(RuntimeError):
        made.add_(1)
    assert placeholder(torch.empty(0, 3), devices.get("cpu")).shape == (0, 3)


class Reads(nn.Module):
    """Uses a weight of a module that it was given by name, without calling that module."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        self.extra = nn.ModuleDict({"projection": nn.Linear(WIDTH, WIDTH)})

    def forward(self, x):
        return functional.linear(self.layers(x), self.get_submodule("extra.projection").weight)


@pytest.mark.parametrize(
    "resident", [["extra.projection"], ["extra"], [nn.ModuleDict], "extra", nn.ModuleDict], ids=str
)
def test_modules_that_are_resident_keep_their_weights_on_the_device(resident):
    """A weight that is used without a call of its module had no remedy but a change to the model's code."""
    model = Reads()
    want = model(OTHER)
    with attached(model), pytest.raises(TierAbsentError, match=r"resident=\['extra\.projection'\]"):
        model(OTHER)
    with attach(model, 70_000, "1MB", on="cpu", small=1000, resident=resident) as handle:
        assert handle.plan.slots
        for _ in range(2):
            assert torch.equal(model(OTHER), want)
    with pytest.raises(UsageError, match="resident names 'head', and the model has no such module"):
        attach(model, 70_000, "1MB", on="cpu", resident=["head"])
