"""Dynamic quantisation of tokens, channels and blocks, against plain loops.

Holds dynamic_quant.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch


def reference(x, largest, smooth=None):
    """Rows by their own scale, in float64."""
    values, scales = [], []
    for row in x.double().numpy().reshape(-1, x.shape[-1]):
        wide = row if smooth is None else row * smooth
        scale = max(abs(value) for value in wide) / largest
        scales.append(scale)
        values.append([int(np.rint(value / scale)) for value in wide])
    return np.array(values).reshape(x.shape), np.array(scales).reshape(x.shape[:-1])


def unpacked(packed):
    """Signed values of eight 4-bit numbers in each int32."""
    words = packed.numpy().astype(np.int64) & 0xFFFFFFFF
    parts = np.stack([(words >> 4 * place) & 15 for place in range(8)], axis=-1)
    return np.where(parts > 7, parts - 16, parts).reshape(*packed.shape[:-1], -1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tokens(facade, dtype):
    x = torch.randn(3, 5, 32, dtype=dtype)
    y, scale = facade.npu_dynamic_quant(x)
    values, scales = reference(x, 127)
    assert (y.dtype, scale.dtype) == (torch.int8, torch.float32)
    assert np.abs(y.numpy() - values).max() <= 1
    assert (y.numpy() != values).mean() < 0.01
    np.testing.assert_allclose(scale.numpy(), scales, rtol=1e-5)


def test_int4_is_packed_low_bits_first(facade):
    x = torch.randn(4, 16, dtype=torch.float16)
    y, scale = facade.npu_dynamic_quant(x, dst_type=torch.quint4x2)
    values, scales = reference(x, 7)
    assert y.dtype == torch.int32
    assert (unpacked(y) != values).mean() < 0.02
    np.testing.assert_allclose(scale.numpy(), scales, rtol=1e-5)


def test_groups_have_their_smooth_scales(facade):
    x = torch.randn(2, 3, 8, dtype=torch.bfloat16)
    smooth = torch.rand(3, 8, dtype=torch.bfloat16) + 0.5
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    y, scale = facade.npu_dynamic_quant(x, smooth_scales=smooth, group_index=ends)
    wide = x.reshape(6, 8)
    for row in range(6):
        factors = smooth[0 if row < 2 else 2].double().numpy()
        values, scales = reference(wide[row : row + 1], 127, factors)
        assert np.abs(y.reshape(6, 8)[row].numpy() - values).max() <= 1
        np.testing.assert_allclose(scale.reshape(6)[row].item(), scales[0], rtol=1e-5)


def test_rows_of_zeros_stay_zero(facade):
    x = torch.zeros(2, 8, dtype=torch.float16)
    x[1, 3] = 2.0
    y, scale = facade.npu_dynamic_quant(x)
    assert y[0].tolist() == [0] * 8
    assert y[1, 3].item() == 127
    assert scale[0].item() == 0


def test_other_layouts_and_sizes(facade):
    x = torch.randn(16, 6, dtype=torch.float16).t()
    y, _ = facade.npu_dynamic_quant(x)
    assert torch.equal(y, facade.npu_dynamic_quant(x.contiguous())[0])
    y, scale = facade.npu_dynamic_quant(torch.randn(0, 8, dtype=torch.float16))
    assert (y.shape, scale.shape) == ((0, 8), (0,))
    y, scale = facade.npu_dynamic_quant(torch.randn(3, 1, dtype=torch.float16))
    assert y.abs().tolist() == [[127]] * 3
    assert scale.shape == (3,)


@pytest.mark.parametrize(("mode", "axes"), [("perchannel", (-2,)), ("pertensor", (-1, -2, -3))])
def test_channels_and_tensors(facade, mode, axes):
    x = torch.randn(2, 6, 8, dtype=torch.float16)
    y, scale = facade.npu_dynamic_quant(x, quant_mode=mode)
    expected = x.float().abs().amax(axes, keepdim=True) / 127
    torch.testing.assert_close(scale.flatten(), expected.flatten())
    assert (y - (x / expected).round()).abs().max() <= 1
    assert scale.shape == ((1,) if mode == "pertensor" else (2, 8))


def test_asymmetric(facade):
    x = torch.rand(4, 16, dtype=torch.float16) + 1
    y, scale, offset = facade.npu_dynamic_quant_asymmetric(x)
    assert y.amin(-1).tolist() == [-128] * 4
    assert y.amax(-1).tolist() == [127] * 4
    back = (y.float() - offset.unsqueeze(-1)) * scale.unsqueeze(-1)
    assert (back - x).abs().max() < scale.max()
    y, scale, offset = facade.npu_dynamic_quant_asymmetric(x, dst_type=torch.quint4x2)
    assert unpacked(y).min() == -8
    assert unpacked(y).max() == 7
    shapes = [part.shape for part in facade.npu_dynamic_quant_asymmetric(x, quant_mode="pertensor")]
    assert shapes == [(4, 16), (1,), (1,)]
    assert facade.npu_dynamic_quant_asymmetric(x[:0])[2].shape == (0,)


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 300)])
def test_blocks_of_a_row(facade, shape):
    x = torch.randn(shape, dtype=torch.float16)
    y, scale = facade.npu_dynamic_block_quant(x, dst_type=1)
    for row, (values, scales) in enumerate(
        zip(y.reshape(-1, shape[-1]), scale.reshape(-1, scale.shape[-1]), strict=True)
    ):
        for block in range(-(-shape[-1] // 128)):
            part = x.reshape(-1, shape[-1])[row, 128 * block : 128 * block + 128].double()
            np.testing.assert_allclose(scales[block].item(), part.abs().max().item() / 127, rtol=1e-5)
            expected = (part / scales[block].double()).round()
            assert (values[128 * block : 128 * block + 128] - expected).abs().max() <= 1


def test_large_blocks_and_the_least_scale(facade):
    x = torch.randn(130, 70, dtype=torch.bfloat16)
    y, scale = facade.npu_dynamic_block_quant(
        x, dst_type=torch.float8_e4m3fn, row_block_size=128, col_block_size=64, min_scale=500.0
    )
    assert scale.shape == (2, 2)
    assert scale.max() <= 1 / 500
    corner = x[128:, 64:].float()
    expected = min((corner.abs().max() / 448).item(), 1 / 500)
    assert scale[1, 1].item() == pytest.approx(expected)
    assert y.dtype == torch.float8_e4m3fn
    assert torch.equal(y[128:, 64:].float(), (corner / expected).clamp(-448, 448).to(torch.float8_e4m3fn).float())


def test_infinite_values_do_not_count_for_a_scale(facade):
    x = torch.tensor([[1.0, float("inf"), float("nan"), -2.0]], dtype=torch.float16)
    y, scale = facade.npu_dynamic_block_quant(x, dst_type=1)
    assert scale.item() == pytest.approx(2 / 127)
    assert y.tolist()[0][2] == 0


def test_grouped_blocks_begin_with_their_group(facade):
    x = torch.randn(300, 64, dtype=torch.bfloat16)
    ends = torch.tensor([3, 3, 200, 300], dtype=torch.int32)
    y, scale = facade.npu_grouped_dynamic_block_quant(x, ends, row_block_size=128, col_block_size=64)
    expected, start = torch.zeros(300 // 128 + 4, 1), 0
    for group, end in enumerate(ends.tolist()):
        for number, first in enumerate(range(start, end, 128)):
            part = x[first : min(first + 128, end)].float()
            place = start // 128 + group + number
            expected[place] = part.abs().max() / 57344
            given = (part / expected[place]).to(torch.float8_e5m2).float()
            assert torch.equal(y[first : min(first + 128, end)].float(), given)
        start = end
    torch.testing.assert_close(scale, expected)


REFUSED = [
    ({"input": torch.zeros(8, dtype=torch.float16)}, "Input shape dim should be greater than 1"),
    ({"input": torch.zeros(2, 8)}, "input is torch.float32"),
    ({"dst_type": torch.quint4x2, "input": torch.zeros(2, 6, dtype=torch.float16)}, "must be divded by 8"),
    ({"dst_type": torch.int16}, "dst_type is torch_npu.int16"),
    ({"quant_mode": "perhead"}, 'quant_mode is "perhead"'),
    ({"dst_type_max": 5.0}, "dst_type_max is only for hifloat8"),
    ({"group_index": torch.tensor([2], dtype=torch.int32)}, "group_index needs smooth_scales"),
    ({"smooth_scales": torch.ones(8)}, "they must have one dtype"),
    ({"smooth_scales": torch.ones(7, dtype=torch.float16)}, r"must be \[8\]"),
]


@pytest.mark.parametrize(("changed", "text"), REFUSED)
@pytest.mark.parametrize("name", ["npu_dynamic_quant", "npu_dynamic_quant_asymmetric"])
def test_refused(facade, name, changed, text):
    arguments = {"input": torch.zeros(2, 8, dtype=torch.float16)} | changed
    with pytest.raises(RuntimeError, match=text):
        getattr(facade, name)(arguments.pop("input"), **arguments)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"x": torch.zeros(8, dtype=torch.float16)}, "x must be 2 or 3 dimensional."),
        ({"round_mode": "floor"}, 'round_mode is "floor"'),
        ({"min_scale": -1.0}, "cannot be negative"),
        ({"row_block_size": 2}, "row_block_size is 2"),
        ({"col_block_size": 100}, "col_block_size is 100"),
        ({"dst_type_max": 15.0}, "dst_type_max is 15.0"),
        ({"dst_type": 285}, "dst_type is torch_npu.int4"),
        ({"x": torch.zeros(0, 8, dtype=torch.float16)}, "x is empty"),
    ],
)
def test_refused_blocks(facade, changed, text):
    arguments = {"x": torch.zeros(2, 8, dtype=torch.float16)} | changed
    with pytest.raises(RuntimeError, match=text):
        facade.npu_dynamic_block_quant(arguments.pop("x"), **arguments)
