"""MX quantisation: values against the nearest of all values of a dtype, and scales against logarithms.

Holds mx_quant.py and swiglu_quant.py in src/toprope/compat/torch_npu/operators.
"""

import itertools
import math

import pytest
import torch

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E1M2 = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
EXPONENTS = {296: 2, 297: 0, 291: 15, 292: 8}


def table(number):
    """Values of the codes from 0 on, without sign."""
    if number in (296, 297):
        return E2M1 if number == 296 else E1M2
    dtype = {291: torch.float8_e5m2, 292: torch.float8_e4m3fn}[number]
    values = torch.arange(128, dtype=torch.uint8).view(dtype).float().tolist()
    return [value for value in values if math.isfinite(value)]


def nearest(value, values):
    """The nearest value of a sorted list; of two, the one with the even code."""
    size = min(abs(value), values[-1])
    best = min(range(len(values)), key=lambda code: (abs(values[code] - size), code % 2))
    return math.copysign(values[best], value)


def read(y, number):
    """float values of a result of FP8, or of FP4 in uint8."""
    if number in (291, 292):
        return y.float()
    codes = torch.stack((y & 15, y >> 4), -1).flatten(-2)
    values = torch.tensor(table(number))[(codes & 7).long()]
    return torch.where(codes > 7, -values, values)


def scale_bytes(values, number, scale_alg, largest=0.0):
    top = max(abs(value) for value in values)
    if top == 0:
        return 0
    if scale_alg == 0:
        return max(0, math.floor(math.log2(top)) - EXPONENTS[number] + 127)
    return max(0, math.ceil(math.log2(top / (largest or table(number)[-1]))) + 127)


