"""Quantisation by given scales, against numpy.

Holds static_quant.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch

HALF = torch.float16


def rounded(values, low=-128, high=127):
    return np.clip(np.rint(values), low, high).astype(np.int64)


def test_quantize_divides_on_an_axis(facade):
    x, scales = torch.randn(3, 4, 5), torch.rand(4) + 0.1
    points = torch.tensor([1, -2, 3, 0], dtype=torch.int32)
    y = facade.npu_quantize(x, scales, points, torch.qint8, 1)
    expected = x.numpy() / scales.numpy()[None, :, None] + points.numpy()[None, :, None]
    assert y.dtype == torch.int8
    np.testing.assert_array_equal(y.numpy(), rounded(expected))
    y = facade.npu_quantize(x, scales[:1], None, torch.uint8, 0)
    np.testing.assert_array_equal(y.numpy(), rounded(x.numpy() / scales[0].item(), 0, 255))
    assert facade.npu_quantize(x * 1e12, scales, None, torch.qint32, 1).abs().max() >= 2**31 - 1
    assert facade.npu_quantize(x[:0], scales, None, torch.qint8, 1).shape == (0, 4, 5)


def test_quantize_multiplies(facade):
    x, scales = torch.randn(3, 8, dtype=HALF), torch.rand(8, dtype=HALF) * 40
    y = facade.npu_quantize(x, scales, scales.flip(0), torch.qint8, -1, False)
    expected = x.float().numpy() * scales.float().numpy() + scales.flip(0).numpy()
    np.testing.assert_array_equal(y.numpy(), rounded(expected))
    heads = torch.rand(3, 1, dtype=HALF) * 40
    y = facade.npu_quantize(x, heads, None, torch.qint8, -2, False)
    np.testing.assert_array_equal(y.numpy(), rounded(x.float().numpy() * heads.float().numpy()))
    packed = facade.npu_quantize(x, scales / 10, None, torch.quint4x2, -1, False)
    nibbles = [(packed[row, 0].item() >> 4 * place & 15 ^ 8) - 8 for row in range(3) for place in range(8)]
    expected = rounded(x.float().numpy() * (scales / 10).float().numpy(), -8, 7)
    assert nibbles == expected.flatten().tolist()


@pytest.mark.parametrize("number", [23, 24, 290])
def test_quantize_to_eight_bit_floats(facade, number):
    x = torch.tensor([[1.0, 1e9, -0.3, float("nan")]])
    y = facade.npu_quantize(x, torch.ones(1), None, number, 1)
    values = facade.npu_dtype_cast(y, torch.float32, number if number == 290 else None)
    largest = {23: 57344.0, 24: 448.0, 290: 32768.0}[number]
    assert values[0, :2].tolist() == [1.0, largest]
    assert values[0, 2].item() == pytest.approx(-0.3, rel=0.1)
    assert values[0, 3].item() == 0


def test_group_quant(facade):
    x, scale, offset = torch.randn(6, 8), torch.randn(3, 8) * 20, torch.tensor([1.5])
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    y = facade.npu_group_quant(x, scale, ends, offset=offset, dst_dtype=torch.qint8)
    which = [0, 0, 2, 2, 2, 2]
    np.testing.assert_array_equal(y.numpy(), rounded(x.numpy() * scale.numpy()[which] + np.float32(1.5)))
    assert facade.npu_group_quant(x, scale, ends, dst_dtype=torch.quint4x2).shape == (6, 1)


def test_anti_quant(facade):
    x, scale = torch.randint(-128, 128, (3, 8), dtype=torch.int8), torch.rand(8)
    y = facade.npu_anti_quant(x, scale, offset=scale.flip(0))
    assert y.dtype == HALF
    torch.testing.assert_close(y, ((x + scale.flip(0)) * scale).half())
    packed = facade.npu_convert_weight_to_int4pack(torch.arange(-8, 8, dtype=torch.int32).reshape(2, 8))
    y = facade.npu_anti_quant(packed, torch.ones(1), dst_dtype=torch.bfloat16, src_dtype=torch.quint4x2)
    assert y.float().flatten().tolist() == list(range(-8, 8))
    codes = facade.npu_dtype_cast(torch.tensor([[0.5, -3.0]]), facade.hifloat8)
    assert facade.npu_anti_quant(codes, torch.ones(1) * 2).tolist() == [[1.0, -6.0]]
    rows = facade.npu_anti_quant(x, torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(rows.float()[2], x[2].float() * 3)


def test_trans_quant_param(facade):
    scale = torch.rand(5) + 0.5
    bits = scale.numpy().view(np.uint32).astype(np.int64)
    expected = bits & 0xFFFFE000 | 1 << 46
    np.testing.assert_array_equal(facade.npu_trans_quant_param(scale).numpy(), expected)
    offset = torch.tensor([0.0, -1.0, 300.0, -300.0, 2.5])
    limited = np.array([0, -1, 255, -256, 2]) & 0x1FF
    found = facade.npu_trans_quant_param(scale, offset).numpy()
    np.testing.assert_array_equal(found, expected | limited.astype(np.int64) << 37)
    assert facade.npu_trans_quant_param(scale[:1], offset).shape == (5,)
    between = torch.tensor([1 + 1.75 * 2**-10])
    assert facade.npu_trans_quant_param(between).item() & 0xFFFFFFFF == 0x3F802000
    assert facade.npu_trans_quant_param(between, round_mode=1).item() & 0xFFFFFFFF == 0x3F804000


def test_dequant_bias(facade):
    x = torch.randint(-1000, 1000, (3, 4), dtype=torch.int32)
    weight, activation, bias = torch.rand(4), torch.rand(3), torch.randn(4)
    y = facade.npu_dequant_bias(x, weight, activation, bias)
    torch.testing.assert_close(y, (x * weight * activation[:, None] + bias).half())
    whole = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    y = facade.npu_dequant_bias(x, weight.bfloat16(), None, whole, output_dtype=torch.bfloat16)
    torch.testing.assert_close(y, ((x + whole) * weight.bfloat16().float()).bfloat16())


@pytest.mark.parametrize("pairs", [False, True])
def test_quant_scatter(facade, pairs):
    cache = torch.randint(-9, 9, (3, 4, 6, 8), dtype=torch.int8)
    updates, scales = torch.randn(2, 4, 2, 8, dtype=HALF), torch.rand(8) / 10 + 0.01
    points = torch.arange(8, dtype=torch.int32)
    indices = torch.tensor([[2, 0], [0, 4]] if pairs else [1, 3], dtype=torch.int32)
    expected = cache.clone()
    values = torch.tensor(rounded(updates.float().numpy() / scales.numpy() + points.numpy())).to(torch.int8)
    for number, (row, begin) in enumerate(indices.tolist() if pairs else [(0, 1), (1, 3)]):
        expected[row, :, begin : begin + 2] = values[number]
    before = cache.clone()
    found = facade.npu_quant_scatter(cache, indices, updates, scales, points)
    assert torch.equal(found, expected)
    assert torch.equal(cache, before)
    assert facade.npu_quant_scatter_(cache, indices, updates, scales, points) is cache
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("clip", [None, 0.7])
def test_kronecker_quant(facade, clip):
    x, left, right = torch.randn(3, 5, 8).half(), torch.randn(5, 5).half(), torch.randn(8, 8).half()
    y, scale = facade.npu_kronecker_quant(x, left, right, clip)
    product = left.double() @ x.double() @ right.double()
    expected = product.abs().amax((1, 2)) * (clip or 1.0) / 7
    torch.testing.assert_close(scale.double(), expected, rtol=5e-3, atol=0)
    values = torch.stack([(y >> 4 * place & 15 ^ 8) - 8 for place in range(8)], -1).flatten(-2)
    wanted = (product / expected[:, None, None]).clamp(-7.4, 7.4)
    assert (values - wanted).abs().max() < 0.6
    y, scale = facade.npu_kronecker_quant(x, left, right, dst_dtype=296)
    assert (y.shape, scale.shape) == ((3, 20), (3, 1, 2))
    assert (y.dtype, scale.dtype) == (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu)


def test_gelu_quant(facade):
    x, scale = torch.randn(4, 8, dtype=HALF), torch.rand(8, dtype=HALF) * 30
    wide = torch.nn.functional.gelu(x.float(), approximate="tanh") * scale.float()
    y, nothing = facade.npu_gelu_quant(x, input_scale=scale, approximate="tanh", quant_mode="static")
    assert torch.equal(y, wide.round().clamp(-128, 127).to(torch.int8))
    assert nothing is None
    y, scales = facade.npu_gelu_quant(x)
    torch.testing.assert_close(scales, torch.nn.functional.gelu(x.float()).abs().amax(-1) / 127)


def test_quant_max(facade):
    x, scale, ends = torch.randn(6, 4, dtype=HALF), torch.tensor([1.0, 0.5, 2.0]), torch.tensor([2, 2, 6])
    y, amax = facade.npu_quant_max(x, scale, group_list=ends)
    assert torch.equal(y.float(), torch.cat((x[:2], x[2:] / 2)).float().to(torch.float8_e5m2).float())
    assert torch.equal(amax, torch.stack((x[:2].abs().max(), x.new_zeros(()), x[2:].abs().max())))


def test_quantize_per_tensor(facade):
    x, y = torch.randn(2, 3, 4, dtype=HALF) * 300, torch.empty(2, 3, 4, dtype=torch.int8)
    scale, point = torch.rand(3, 4, dtype=HALF) + 0.5, torch.randint(-9, 9, (3, 4), dtype=torch.int8)
    assert facade._npu_quantize_per_tensor(x, scale, point, y) is None
    expected = np.rint(x.float().numpy() / scale.float().numpy()) + point.numpy()
    np.testing.assert_array_equal(y.numpy(), rounded(expected))


@pytest.mark.parametrize("dst_dtype", [None, torch.quint4x2])
def test_rotate_quant(facade, dst_dtype):
    x, rotation = torch.randn(3, 128, dtype=HALF), torch.randn(16, 16, dtype=HALF)
    y, scale = facade.npu_rotate_quant(x, rotation, dst_dtype=dst_dtype)
    turned = torch.cat([part.double() @ rotation.double() for part in x.split(16, 1)], 1)
    expected = turned.abs().amax(1) / (127 if dst_dtype is None else 7)
    torch.testing.assert_close(scale.double(), expected, rtol=1e-5, atol=0)
    if dst_dtype is not None:
        y = torch.stack([(y >> 4 * place & 15 ^ 8) - 8 for place in range(8)], -1).flatten(-2)
    assert (y - turned / expected[:, None]).abs().max() <= 0.51


def test_rotate_quant_by_blocks(facade):
    x, rotation = torch.randn(2, 3, 64, dtype=torch.bfloat16), torch.randn(2, 32, 32, dtype=torch.bfloat16)
    y, scale = facade.npu_rotate_quant(x, rotation, dst_dtype=292, alpha=torch.full((1,), 0.5, dtype=torch.bfloat16))
    turned = torch.cat([x.float()[..., :32] @ rotation[0].float(), x.float()[..., 32:] @ rotation[1].float()], -1)
    limit = turned.reshape(2, 3, 2, 32).abs().amax(-1, keepdim=True) / 2
    limited = turned.reshape(2, 3, 2, 32).clamp(-limit, limit).reshape(2, 3, 64)
    expected = facade.npu_dynamic_mx_quant(limited, dst_type=292)
    assert torch.equal(y.float(), expected[0].float())
    assert torch.equal(scale.view(torch.uint8), expected[1])
    with pytest.raises(RuntimeError, match="transpose_y only supports False"):
        facade.npu_rotate_quant(x, rotation, transpose_y=True)


def test_quantize_into_a_tensor(facade):
    x, scales, points = torch.randn(3, 4), torch.rand(4) + 0.1, torch.arange(4, dtype=torch.int32)
    result = torch.zeros(3, 4, dtype=torch.uint8)
    operator = torch.ops.npu._quantize_per_channel_impl
    assert operator.out(x, scales, points, 1, torch.quint8, result=result) is result
    np.testing.assert_array_equal(result.numpy(), rounded(x.numpy() / scales.numpy() + points.numpy(), 0, 255))
    torch.ops.npu._quantize_per_tensor_impl.out(x, scales[:1], points[:1], torch.quint8, result=result)
    np.testing.assert_array_equal(result.numpy(), rounded(x.numpy() / scales[0].item(), 0, 255))


F32, I8, I32 = torch.ones(2, 8), torch.ones(2, 8, dtype=torch.int8), torch.ones(2, 8, dtype=torch.int32)
ENDS = torch.tensor([2], dtype=torch.int32)
REFUSED = [
    ("npu_quantize", (F32, F32[0], None, torch.int64), "must be Int8, UInt8, Int32"),
    ("npu_quantize", (F32, F32[0, :3], None, torch.qint8), "must have 1 or 8 values"),
    ("npu_quantize", (F32, F32[0], F32[0, :1], torch.qint8), "differ in size"),
    ("npu_quantize", (F32, F32[0], None, torch.qint8, 2), "axis 2 is out of range"),
    ("npu_quantize", (F32[:, :4], F32[0, :1], None, torch.quint4x2, -1, False), "must be divded by 8"),
    ("npu_quantize", (I32, F32[0], None, torch.qint8), "self is torch.int32"),
    ("npu_group_quant", (F32[0], F32, ENDS), r"must be \[S, H\] and \[E, H\]"),
    ("npu_group_quant", (F32, F32, ENDS), "group_index is torch.int32"),
    ("npu_anti_quant", (F32, F32[0]), "Input x must be int8, int32"),
    ("npu_anti_quant", (I8, F32[0, :3]), "fits neither of the last two axes"),
    ("npu_trans_quant_param", (F32,), "the scale shape support only"),
    ("npu_trans_quant_param", (F32[0], None, 2), "round_mode must be 0 or 1"),
    ("npu_trans_quant_param", (F32[0].half(),), "scale is torch.float16"),
    ("npu_dequant_bias", (F32, F32[0], None, None), "x is torch.float32"),
    ("npu_dequant_bias", (I32, F32[0].bfloat16(), None, None), "weight_scale is torch.bfloat16"),
    ("npu_quant_scatter", (I8, ENDS, F32, F32[0]), "they must both have 3 to 8"),
    ("npu_quant_scatter", (F32, ENDS, F32, F32[0]), "self is torch.float32"),
    ("npu_kronecker_quant", (F32, F32, F32), "the kernel takes float16 or bfloat16 for all"),
    ("npu_convert_weight_to_int4pack", (I32[:, :7].contiguous(),), "should be the multiple of 8, but it is 7"),
    ("npu_convert_weight_to_int4pack", (I32.t(),), "weight should be contiguous"),
    ("npu_convert_weight_to_int4pack", (I32[0],), "only support dim num 2/3, but it is 1"),
    ("npu_convert_weight_to_int4pack", (I32[:0],), "weight dim should be greater than 0"),
    ("npu_convert_weight_to_int4pack", (F32.half(),), "weight dtype only support int32 and float32, but it is Half"),
]


@pytest.mark.parametrize(("name", "arguments", "text"), REFUSED)
def test_refused(facade, name, arguments, text):
    with pytest.raises(RuntimeError, match=text):
        getattr(facade, name)(*arguments)
