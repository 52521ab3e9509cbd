"""Normalisations and their gradients against float64 and autograd.

Holds layer_norm.py and norm.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch

ops = torch.ops.npu


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def rms(x, gamma, epsilon=1e-6):
    x, gamma = x.double().numpy(), gamma.double().numpy()
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    rstd = 1 / np.sqrt((x**2).mean(axes, keepdims=True) + epsilon)
    return torch.from_numpy(x * rstd * gamma), torch.from_numpy(rstd)


def layer_norm(x, gamma, beta, axes, epsilon):
    over = tuple(range(x.dim() - axes, x.dim()))
    mean = x.mean(over, keepdim=True)
    rstd = (x.var(over, keepdim=True, correction=0) + epsilon) ** -0.5
    return (x - mean) * rstd * gamma + beta, mean, rstd


@pytest.mark.parametrize("gamma_shape", [(8,), (6, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_backward(facade, gamma_shape, dtype):
    x, dy, gamma = torch.randn(4, 6, 8).to(dtype), torch.randn(4, 6, 8).to(dtype), torch.randn(gamma_shape).to(dtype)
    a, b = x.double().requires_grad_(), gamma.double().requires_grad_()
    axes = tuple(range(3 - gamma.dim(), 3))
    (a * (a.square().mean(axes, keepdim=True) + 1e-6) ** -0.5 * b).backward(dy.double())
    dx, dgamma = ops.npu_rms_norm_backward(dy, x, gamma, ops.npu_rms_norm(x, gamma)[1])
    assert (dx.dtype, dgamma.dtype, dgamma.shape) == (dtype, torch.float32, gamma.shape)
    torch.testing.assert_close(dx, a.grad.to(dtype))
    torch.testing.assert_close(dgamma, b.grad.float(), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="must be alike"):
        ops.npu_rms_norm_backward(dy[:1], x, gamma, torch.ones(4, 6, 1))


def test_gemma_rms_norm(facade):
    x, gamma = torch.randn(4, 8).half(), torch.randn(8).half()
    y, rstd = ops.npu_gemma_rms_norm(x, gamma)
    expected, scale = rms(x, gamma.double() + 1)
    torch.testing.assert_close(y, expected.half())
    torch.testing.assert_close(rstd, scale.float())
    with pytest.raises(RuntimeError, match="last part of the shape"):
        ops.npu_gemma_rms_norm(x, gamma[:4])


def test_add_rms_norm_in_place(facade):
    x1, x2, gamma = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    total = x1 + x2
    expected, scale = rms(total, gamma)
    rstd, y, x = ops.npu_add_rms_norm_v2_functional(x1, x2, gamma)
    view = torch.zeros(4, 16)[:, ::2].copy_(x1)
    found = ops.npu_add_rms_norm_v2(view, x2, gamma)
    for given, want in ((rstd, scale), (found, scale), (y, expected), (view, expected), (x, total), (x2, total)):
        torch.testing.assert_close(given, want.float())
    with pytest.raises(RuntimeError, match="one shape and dtype"):
        ops.npu_add_rms_norm_v2(x1, x2.half(), gamma)


def test_add_rms_norm_cast(facade):
    x1, x2, gamma = torch.randn(4, 8).half(), torch.randn(4, 8).half(), torch.randn(8).half()
    y1, y2, rstd, x = ops.npu_add_rms_norm_cast(x1, x2, gamma)
    expected, scale = rms(x1.double() + x2.double(), gamma)
    assert (y1.dtype, y2.dtype, rstd.dtype, x.dtype) == (torch.float32, torch.float16, torch.float32, torch.float16)
    torch.testing.assert_close(y1, expected.float())
    torch.testing.assert_close(y2, expected.half())
    torch.testing.assert_close(rstd, scale.float())
    assert x.equal(x1 + x2)
    with pytest.raises(RuntimeError, match="float16 and bfloat16"):
        ops.npu_add_rms_norm_cast(x1.float(), x2.float(), gamma.float())


@pytest.mark.parametrize("gamma_shape", [(8,), (6, 8)])
@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_deep_norm(facade, gamma_shape, alpha):
    x, gx, dy = torch.randn(3, 4, 6, 8)
    gamma, beta = torch.randn(gamma_shape), torch.randn(gamma_shape)
    inputs = [t.double().requires_grad_() for t in (x, gx, beta, gamma)]
    y, mean, rstd = layer_norm(alpha * inputs[0] + inputs[1], inputs[3], inputs[2], gamma.dim(), 1e-6)
    y.backward(dy.double())
    leaves = [t.clone().requires_grad_() for t in (x, gx, beta, gamma)]
    found = ops.npu_deep_norm(*leaves, alpha)
    for given, want in zip(found, (mean, rstd, y), strict=True):
        torch.testing.assert_close(given, want.detach().float(), rtol=1e-4, atol=1e-4)
    assert [t.requires_grad for t in found] == [False, False, True]
    found[2].backward(dy)
    dx, dgx, dbeta, dgamma = ops.npu_deep_norm_backward(dy, x, gx, gamma, found[0], found[1], alpha)
    for leaf, own, want in zip(leaves, (dx, dgx, dbeta, dgamma), inputs, strict=True):
        torch.testing.assert_close(leaf.grad, want.grad.float(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own, want.grad.float(), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="must be alike"):
        ops.npu_deep_norm(x, gx.half(), beta, gamma)


@pytest.mark.parametrize("second", [torch.float16, torch.float32])
def test_add_layer_norm(facade, second):
    x1, x2 = torch.randn(4, 6, 8).half(), torch.randn(4, 6, 8).to(second)
    gamma, beta = torch.randn(8), torch.randn(8)
    inputs = [t.double().requires_grad_() for t in (x1, x2, gamma, beta)]
    want, mean, rstd = layer_norm(inputs[0] + inputs[1], inputs[2], inputs[3], 1, 1e-5)
    leaves = [t.clone().requires_grad_() for t in (x1, x2, gamma, beta)]
    y, found_mean, found_rstd, x = ops.npu_add_layer_norm(*leaves, 1e-5, True)
    dtype = torch.float16 if second == torch.float16 else torch.float32
    assert (y.dtype, x.dtype, found_mean.shape) == (dtype, dtype, (4, 6, 1))
    torch.testing.assert_close(y.detach(), want.detach().to(dtype), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found_mean, mean.detach().float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_rstd, rstd.detach().float(), rtol=1e-4, atol=1e-4)
    assert not found_mean.requires_grad
    assert x.requires_grad
    dy, dsum = torch.randn(4, 6, 8).to(dtype), torch.randn(4, 6, 8).to(dtype)
    torch.autograd.backward([want, inputs[0] + inputs[1]], [dy.double(), dsum.double()])
    torch.autograd.backward([y, x], [dy, dsum])
    own = ops.npu_add_layer_norm_backward(dy, x1, x2, found_rstd, found_mean, gamma, dsum)
    for leaf, given, wide in zip(leaves, own, inputs, strict=True):
        torch.testing.assert_close(leaf.grad.float(), wide.grad.float(), rtol=3e-3, atol=3e-3)
        torch.testing.assert_close(given.float(), wide.grad.float(), rtol=3e-3, atol=3e-3)
    assert not ops.npu_add_layer_norm(x1, x2, gamma, beta)[3].any()
    none = ops.npu_add_layer_norm_backward(None, x1, x2, found_rstd, found_mean, gamma, None)
    assert not any(t.any() for t in none)


def test_layer_norm_eval_and_gradient(facade):
    x, weight, bias, grad = torch.randn(3, 4, 5), torch.randn(4, 5), torch.randn(4, 5), torch.randn(3, 4, 5)
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    want, mean, rstd = layer_norm(*wide, 2, 1e-5)
    want.backward(grad.double())
    torch.testing.assert_close(facade.npu_layer_norm_eval(x, [4, 5], weight, bias), want.detach().float())
    plain = facade.npu_layer_norm_eval(x, [5])
    torch.testing.assert_close(plain, layer_norm(x.double(), 1, 0, 1, 1e-5)[0].float())
    own = ops.npu_layernorm_grad(grad, x, [4, 5], mean.detach().float(), rstd.detach().float(), weight, bias)
    for given, leaf in zip(own, wide, strict=True):
        torch.testing.assert_close(given, leaf.grad.float(), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="Given normalized_shape"):
        facade.npu_layer_norm_eval(x, [4])


def group_norm(x, groups, weight, bias, epsilon=1e-5, scale=1.0):
    parts = x.reshape(x.shape[0], groups, -1)
    mean, variance = parts.mean(-1), parts.var(-1, correction=0)
    rstd = (variance + epsilon) ** -0.5
    y = ((parts - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)).reshape(x.shape)
    y = y * weight.reshape(-1, *[1] * (x.dim() - 2)) + bias.reshape(-1, *[1] * (x.dim() - 2))
    return y * torch.sigmoid(scale * y), mean, rstd


@pytest.mark.parametrize(("shape", "groups"), [((3, 4), 4), ((2, 6, 5), 3), ((2, 4, 3, 5), 1)])
def test_group_norms(facade, shape, groups):
    x, grad = torch.randn(shape), torch.randn(shape)
    weight, bias = torch.randn(shape[1]), torch.randn(shape[1])
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    want = group_norm(wide[0], groups, wide[1], wide[2], scale=0.7)
    want[0].backward(grad.double())
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    found = facade.npu_group_norm_swish(leaves[0], groups, leaves[1], leaves[2], swish_scale=0.7)
    for given, expected in zip(found, want, strict=True):
        torch.testing.assert_close(given.detach(), expected.detach().float(), rtol=1e-4, atol=1e-4)
    assert [t.requires_grad for t in found] == [True, False, False]
    found[0].backward(grad)
    own = ops.npu_group_norm_swish_grad(grad, x, groups, weight, bias, *found[1:], [True] * 3, 0.7)
    for leaf, given, expected in zip(leaves, own, wide, strict=True):
        torch.testing.assert_close(leaf.grad, expected.grad.float(), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(given, expected.grad.float(), rtol=1e-3, atol=1e-3)
    silu = facade.npu_group_norm_silu(x, weight, bias, groups)
    for given, expected in zip(silu, group_norm(x.double(), groups, weight.double(), bias.double()), strict=True):
        torch.testing.assert_close(given, expected.float(), rtol=1e-4, atol=1e-4)


def test_group_norms_refuse(facade):
    x, weight = torch.randn(2, 6, 3), torch.randn(6)
    plain = facade.npu_group_norm_silu(x, None, None, 2)[0]
    ones = facade.npu_group_norm_silu(x, torch.ones(6), torch.zeros(6), 2)[0]
    torch.testing.assert_close(plain, ones)
    for arguments, text in (
        ((x, weight, weight, 4), "cannot be divided"),
        ((x, weight, weight, 0), "cannot be divided"),
        ((torch.zeros(6), weight, weight, 1), "takes 2 to 8"),
        ((torch.zeros(0, 6, 3), weight, weight, 2), "empty"),
        ((x, weight[:3], weight, 2), r"must have shape \[6\]"),
        ((x, weight, weight, 2, 0.0), "above 0"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_group_norm_silu(*arguments)
    with pytest.raises(RuntimeError, match="one dtype"):
        facade.npu_group_norm_swish(x, 2, weight.half(), weight)
