"""torch's own databases of modules and of optimisers: results, gradients and state, the card against the CPU.

Holds csrc/torch against the CPU, with torch's own databases of modules and optimisers. tests/sim/test_simulated.py runs
this module in a process with simulated cards.

Every run takes a fixed draw, `make soak` takes all of them.
"""

import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.testing import assert_close
from torch.utils._pytree import tree_map

from against_cpu import CARD, assert_same, on, tensors

pytest.importorskip("expecttest", reason="torch's databases need expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from test_samples import Outcome, assert_same_outcome, gradients, run, to_card
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

DRAWN_MODULES, DRAWN_OPTIMISERS = 40, 5
STEPS = 4

LONG = {"nn.LinearCrossEntropyLoss"}  # hundreds of inputs: for the soak alone

OPTIMISERS_LEFT_OUT = {"SparseAdam": "takes sparse gradients alone, and the card has no sparse tensors"}


def draw(cases: dict[str, Any], count: int) -> list[Any]:
    """All cases; those outside the draw are marked for the soak."""
    drawn = set(random.Random(0).sample(sorted(set(cases) - LONG), count))
    return [pytest.param(cases[n], id=n, marks=() if n in drawn else pytest.mark.soak) for n in sorted(cases)]


# ---- modules


def build(info: Any, entry: Any, training: bool) -> nn.Module:
    made: nn.Module = info.module_cls(*entry.constructor_input.args, **entry.constructor_input.kwargs)
    return made.to(torch.float32).train(training)  # as torch's own tests do: some have buffers of float64


def unpacked(tree: Any) -> Any:
    """The same with the tensor of each packed sequence in its place, for those who look for tensors."""
    return tree_map(
        lambda item: item.data if isinstance(item, PackedSequence) else item,
        tree,
        is_leaf=lambda item: isinstance(item, PackedSequence),
    )


def pair(module: nn.Module, is_lazy: bool, host_given: Any, card_given: Any) -> nn.Module:
    """A copy of a module on the card with the same parameters, which a lazy one gets at its first call."""
    moved = copy.deepcopy(module).to(CARD)
    if is_lazy:
        module(*host_given[0], **host_given[1])
        moved(*card_given[0], **card_given[1])
        moved.load_state_dict(module.state_dict())
    return moved


def forward(module: nn.Module, given: Any, device: str) -> Outcome:
    args, kwargs = given
    return run(lambda _: module(*args, **kwargs), (None, (), {}), device)


def module_inputs(info: Any, training: bool) -> list[Any]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=True, training=training)
    return [entry for entry in made if entry.forward_input is not None]


MODULES = {info.name: info for info in module_db}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", draw(MODULES, DRAWN_MODULES))
def test_modules(info: Any, training: bool) -> None:
    entries = module_inputs(info, training)
    assert entries
    for entry in entries:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of the arguments of a module is not the card's business
            host_module = build(info, entry, training)
            given = entry.forward_input.args, entry.forward_input.kwargs
            host_given, card_given = on("cpu", given), to_card(given)
            card_module = pair(host_module, info.is_lazy, host_given, card_given)
        host, card = forward(host_module, host_given, "cpu"), forward(card_module, card_given, "npu")
        host.result, card.result = unpacked(host.result), unpacked(card.result)
        assert assert_same_outcome(card, host), host.error
        assert_same(list(card_module.buffers()), list(host_module.buffers()), rtol=1e-4, atol=1e-4)
        host_leaves = (unpacked(host_given), list(host_module.parameters()))
        card_leaves = (unpacked(card_given), list(card_module.parameters()))
        ours = run(gradients, (card.result, (card_leaves,), {}), "cpu")
        theirs = run(gradients, (host.result, (host_leaves,), {}), "cpu")
        assert type(ours.error) is type(theirs.error), ours.error or theirs.error
        assert {t.device for t in tensors(ours.result)} <= {CARD}
        assert_close(on("cpu", ours.result), on("cpu", theirs.result), rtol=1e-3, atol=1e-3, equal_nan=True)


# ---- optimisers


def optimiser_inputs(info: Any) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """What each optimiser is tried with: a name, the options on the card and those on the CPU.

    The configurations of a GPU (capturable) run on the card as they are; the CPU, which has none, takes the same steps
    one tensor at a time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, more = info.optim_inputs_func("cpu"), info.optim_inputs_func("cuda")
    known = {entry.desc for entry in plain}
    for entry in [*plain, *(entry for entry in more if entry.desc not in known)]:
        ways: list[str | None] = [way for way in info.supported_impls if way != "differentiable"]
        if "capturable" in entry.kwargs:
            ways = [way for way in ways if way != "fused"]
        for way in [None, *ways]:
            options = dict.fromkeys(info.supported_impls, False) | entry.kwargs
            if way is not None:
                options[way] = True
            host = dict(options)
            if host.pop("capturable", False):
                host |= {"foreach": False}
            yield f"{entry.desc}, {way or 'one tensor at a time'}", options, host


def network(info: Any) -> nn.Module:
    torch.manual_seed(0)
    if info.name == "Muon":  # takes matrices alone
        return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def train(info: Any, module: nn.Module, options: dict[str, Any]) -> Outcome:
    """A few steps; the result holds the losses, and the state of the optimiser."""
    device = next(module.parameters()).device
    x = torch.linspace(-1, 1, 60).reshape(10, 6).to(device)

    def steps(_: None) -> Any:
        optimiser = info.optim_cls(module.parameters(), **options)
        losses = []

        def closure() -> torch.Tensor:
            optimiser.zero_grad()
            loss = (module(x) - 0.5).square().mean()
            loss.backward()
            return loss

        for _ in range(STEPS):
            losses.append(optimiser.step(closure).detach())
        return losses, optimiser.state_dict()["state"]

    return run(steps, (None, (), {}), "cpu")


OPTIMISERS = {info.name: info for info in optim_db if info.name not in OPTIMISERS_LEFT_OUT}


@pytest.mark.parametrize("info", draw(OPTIMISERS, DRAWN_OPTIMISERS))
def test_optimisers(info: Any) -> None:
    for name, card_options, host_options in optimiser_inputs(info):
        host_module = network(info)
        card_module = copy.deepcopy(host_module).to(CARD)
        host, card = train(info, host_module, host_options), train(info, card_module, on("cpu", card_options))
        assert host.error is None, (name, host.error)
        assert card.error is None, (name, card.error)
        (ours, our_state), (theirs, their_state) = card.result, host.result
        for one, other in zip(
            (ours, list(card_module.parameters())), (theirs, list(host_module.parameters())), strict=True
        ):
            assert {t.device for t in tensors(one)} == {CARD}
            assert_close(on("cpu", one), on("cpu", other), rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")  # noqa: B023
        assert list(our_state) == list(their_state)
        for one, other in zip(tensors(our_state), tensors(their_state), strict=True):
            assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}, state: {text}")  # noqa: B023


def test_what_is_left_out_is_there() -> None:
    assert {info.name for info in optim_db} >= set(OPTIMISERS_LEFT_OUT)
    assert len(MODULES) == len(module_db)
