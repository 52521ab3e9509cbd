"""Normalisation that is quantised, against float64.

Holds norm_quant.py in src/toprope/compat/torch_npu/operators.
"""

import itertools

import pytest
import torch

HALF = torch.float16


def normed(x, gamma, epsilon=1e-6, beta=None):
    """Root mean square normalisation row by row, in float64."""
    rows = []
    for row in x.double().reshape(-1, gamma.numel()):
        root = (sum(value * value for value in row.tolist()) / gamma.numel() + epsilon) ** 0.5
        rows.append(row / root * gamma.double().flatten())
    y = torch.stack(rows).reshape(x.shape)
    return y if beta is None else y + beta.double().flatten().reshape(gamma.shape)


def close(found, expected):
    """Integers that differ only where the values lie between two of them."""
    found, expected = found.double(), expected.clamp(-128, 127)
    assert ((found - expected).abs() <= 0.5 + 1e-3).all()


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
@pytest.mark.parametrize("dims", [1, 2])
def test_sum_by_given_scales(facade, dtype, dims):
    x1, x2 = torch.randn(3, 4, 8).to(dtype), torch.randn(3, 4, 8).to(dtype)
    shape = (4, 8)[2 - dims :]
    gamma, beta = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    scale, point = torch.rand(shape) / 20 + 0.01, torch.randint(-9, 9, shape, dtype=torch.int32)
    y1, y2, x = facade.npu_add_rms_norm_quant(x1, x2, gamma, scale, point, beta, scale * 2)
    total = x1.float() + x2.float()
    assert torch.equal(x, total.to(dtype))
    y = normed(total, gamma, beta=beta)
    close(y1, y / scale.double() + point)
    close(y2, y / scale.double() / 2)
    y1, y2, _ = facade.npu_add_rms_norm_quant(x1, x2, gamma, scale.flatten()[:1], None)
    close(y1, normed(total, gamma) / scale.flatten()[0].double())
    close(y2, normed(total, gamma))


@pytest.mark.parametrize("mask", [None, [True, False], [False, True], [True, True]])
@pytest.mark.parametrize("smooth", [False, True])
def test_sum_by_tokens(facade, mask, smooth):
    x1, x2, gamma = torch.randn(2, 3, 16, dtype=HALF), torch.randn(2, 3, 16, dtype=HALF), torch.randn(16, dtype=HALF)
    factors = [torch.rand(16, dtype=HALF) + 0.5 for _ in range(2)] if smooth else [None, None]
    if smooth and mask is not None:
        factors = [factor if wanted else None for factor, wanted in zip(factors, mask, strict=True)]
    y1, y2, x, scale1, scale2 = facade.npu_add_rms_norm_dynamic_quant(
        x1, x2, gamma, smooth_scale1=factors[0], smooth_scale2=factors[1], output_mask=mask
    )
    total = x1.float() + x2.float()
    assert torch.equal(x, total.half())
    wanted = [True, smooth] if mask is None else mask
    for is_wanted, y, scale, factor in zip(wanted, (y1, y2), (scale1, scale2), factors, strict=True):
        if not is_wanted:
            assert y.numel() == scale.numel() == 1
            continue
        wide = normed(total, gamma) * (1 if factor is None else factor.double())
        expected = wide.abs().amax(-1) / 127
        torch.testing.assert_close(scale.double(), expected, rtol=1e-5, atol=0)
        close(y, wide / expected.unsqueeze(-1))


def test_int4_by_tokens(facade):
    x, gamma = torch.randn(2, 16, dtype=HALF), torch.randn(16, dtype=HALF)
    for dtype in (torch.quint4x2, facade.int4):
        y, _, _, scale, _ = facade.npu_add_rms_norm_dynamic_quant(x, x, gamma, y_dtype=dtype)
        assert (y.dtype, y.shape, scale.shape) == (torch.int32, (2, 2), (2,))
    assert facade.npu_add_rms_norm_dynamic_quant(x, x, gamma, y_dtype=facade.hifloat8)[0].dtype == torch.uint8


@pytest.mark.parametrize("shape", [(16,), (1, 16)])
def test_one_scale(facade, shape):
    x, gamma, beta = torch.randn(2, 3, 16, dtype=HALF), torch.randn(shape).half(), torch.randn(shape).half()
    scale, offset = torch.tensor([0.05], dtype=HALF), torch.tensor([3], dtype=torch.int8)
    expected = normed(x, gamma.flatten(), beta=beta) / scale.double() + 3
    close(facade.npu_rms_norm_quant(x, gamma, beta, scale, offset), expected)
    out = torch.zeros(2, 3, 16, dtype=torch.int8)
    assert facade._npu_quant_rms_norm(x, gamma, beta, scale, offset, out, 1e-6) is None
    close(out, expected)
    y, rstd = facade.npu_rms_norm_quant_v2(x, gamma, scale, offset=offset, beta=beta)
    close(y, expected)
    assert rstd.shape == (0,)
    y, rstd = facade.npu_rms_norm_quant_v2(x.requires_grad_(), gamma, 1 / scale, div_mode=False)
    assert rstd.shape == (2, 3, 1)
    assert facade.npu_rms_norm_quant(x, gamma, beta, scale, offset, dst_dtype=torch.quint4x2).shape == (2, 3, 2)


