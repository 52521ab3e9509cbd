"""Activations and their gradients against autograd and plain formulas.

Holds activation.py and activation_backward.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def gradient(function, x, grad):
    """Gradient that autograd gives in float64."""
    wide = x.double().requires_grad_()
    function(wide).backward(grad.double())
    return wide.grad


def swiglu(x, dim=-1):
    gate, up = x.chunk(2, dim)
    return gate * torch.sigmoid(gate) * up


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_swiglu_backward(facade, dtype, dim):
    x = torch.randn(4, 6, 8).to(dtype)
    grad = torch.randn_like(swiglu(x, dim))
    found = torch.ops.npu.npu_swiglu_backward(grad, x, dim)
    assert found.dtype == dtype
    torch.testing.assert_close(found, gradient(lambda t: swiglu(t, dim), x, grad).to(dtype))


def test_swiglu_backward_of_empty_and_strided_input(facade):
    assert torch.ops.npu.npu_swiglu_backward(torch.empty(0, 4), torch.empty(0, 8)).shape == (0, 8)
    x, grad = torch.randn(8, 4).mT, torch.randn(4, 4)
    torch.testing.assert_close(
        torch.ops.npu.npu_swiglu_backward(grad, x), torch.ops.npu.npu_swiglu_backward(grad, x.contiguous())
    )


def test_swiglu_backward_refuses(facade):
    with pytest.raises(RuntimeError, match="grad_output has shape"):
        torch.ops.npu.npu_swiglu_backward(torch.randn(4, 3), torch.randn(4, 8))
    with pytest.raises(RuntimeError, match="odd number"):
        torch.ops.npu.npu_swiglu_backward(torch.randn(4, 3), torch.randn(4, 7))
    with pytest.raises(RuntimeError, match="float64"):
        torch.ops.npu.npu_swiglu_backward(torch.randn(4, 4), torch.randn(4, 8).double())


@pytest.mark.parametrize("approximate", [0, 1])
@pytest.mark.parametrize("left", [False, True])
def test_geglu_grad(facade, approximate, left):
    x, grad = torch.randn(3, 8), torch.randn(3, 4)
    _, gelu = torch.ops.npu.npu_geglu(x, -1, approximate, left)

    def geglu(t):
        first, second = t.chunk(2, -1)
        linear, gate = (second, first) if left else (first, second)
        return linear * torch.nn.functional.gelu(gate, approximate=("none", "tanh")[approximate])

    found = torch.ops.npu.npu_geglu_grad(grad, x, gelu, -1, approximate, left)
    torch.testing.assert_close(found, gradient(geglu, x, grad).float())


@pytest.mark.parametrize("mode", ["none", "tanh"])
def test_gelu_backward(facade, mode):
    x, grad = torch.randn(5, 7), torch.randn(7)
    found = torch.ops.npu.npu_gelu_backward(grad, x, approximate=mode)
    expected = gradient(lambda t: torch.nn.functional.gelu(t, approximate=mode), x, grad.expand(5, 7))
    torch.testing.assert_close(found, expected.float())
    assert torch.ops.npu.npu_gelu_backward(grad.half(), x, approximate=mode).dtype == torch.float32
    with pytest.raises(RuntimeError, match="approximate"):
        torch.ops.npu.npu_gelu_backward(grad, x, approximate="quick")


def test_gradients_by_element(facade):
    x, grad = torch.randn(5, 7), torch.randn(5, 7)
    ops = torch.ops.npu
    sigmoid = 1 / (1 + np.exp(-x.double().numpy()))
    for found, formula in (
        (ops.npu_fast_gelu_backward(grad, x), lambda t: t * torch.sigmoid(1.702 * t)),
        (ops.npu_silu_backward(grad, x, ops.npu_silu(x)), lambda t: t * torch.sigmoid(t)),
        (ops.npu_mish_backward(grad, x), lambda t: t * torch.tanh(torch.log1p(torch.exp(t)))),
    ):
        torch.testing.assert_close(found, gradient(formula, x, grad).float())
    torch.testing.assert_close(ops.npu_silu(x), torch.from_numpy(x.double().numpy() * sigmoid).float())


def test_mish_and_fast_gelu_have_gradients(facade):
    x = torch.randn(6, dtype=torch.float32, requires_grad=True)
    assert torch.ops.npu.npu_mish(x).sum().backward() is None
    assert torch.ops.npu.fast_gelu(x.detach()).equal(torch.ops.npu.npu_fast_gelu(x.detach()))
    wide = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: torch.nn.functional.mish(t), wide)
    with pytest.raises(RuntimeError, match="float64"):
        torch.ops.npu.npu_mish(wide)


def test_silu_in_place(facade):
    x = torch.randn(4, 6)
    view = x[:, ::2]
    expected = view * torch.sigmoid(view)
    assert torch.ops.npu.npu_silu_(view) is view
    torch.testing.assert_close(x[:, ::2], expected)


@pytest.mark.parametrize("mode", ["none", "tanh"])
def test_gelu_mul(facade, mode):
    x = torch.randn(3, 5, 8, dtype=torch.float16)
    first, second = x.float().chunk(2, -1)
    expected = torch.nn.functional.gelu(first, approximate=mode) * second
    torch.testing.assert_close(facade.npu_gelu_mul(x, approximate=mode), expected.half())


@pytest.mark.parametrize(
    ("shape", "keywords", "text"),
    [
        ((8,), {}, "takes 2 to 8"),
        ((2, 7), {}, "even number up to 1024"),
        ((2, 1026), {}, "even number up to 1024"),
        ((2, 8), {"approximate": "erf"}, "approximate"),
        ((200001, 2), {}, "200000"),
    ],
)
def test_gelu_mul_refuses(facade, shape, keywords, text):
    with pytest.raises(RuntimeError, match=text):
        facade.npu_gelu_mul(torch.zeros(shape), **keywords)


def clipped(rows, alpha, limit, bias, interleaved):
    """Formula of npu_clipped_swiglu, element by element."""
    half = rows.shape[1] // 2
    y = np.zeros((rows.shape[0], half))
    for i, j in np.ndindex(*y.shape):
        gate, linear = (rows[i, 2 * j], rows[i, 2 * j + 1]) if interleaved else (rows[i, j], rows[i, half + j])
        gate, linear = min(gate, limit), max(-limit, min(linear, limit))
        y[i, j] = gate / (1 + np.exp(-alpha * gate)) * (linear + bias)
    return y


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [-1, 1])
def test_clipped_swiglu(facade, interleaved, dim):
    x = torch.randn(4, 6, 8) * 3
    split = 2 if dim == -1 else 1
    rows = x.reshape(int(np.prod(x.shape[:split])), -1)
    expected = clipped(rows.double().numpy(), 0.7, 1.5, 1.2, interleaved)
    shape = [4, 6, 4] if dim == -1 else [4, 3, 8]
    found = facade.npu_clipped_swiglu(x, dim=dim, alpha=0.7, limit=1.5, bias=1.2, interleaved=interleaved)
    torch.testing.assert_close(found, torch.from_numpy(expected).float().reshape(shape))


def test_clipped_swiglu_of_groups(facade):
    x = torch.randn(6, 8)
    found = facade.npu_clipped_swiglu(x, group_index=torch.tensor([1, 0, 3]))
    torch.testing.assert_close(found[:4], facade.npu_clipped_swiglu(x)[:4])
    assert not found[4:].any()
    torch.testing.assert_close(
        facade.npu_clipped_swiglu(x, group_index=torch.tensor([100])), facade.npu_clipped_swiglu(x)
    )
    for wrong in (torch.tensor([1], dtype=torch.int32), torch.tensor([[1]])):
        with pytest.raises(RuntimeError, match="group_index"):
            facade.npu_clipped_swiglu(x, group_index=wrong)
    with pytest.raises(RuntimeError, match="takes 2 and more"):
        facade.npu_clipped_swiglu(torch.zeros(8))
    assert facade.npu_clipped_swiglu(torch.zeros(0, 8)).shape == (0, 4)


@pytest.mark.parametrize("limit", [0.0, 0.8])
def test_swiglu_group_quant_backward(facade, limit):
    x, grad = torch.randn(5, 8), torch.randn(5, 4)
    weight = torch.rand(5, 1, dtype=torch.float64, requires_grad=True)
    wide = x.double().requires_grad_()
    gate, linear = wide.chunk(2, -1)
    if limit:
        gate, linear = gate.clamp(max=limit), linear.clamp(-limit, limit)
    origin = gate * torch.sigmoid(gate) * linear
    rows = torch.tensor([1.0, 1, 1, 0, 0]).unsqueeze(1)
    (origin * weight * rows).backward(grad.double())
    to_x, to_weight = facade.npu_swiglu_group_quant_backward(
        grad, x, weight=weight.detach().float(), y_origin=origin.detach().float(),
        group_index=torch.tensor([2, 1]), clamp_limit=limit,
    )  # fmt: skip
    torch.testing.assert_close(to_x, wide.grad.float())
    torch.testing.assert_close(to_weight, weight.grad.float())
    plain, empty = facade.npu_swiglu_group_quant_backward(grad, x)
    torch.testing.assert_close(plain, torch.ops.npu.npu_swiglu_backward(grad, x))
    assert empty.shape == (0,)
    with pytest.raises(RuntimeError, match="x last dim size should be even"):
        facade.npu_swiglu_group_quant_backward(grad, torch.zeros(5, 7))
