"""Hyper-connections and the fused matrix product, kernels of the Ascend 950, against loops and autograd.

Holds fused_matmul.py and hyper_connections.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

ops = torch.ops.npu


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def close(found, expected, tolerance=1e-3):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lead", [(3,), (2, 3)])
@pytest.mark.parametrize("mixed", [True, False])
def test_post(facade, lead, mixed):
    n, d = 4, 16
    x, out = torch.randn(*lead, n, d).bfloat16(), torch.randn(*lead, d).bfloat16()
    res, post, grad = torch.randn(*lead, n, n), torch.randn(*lead, n), torch.randn(*lead, n, d).bfloat16()
    wide = [t.double().requires_grad_() for t in (x, res, out, post)]
    streams = []
    for j in range(n):
        old = sum(wide[1][..., i, j, None] * wide[0][..., i, :] for i in range(n)) if mixed else wide[0][..., j, :]
        streams.append(old + wide[3][..., j, None] * wide[2])
    expected = torch.stack(streams, -2)
    leaves = [t.clone().requires_grad_() for t in (x, res, out, post)]
    y = facade.npu_mhc_post(leaves[0], leaves[1] if mixed else None, leaves[2], leaves[3])
    assert y.dtype == x.dtype
    close(y.detach(), expected.detach(), 2e-2)
    expected.backward(grad.double())
    y.backward(grad)
    own = facade.npu_mhc_post_backward(grad, x, res if mixed else None, out, post)
    for leaf, given, want in zip(leaves, own, wide, strict=True):
        if want.grad is None:
            assert not given.any()
            continue
        close(leaf.grad, want.grad, 3e-2)
        close(given, want.grad, 3e-2)


def test_post_refuses(facade):
    x, res, out, post = torch.zeros(2, 4, 16).half(), torch.zeros(2, 4, 4), torch.zeros(2, 16).half(), torch.zeros(2, 4)
    for arguments, text in (
        ((x.float(), res, out.float(), post), "takes float16 or bfloat16"),
        ((x[0], res, out, post), "takes 3 and 4"),
        ((x, res.half(), out, post), "h_res is"),
        ((x, res, out, post[:1]), "h_post is"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_mhc_post(*arguments)
    with pytest.raises(RuntimeError, match="grad_y shape must be the same as x shape"):
        facade.npu_mhc_post_backward(x[:1], x, res, out, post)
    with pytest.raises(RuntimeError, match="Tensor h_out is empty"):
        facade.npu_mhc_post_backward(x, x, res, out[:0], post)


def pre(x, phi, alpha, bias, gamma):
    """Formula of npu_mhc_pre, the normalised vector first."""
    n = x.shape[-2]
    vector = x.flatten(-2)
    inverse = (vector.square().mean(-1, keepdim=True) + 1e-6) ** -0.5
    weights = (vector * inverse * gamma.flatten()) @ phi.mT
    first = torch.sigmoid(alpha[0] * weights[..., :n] + bias[:n]) + 1e-6
    second = 2 * torch.sigmoid(alpha[1] * weights[..., n : 2 * n] + bias[n : 2 * n])
    third = (alpha[2] * weights[..., 2 * n :] + bias[2 * n :]).unflatten(-1, (n, n)) if alpha.numel() == 3 else None
    return (first.unsqueeze(-1) * x).sum(-2), second, third, inverse.squeeze(-1), first


@pytest.mark.parametrize("lead", [(3,), (2, 3)])
@pytest.mark.parametrize("scaled", [True, False])
def test_pre(facade, lead, scaled):
    n, d = 4, 16
    x = torch.randn(*lead, n, d).bfloat16()
    phi, alpha, bias, gamma = torch.randn(24, n * d) / 8, torch.rand(3), torch.randn(24), torch.rand(n, d) + 0.5
    wide = [t.double().requires_grad_() for t in (x, phi, alpha, bias, gamma)]
    expected = pre(*wide[:4], wide[4] if scaled else torch.ones(n, d))
    leaves = [t.clone().requires_grad_() for t in (x, phi, alpha, bias, gamma)]
    found = facade.npu_mhc_pre(*leaves[:4], gamma=leaves[4] if scaled else None, out_flag=1)
    assert found[0].dtype == x.dtype
    assert [t.requires_grad for t in found] == [True] * 3 + [False] * 3
    for given, want in zip((*found[:4], found[5]), expected, strict=True):
        close(given.detach(), want.detach(), 2e-2)
    grads = [torch.randn_like(t) for t in found[:3]]
    torch.autograd.backward(expected[:3], [g.double() for g in grads])
    torch.autograd.backward(found[:3], grads)
    own = facade.npu_mhc_pre_backward(
        x, phi, alpha, *grads, *(t.detach() for t in (*found[3:], found[1])), gamma if scaled else None
    )
    for leaf, given, want in zip(leaves, own, wide, strict=True):
        if want.grad is None:
            assert not given.any()
            continue
        close(leaf.grad, want.grad, 3e-2)
        close(given, want.grad, 3e-2)
    more = facade.npu_mhc_pre_backward(
        x, phi, alpha, *grads, *(t.detach() for t in (*found[3:], found[1])), gamma if scaled else None, grad_x_post=x
    )
    close(more[0], own[0].double() + x.double(), 3e-2)


def test_pre_without_residual_matrix(facade):
    x, phi, alpha, bias = torch.randn(3, 4, 16).half(), torch.randn(8, 64), torch.rand(2), torch.randn(8)
    found = facade.npu_mhc_pre(x, phi, alpha, bias)
    expected = pre(x.double(), phi.double(), alpha.double(), bias.double(), torch.ones(4, 16))
    close(found[0], expected[0], 1e-2)
    close(found[1], expected[1])
    assert found[2].tolist() == [0]
    assert found[3:] == (None, None, None)
    rough = facade.npu_mhc_pre(x, phi, alpha, bias, inner_precise=1)
    close(rough[1], expected[1], 2e-2)
    assert not rough[1].equal(found[1])


def test_pre_refuses(facade):
    x, phi, alpha, bias = torch.randn(3, 4, 16).half(), torch.randn(8, 64), torch.rand(2), torch.randn(8)
    for arguments, keywords, text in (
        ((x[:0], phi, alpha, bias), {}, "Input x should not be empty"),
        ((x, phi, alpha[:1], bias), {}, "Input alpha must have 3 or 2 elements, but got 1"),
        ((x[0], phi, alpha, bias), {}, "Input x must be 3D or 4D, but got 2D"),
        ((x, phi, alpha, bias), {"out_flag": 2}, "Input out_flag must be 0 or 1, but got 2"),
        ((x, phi, alpha, bias), {"inner_precise": 2}, "Input inner_precise must be 0"),
        ((x[:, :3], phi, alpha, bias), {}, "4, 6 or 8"),
        ((x, phi[:7], alpha, bias), {}, "phi is"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_mhc_pre(*arguments, **keywords)


@pytest.mark.parametrize("shape", [(5, 4, 4), (2, 3, 6, 6), (1, 8, 8)])
@pytest.mark.parametrize("rounds", [1, 3])
def test_sinkhorn(facade, shape, rounds):
    x = torch.randn(shape, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    expected = torch.softmax(wide, -1) + 1e-6
    expected = expected / (expected.sum(-2, keepdim=True) + 1e-6)
    for _ in range(rounds - 1):
        expected = expected / (expected.sum(-1, keepdim=True) + 1e-6)
        expected = expected / (expected.sum(-2, keepdim=True) + 1e-6)
    y, norm, total = facade.npu_mhc_sinkhorn(x, num_iters=rounds, out_flag=1)
    close(y.detach(), expected.detach(), 1e-5)
    tokens, n = x.numel() // shape[-1] ** 2, shape[-1]
    assert norm.shape == (2 * rounds * tokens * n * 8,)
    assert total.shape == (2 * rounds * tokens * 8,)
    grad = torch.randn(shape)
    expected.backward(grad.double())
    y.backward(grad)
    close(x.grad, wide.grad, 1e-4)
    close(ops.npu_mhc_sinkhorn_backward(grad, norm, total), wide.grad, 1e-4)
    assert facade.npu_mhc_sinkhorn(x.detach(), num_iters=rounds)[1:] == (None, None)


def test_sinkhorn_refuses(facade):
    x = torch.randn(2, 4, 4)
    for argument, keywords, text in (
        (x.half(), {}, "takes float32"),
        (torch.randn(2, 5, 5), {}, "n = 4, 6 or 8"),
        (x, {"num_iters": 101}, "1 to 100"),
        (x, {"out_flag": 2}, "0 or 1"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_mhc_sinkhorn(argument, **keywords)
    with pytest.raises(RuntimeError, match="does not fit"):
        ops.npu_mhc_sinkhorn_backward(x, torch.zeros(7), torch.zeros(3))


@pytest.mark.parametrize("kind", ["", "relu", "add", "mul", "gelu_erf", "gelu_tanh", "16cast32"])
def test_fused_matmul(facade, kind):
    x1, x2 = torch.randn(2, 3, 4).half(), torch.randn(4, 5).half()
    bias = None if "gelu" in kind else torch.randn(5).half()
    x3 = torch.randn(2, 3, 5).half() if kind in ("add", "mul") else None
    y = torch.einsum("bmk,kn->bmn", x1.double(), x2.double()) + (0 if bias is None else bias.double())
    if x3 is not None:
        y = y + x3 if kind == "add" else y * x3
    elif kind == "relu":
        y = y.clamp(min=0)
    elif kind:
        y = torch.nn.functional.gelu(y, approximate="tanh" if kind == "gelu_tanh" else "none") if "gelu" in kind else y
    found = facade.npu_fused_matmul(x1, x2, bias=bias, x3=x3, fused_op_type=kind)
    assert found.dtype == (torch.float32 if kind == "16cast32" else torch.float16)
    close(found, y, 2e-3)


def test_fused_matmul_refuses(facade):
    x1, x2 = torch.randn(3, 4), torch.randn(4, 5)
    for arguments, keywords, text in (
        ((x1[0], x2), {}, "x1 shape dim num cannot be less than 2, but it is 1"),
        ((x1, x2[:3]), {}, "x1_k_dim is 4, x2_k_dim is 3"),
        ((torch.randn(2, 3, 4), torch.randn(3, 4, 5)), {}, "not supported for broadcast"),
        ((x1, x2), {"fused_op_type": "tanh"}, "fused_op_type is 'tanh'"),
        ((x1, x2), {"fused_op_type": "add"}, "x3 is for add and mul"),
        ((x1, x2), {"fused_op_type": "gelu_erf", "bias": torch.zeros(5)}, "bias is not for gelu"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_fused_matmul(*arguments, **keywords)
