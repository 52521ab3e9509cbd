"""Matrix products npu_linear, npu_bmmV2, npu_transpose_batchmatmul, npu_ffn and others, against numpy and float64.

Holds feed_forward.py and linear.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

HALF = torch.float16


def test_linear_and_its_gradients(facade):
    x, w, bias = (torch.randn(shape, requires_grad=True) for shape in ((4, 6), (3, 6), (3,)))
    result = facade.npu_linear(x, w, bias)
    want = x.double() @ w.double().T + bias.double()
    torch.testing.assert_close(result, want.float())
    grad = torch.randn(4, 3)
    found = torch.autograd.grad(result, (x, w, bias), grad)
    expected = torch.autograd.grad(want, (x, w, bias), grad.double())
    torch.testing.assert_close(found, expected)
    by_hand = facade.npu_linear_backward(grad, x.detach(), w.detach())
    torch.testing.assert_close(by_hand, expected[:2])
    assert facade.npu_linear(x, w).shape == (4, 3)
    with pytest.raises(RuntimeError, match="float16, bfloat16 and float32"):
        facade.npu_linear(x.double(), w.double())
    with pytest.raises(RuntimeError, match=r"must be \[m, k\]"):
        facade.npu_linear(torch.randn(2, 4, 6), w)


SHAPES = [((2, 4, 5), (2, 5, 3), []), ((4, 5), (2, 5, 3), []), ((5,), (2, 5, 3), []), ((2, 4, 5), (5,), []),
          ((3, 4, 5), (3, 5, 2), [1, 4, 2])]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "sizes"), SHAPES)
def test_bmm_v2(facade, first, second, sizes):
    a, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (first, second))
    found = facade.npu_bmmV2(a, b, sizes)
    want = np.matmul(a.detach().numpy(), b.detach().numpy())
    if sizes:
        want = want.sum(0, keepdims=True)
    torch.testing.assert_close(found.detach(), torch.from_numpy(want))
    assert gradcheck(lambda a, b: facade.npu_bmmV2(a, b, sizes), (a, b))
    if not sizes:
        grad = torch.randn_like(found)
        expected = torch.autograd.grad(found, (a, b), grad)
        given = (grad, a.detach(), b.detach())
        torch.testing.assert_close(torch.ops.npu.npu_bmm_v2_mat1_backward(*given, list(first)), expected[0])
        torch.testing.assert_close(torch.ops.npu.npu_bmm_v2_mat2_backward(*given, list(second)), expected[1])


def test_bmm_v2_refuses_int8(facade):
    with pytest.raises(RuntimeError, match="int8"):
        facade.npu_bmmV2(torch.ones(1, 2, 2, dtype=torch.int8), torch.ones(1, 2, 2, dtype=torch.int8), [])


@pytest.mark.parametrize("perm_x1", [None, (0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize("perm_x2", [None, (0, 2, 1)])
@pytest.mark.parametrize("factor", [1, 2])
def test_transpose_batchmatmul(facade, perm_x1, perm_x2, factor):
    a, b = torch.randn(4, 3, 5), torch.randn(4, 5, 6)
    first = a.transpose(0, 1).contiguous() if perm_x1 == (1, 0, 2) else a
    second = b.transpose(1, 2).contiguous() if perm_x2 else b
    found = facade.npu_transpose_batchmatmul(
        first, second, perm_x1=perm_x1, perm_x2=perm_x2, perm_y=(1, 0, 2), batch_split_factor=factor
    )
    want = np.einsum("bmk,bkn->mbn", a.double().numpy(), b.double().numpy())
    if factor == 2:
        want = np.stack([want[:, :2].reshape(3, 12), want[:, 2:].reshape(3, 12)])
    torch.testing.assert_close(found.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-5)


def test_transpose_batchmatmul_to_int8(facade):
    a, b = torch.randn(2, 3, 8).half(), torch.randn(2, 8, 4).half()
    scale = torch.full((8,), 16.0).view(torch.int32).long()
    found = facade.npu_transpose_batchmatmul(a, b, scale=scale)
    want = np.einsum("bmk,bkn->mbn", a.float().numpy(), b.float().numpy()).reshape(3, 1, 8) * 16
    assert found.dtype == torch.int8
    assert np.abs(found.numpy() - np.clip(np.round(want), -128, 127)).max() <= 1
    for given, text in (
        ({"bias": a}, "bias is not supported"),
        ({"perm_y": (0, 1, 2)}, "perm_y should be"),
        ({"perm_x1": (2, 1, 0)}, "perm_x1 should be"),
        ({"batch_split_factor": 2, "scale": scale}, "batch_split_factor is 2"),
        ({"scale": scale[:4]}, "scale has 4 elements"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_transpose_batchmatmul(a, b, **given)
    with pytest.raises(RuntimeError, match="one dtype"):
        facade.npu_transpose_batchmatmul(a, b.float())


def test_transpose_quant_batchmatmul(facade):
    x1, x2 = torch.randn(3, 2, 8).to(torch.float8_e4m3fn), torch.randn(2, 8, 4).to(torch.float8_e4m3fn)
    rows, columns = torch.rand(3), torch.rand(4)
    found = facade.npu_transpose_quant_batchmatmul(
        x1, x2, torch.float16, x1_scale=rows, x2_scale=columns, perm_x1=[1, 0, 2]
    )
    want = np.einsum("mbk,bkn->mbn", x1.double().numpy(), x2.double().numpy()) * rows.double().numpy()[:, None, None]
    torch.testing.assert_close(found.double(), torch.from_numpy(want * columns.double().numpy()), rtol=1e-3, atol=1e-3)
    with pytest.raises(RuntimeError, match="are not simulated"):
        facade.npu_transpose_quant_batchmatmul(x1, x2, torch.float16)
    with pytest.raises(RuntimeError, match="output dtype"):
        facade.npu_transpose_quant_batchmatmul(x1, x2, torch.float32, x1_scale=rows, x2_scale=columns)


@pytest.mark.parametrize("kind", ["", "add", "mul", "relu", "gelu_erf", "gelu_tanh", "16cast32"])
def test_fused_matmul(facade, kind):
    a, b, bias, third = (torch.randn(shape).half() for shape in ((2, 4, 8), (8, 6), (6,), (2, 4, 6)))
    operand = third if kind in ("add", "mul") else None
    added = None if "gelu" in kind else bias
    found = facade.npu_fused_matmul(a, b, bias=added, x3=operand, fused_op_type=kind)
    value = a.double() @ b.double() + (0 if added is None else added.double())
    want = {
        "add": value + third.double(),
        "mul": value * third.double(),
        "relu": value.clamp_min(0),
        "gelu_erf": 0.5 * value * (1 + torch.erf(value / 2**0.5)),
        "gelu_tanh": 0.5 * value * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (value + 0.044715 * value**3))),
    }.get(kind, value)
    assert found.dtype == (torch.float32 if kind == "16cast32" else HALF)
    torch.testing.assert_close(found.double(), want, rtol=5e-3, atol=5e-3)


def test_fused_matmul_refuses(facade):
    a, b = torch.randn(4, 8).half(), torch.randn(8, 6).half()
    for given, text in (
        ({"fused_op_type": "add"}, "x3 is for add and mul"),
        ({"fused_op_type": "relu", "x3": a}, "x3 is for add and mul"),
        ({"fused_op_type": "sub"}, "fused_op_type is 'sub'"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_fused_matmul(a, b, **given)
    with pytest.raises(RuntimeError, match="The k of x1 and x2"):
        facade.npu_fused_matmul(a, b[:7])


def test_matmul_add_fp32(facade):
    x, w, total = torch.randn(9, 8).half()[:, ::2], torch.randn(9, 6).half()[:, ::2], torch.randn(4, 3)
    want = total.double() + x.double().T @ w.double()
    assert facade._npu_matmul_add_fp32(x, w, total) is None
    torch.testing.assert_close(total.double(), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="C of float32"):
        facade._npu_matmul_add_fp32(x, w, total.half())
    with pytest.raises(RuntimeError, match="C has the shape"):
        facade._npu_matmul_add_fp32(x, w, torch.zeros(3, 4))


ACTIVATIONS = {
    "relu": lambda v: v.clamp_min(0),
    "silu": lambda v: v / (1 + torch.exp(-v)),
    "fastgelu": lambda v: v / (1 + torch.exp(-1.702 * v)),
    "gelu": lambda v: 0.5 * v * (1 + torch.erf(v / 2**0.5)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_ffn(facade, name, dtype):
    x, w1, w2 = (torch.randn(shape).to(dtype) for shape in ((2, 3, 8), (8, 12), (12, 8)))
    biases = [torch.randn(size).to(HALF if dtype == HALF else torch.float32) for size in (12, 8)]
    found = facade.npu_ffn(x, w1, w2, name, bias1=biases[0], bias2=biases[1])
    want = ACTIVATIONS[name](x.double() @ w1.double() + biases[0].double()) @ w2.double() + biases[1].double()
    tolerance = 1e-2 if dtype == HALF else 1e-1
    torch.testing.assert_close(found.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["swiglu", "reglu", "geglu"])
def test_ffn_with_gate(facade, name):
    x, w1, w2 = (torch.randn(shape).half() for shape in ((3, 8), (8, 24), (12, 8)))
    found = facade.npu_ffn(x, w1, w2, name, inner_precise=1)
    left, right = (x.double() @ w1.double()).chunk(2, -1)
    gate = {
        "swiglu": right / (1 + torch.exp(-right)),
        "reglu": right.clamp_min(0),
        "geglu": 0.5 * right * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (right + 0.044715 * right**3))),
    }[name]
    torch.testing.assert_close(found.double(), (left * gate) @ w2.double(), rtol=1e-2, atol=5e-2)
    with pytest.raises(RuntimeError, match="inner_precise 1"):
        facade.npu_ffn(x, w1, w2, name)


def test_ffn_with_experts(facade):
    x, w1, w2 = torch.randn(5, 8).half(), torch.randn(3, 8, 12).half(), torch.randn(3, 12, 8).half()
    found = facade.npu_ffn(x, w1, w2, "relu", expert_tokens=[2, 0, 3])
    assert torch.equal(found, facade.npu_ffn(x, w1, w2, "relu", expert_tokens_index=[2, 2, 5]))
    assert torch.equal(found[:2], facade.npu_ffn(x[:2], w1[0], w2[0], "relu"))
    assert torch.equal(found[2:], facade.npu_ffn(x[2:], w1[2], w2[2], "relu"))
    with pytest.raises(RuntimeError, match="should not have the value simultaneously"):
        facade.npu_ffn(x, w1, w2, "relu", expert_tokens=[2, 0, 3], expert_tokens_index=[2, 2, 5])
    with pytest.raises(RuntimeError, match="rows end at"):
        facade.npu_ffn(x, w1, w2, "relu", expert_tokens=[2, 0, 4])


def test_ffn_of_integers(facade):
    x, w1, w2 = (torch.randint(-99, 99, shape, dtype=torch.int8) for shape in ((4, 8), (8, 12), (12, 8)))
    scales = torch.rand(12) * 0.01, torch.rand(8) * 0.01
    scale, offset = torch.full((1,), 0.5), torch.full((1,), 3.0)
    kept = {"scale": scale, "offset": offset, "deq_scale1": scales[0], "deq_scale2": scales[1]}
    found = facade.npu_ffn(x, w1, w2, "relu", **kept)
    hidden = (x.double() @ w1.double() * scales[0].double()).half().double().clamp_min(0)
    want = torch.round(hidden * 0.5 + 3).clamp(-128, 127) @ w2.double() * scales[1].double()
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=1)
    assert facade.npu_ffn(x, w1, w2, "relu", **kept, output_dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="int8 takes scale"):
        facade.npu_ffn(x, w1, w2, "relu")


def test_ffn_of_integers_rounded_once_where_the_vendors_test_rounds_every_step(facade):
    x, w1, w2 = (torch.randint(-128, 127, size, dtype=torch.int8) for size in ((64, 32), (32, 256), (256, 32)))
    first, second = torch.rand(256) * 0.04 + 0.01, torch.rand(32) * 0.04 + 0.01
    scale, offset = torch.full((1,), 0.001), torch.zeros(1)
    found = facade.npu_ffn(x, w1, w2, "gelu", scale=scale, offset=offset, deq_scale1=first, deq_scale2=second)
    hidden = torch.nn.functional.gelu((x.int() @ w1.int() * first).half()) * scale.half() + offset.half()
    whole = torch.round(hidden).clamp(-128, 127).int()
    assert torch.equal(found, (whole @ w2.int() * second).half())


def test_ffn_with_integer_weights(facade):
    x, w1, w2 = torch.randn(4, 8).half(), *(torch.randint(-9, 9, s, dtype=torch.int8) for s in ((8, 12), (12, 8)))
    parameters = [torch.rand(size).half() for size in (12, 8, 12, 8)]
    names = ("antiquant_scale1", "antiquant_scale2", "antiquant_offset1", "antiquant_offset2")
    found = facade.npu_ffn(x, w1, w2, "relu", **dict(zip(names, parameters, strict=True)))
    wide = [each.double() for each in parameters]
    hidden = (x.double() @ ((w1 + wide[2]) * wide[0])).clamp_min(0)
    torch.testing.assert_close(found.double(), hidden @ ((w2 + wide[3]) * wide[1]), rtol=2e-2, atol=1)


def test_ffn_refuses(facade):
    x, w1, w2 = torch.randn(4, 8).half(), torch.randn(8, 12).half(), torch.randn(12, 8).half()
    for call, text in (
        ((x, w1, w2, "tanh"), "is unknown"),
        ((x[0], w1, w2, "relu"), "should be 2~8"),
        ((x, w1[:7], w2, "relu"), "The k of x and weight"),
        ((x, w1, w2[:9], "relu"), "do not fit"),
        ((x.float(), w1.float(), w2.float(), "relu"), "does not take them together"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_ffn(*call)
