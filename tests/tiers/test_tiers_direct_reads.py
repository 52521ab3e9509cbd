"""Modules that use weights of their submodules without calling them (`engine.model.direct_reads`): found and loaded."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from toprope.tiers import attach
from toprope.tiers.engine.model.direct_reads import read_directly
from toprope.tiers.engine.model.model_groups import read_model

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
WIDTH = 64


def decorated(function):
    @functools.wraps(function)
    def run(*args):
        return function(*args)

    return run


class Mixer(nn.Module):
    """Multiplies with the weight of one of its layers, in a method that forward calls, as state space models do."""

    def __init__(self):
        super().__init__()
        self.into, self.step = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.out.weight.data.mul_(2)  # in a method that forward does not call

    def mixed(self, x):
        return self.step.weight @ self.into(x).t()

    @decorated
    def forward(self, x):
        if isinstance(self.out.weight, torch.Tensor) and x.dtype != self.out.weight.dtype:
            raise TypeError
        return torch.tanh(self.out(self.mixed(x).t()))


class Twice(Mixer):
    def mixed(self, x):
        return linear(self.step(x), self.into.weight, self.into.bias).t()


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"a": Mixer()})
        self.one = Mixer()

    def forward(self, x):
        return self.one(x) @ self.one.step.weight + self.inner["a"](x)


def test_the_code_of_a_module_says_which_weights_it_reads():
    assert read_directly(Mixer()) == ["step.weight"]
    assert sorted(read_directly(Twice())) == ["into.bias", "into.weight"]
    assert read_directly(Deep()) == ["one.step.weight"]
    assert read_directly(nn.Linear(1, 1)) == read_directly(nn.MultiheadAttention(8, 2)) == []
    assert read_model(nn.Sequential(Mixer()), 1).read == {"0": ["0.step.weight"]}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("device", [60_000, 110_000])
@pytest.mark.parametrize("build", [Mixer, Twice, Deep])
def test_weights_that_a_module_reads_directly_are_there_while_it_runs(build, device, training):
    """A plan in parts had them only while their own module ran: an error in the first call."""
    torch.manual_seed(0)
    model = nn.Sequential(*(build() for _ in range(5)))
    x = torch.randn(3, WIDTH)
    want = model(x)
    want.square().sum().backward()
    gradients = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    device = 2 * device if training else device
    with attach(model, device, "10MB", on="cpu", small=1000, training=training, poison=True) as handle:
        assert handle.plan.slots
        for _ in range(3):
            model.zero_grad()
            out = model(x)
            assert torch.equal(out, want)
            out.square().sum().backward()
            for each, wanted in zip(model.parameters(), gradients, strict=True):
                assert each.grad is None if wanted is None else torch.equal(each.grad, wanted)