def check(x, y, scale, number, scale_alg, largest=0.0, block=32):
    """Blocks along the last axis of a matrix."""
    values = read(y, number)
    for row, given in enumerate(x.float().tolist()):
        bytes_ = scale[row].flatten().tolist()
        blocks = -(-len(given) // block)
        assert bytes_[blocks:] == [0] * (len(bytes_) - blocks)
        for place in range(blocks):
            part = given[place * block : place * block + block]
            byte = scale_bytes(part, number, scale_alg, largest)
            assert bytes_[place] == byte
            expected = [nearest(value / 2.0 ** (byte - 127), table(number)) for value in part]
            assert values[row, place * block : place * block + block].tolist() == expected


CASES = [(296, 0), (297, 0), (291, 0), (292, 0), (291, 1), (292, 1), (296, 2)]


@pytest.mark.parametrize(("number", "scale_alg"), CASES)
@pytest.mark.parametrize("columns", [32, 100])
def test_blocks_of_the_last_axis(facade, number, scale_alg, columns):
    x = torch.randn(3, columns, dtype=torch.bfloat16) * torch.tensor([[1.0], [1e-3], [1e4]])
    x = x.to(torch.bfloat16)
    y, scale = facade.npu_dynamic_mx_quant(x, dst_type=number, scale_alg=scale_alg)
    assert scale.dtype == torch.uint8
    assert scale.shape == (3, -(-columns // 64), 2)
    check(x, y, scale, number, scale_alg)


@pytest.mark.parametrize("largest", [6.0, 7.0, 10.0])
def test_the_largest_value_may_be_given(facade, largest):
    x = torch.randn(4, 64, dtype=torch.float16).to(torch.bfloat16)
    y, scale = facade.npu_dynamic_mx_quant(x, scale_alg=2, dst_type_max=largest)
    check(x, y, scale, 296, 2, largest)


def test_another_axis_interleaves_the_scales_of_two_blocks(facade):
    x = torch.randn(2, 70, 6, dtype=torch.float16)
    y, scale = facade.npu_dynamic_mx_quant(x, axis=1, dst_type=torch.float8_e4m3fn, block_size=32)
    turned, turned_scale = facade.npu_dynamic_mx_quant(x.transpose(1, 2).contiguous(), dst_type=torch.float8_e4m3fn)
    assert torch.equal(y.float(), turned.transpose(1, 2).float())
    assert scale.shape == (2, 2, 6, 2)
    for pair, column, half in itertools.product(range(2), range(6), range(2)):
        assert torch.equal(scale[:, pair, column, half], turned_scale[:, column, pair, half])


def test_both_axes_and_larger_blocks(facade):
    x = torch.randn(40, 64, dtype=torch.bfloat16)
    results = facade.npu_dynamic_mx_quant_with_dual_axis(x, dst_type=23)
    single = facade.npu_dynamic_mx_quant(x, dst_type=23) + facade.npu_dynamic_mx_quant(x, dst_type=23, axis=0)
    for found, expected in zip(results, single, strict=True):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    y, scale = facade.npu_dynamic_mx_quant(x, dst_type=291, block_size=64)
    check(x, y, scale, 291, 0, block=64)


def test_infinite_values_and_zeros(facade):
    x = torch.zeros(3, 32, dtype=torch.float16)
    x[1, 5], x[2, 7], x[2, 8] = float("inf"), float("nan"), 3.0
    y, scale = facade.npu_dynamic_mx_quant(x, dst_type=torch.float8_e5m2)
    assert scale[:, 0].tolist() == [[0, 0], [255, 0], [255, 0]]
    assert y.float().abs().max() == 0


@pytest.mark.parametrize(("mode", "codes"), [("rint", [2, 4, 9, 2]), ("round", [3, 5, 9, 2]), ("floor", [2, 4, 10, 1])])
def test_round_modes(facade, mode, codes):
    x = torch.zeros(1, 32, dtype=torch.float16)
    x[0, :5] = torch.tensor([1.25, 2.5, -0.6, 0.9, 4.0], dtype=torch.float16)
    y, _ = facade.npu_dynamic_mx_quant(x, round_mode=mode)
    found = torch.stack((y & 15, y >> 4), -1).flatten()
    assert found[:4].tolist() == codes


def test_square_blocks(facade):
    x = torch.randn(2, 40, 66, dtype=torch.bfloat16)
    y, first, second = facade.npu_dynamic_block_mx_quant(x, dst_type=292)
    assert (first.shape, second.shape) == ((2, 40, 2, 2), (2, 1, 66, 2))
    for batch, row, column in itertools.product(range(2), (0, 39), (0, 33, 65)):
        down, across = row // 32, column // 32
        part = x[batch, 32 * down : 32 * down + 32, 32 * across : 32 * across + 32].float()
        byte = scale_bytes(part.flatten().tolist(), 292, 0)
        assert first[batch, row].flatten()[across] == byte
        assert second[batch, down // 2, column, down % 2] == byte
        expected = nearest(x[batch, row, column].item() / 2.0 ** (byte - 127), table(292))
        assert y[batch, row, column].float() == expected
    assert first[:, :, 1, 1].max() == 0


def test_two_levels(facade):
    x = torch.randn(2, 600, dtype=torch.bfloat16)
    y, level0, level1 = facade.npu_dynamic_dual_level_mx_quant(x)
    assert (y.shape, level0.shape, level1.shape) == ((2, 300), (2, 2), (2, 10, 2))
    torch.testing.assert_close(level0[0, 1], x[0, 512:].float().abs().max() / 6)
    quotient = (x.float() / level0.repeat_interleave(512, 1)[:, :600]).to(torch.bfloat16)
    again = facade.npu_dynamic_mx_quant(quotient)
    assert torch.equal(y, again[0])
    assert torch.equal(level1, again[1])
    smooth = torch.full((600,), 2.0, dtype=torch.bfloat16)
    assert torch.equal(facade.npu_dynamic_dual_level_mx_quant(x, smooth_scale=smooth)[1], 2 * level0)
    assert facade.npu_dynamic_dual_level_mx_quant(torch.zeros(1, 8, dtype=torch.float16))[0].max() == 0


def test_groups_begin_new_scales(facade):
    x = torch.randn(150, 6, dtype=torch.float16)
    ends = torch.tensor([10, 10, 100, 150], dtype=torch.int32)
    y, scale = facade.npu_grouped_dynamic_mx_quant(x, ends, dst_type=torch.float8_e5m2)
    assert scale.shape == (150 // 64 + 4, 6, 2)
    expected, start = torch.zeros_like(scale), 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            part, bytes_ = facade.npu_dynamic_mx_quant(x[start:end], dst_type=torch.float8_e5m2, axis=0)
            assert torch.equal(y[start:end].float(), part.float())
            place = start // 64 + group
            expected[place : place + bytes_.shape[0]] = bytes_
        start = end
    assert torch.equal(scale, expected)


@pytest.mark.parametrize("number", [291, 292, 296, 297])
@pytest.mark.parametrize("axis", [0, -1])
def test_back(facade, number, axis):
    x = torch.randn(64, 96, dtype=torch.bfloat16)
    y, scale = facade.npu_dynamic_mx_quant(x, dst_type=number, axis=axis)
    back = facade.npu_anti_mx_quant(y, scale, axis=axis, src_type=number, dst_type=torch.float32)
    limit = {291: 0.25, 292: 0.25, 296: 0.5, 297: 0.5}[number]
    assert back.shape == x.shape
    top = x.float().abs().amax()
    assert ((back - x.float()).abs() <= limit * top).all()
    again, _ = facade.npu_dynamic_mx_quant(back.to(torch.bfloat16), dst_type=number, axis=axis)
    third = facade.npu_anti_mx_quant(again, _, axis=axis, src_type=number, dst_type=torch.float32)
    assert torch.equal(third, back)


def test_swiglu_then_blocks(facade):
    x = torch.randn(5, 128, dtype=torch.bfloat16)
    y, scale = facade.npu_swiglu_mx_quant(x, dst_type=torch.float8_e4m3fn)
    left, right = x.float().chunk(2, -1)
    expected = facade.npu_dynamic_mx_quant(left * torch.nn.functional.silu(right), dst_type=torch.float8_e4m3fn)
    assert torch.equal(y.float(), expected[0].float())
    assert torch.equal(scale, expected[1])
    y, scale = facade.npu_swiglu_mx_quant(x, group_index=torch.tensor([1, 2]), dst_type=292, activate_left=True)
    assert y[3:].float().abs().max() == 0
    y, scale = facade.npu_swiglu_mx_quant(x, group_index=torch.tensor([1, 5]), dst_type=292, axis=0, group_mode=1)
    assert scale.shape == (2, 64, 2)
    y, scale = facade.npu_swiglu_mx_quant(x[:4], activate_dim=0, dst_type=292)
    assert (y.shape, scale.shape) == ((2, 128), (2, 2, 2))


@pytest.mark.parametrize("ends", [None, [10, 80]])
def test_swiglu_then_blocks_of_both_axes(facade, ends):
    x = torch.randn(80, 64, dtype=torch.bfloat16)
    groups = None if ends is None else torch.tensor(ends)
    found = facade.npu_swiglu_mx_quant_with_dual_axis(x, group_index=groups, dst_type=23)
    left, right = x.float().chunk(2, -1)
    out = torch.nn.functional.silu(left) * right
    first = facade.npu_dynamic_mx_quant(out, dst_type=23, scale_alg=1)
    second = facade.npu_dynamic_mx_quant(out[10 if ends else 0 :], dst_type=23, scale_alg=1, axis=0)
    assert torch.equal(found[0].float(), first[0].float())
    assert torch.equal(found[1], first[1])
    assert torch.equal(found[2][10 if ends else 0 :].float(), second[0].float())
    assert torch.equal(found[3][1 if ends else 0 :][: second[1].shape[0]], second[1])


REFUSED = [
    ({"axis": 2}, r"Param \(axis\) is out of input dimension range"),
    ({"block_size": 33}, "must be divisible by 32"),
    ({"dst_type": torch.int8}, "dst_type is torch_npu.int8"),
    ({"dst_type": 291, "round_mode": "floor"}, 'round_mode is "floor"'),
    ({"round_mode": "ceil"}, 'round_mode is "ceil"'),
    ({"scale_alg": 1}, "scale_alg is 1"),
    ({"scale_alg": 2, "block_size": 64}, "block_size is 64"),
    ({"max_low_bound": 1.0}, "max_low_bound is 1.0"),
    ({"dst_type_max": 7.0}, "dst_type_max is 7.0"),
    ({"input": torch.zeros(2, 33, dtype=torch.float16)}, "must be divisible by 2"),
    ({"input": torch.zeros(2, 32, dtype=torch.int32)}, "the input is torch.int32"),
    ({"input": torch.zeros(2, 16)}, "float32 takes block_size 32"),
]


@pytest.mark.parametrize(("changed", "text"), REFUSED)
def test_refused(facade, changed, text):
    arguments = {"input": torch.zeros(2, 32, dtype=torch.float16)} | changed
    with pytest.raises(RuntimeError, match=text):
        facade.npu_dynamic_mx_quant(arguments.pop("input"), **arguments)


def test_refused_of_the_others(facade):
    half, ends = torch.zeros(2, 32, dtype=torch.float16), torch.tensor([2], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="The input should be at least 2D"):
        facade.npu_dynamic_mx_quant_with_dual_axis(half[0])
    with pytest.raises(RuntimeError, match="scale_alg is 1"):
        facade.npu_dynamic_block_mx_quant(half, dst_type=291, scale_alg=1)
    with pytest.raises(RuntimeError, match="X dimNum should be 2, got 3"):
        facade.npu_grouped_dynamic_mx_quant(half[None], ends)
    with pytest.raises(RuntimeError, match="Parameter blocksize must be 32, got 64"):
        facade.npu_grouped_dynamic_mx_quant(half, ends, blocksize=64)
    with pytest.raises(RuntimeError, match="takes float16 and bfloat16"):
        facade.npu_dynamic_mx_quant_with_dual_axis(half.float())
    with pytest.raises(RuntimeError, match="mxscale of shape"):
        facade.npu_anti_mx_quant(half.to(torch.float8_e5m2), torch.zeros(2, 2, 2, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="clamp_limit should be positive finite"):
        facade.npu_swiglu_mx_quant(half, clamp_limit=-1.0)


def test_max_low_bound(facade):
    x = torch.full((1, 32), 1e-4, dtype=torch.bfloat16)
    _, scale = facade.npu_dynamic_mx_quant(x, dst_type=292, scale_alg=1, max_low_bound=448.0)
    assert scale[0, 0, 0] == 127
