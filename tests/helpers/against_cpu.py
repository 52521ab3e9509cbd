"""Run the same function on the CPU and on the card, and compare results and gradients.

Used by most modules of tests/sim/simulated.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

CARD = torch.device("npu:0")


def on(device: torch.device | str, tree: Any) -> Any:
    """The same values as new leaves of the graph on a device; what is not a tensor stays as it is."""

    def move(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        moved = item.detach().to(device, copy=True)
        return moved.requires_grad_(item.requires_grad)

    return tree_map(move, tree)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def assert_same(card: Any, host: Any, device: torch.device = CARD, **tolerance: float) -> None:
    """Both trees hold the same values with the same dtypes and strides, the first one's tensors on the card."""
    ours, theirs = tree_leaves(card), tree_leaves(host)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert one.device == device
        assert_close(one.detach().cpu(), other.detach(), equal_nan=True, **tolerance)
        assert one.stride() == other.stride()


class HostGeneratorUntouched:
    """Context in which the CPU's generator may not be drawn from."""

    def __enter__(self) -> None:
        self.before = torch.get_rng_state()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert torch.equal(torch.get_rng_state(), self.before), "the CPU's generator was drawn from"


def gradients(results: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of a scalar made of all results, with another weight for each element."""
    floating = [result for result in tensors(results) if result.requires_grad]
    weights = [torch.arange(1.0, result.numel() + 1).view(result.shape) / result.numel() for result in floating]
    grad_outputs = [weight.to(result.device, result.dtype) for weight, result in zip(weights, floating, strict=True)]
    return list(torch.autograd.grad(floating, leaves, grad_outputs))


def compare(function: Callable[..., Any], *inputs: Any, **tolerance: float) -> None:
    """Holds a function's results, and the gradients of inputs that want one, against the CPU's."""
    host_inputs, card_inputs = on("cpu", inputs), on(CARD, inputs)
    host = function(*host_inputs)
    with HostGeneratorUntouched():
        card = function(*card_inputs)
    assert_same(card, host, **tolerance)
    assert_same(card_inputs, host_inputs, **tolerance)  # what was written in place
    host_leaves = [leaf for leaf in tensors(host_inputs) if leaf.requires_grad]
    if host_leaves:
        card_leaves = [leaf for leaf in tensors(card_inputs) if leaf.requires_grad]
        for ours, theirs in zip(gradients(card, card_leaves), gradients(host, host_leaves), strict=True):
            assert ours.device == CARD
            assert_close(ours.cpu(), theirs, **tolerance)


def compare_module(module: torch.nn.Module, *inputs: torch.Tensor, **tolerance: float) -> None:
    """Holds a module's results, buffers and the gradients of inputs and parameters against the CPU's.

    Inputs of floating point get a gradient too.
    """
    card_module = copy.deepcopy(module).to(CARD)
    for leaf in inputs:
        leaf.requires_grad_(leaf.is_floating_point())
    host_inputs, card_inputs = on("cpu", inputs), on(CARD, inputs)
    host = module(*host_inputs)
    with HostGeneratorUntouched():
        card = card_module(*card_inputs)
    assert_same(card, host, **tolerance)
    assert_same(list(card_module.buffers()), list(module.buffers()), **tolerance)
    leaves = [(host_inputs, module.parameters()), (card_inputs, card_module.parameters())]
    wanted = [[leaf for leaf in (*given, *own) if leaf.requires_grad] for given, own in leaves]
    for ours, theirs in zip(gradients(card, wanted[1]), gradients(host, wanted[0]), strict=True):
        assert ours.device == CARD
        assert_close(ours.cpu(), theirs, **tolerance)