@pytest.mark.parametrize("dst_type", [291, 296])
def test_then_blocks(facade, dst_type):
    x, gamma = torch.randn(3, 70, dtype=torch.bfloat16), torch.rand(70) + 0.5
    y, scale, rstd = facade.npu_rms_norm_dynamic_mx_quant(x, gamma, dst_type=dst_type)
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * gamma
    expected = facade.npu_dynamic_mx_quant(wide, dst_type=dst_type)
    assert torch.equal(scale, expected[1])
    assert torch.equal(y.view(torch.uint8), expected[0].view(torch.uint8))
    assert rstd.numel() == 0
    y, total, scale, rstd = facade.npu_add_rms_norm_dynamic_mx_quant(x, x, gamma, beta=gamma, dst_type=dst_type)
    assert torch.equal(total, x + x)
    assert scale.shape == (3, 2, 2)
    zeros = torch.zeros(1, 4, dtype=torch.bfloat16, requires_grad=True)
    assert facade.npu_rms_norm_dynamic_mx_quant(zeros, gamma[:4], dst_type=dst_type)[2].item() == 1000.0
    grad = x.clone().requires_grad_()
    rstd = facade.npu_rms_norm_dynamic_mx_quant(grad, gamma, dst_type=dst_type)[2]
    torch.testing.assert_close(rstd, torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("div_mode", [True, False])
def test_gradients(facade, div_mode):
    x, gamma = torch.randn(3, 4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    dy, scale = torch.randn(3, 4, 8), torch.tensor([0.05])
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gamma
    dx, dgamma = torch.autograd.grad(y, (x, gamma), dy)
    rstd = torch.rsqrt(x.square().mean(-1) + 1e-6)
    found = torch.ops.npu._npu_rms_norm_backward_quant(
        dy, x, rstd, gamma, scale if div_mode else 1 / scale, offset_x=torch.tensor([2], dtype=torch.int32),
        div_mode=div_mode,
    )  # fmt: skip
    close(found[0], dx / scale + 2)
    torch.testing.assert_close(found[1], dgamma)


X, G, S = torch.randn(2, 16, dtype=HALF), torch.ones(16, dtype=HALF), torch.ones(1)
I8 = torch.ones(1, dtype=torch.int8)
REFUSED = [
    ("npu_add_rms_norm_quant", (X, X, G, S, None), {"axis": 0}, "axis only support -1."),
    ("npu_add_rms_norm_quant", (X, X[:1], G, S, None), {}, "must have one shape and dtype"),
    ("npu_add_rms_norm_quant", (X, X, G[:8], S, None), {}, "gamma of shape"),
    ("npu_add_rms_norm_quant", (X, X, G.bfloat16(), S, None), {}, "gamma is torch.bfloat16"),
    ("npu_add_rms_norm_quant", (X, X, G, torch.ones(7), None), {}, "the scale of shape"),
    ("npu_add_rms_norm_quant", (X, X, G, S, None), {"dst_type": torch.int16}, "dst_type is torch_npu.int16"),
    ("npu_add_rms_norm_dynamic_quant", (X, X, G), {"output_mask": [False, False]}, "at least one of y1 and y2"),
    ("npu_add_rms_norm_dynamic_quant", (X[0], X[0], G), {}, "The x1 should be in 2~8D"),
    ("npu_add_rms_norm_dynamic_quant", (X, X[:1], G), {}, "The shape of x1 and x2 must be the same"),
    ("npu_add_rms_norm_dynamic_quant", (X, X, G), {"smooth_scale2": G}, "smooth_scale2 needs smooth_scale1"),
    ("npu_add_rms_norm_dynamic_quant", (X, X, G), {"smooth_scale1": G[:1]}, "a smooth scale is"),
    ("npu_add_rms_norm_dynamic_quant", (X.float(), X.float(), G), {}, "x1 is torch.float32"),
    ("npu_rms_norm_quant", (X, G, G, torch.ones(2), I8), {}, "must have one value"),
    ("npu_rms_norm_quant", (X, G, G[:8], S, I8), {}, "beta of shape"),
    ("npu_rms_norm_dynamic_mx_quant", (X, G), {"scale_alg": 2}, "scale_alg is 2"),
    ("npu_rms_norm_dynamic_mx_quant", (X[:, :15], G[:15]), {}, "must be divisible by 2"),
]


@pytest.mark.parametrize(("name", "arguments", "options", "text"), REFUSED)
def test_refused(facade, name, arguments, options, text):
    with pytest.raises(RuntimeError, match=text):
        getattr(facade, name)(*arguments, **options)


def test_masks_leave_out_what_has_no_factor(facade):
    for first, second in itertools.product([True, False], repeat=2):
        if first or second:
            options = {"smooth_scale1": G, "output_mask": [first, second]}
            if first:
                facade.npu_add_rms_norm_dynamic_quant(X, X, G, **options)
                continue
            with pytest.raises(RuntimeError, match="that output_mask leaves out"):
                facade.npu_add_rms_norm_dynamic_quant(X, X, G, **options)
