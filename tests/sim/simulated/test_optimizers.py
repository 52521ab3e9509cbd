"""Optimisers: a few steps on the card end at the CPU's parameters.

Holds csrc/torch against the CPU's parameters after some steps. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.testing import assert_close

from against_cpu import CARD, HostGeneratorUntouched, assert_same

Parameters = Iterator[nn.Parameter]

OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1),
    "Adam, foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01),
    "AdamW, one tensor at a time": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True, maximize=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
}

CAPTURABLE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": lambda p, **options: torch.optim.Adam(p, 0.01, **options),
    "Adam, one tensor at a time": lambda p, **options: torch.optim.Adam(p, 0.01, foreach=False, **options),
    "AdamW": lambda p, **options: torch.optim.AdamW(p, 0.01, **options),
    "NAdam": lambda p, **options: torch.optim.NAdam(p, 0.01, **options),
    "RMSprop": lambda p, **options: torch.optim.RMSprop(p, 0.01, **options),
}


def models() -> tuple[nn.Module, nn.Module]:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, copy.deepcopy(model).to(CARD)


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x.to(next(model.parameters()).device)) ** 2).mean()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, steps: int = 5) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()


def assert_equal_models(card: nn.Module, host: nn.Module) -> None:
    assert_same(list(card.parameters()), list(host.parameters()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    host, card = models()
    x = torch.randn(16, 4)
    before = copy.deepcopy(host)
    train(host, OPTIMIZERS[name](host.parameters()), x)
    with HostGeneratorUntouched():
        train(card, OPTIMIZERS[name](card.parameters()), x)
    assert_equal_models(card, host)
    assert not torch.equal(host[0].weight, before[0].weight)


@pytest.mark.parametrize("name", CAPTURABLE)
def test_steps_whose_count_lives_on_the_card(name: str) -> None:
    host, card = models()
    x = torch.randn(16, 4)
    train(host, CAPTURABLE[name](host.parameters()), x)
    optimizer = CAPTURABLE[name](card.parameters(), capturable=True)
    train(card, optimizer, x)
    assert_equal_models(card, host)
    assert {state["step"].device for state in optimizer.state.values()} == {CARD}


def test_lbfgs() -> None:
    host, card = models()
    x = torch.randn(16, 4)
    for model in (host, card):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def again(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            value = loss(model, x)
            value.backward()
            return value

        optimizer.step(again)
    assert_same(list(card.parameters()), list(host.parameters()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("norm", [2.0, 1.0, float("inf")])
def test_gradients_are_clipped_by_their_norm(foreach: bool | None, norm: float) -> None:
    host, card = models()
    x = torch.randn(16, 4)
    norms = []
    for model in (host, card):
        (loss(model, x) * 100).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm, foreach=foreach))
    assert norms[1].device == CARD
    assert_close(norms[1].cpu(), norms[0])
    assert norms[0] > 1
    assert_same([p.grad for p in card.parameters()], [p.grad for p in host.parameters()])


@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_are_clipped_by_their_value(foreach: bool) -> None:
    host, card = models()
    x = torch.randn(16, 4)
    for model in (host, card):
        (loss(model, x) * 100).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5, foreach=foreach)
    assert_same([p.grad for p in card.parameters()], [p.grad for p in host.parameters()])


def test_a_norm_that_is_not_finite_is_an_error() -> None:
    p = nn.Parameter(torch.ones(2, device=CARD))
    p.grad = torch.full_like(p, float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)


def test_the_state_of_an_optimizer_follows_its_parameters() -> None:
    host, card = models()
    x = torch.randn(16, 4)
    optimizer = torch.optim.Adam(host.parameters(), 0.01)
    train(host, optimizer, x)
    card.load_state_dict(host.state_dict())
    on_card = torch.optim.Adam(card.parameters(), 0.01)
    on_card.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch shares the count of steps
    assert {state["exp_avg"].device for state in on_card.state.values()} == {CARD}
    train(host, optimizer, x)
    train(card, on_card, x)
    assert_equal_models(card, host)


def test_schedules_and_groups() -> None:
    host, card = models()
    x = torch.randn(16, 4)
    rates = []
    for model in (host, card):
        optimizer = torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}], 0.01
        )
        schedule = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
        for _ in range(3):
            train(model, optimizer, x, 1)
            schedule.step()
        rates.append(schedule.get_last_lr())
    assert rates[0] == rates[1]
    assert_equal_models(card, host)


def test_a_rate_that_is_a_tensor() -> None:
    host, card = models()
    x = torch.randn(16, 4)
    train(host, torch.optim.AdamW(host.parameters(), 0.01), x)
    train(card, torch.optim.AdamW(card.parameters(), torch.tensor(0.01, device=CARD), capturable=True), x)
    assert_equal_models(card, host)


def test_averaged_models() -> None:
    host, card = models()
    averages = [
        swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)) for model in (host, card)
    ]
    x = torch.randn(16, 4)
    for model, average in zip((host, card), averages, strict=True):
        for _ in range(2):
            train(model, torch.optim.SGD(model.parameters(), 0.1), x, 1)
            average.update_parameters(model)
    assert_equal_models(averages[1].module, averages[0].module)


def test_multi_tensor_operators() -> None:
    host = [torch.randn(3), torch.randn(2, 2)]
    card = [t.to(CARD) for t in host]
    for operator in (torch._foreach_add, torch._foreach_mul):
        assert_same(operator(card, 2.0), operator(host, 2.0))
        assert_same(operator(card, card), operator(host, host))
    torch._foreach_sqrt_(card)
    torch._foreach_sqrt_(host)
    assert_same(card, host)
    assert_same(torch._foreach_norm(card, 2), torch._foreach_norm(host, 2))
    torch._foreach_copy_(card, [torch.ones(3), torch.ones(2, 2)])
    assert_same(card, [torch.ones(3), torch.ones(2, 2)])
