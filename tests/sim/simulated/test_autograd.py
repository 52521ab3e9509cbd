"""Autograd and torch.func: derivatives of any order, checkpoints, modes, hooks, threads of the backward pass.

Holds csrc/torch against the CPU's derivatives. tests/sim/test_simulated.py runs this module in a process with simulated
cards.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import func, nn
from torch.autograd import forward_ad, functional, gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from against_cpu import CARD, assert_same, compare

SECOND = torch.device("npu:1")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself, in forward mode


# ---- torch.func

TRANSFORMS: dict[str, Callable[[torch.Tensor], object]] = {
    "vmap": lambda x: func.vmap(lambda t: (t * t).sum())(x),
    "vmap over columns": lambda x: func.vmap(torch.sin, in_dims=1, out_dims=1)(x),
    "vmap of a product": lambda x: func.vmap(torch.dot)(x, x),
    "nested vmap": lambda x: func.vmap(func.vmap(lambda t: t * 2))(x),
    "vmap of layers": lambda x: func.vmap(lambda t: F.layer_norm(t, (3,)).softmax(0))(x),
    "grad": lambda x: func.grad(lambda t: (t**3).sum())(x),
    "grad and value": lambda x: func.grad_and_value(lambda t: t.exp().sum())(x),
    "vmap of grad": lambda x: func.vmap(func.grad(lambda t: t.sin().sum()))(x),
    "grad of grad": lambda x: func.grad(lambda t: func.grad(lambda u: (u**3).sum())(t).sum())(x),
    "jacrev": lambda x: func.jacrev(lambda t: t**2)(x[0]),
    "jacfwd": lambda x: func.jacfwd(lambda t: t.sin() * t.sum())(x[0]),
    "hessian": lambda x: func.hessian(lambda t: (t**3).sum())(x[0]),
    "jvp": lambda x: func.jvp(torch.exp, (x,), (torch.ones_like(x),)),
    "vjp": lambda x: func.vjp(torch.tanh, x)[1](torch.ones_like(x)),
    "functionalize": lambda x: func.functionalize(lambda t: t.clone().view(-1).add_(1))(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name: str) -> None:
    compare(TRANSFORMS[name], torch.randn(4, 3))


def test_gradients_per_sample() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def go(x: torch.Tensor) -> dict[str, torch.Tensor]:
        weights = {key: weight.detach().to(x.device) for key, weight in model.named_parameters()}

        def loss(weights: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
            return func.functional_call(model, weights, sample[None]).sum()

        return func.vmap(func.grad(loss), in_dims=(None, 0))(weights, x)

    compare(go, torch.randn(5, 3))


def test_ensembles() -> None:
    models = [nn.Linear(3, 2).requires_grad_(False) for _ in range(2)]
    base = nn.Linear(3, 2).to("meta")

    def go(x: torch.Tensor) -> torch.Tensor:
        weights, buffers = func.stack_module_state([model.to(x.device) for model in models])
        return func.vmap(lambda w, b: func.functional_call(base, (w, b), x))(weights, buffers).detach()

    compare(go, torch.randn(5, 3))


def test_random_numbers_under_vmap() -> None:
    different = func.vmap(lambda t: F.dropout(t), randomness="different")(torch.ones(4, 100, device=CARD))
    same = func.vmap(lambda t: F.dropout(t), randomness="same")(torch.ones(4, 100, device=CARD))
    assert not torch.equal(different[0], different[1])
    assert torch.equal(same[0], same[1])


# ---- derivatives


def test_second_derivatives() -> None:
    x = torch.randn(3, device=CARD, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    first.sum().backward()
    assert x.grad is not None
    assert_same(x.grad, (6 * x).detach().cpu())


CHECKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda t: torch.tanh(t @ t),
    "softmax": lambda t: t.softmax(0) * t,
    "layer_norm": lambda t: F.layer_norm(t, (3,)),
    "convolution": lambda t: F.conv1d(t[None], t[:, :, None].expand(3, 3, 2)),
    "transposed convolution": lambda t: F.conv_transpose1d(t[None], t[:, :, None].expand(3, 3, 2)),
    "index": lambda t: t[torch.tensor([0, 2, 0], device=t.device)].sin(),
    "inverse": lambda t: torch.linalg.inv(t + 4 * torch.eye(3, device=t.device, dtype=t.dtype)),
    "fourier": lambda t: torch.fft.rfft(t).abs(),
    "pooling": lambda t: F.avg_pool1d(t[None], 2).exp(),
    "attention": lambda t: F.scaled_dot_product_attention(t[None, None], t[None, None], t[None, None]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_derivatives_are_those_of_finite_differences(name: str) -> None:
    x = torch.randn(3, 3, dtype=torch.float64, device=CARD, requires_grad=True)
    assert gradcheck(CHECKED[name], x)
    if name != "attention":  # its fused kernel has no second derivative, on the CPU neither
        assert gradgradcheck(CHECKED[name], x)


def test_gradients_that_are_zero() -> None:
    for constant in (torch.sgn, torch.sign, torch.round, torch.floor):
        x = torch.full((100,), 3.5, device=CARD, requires_grad=True)
        constant(x).sum().backward()
        assert_same(x.grad, torch.zeros(100))
    full = torch.ones(100, device=CARD)  # memory that is used again holds what was there
    del full
    zero = torch._efficientzerotensor((100,), device=CARD)
    assert zero._is_zerotensor()
    assert_same(zero + torch.ones(100, device=CARD), torch.ones(100))


def test_forward_mode() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones_like(x)).sin().sum()).tangent

    compare(go, torch.randn(3))


def test_functional_derivatives() -> None:
    compare(lambda x: functional.jacobian(torch.sin, x), torch.randn(3))
    compare(lambda x: functional.hessian(lambda t: (t**3).sum(), x), torch.randn(3))
    compare(lambda x: functional.vhp(lambda t: (t**3).sum(), x, torch.ones_like(x)), torch.randn(3))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


def test_a_function_of_ones_own() -> None:
    compare(Cube.apply, torch.randn(3, requires_grad=True))


# ---- what the backward pass keeps, skips and repeats


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant: bool) -> None:
    host = torch.randn(4, 4, requires_grad=True)
    card = host.detach().to(CARD).requires_grad_()
    for leaf in (host, card):
        checkpoint(lambda t: torch.relu(t @ t), leaf, use_reentrant=use_reentrant).sum().backward()
    assert_same(card.grad, host.grad)


def test_checkpoint_of_a_sequence() -> None:
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    on_card = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).to(CARD)
    on_card.load_state_dict(layers.state_dict())
    compare(
        lambda t: checkpoint_sequential(on_card if t.device == CARD else layers, 2, t, use_reentrant=False),
        torch.randn(2, 4, requires_grad=True),
    )


def test_saved_tensors_can_wait_on_the_host() -> None:
    x = torch.randn(4, 4, device=CARD, requires_grad=True)
    (expected,) = torch.autograd.grad((x @ x).exp().sum(), x)
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="npu"):
        (x @ x).exp().sum().backward()
    assert x.grad is not None
    assert_same(x.grad, expected.cpu())


def test_inference_mode() -> None:
    layer, x = nn.Linear(4, 4).to(CARD), torch.randn(2, 4, device=CARD)
    with torch.inference_mode():
        result = layer(x)
        view = result[0]
        result.add_(1)
    assert result.is_inference()
    assert not result.requires_grad
    assert_same(view, result[0].cpu())
    assert_same(result, layer(x).detach().cpu() + 1)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        layer(result)


def test_no_grad_and_detach() -> None:
    x = nn.Parameter(torch.ones(3, device=CARD))
    with torch.no_grad():
        x.add_(1)
        assert not (x * 2).requires_grad
    assert (x.detach() * 2).requires_grad is False
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place"):
        x.add_(1)
    result = x.exp()
    result.add_(1)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        result.sum().backward()


def test_gradients_accumulate_and_are_freed() -> None:
    x = torch.ones(3, device=CARD, requires_grad=True)
    for _ in range(2):
        (x * 2).sum().backward()
    assert_same(x.grad, torch.full((3,), 4.0))
    seen: list[torch.device] = []
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.device))
    (x * 2).sum().backward()
    assert seen == [CARD]
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_anomalies_are_found() -> None:
    x = torch.zeros(2, device=CARD, requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection has been enabled|Error detected in"),
        pytest.raises(RuntimeError, match="returned nan values"),
        torch.autograd.detect_anomaly(),
    ):
        (torch.sqrt(x) * 0).sum().backward()


def test_several_cards_in_one_backward_pass() -> None:
    leaves = [torch.randn(50, device=f"npu:{index}", requires_grad=True) for index in range(4)]
    host = [leaf.detach().cpu().requires_grad_() for leaf in leaves]
    sum((leaf**2).sum().to(SECOND) for leaf in leaves).backward()
    sum((leaf**2).sum() for leaf in host).backward()
    for leaf, other in zip(leaves, host, strict=True):
        assert leaf.grad is not None
        assert leaf.grad.device == leaf.device
        assert_close(leaf.grad.cpu(), other.grad)


def test_hooks_on_nodes() -> None:
    x = torch.ones(2, device=CARD, requires_grad=True)
    y = x * 3
    y.grad_fn.register_hook(lambda into, out_of: (into[0] * 2, None))
    y.register_hook(lambda gradient: gradient + 1)
    y.retain_grad()
    y.sum().backward()
    assert_same((y.grad, x.grad), (torch.full((2,), 2.0), torch.full((2,), 12.0)))
