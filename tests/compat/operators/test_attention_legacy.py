"""Older fused attention, against compositions in float64 and their autograd.

Holds attention_legacy.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch
from torch.nn.functional import layer_norm, linear


def normal(*shape, seed=0, factor=0.3):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values * factor).half()


def close(actual, expected, tolerance=5e-3):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def wide(*tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_softmax_in_place(facade, dtype):
    scores, grad, values = (normal(2, 3, size, seed=size, factor=1.0).to(dtype) for size in (4, 5, 5))
    values = normal(2, 4, 5, seed=9).to(dtype)
    (leaf,) = wide(scores)
    (leaf.softmax(-1) @ values.double()).backward(grad.double())
    assert facade.npu_attn_softmax_(scores) is scores
    close(scores, leaf.softmax(-1).detach())
    assert facade.npu_attn_softmax_backward_(scores, grad, values) is scores
    close(scores, leaf.grad)


@pytest.mark.parametrize("keep", [1.0, 0.75])
def test_fused_attention_score(facade, keep):
    leaves = [normal(2, 3, 8, 4, seed=seed).requires_grad_() for seed in range(3)]
    mask = normal(2, 1, 1, 8, seed=3)
    out, weights, kept = facade.npu_fused_attention_score_fwd(*leaves, mask, 0.5, keep)
    assert (out.shape, weights.shape, kept.shape, kept.dtype) == ((16, 12), (2, 3, 8, 8), (384,), torch.uint8)
    assert kept.bool().all() == (keep == 1.0)
    query, key, value = others = wide(*leaves)
    expected = (query @ key.mT * 0.5 + mask).softmax(-1)
    close(weights, expected.detach())
    expected = expected * kept.reshape(weights.shape).double() / keep @ value
    expected = expected.transpose(1, 2).reshape(16, 12)
    close(out, expected.detach())
    grad = normal(16, 12, seed=4)
    out.backward(grad)
    expected.backward(grad.double())
    details = [leaf.detach() for leaf in leaves]
    found = facade.npu_fused_attention_score_backward(grad, weights, *details, kept, 0.5, keep)
    flat = facade.npu_fused_attention_score_grad(grad, weights, *details, kept, 0.5, keep)
    for gradient, row, leaf, other in zip(found, flat, leaves, others, strict=True):
        close(gradient, other.grad)
        close(leaf.grad, other.grad)
        assert torch.equal(row, gradient.transpose(1, 2).reshape(16, 12))


def test_fused_attention_score_has_a_gradient(facade):
    query = normal(1, 2, 4, 4).requires_grad_()
    out = facade.npu_fused_attention_score(query, query, query, normal(1, 1, 4, 4), 0.5, 1.0)
    out.sum().backward()
    assert query.grad.abs().sum() > 0


def test_fused_attention_score_refuses(facade):
    query = normal(1, 2, 4, 4)
    with pytest.raises(RuntimeError, match="at least 4-dimensional"):
        facade.npu_fused_attention_score(query[0], query, query, query, 0.5, 1.0)
    with pytest.raises(RuntimeError, match="transposes"):
        facade.npu_fused_attention_score(query, query, query, query, 0.5, 1.0, True)
    with pytest.raises(RuntimeError, match="takes float16"):
        facade.npu_fused_attention_score(query.float(), query, query, query, 0.5, 1.0)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.25])
def test_multi_head_attention(facade, biased, drop):
    heads = head = source = target = 16
    width, batch = 256, 2
    x = [normal(batch * length, width, seed=seed) for seed, length in enumerate((target, source, source))]
    kernels = [normal(width, width, seed=seed, factor=0.05) for seed in range(3, 7)]
    biases = [normal(width, seed=seed) if biased else None for seed in range(7, 11)]
    mask = normal(batch, 1, target, source, seed=11)
    leaves = [tensor.requires_grad_() for tensor in (*x, *kernels)]
    sizes = (heads, head, source, target, drop, True)
    results = facade.npu_multi_head_attention(*leaves[:6], mask, leaves[6], *biases, None, *sizes)
    y, bits, q, k, v, scores, dropped, context = results
    assert bits.shape == (batch * heads * target * source // 8,)
    assert scores.dtype == torch.float32
    others = wide(*leaves)
    doubles = [None if bias is None else bias.double() for bias in biases]
    parts = [
        linear(others[i], others[3 + i], doubles[i]).reshape(batch, -1, heads, head).transpose(1, 2) for i in range(3)
    ]
    parts[0] = parts[0] * head**-0.5
    kept = (bits[:, None] >> torch.arange(8)) & 1
    weights = (parts[0] @ parts[1].mT + mask).softmax(-1)
    after = weights * kept.reshape(weights.shape) / (1 - drop)
    inner = (after @ parts[2]).transpose(1, 2).reshape(batch * target, width)
    expected = linear(inner, others[6], doubles[3])
    for found, want in zip(
        (y, q, k, v, scores, dropped, context), (expected, *parts, weights, after, inner), strict=True
    ):
        close(found.detach(), want.detach(), 1e-2)
    grad = normal(*y.shape, seed=12)
    y.backward(grad)
    expected.backward(grad.double())
    details = [leaf.detach() for leaf in leaves]
    found = facade.npu_multi_head_attention_backward(
        *details, *biases, q, k, v, scores, dropped, context, grad, bits, *sizes
    )
    order = [3, 4, 5, 6, 0, 1, 2]
    for gradient, index in zip(found[:7], order, strict=True):
        close(gradient, others[index].grad, 3e-2)
        close(leaves[index].grad, others[index].grad, 3e-2)
    assert [part.shape for part in found[7:]] == [(1, width)] * 4
    close(found[10][0], grad.double().sum(0), 1e-2)
    given = facade.npu_multi_head_attention(*details[:6], mask, details[6], *biases, bits, *sizes)
    assert torch.equal(given[0], y)


def test_multi_head_attention_refuses(facade):
    x = normal(16, 256)
    for sizes, text in (((16, 16, 16, 8), "should align to 16"), ((16, 16, 0, 16), "should not equal zero")):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_multi_head_attention(x, x, x, x, x, x, x, x, *[None] * 5, *sizes, 0.0, True)


def test_projections(facade):
    x, gamma, beta = normal(8, 12), normal(12, seed=1), normal(12, seed=2)
    kernels = [normal(12, 12, seed=seed) for seed in range(3, 6)]
    biases = [normal(12, seed=seed) for seed in range(6, 9)]
    norm, *heads, mean, variance = facade.npu_fused_attention_layernorm_qkv_fwd(
        x, *kernels, gamma, beta, *biases, seq_len=4, num_heads=3
    )
    expected = layer_norm(x.double(), (12,), gamma.double(), beta.double(), 1e-5)
    close(norm, expected)
    for found, kernel, bias in zip(heads, kernels, biases, strict=True):
        whole = expected @ kernel.double() + bias.double()
        close(found, whole.reshape(2, 4, 3, 4).transpose(1, 2))
    close(mean, x.double().mean(1))
    close(variance, x.double().var(1, correction=0))
    hidden, *others = wide(x, *kernels, *biases)
    grads = [normal(8, 12, seed=seed) for seed in range(9, 12)]
    for kernel, bias, grad in zip(others[:3], others[3:], grads, strict=True):
        (hidden @ kernel + bias).backward(grad.double())
    extra = normal(8, 12, seed=12)
    found = facade.npu_fused_attention_qkv_grad(*grads, *kernels, x, extra)
    close(found[0], hidden.grad + extra.double())
    for gradient, other in zip(found[1:], others, strict=True):
        close(gradient, other.grad)
    for changes, text in (({"seq_len": 0}, "cannot be equal to 0"), ({"seq_len": 3}, "divisible by seq_len")):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_fused_attention_layernorm_qkv_fwd(x, *kernels, gamma, beta, num_heads=3, **changes)
