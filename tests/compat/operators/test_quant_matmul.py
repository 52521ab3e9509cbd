"""npu_quant_matmul, npu_weight_quant_batchmatmul and their relatives against numpy.

Holds integer_matmul.py, microscaling.py, quant_matmul.py and weight_quant_matmul.py in
src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch


def pack4(values):
    table = np.asarray(values, dtype=np.int64).reshape(*values.shape[:-1], -1, 8) & 15
    total = sum(table[..., place] << (4 * place) for place in range(8))
    return torch.from_numpy(total.astype(np.uint32).view(np.int32))


def coarse(scale):
    """Without the lower 13 bits of the mantissa."""
    return (scale.numpy().view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def packed(scale, offset=None):
    """int64 of npu_trans_quant_param: the bits of the scale, and the offset in bits 37 to 45."""
    bits = coarse(scale).view(np.uint32).astype(np.int64) | np.int64(1 << 46)
    if offset is not None:
        bits |= (np.clip(np.round(offset.numpy()), -256, 255).astype(np.int64) & 0x1FF) << 37
    return torch.from_numpy(bits)


def int8(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def exact(x1, x2):
    return x1.numpy().astype(np.int64) @ x2.numpy().astype(np.int64)


BF16, HALF = torch.bfloat16, torch.float16


@pytest.mark.parametrize("depth", [1, 33, 2500])
def test_sums_are_exact(facade, depth):
    x1, x2 = int8(3, depth), int8(depth, 5)
    x1[0], x2[:, 0] = -128, -128
    found = facade.npu_quant_matmul(x1, x2, torch.rand(5), output_dtype=torch.int32)
    assert np.array_equal(found.numpy(), exact(x1, x2))


@pytest.mark.parametrize("pack", [False, True])
def test_int8_result(facade, pack):
    x1, x2, bias = int8(6, 40), int8(40, 8), torch.randint(-999, 999, (8,), dtype=torch.int32)
    scale, offset = torch.rand(8) * 2e-3, torch.randn(8) * 30
    value = np.clip(np.round((exact(x1, x2) + bias.numpy()).astype(np.float32) * coarse(scale)), -256, 255)
    want = np.clip(value + np.round(offset.numpy()), -128, 127)
    if pack:
        found = facade.npu_quant_matmul(x1, x2, packed(scale, offset), bias=bias)
    else:
        found = facade.npu_quant_matmul(x1, x2, scale, offset=offset, bias=bias)
    assert found.dtype == torch.int8
    assert np.array_equal(found.numpy(), want)


@pytest.mark.parametrize(("dtype", "bias_dtype"), [(BF16, torch.int32), (BF16, BF16), (BF16, torch.float32),
                                                   (HALF, HALF), (HALF, torch.float32), (HALF, None)])  # fmt: skip
@pytest.mark.parametrize("single", [False, True])
def test_scale_per_token(facade, dtype, bias_dtype, single):
    x1, x2, rows = int8(6, 40), int8(40, 8), torch.rand(6)
    scale = torch.rand(1 if single else 8) * 1e-2
    bias = None if bias_dtype is None else (torch.randn(8) * 50).to(bias_dtype)
    found = facade.npu_quant_matmul(x1, x2, scale, pertoken_scale=rows, bias=bias, output_dtype=dtype)
    whole = bias_dtype == torch.int32
    want = exact(x1, x2) + (bias.numpy() if whole else 0)
    want = want * scale.double().numpy() * rows.double().numpy()[:, None]
    want = torch.from_numpy(want) + (0 if whole or bias is None else bias.double())
    tolerance = 1e-2 if dtype == BF16 else 1e-3
    torch.testing.assert_close(found.double(), want, rtol=tolerance, atol=tolerance)


def test_batches_are_broadcast(facade):
    x1, x2, bias = int8(1, 4, 16), int8(3, 16, 8), torch.randint(-9, 9, (3, 1, 8), dtype=torch.int32)
    found = facade.npu_quant_matmul(x1, x2, packed(torch.ones(1)), bias=bias, output_dtype=HALF)
    with np.errstate(over="ignore"):
        want = (exact(x1, x2) + bias.numpy()).astype(np.float16)
    assert np.array_equal(found.numpy(), want)
    with pytest.raises(RuntimeError, match="not supported for broadcast"):
        facade.npu_quant_matmul(int8(2, 4, 16), x2, torch.ones(1), output_dtype=HALF)


def test_four_bits(facade):
    x1, x2 = torch.randint(-8, 8, (6, 32), dtype=torch.int8), torch.randint(-8, 8, (32, 16), dtype=torch.int8)
    for weight in (pack4(x2), pack4(x2.T.contiguous()).T):
        found = facade.npu_quant_matmul(pack4(x1), weight, packed(torch.ones(1)), output_dtype=HALF)
        assert np.array_equal(found.numpy(), exact(x1, x2).astype(np.float16))
    scale, offset, rows = torch.rand(2, 16), torch.randint(-8, 8, (2, 16)).half(), torch.rand(6, 1)
    found = facade.npu_quant_matmul(
        pack4(x1), pack4(x2), scale, offset=offset, pertoken_scale=rows, output_dtype=BF16, group_sizes=[1, 1, 16]
    )
    weight = x2.double() - offset.double().repeat_interleave(16, dim=0)
    want = (x1.double() @ (weight * scale.double().repeat_interleave(16, dim=0))) * rows.double()
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=1e-1)


def test_int8_with_four_bits(facade):
    x1, x2 = int8(5, 64), torch.randint(-8, 8, (64, 16), dtype=torch.int8)
    scale, rows = torch.rand(2, 16), torch.rand(5, 1)
    bits = torch.from_numpy(scale.numpy().view(np.uint32).astype(np.int64))
    wide = x2.double() * scale.double().repeat_interleave(32, dim=0)
    kept = {"pertoken_scale": rows, "output_dtype": HALF, "group_sizes": [0, 0, 32]}
    found = facade.npu_quant_matmul(x1, pack4(x2), bits, offset=(8 * wide.sum(0)).float(), **kept)
    torch.testing.assert_close(found.double(), x1.double() @ wide * rows.double(), rtol=2e-3, atol=1e-1)
    with pytest.raises(RuntimeError, match="takes offset and pertoken_scale"):
        facade.npu_quant_matmul(x1, pack4(x2), bits, **kept)


def test_blocks_of_128(facade):
    x1, x2 = int8(3, 200), int8(200, 150)
    scale, rows = torch.rand(2, 2), torch.rand(3, 2)
    found = facade.npu_quant_matmul(x1, x2, scale, pertoken_scale=rows, group_sizes=[1, 128, 128], output_dtype=BF16)
    first = x1.double() * rows.double().repeat_interleave(128, dim=1)[:, :200]
    second = x2.double() * scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)[:200, :150]
    torch.testing.assert_close(found.double(), first @ second, rtol=1e-2, atol=20)


REFUSED = [
    ({"scale": torch.rand(3)}, "scale has the shape"),
    ({"scale": torch.rand(8).half()}, "scale is torch.float16"),
    ({"scale": torch.rand(8).bfloat16()}, "scale's dtype is bfloat16"),
    ({"output_dtype": torch.float32}, "output dtype is"),
    ({"output_dtype": torch.int32, "bias": torch.rand(8)}, "bias_dtype must be int32"),
    ({"output_dtype": HALF, "bias": torch.rand(8).bfloat16()}, "output_dtype must be bfloat16"),
    ({"output_dtype": HALF, "bias": torch.rand(8).half()}, "cannot be float16 when pertoken not given"),
    ({"output_dtype": HALF, "bias": torch.rand(8)}, "takes a bias of int32"),
    ({"output_dtype": HALF, "bias": torch.zeros(7, dtype=torch.int32)}, "should be equal to x2 n dim"),
    ({"output_dtype": HALF, "offset": torch.rand(8)}, "offset takes an output of int8"),
    ({"output_dtype": HALF, "pertoken_scale": torch.rand(5)}, "pertoken_scale is"),
    ({"pertoken_scale": torch.rand(6)}, "pertoken_scale takes a float scale"),
    ({"group_sizes": [1, 2]}, "three elements"),
    ({"group_sizes": [1, 2, 70000]}, "range"),
    ({"x1_dtype": 290}, "not simulated"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_refused(facade, given, text):
    with pytest.raises(RuntimeError, match=text):
        facade.npu_quant_matmul(int8(6, 40), int8(40, 8), **{"scale": torch.rand(8), **given})


def test_refused_matrices(facade):
    with pytest.raises(RuntimeError, match="different k"):
        facade.npu_quant_matmul(int8(6, 41), int8(40, 8), torch.rand(8))
    with pytest.raises(RuntimeError, match=r"torch\.float16"):
        facade.npu_quant_matmul(torch.rand(6, 40).half(), int8(40, 8), torch.rand(8))
    with pytest.raises(RuntimeError, match="2 ~ 6"):
        facade.npu_quant_matmul(int8(40), int8(40, 8), torch.rand(8))
    assert facade.npu_quant_matmul(int8(0, 40), int8(40, 8), torch.rand(8)).shape == (0, 8)


@pytest.mark.parametrize("approximate", ["gelu_erf", "gelu_tanh"])
def test_gelu(facade, approximate):
    x1, x2, rows, scale = int8(6, 40), int8(40, 8), torch.rand(6) * 0.01, torch.rand(8) * 0.01
    bias = torch.randn(8)
    found = facade.npu_quant_matmul_gelu(x1, x2, rows, scale, bias=bias, approximate=approximate)
    value = torch.from_numpy(exact(x1, x2) * scale.double().numpy() * rows.double().numpy()[:, None]) + bias.double()
    inner = torch.erf(value / 2**0.5)
    if approximate == "gelu_tanh":
        inner = torch.tanh((2 / torch.pi) ** 0.5 * (value + 0.044715 * value**3))
    assert found.dtype == HALF
    torch.testing.assert_close(found.double(), 0.5 * value * (1 + inner), rtol=2e-3, atol=2e-3)
    assert facade.npu_quant_matmul_gelu(x1, x2, rows, scale.bfloat16()).dtype == BF16
    with pytest.raises(RuntimeError, match="must be 'gelu_tanh' or 'gelu_erf'"):
        facade.npu_quant_matmul_gelu(x1, x2, rows, scale, approximate="none")


def test_reduce_sum(facade):
    x1, x2, rows, scale = int8(3, 4, 20), int8(3, 20, 8), torch.rand(3, 4), torch.rand(8).bfloat16()
    found = facade.npu_quant_matmul_reduce_sum(x1, x2, x1_scale=rows, x2_scale=scale)
    want = (exact(x1, x2) * rows.double().numpy()[..., None] * scale.double().numpy()).sum(0)
    torch.testing.assert_close(found.double(), torch.from_numpy(want), rtol=1e-2, atol=10)
    with pytest.raises(RuntimeError, match="x1_scale dim should be 2"):
        facade.npu_quant_matmul_reduce_sum(x1, x2, x2_scale=scale)


@pytest.mark.parametrize("mode", ["pertoken", "pertensor"])
@pytest.mark.parametrize("static", [False, True])
def test_dequant(facade, mode, static):
    x, w, scale = torch.randn(6, 40).half(), int8(8, 40), torch.rand(8)
    smooth = torch.rand(40).half()
    wide = x.float() * smooth.float()
    size = wide.abs().amax() if mode == "pertensor" else wide.abs().amax(-1)
    factor = size.reshape(-1) / 127
    given = factor * 1.5 if static else None
    found = facade.npu_quant_matmul_dequant(x, w, scale, x_scale=given, smooth_scale=smooth, quant_mode=mode)
    used = (given if static else factor).reshape(-1, 1)
    values = np.round((wide / used).numpy())
    want = values @ w.numpy().T.astype(np.float64) * scale.double().numpy() * used.double().numpy()
    torch.testing.assert_close(found.double(), torch.from_numpy(want), rtol=2e-3, atol=2e-3)
    groups = facade.npu_quant_grouped_matmul_dequant(
        x, torch.stack([w, w]), torch.stack([scale, scale]), torch.tensor([2, 6]),
        x_scale=given, smooth_scale=smooth, quant_mode=mode,
    )  # fmt: skip
    assert torch.equal(groups, found)
    with pytest.raises(RuntimeError, match="quant_mode is 'perrow'"):
        facade.npu_quant_matmul_dequant(x, w, scale, quant_mode="perrow")
    with pytest.raises(RuntimeError, match="the x dtype support only float16"):
        facade.npu_quant_matmul_dequant(x.float(), w, scale)


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize("kind", ["tensor", "channel", "group", "four bits", "four bits, transposed"])
def test_weight_quant(facade, dtype, kind):
    four = kind.startswith("four")
    w = torch.randint(-8, 8, (80, 16), dtype=torch.int8) if four else int8(80, 16)
    x, bias = torch.randn(5, 80).to(dtype), torch.randn(16).to(HALF if dtype == HALF else torch.float32)
    size = 32 if kind == "group" or four else 0
    shape = (3, 16) if size else (1,) if kind == "tensor" else (1, 16)
    scale, offset = (torch.rand(shape) * 0.1).to(dtype), torch.randn(shape).to(dtype)
    weight = pack4(w.T.contiguous()).T if kind.endswith("transposed") else pack4(w) if four else w
    found = facade.npu_weight_quant_batchmatmul(x, weight, scale, offset, bias=bias, antiquant_group_size=size)
    wide = [each.double() for each in (scale, offset)]
    if size:
        wide = [each.repeat_interleave(32, dim=0)[:80] for each in wide]
    want = x.double() @ ((w.double() + wide[1]) * wide[0]) + bias.double()
    tolerance = 1e-2 if dtype == HALF else 1e-1
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), want, rtol=tolerance, atol=tolerance * 5)


def test_weight_quant_to_int8(facade):
    x, w, scale = torch.randn(5, 64).half(), int8(64, 16), torch.full((16,), 0.125).half()
    quant, offset = torch.rand(16) * 3, torch.randn(16) * 5
    plain = facade.npu_weight_quant_batchmatmul(x, w, scale)
    found = facade.npu_weight_quant_batchmatmul(x, w, scale, quant_scale=quant, quant_offset=offset)
    same = facade.npu_weight_quant_batchmatmul(x, w, scale, quant_scale=packed(quant, offset))
    assert torch.equal(found, same)
    want = np.clip(np.round(plain.float().numpy() * coarse(quant)), -256, 255) + np.round(offset.numpy())
    assert np.abs(found.numpy() - np.clip(want, -128, 127)).max() <= 2
    turned = facade.npu_weight_quant_batchmatmul(x, w.T.contiguous().T, packed(scale.float()).reshape(1, 16))
    torch.testing.assert_close(turned, plain)


@pytest.mark.parametrize(("given", "text"), [
    ({"antiquant_group_size": 33}, "multiple of 32"),
    ({"quant_offset": torch.rand(16)}, "cannot exist in isolation"),
    ({"inner_precise": 2}, "inner_precise only support 0 or 1"),
    ({"bias": torch.rand(16)}, "bias is torch.float32"),
    ({"antiquant_scale": torch.rand(16)}, "must have one dtype"),
    ({"antiquant_scale": torch.rand(3).half()}, "antiquant_scale has the shape"),
    ({"antiquant_offset": torch.rand(3).half()}, "differ"),
    ({"antiquant_scale": torch.ones(16, dtype=torch.int64)}, "transposed weight"),
    ({"weight": int8(63, 16)}, "k of x and weight should be equal"),
    ({"x": torch.rand(64).half()}, "dim num less than 2"),
])  # fmt: skip
def test_weight_quant_refuses(facade, given, text):
    kept = {"x": torch.randn(5, 64).half(), "weight": int8(64, 16), "antiquant_scale": torch.rand(16).half()}
    with pytest.raises(RuntimeError, match=text):
        facade.npu_weight_quant_batchmatmul(**{**kept, **given})


def float4(codes):
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return np.where(codes < 8, 1, -1) * table[codes % 8]


def test_scales_of_32_values(facade):
    x1, x2 = torch.randn(4, 96).to(torch.float8_e4m3fn), torch.randn(96, 8).to(torch.float8_e5m2)
    rows, columns = [torch.randint(124, 131, shape, dtype=torch.uint8) for shape in ((4, 2, 2), (2, 8, 2))]
    total = torch.randn(4, 8)
    first = x1.double() * (2.0 ** (rows.double() - 127)).flatten(1).repeat_interleave(32, dim=1)[:, :96]
    spread = (2.0 ** (columns.double() - 127)).permute(0, 2, 1).reshape(4, 8).repeat_interleave(32, dim=0)[:96]
    want = total.double() + first @ (x2.double() * spread)
    e8m0 = facade.float8_e8m0fnu
    kept = {"x1_scale": rows, "x1_scale_dtype": e8m0, "x2_scale_dtype": e8m0, "group_sizes": [1, 1, 32]}
    other = facade.npu_add_quant_matmul(total, x1, x2, columns, **kept)
    torch.testing.assert_close(other.double(), want, rtol=1e-4, atol=1e-3)
    assert facade.npu_add_quant_matmul_(total, x1, x2, columns, **kept) is total
    assert torch.equal(total, other)
    with pytest.raises(RuntimeError, match="3 elements"):
        facade.npu_add_quant_matmul_(total, x1, x2, columns, **{**kept, "group_sizes": [1]})
    with pytest.raises(RuntimeError, match="float8_e8m0fnu"):
        facade.npu_add_quant_matmul_(total, x1, x2, torch.rand(1), x1_scale=torch.rand(1))


def test_scales_of_two_levels(facade):
    codes = [np.random.randint(0, 16, shape) for shape in ((4, 576), (6, 576))]
    bytes_ = [torch.from_numpy((each[:, ::2] | each[:, 1::2] << 4).astype(np.uint8)) for each in codes]
    level0 = torch.randn(4, 2), torch.randn(2, 6)
    level1 = [torch.randint(124, 130, shape, dtype=torch.uint8) for shape in ((4, 9, 2), (6, 9, 2))]
    found = facade.npu_dual_level_quant_matmul(*bytes_, *level0, *level1, bias=torch.ones(6))
    wide = [
        torch.from_numpy(float4(each)) * (2.0 ** (scale.double() - 127)).flatten(1).repeat_interleave(32, dim=1)
        for each, scale in zip(codes, level1, strict=True)
    ]
    want = torch.ones(4, 6, dtype=torch.float64)
    for number, part in enumerate((slice(0, 512), slice(512, 576))):
        want += level0[0][:, number, None] * level0[1][number] * (wide[0][:, part] @ wide[1][:, part].T)
    assert found.dtype == BF16
    torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=1)
