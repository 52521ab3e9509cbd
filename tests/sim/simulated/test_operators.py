"""Ordinary operators: values, gradients, scalars, sizes that depend on data, out=.

Holds csrc/torch against the CPU's values and gradients. tests/sim/test_simulated.py runs this module in a process with
simulated cards.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from against_cpu import CARD, assert_same, compare

ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b: torch.add(a, b, alpha=2),
    "subtract and divide": lambda a, b: (a - b) / (b.abs() + 1),
    "scalars on both sides": lambda a, b: 3 - (2 * a + b) / 4 + 1.5,
    "powers": lambda a, b: a.abs().pow(1.5) + 2**b + a**2,
    "exponentials": lambda a, b: torch.exp(a) + torch.log1p(b.abs()) + torch.expm1(a) + torch.sigmoid(b),
    "trigonometry": lambda a, b: torch.sin(a) * torch.cos(b) + torch.atan2(a, b) + torch.tanh(a),
    "rounding": lambda a, b: torch.floor(a) + torch.round(b, decimals=1) + torch.trunc(a) + torch.frac(b),
    "clamping": lambda a, b: a.clamp(-0.5, 0.5) + torch.minimum(a, b) + torch.maximum(a, b) + b.clamp_min(0),
    "choice": lambda a, b: torch.where(a > b, a, b * 2),
    "ternary": lambda a, b: (
        torch.addcmul(a, b, b, value=0.5) + torch.addcdiv(a, b, a.abs() + 1) + torch.lerp(a, b, 0.3)
    ),
    "activations": lambda a, b: F.gelu(a) + F.silu(b) + F.relu(a) + F.leaky_relu(b) + F.softplus(a) + F.elu(b),
    "special functions": lambda a, b: torch.erf(a) + torch.special.i0(b) + torch.lgamma(a.abs() + 1),
}

REDUCTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "sum": lambda t: (t.sum(), t.sum(1), t.sum((0, 2), keepdim=True)),
    "mean and variance": lambda t: (t.mean(-1), t.var(1), t.std(0, correction=0), torch.var_mean(t, dim=2)),
    "extremes": lambda t: (t.amax(1), t.max(2).values, t.min(), torch.aminmax(t, dim=0).min, t.median(1).values),
    "norms": lambda t: (t.norm(), t.norm(p=1, dim=1), torch.linalg.vector_norm(t, float("inf"), dim=(0, 2))),
    "scans": lambda t: (t.cumsum(1), t.cumprod(2), t.cummax(0).values, torch.logcumsumexp(t, 1)),
    "soft": lambda t: (t.softmax(1), t.log_softmax(-1), t.logsumexp(0)),
    "products": lambda t: (t.prod(), t.prod(1)),
    "quantiles": lambda t: (torch.quantile(t, 0.3, dim=1), t.kthvalue(2, dim=1).values),
}

INTEGERS: dict[str, Callable[[torch.Tensor], object]] = {
    "places of extremes": lambda t: (t.argmax(), t.argmax(1), t.argmin(0), t.max(1).indices),
    "order": lambda t: (t.sort(dim=1, stable=True), t.sort(0, descending=True), t.argsort(stable=True)),
    "topk": lambda t: (t.topk(2, 1), t.topk(3, 0, largest=False).values),
    "truth": lambda t: (t.any(), (t > 0).all(1), torch.logical_xor(t > 0, t > 2), t.isnan(), t == t.T.T),
    "bits": lambda t: (t.int() & 6, t.int() | 1, t.int() ^ 3, ~t.int(), t.int() << 2, t.int() >> 1),
    "whole numbers": lambda t: (t.int() // 3, t.int() % 3, torch.gcd(t.int(), t.int() * 2 + 4), -t.int()),
    "sizes from data": lambda t: (t.nonzero(), torch.unique(t.int()), t.masked_select(t > 0), t.argwhere()),
    "unique with all it gives": lambda t: torch.unique(t.int(), return_inverse=True, return_counts=True),
    "unique rows": lambda t: torch.unique(t.int().clamp(0, 1), dim=0, return_counts=True),
    "runs": lambda t: torch.unique_consecutive(t.int().flatten(), return_counts=True),
    "counts": lambda t: (
        torch.bincount(t.int().abs().flatten()),
        torch.histc(t, 5),
        torch.bucketize(t, t[0].sort()[0]),
    ),
    "repeats": lambda t: (t.repeat(2, 1), t.repeat_interleave(2, 0), t.tile(3), t.flip(0), t.roll(1, 1), t.rot90()),
    "triangles": lambda t: (t.triu(), t.tril(-1), torch.diag(t[:, 0]), torch.block_diag(t, t), t.trace()),
}

PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": lambda a, b: a @ b,
    "mm of a transposed view": lambda a, b: torch.mm(b[0].t(), a[0].t()),
    "bmm": torch.bmm,
    "mv": lambda a, b: torch.mv(a[0], b[0, :, 0]),
    "dot": lambda a, b: torch.dot(a[0, 0], b[0, :, 0]) + torch.vdot(a[1, 1], b[1, :, 1]),
    "addmm": lambda a, b: torch.addmm(a[1] @ b[1], a[0], b[0], beta=0.5, alpha=2),
    "baddbmm": lambda a, b: torch.baddbmm(a @ b, a, b, beta=0.5),
    "einsum": lambda a, b: torch.einsum("bij,bjk->ki", a, b),
    "outer and kron": lambda a, b: torch.kron(torch.outer(a[0, 0], b[0, 0]), a[0]),
    "chain": lambda a, b: torch.linalg.multi_dot([a[0], b[0], a[1], b[1]]),
    "broadcast batches": lambda a, b: torch.matmul(a[:, None], b[None]),
    "cdist": lambda a, b: torch.cdist(a, b.mT.contiguous()),
}


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 4, requires_grad=True), torch.randn(3, 1, requires_grad=True)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    compare(ELEMENTWISE[name], *operands())


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    compare(REDUCTIONS[name], torch.randn(3, 4, 5, requires_grad=True))


@pytest.mark.parametrize("name", INTEGERS)
def test_results_without_gradient(name: str) -> None:
    compare(INTEGERS[name], torch.randn(5, 5) * 4)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    compare(PRODUCTS[name], torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 4, 3, requires_grad=True))


def test_a_product_that_threads_share() -> None:
    compare(lambda a, b: torch.relu(a @ b).sum(0), torch.randn(300, 200, requires_grad=True), torch.randn(200, 250))


@pytest.mark.parametrize("parts", [torch.cat, torch.stack, torch.hstack, torch.dstack])
def test_tensors_are_joined(parts: Callable[..., torch.Tensor]) -> None:
    compare(lambda *all_parts: parts(all_parts), *(torch.randn(2, 3, requires_grad=True) for _ in range(3)))


def test_tensors_without_elements() -> None:
    compare(lambda t: (t.sum(), t + 1, t @ t.T, torch.cat([t, t]), t.softmax(-1), t.any()), torch.empty(0, 3))


def test_what_a_scalar_of_the_host_does_is_as_on_the_cpu() -> None:
    card, host = torch.ones(2, device=CARD), torch.ones(2)
    scalar = torch.tensor(2.0, dtype=torch.float64)
    for function in (
        lambda t: t + scalar,
        lambda t: scalar - t,
        lambda t: t.mul_(scalar),
        lambda t: torch.where(t > 1, t, scalar),
        lambda t: torch.maximum(t, torch.tensor(1.5)),
        lambda t: t.half() * scalar,
        lambda t: t.int() * torch.tensor(1.5),
    ):
        assert_same(function(card), function(host))


def test_promotion_of_types_is_as_on_the_cpu() -> None:
    compare(
        lambda a, b: (a + b, a * 1.5, a / 2, a + True, b.half() + a, torch.cat([a, b])), torch.arange(3), torch.ones(3)
    )


@pytest.mark.parametrize("shape", [(0,), (2,), (3, 3), (5, 1)])
def test_out_is_resized_in_place(shape: tuple[int, ...]) -> None:
    out = torch.empty(0, device=CARD)
    if shape != (0,):
        out.resize_(shape)
        out.resize_(0)
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    assert torch.mm(a.to(CARD), b.to(CARD), out=out) is out
    assert_same(out, a @ b)
    out.resize_(5, 5)
    assert out.device == CARD
    assert_same(torch.add(torch.ones(5, 5, device=CARD), 1, out=out), torch.full((5, 5), 2.0))


def test_out_of_several_results() -> None:
    values, places = torch.empty(0, device=CARD), torch.empty(0, dtype=torch.long, device=CARD)
    t = torch.randn(4, 6)
    torch.topk(t.to(CARD), 2, out=(values, places))
    assert_same((values, places), tuple(torch.topk(t, 2)))
    values, places = torch.empty(0, device=CARD), torch.empty(0, dtype=torch.long, device=CARD)
    torch.mode(t.to(CARD), 1, out=(values, places))
    assert_same((values, places), tuple(torch.mode(t, 1)))


def test_out_that_is_a_view_is_written_through() -> None:
    base = torch.zeros(4, 4, device=CARD)
    torch.add(torch.ones(4, device=CARD), 1, out=base[:, 1])
    assert_same(base, torch.tensor([[0.0, 2, 0, 0]]).repeat(4, 1))


@pytest.mark.parametrize(
    "write",
    [
        lambda t, wider: t.add_(wider),
        lambda t, wider: torch.add(t, wider, out=t),
        lambda t, wider: t.logical_or_(wider),
        lambda t, wider: t.logical_xor_(wider),
        lambda t, wider: t.ldexp_(wider),
    ],
)
def test_an_operand_is_not_resized_by_its_own_result(write: Callable[..., torch.Tensor]) -> None:
    card = torch.ones(3, 1, device=CARD)
    with pytest.raises(RuntimeError, match=r"output with shape \[3, 1\] doesn't match the broadcast shape \[3, 2\]"):
        write(card, torch.ones(3, 2, device=CARD))
    assert_same(card, torch.ones(3, 1))


def test_out_of_another_shape_warns_as_on_the_cpu() -> None:
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(torch.ones(4, device=CARD), 1, out=torch.ones(2, device=CARD))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda t: t @ t[:2], "mat1 and mat2 shapes cannot be multiplied"),
        (lambda t: t + t[:, :2], "must match the size of tensor b"),
        (lambda t: t.view(5), "is invalid for input of size"),
        (lambda t: t.sum(7), "Dimension out of range"),
        (lambda t: torch.cat([t, t[:, :2]]), "Sizes of tensors must match"),
        (lambda t: F.conv2d(t[None, None], torch.ones(1, 2, 3, 3, device=CARD)), "expected input"),
        (lambda t: t.int().softmax(0), "aten::_softmax has no kernel for DT_INT32 on the simulated npu"),
    ],
)
def test_mistakes_have_the_texts_of_the_cpu(wrong: Callable[[torch.Tensor], object], text: str) -> None:
    with pytest.raises((RuntimeError, IndexError), match=text):
        wrong(torch.ones(3, 3, device=CARD))
    assert_same(torch.ones(3, 3, device=CARD) + 1, torch.full((3, 3), 2.0))
