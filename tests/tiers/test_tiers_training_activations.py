"""Saved tensors in a store (`training.activations`): the same gradients, whatever the allocator does with addresses."""

import gc

import numpy as np
import pytest
import torch

from tiers_kept import Kept
from toprope.tiers.training.activations import Activations


class Block(torch.nn.Module):
    """Attention with views of one memory, in-place operations that autograd allows, and a tensor used twice."""

    def __init__(self, width=64):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        hidden = self.out(mixed * torch.sigmoid(q)).add_(1.0).relu_()
        return x + hidden * hidden.exp().reciprocal()


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[Block() for _ in range(4)])


def step(model, seed, activations=None, retain=False):
    x = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    if activations is None:
        loss = model(x).square().mean()
    else:
        with activations.hooks():
            loss = model(x).square().mean()
    if retain:
        loss.backward(retain_graph=True)
    loss.backward()
    return [each.grad.clone() for each in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize(("keep", "ahead"), [(0, 0), (0, 2**26), (2**17, 2**16), (2**30, 0)])
def test_gradients_are_the_same_bits(keep, ahead, retain):
    model, store = net(), Kept()
    activations = Activations(store, keep=keep, ahead=ahead, smallest=1024)
    for seed in range(2):
        expected = step(model, seed, retain=retain)
        assert all(map(torch.equal, expected, step(model, seed, activations, retain)))
        gc.collect()
        activations.forget_released()
        assert not store.tensors
        assert activations.on_device == 0
        assert not activations._entries
    assert (activations.moved > 0) == (keep < 2**30)
    if ahead and not keep and not retain:
        assert activations.waited <= 2 * 2  # the last one of each step; the rest was fetched ahead
    assert len(activations._memories) < 2 * activations.moved + 130


def test_an_address_that_comes_again_is_another_tensor():
    """Assertion 23: the memory of a saved tensor is freed, and the next one, of the same shape, lies there."""
    activations = Activations(Kept(), smallest=16)
    weight = torch.ones(1024, requires_grad=True)
    memory = np.empty(1024, dtype=np.float32)
    addresses, saved = set(), []
    with activations.hooks():
        for number in range(8):
            memory[:] = number
            data = torch.from_numpy(memory)  # another tensor and another storage, at the same address
            addresses.add(data.data_ptr())
            saved.append((weight * data).sum())
            del data
    assert len(addresses) == 1
    for number, each in enumerate(saved):
        weight.grad = None
        each.backward()
        assert torch.equal(weight.grad, torch.full((1024,), float(number)))


def test_views_of_one_memory_go_once():
    activations = Activations(Kept(), smallest=1024)
    x = torch.randn(64, 96, requires_grad=True)
    y = x * 1
    with activations.hooks():
        a, b, c = y.chunk(3, -1)
        loss = (a * b * c).sum() + (y.T * y.T).sum()
    assert activations.moved == 2  # y, and a * b
    assert activations.moved_bytes == x.nbytes + a.nbytes
    loss.backward()
    assert torch.allclose(x.grad[:, :32], (b * c + 2 * a).detach())


@pytest.mark.parametrize("keep", [0, 2**20])
@pytest.mark.parametrize("size", [8, 4096])
def test_a_change_in_place_is_found_out(keep, size):
    activations = Activations(Kept(), keep=keep, smallest=1024)
    x = torch.randn(size, requires_grad=True)
    with activations.hooks():
        y = x.exp()
        loss = y.sum()
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: .* is at version 1; expected version 0"):
        loss.backward()


@pytest.mark.slow
def test_parameters_changed_between_forward_and_backward():
    activations, layer = Activations(Kept(), smallest=16), torch.nn.Linear(32, 32)
    with activations.hooks():
        loss = layer(layer(torch.randn(4, 32))).sum()
    torch.optim.SGD(layer.parameters(), 0.1)
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_other_dtypes_checkpoints_and_second_derivatives():
    store = Kept()
    activations = Activations(store, smallest=16)
    x = torch.randn(8, 8, dtype=torch.complex64, requires_grad=True)
    w = torch.randn(32, 32, dtype=torch.bfloat16, requires_grad=True)
    z = torch.randn(64, dtype=torch.float64, requires_grad=True)

    def compute():
        mask = (w > 0).flatten()
        first = torch.utils.checkpoint.checkpoint(lambda v: (v @ v).sin(), w, use_reentrant=False).flatten()[mask]
        (inner,) = torch.autograd.grad((z**3).sum(), z, create_graph=True)
        return (x @ x.conj()).abs().sum() + first.float().sum() + (inner * z.tanh()).sum()

    results = []
    for moved in (False, True):
        if moved:
            with activations.hooks():
                loss = compute()
        else:
            loss = compute()
        results.append(torch.autograd.grad(loss, (x, w, z)))
    del loss
    assert all(map(torch.equal, *results))
    assert activations.moved > 4
    gc.collect()
    activations.forget_released()
    assert not store.tensors
