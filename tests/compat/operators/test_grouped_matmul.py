"""npu_grouped_matmul and its relatives against loops in float64.

Holds grouped_matmul.py, grouped_matmul_fused.py and integer_matmul.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch


def float_bits(scale):
    """int64 of which the lower half has the bits of float32."""
    return torch.from_numpy(scale.numpy().view(np.uint32).astype(np.int64))


def pack4(values):
    """int32 of eight 4-bit values along the last axis, the first in the lowest bits."""
    table = np.asarray(values, dtype=np.int64).reshape(*values.shape[:-1], -1, 8) & 15
    total = sum(table[..., place] << (4 * place) for place in range(8))
    return torch.from_numpy(total.astype(np.uint32).view(np.int32))


def by_rows(x, weights, ends):
    """Float64 product of every group of rows."""
    begin, parts = 0, []
    for weight, end in zip(weights, ends, strict=True):
        parts.append(x[begin:end].double().numpy() @ weight.double().numpy())
        begin = end
    return parts


X = torch.randn(7, 24)
W = torch.randn(3, 24, 8)
ENDS = [3, 3, 7]
SIZES = [3, 0, 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [0, 1])
def test_groups_of_rows_of_one_tensor(facade, dtype, kind):
    x, w = X.to(dtype), W.to(dtype)
    groups = torch.tensor(ENDS if kind == 0 else SIZES)
    (y,) = facade.npu_grouped_matmul([x], [w], group_list=groups, group_list_type=kind, group_type=0, split_item=2)
    want = np.concatenate(by_rows(x, w, ENDS))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), torch.from_numpy(want), rtol=1e-2, atol=1e-2)


def test_results_of_every_group_and_bias(facade):
    x, w, bias = X.half(), list(W.half()), [torch.randn(8).half() for _ in range(3)]
    found = facade.npu_grouped_matmul([x], w, bias=bias, group_list=torch.tensor(ENDS), group_type=0, split_item=1)
    assert [each.shape[0] for each in found] == SIZES
    for each, want, add in zip(found, by_rows(x, w, ENDS), bias, strict=True):
        torch.testing.assert_close(each.double(), torch.from_numpy(want) + add.double(), rtol=1e-2, atol=1e-2)


def test_list_of_totals_is_the_other_overload(facade):
    x, w = X.half(), list(W.half())
    (joined,) = facade.npu_grouped_matmul([x], w, group_list=ENDS, split_item=3)
    apart = facade.npu_grouped_matmul([x], w, group_list=ENDS, split_item=0)
    assert torch.equal(joined, torch.cat(apart))
    pairs = facade.npu_grouped_matmul([x[:2], x[2:]], w[:2], group_type=-1)
    assert torch.equal(pairs[0], (x[:2].float() @ w[0].float()).half())
    (deep,) = facade.npu_grouped_matmul([torch.randn(2, 3, 24).half()], w[:1], group_type=-1)
    assert deep.shape == (2, 3, 8)


def test_rows_behind_the_last_group_are_zero(facade):
    (y,) = facade.npu_grouped_matmul(
        [X], [W], group_list=torch.tensor([2, 1, 1]), group_list_type=1, group_type=0, split_item=2
    )
    assert y.shape == (7, 8)
    assert not y[4:].any()
    assert y[:4].any()


def test_groups_of_columns(facade):
    x, w = torch.randn(5, 12), torch.randn(12, 6)
    ends = torch.tensor([4, 4, 12])
    (y,) = facade.npu_grouped_matmul([x.T.contiguous().T], [w], group_list=ends, group_type=2, split_item=3)
    want = [x[:, :4].double() @ w[:4].double(), torch.zeros(5, 6), x[:, 4:].double() @ w[4:].double()]
    torch.testing.assert_close(y.double(), torch.stack([each.double() for each in want]), rtol=1e-5, atol=1e-5)


def test_int8_with_packed_scale_is_quantised_again(facade):
    x, w = torch.randint(-128, 128, (7, 300), dtype=torch.int8), torch.randint(-128, 128, (3, 300, 8), dtype=torch.int8)
    scale, bias = torch.rand(3, 8) * 1e-4 + 1e-5, torch.randint(-999, 999, (3, 8), dtype=torch.int32)
    (y,) = facade.npu_grouped_matmul(
        [x], [w], scale=[float_bits(scale)], bias=[bias], group_list=torch.tensor(ENDS), group_type=0, split_item=3
    )
    coarse = (scale.numpy().view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    want = []
    for group, part in enumerate(by_rows(x, w, ENDS)):
        value = np.float32(part + bias[group].numpy()) * coarse[group]
        want.append(np.clip(np.round(value), -128, 127))
    assert y.dtype == torch.int8
    assert np.array_equal(y.numpy(), np.concatenate(want))


@pytest.mark.parametrize("act", [0, 1, 2, 4, 5])
def test_int8_per_token_with_activation(facade, act):
    x, w = torch.randint(-9, 9, (7, 24), dtype=torch.int8), torch.randint(-9, 9, (3, 24, 8), dtype=torch.int8)
    scale, rows = torch.rand(3, 8) * 0.05, torch.rand(7)
    (y,) = facade.npu_grouped_matmul(
        [x], [w], scale=[scale], per_token_scale=[rows], group_list=torch.tensor(ENDS), group_type=0, split_item=2,
        act_type=act, output_dtype=torch.float16,
    )  # fmt: skip
    value = np.concatenate([part * scale[group].numpy() for group, part in enumerate(by_rows(x, w, ENDS))])
    value = torch.from_numpy(value * rows.double().numpy()[:, None])
    want = {
        0: lambda v: v,
        1: lambda v: v.clamp_min(0),
        2: lambda v: 0.5 * v * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (v + 0.044715 * v**3))),
        4: lambda v: v / (1 + torch.exp(-1.702 * v)),
        5: lambda v: v / (1 + torch.exp(-v)),
    }[act](value)
    torch.testing.assert_close(y.double(), want, rtol=2e-3, atol=2e-3)


def test_pairs_of_expert_and_size(facade):
    x, w = torch.randint(-9, 9, (5, 16), dtype=torch.int8), torch.randint(-9, 9, (3, 16, 8), dtype=torch.int8)
    groups = torch.tensor([[2, 3], [0, 2], [1, 0]])
    (y,) = facade.npu_grouped_matmul(
        [x], [w], group_list=groups, group_list_type=2, group_type=0, split_item=3, output_dtype=torch.int32
    )
    assert torch.equal(y[:3], x[:3].int() @ w[2].int())
    assert torch.equal(y[3:], x[3:].int() @ w[0].int())


@pytest.mark.parametrize("four_bit", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_integers(facade, dtype, four_bit):
    w = torch.randint(-8, 8, (3, 24, 8), dtype=torch.int8)
    parts = 3 if four_bit else 1
    scale, offset = torch.rand(3, parts, 8).to(dtype), torch.randn(3, parts, 8).to(dtype)
    given = (scale, offset) if four_bit else (scale[:, 0], offset[:, 0])
    (y,) = facade.npu_grouped_matmul(
        [X.to(dtype)], [pack4(w) if four_bit else w], antiquant_scale=[given[0]], antiquant_offset=[given[1]],
        group_list=torch.tensor(ENDS), group_type=0, split_item=3,
    )  # fmt: skip
    size = 24 // parts
    wide = [each.double().repeat_interleave(size, dim=1) for each in (scale, offset)]
    want = np.concatenate(by_rows(X.to(dtype), (w + wide[1]) * wide[0], ENDS))
    tolerance = 2e-2 if dtype == torch.float16 else 2e-1
    torch.testing.assert_close(y.double(), torch.from_numpy(want), rtol=tolerance, atol=tolerance)


def test_int8_with_four_bit_weights(facade):
    x, w = torch.randint(-128, 128, (7, 32), dtype=torch.int8), torch.randint(-8, 8, (3, 32, 8), dtype=torch.int8)
    scale, rows = torch.rand(3, 2, 8), torch.rand(7)
    wide = w.double() * scale.double().repeat_interleave(16, dim=1)
    assist = (8 * wide.sum(1)).float()
    (y,) = facade.npu_grouped_matmul(
        [x], [pack4(w)], scale=[float_bits(scale)], bias=[assist], per_token_scale=[rows.unsqueeze(-1)],
        group_list=torch.tensor(ENDS), group_type=0, split_item=3, output_dtype=torch.bfloat16,
    )  # fmt: skip
    want = np.concatenate(by_rows(x, wide, ENDS)) * rows.double().numpy()[:, None]
    torch.testing.assert_close(y.double(), torch.from_numpy(want), rtol=1e-2, atol=1.0)


def test_four_bits_on_both_sides_with_transposed_weight(facade):
    x, w = torch.randint(-8, 8, (7, 32), dtype=torch.int8), torch.randint(-8, 8, (3, 32, 8), dtype=torch.int8)
    scale, rows = torch.rand(3, 1, 8), torch.rand(7)
    turned = pack4(w.transpose(1, 2).contiguous()).transpose(1, 2)
    for weight in (pack4(w), turned):
        (y,) = facade.npu_grouped_matmul(
            [pack4(x)], [weight], scale=[float_bits(scale)], per_token_scale=[rows],
            group_list=torch.tensor(ENDS), group_type=0, split_item=3, output_dtype=torch.float16,
        )  # fmt: skip
        want = np.concatenate(by_rows(x, w * scale.double(), ENDS)) * rows.double().numpy()[:, None]
        torch.testing.assert_close(y.double(), torch.from_numpy(want), rtol=1e-3, atol=1e-2)


def test_awkward_inputs(facade):
    kept = {"group_type": 0, "split_item": 2}
    (empty,) = facade.npu_grouped_matmul([X[:0]], [W], group_list=torch.zeros(3, dtype=torch.int64), **kept)
    assert empty.shape == (0, 8)
    strided = torch.randn(24, 14).T[::2]
    for groups in (torch.tensor(ENDS), torch.tensor([[3, 0], [3, 0], [7, 0]])[:, 0]):
        (y,) = facade.npu_grouped_matmul([strided], [W], group_list=groups, **kept)
        want = np.concatenate(by_rows(strided, W, ENDS))
        torch.testing.assert_close(y.double(), torch.from_numpy(want), rtol=1e-4, atol=1e-4)
    single = torch.tensor([7])
    for bias in (torch.ones(8), torch.ones(1, 8)):
        (y,) = facade.npu_grouped_matmul([X], [W[:1]], bias=[bias], group_list=single, **kept)
        torch.testing.assert_close(y, X @ W[0] + 1, rtol=1e-4, atol=1e-4)
    (y,) = facade.npu_grouped_matmul([X], [W[:1]], bias=[], scale=[], group_list=single, **kept)
    torch.testing.assert_close(y, X @ W[0], rtol=1e-4, atol=1e-4)
    assert (
        facade.npu_quant_matmul(
            torch.zeros(3, 0, dtype=torch.int8),
            torch.zeros(0, 4, dtype=torch.int8),
            torch.ones(1),
            output_dtype=torch.int32,
        ).tolist()
        == [[0] * 4] * 3
    )


REFUSED = [
    ({}, "Requires manual passing group_type"),
    ({"group_type": 1}, "The group type must be -1, 0 or 2"),
    ({"group_type": 0}, "needs group_list"),
    ({"group_type": -1, "split_item": 5}, "Invalid value of split_item"),
    ({"group_type": 0, "group_list": torch.tensor([3, 2, 7])}, "negative size"),
    ({"group_type": 0, "group_list": torch.tensor([3, 5, 9])}, "9 rows of 7"),
    ({"group_type": 0, "group_list": torch.tensor([3, 5, 7], dtype=torch.int32)}, "takes int64"),
    ({"group_type": 0, "group_list": torch.tensor(ENDS), "act_type": 1}, "only int8 with per_token_scale"),
    ({"group_type": 0, "group_list": torch.tensor(ENDS), "act_type": 3}, "act_type is 3"),
    ({"group_type": 0, "group_list": torch.tensor(ENDS), "output_dtype": torch.float32}, "output dtype"),
    ({"group_type": 0, "group_list": torch.tensor(ENDS), "x_dtype": 290}, "not simulated"),
    ({"group_type": 0, "group_list": torch.tensor(ENDS), "group_list_type": 2}, "group_list_type 2"),
    ({"group_type": 0, "group_list": torch.tensor(ENDS), "bias": [torch.randn(3, 8)]}, "bias is torch.float32"),
    ({"group_type": 0, "group_list": torch.tensor(ENDS), "bias": [torch.randn(2, 8).half()]}, "there are 3 weights"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_refused(facade, given, text):
    with pytest.raises(RuntimeError, match=text):
        facade.npu_grouped_matmul([X.half()], [W.half()], **{"split_item": 2, **given})


def test_refused_dtypes_and_counts(facade):
    with pytest.raises(RuntimeError, match="neither x nor weight could be empty"):
        facade.npu_grouped_matmul([], [], group_type=-1)
    with pytest.raises(RuntimeError, match="does not take them together"):
        facade.npu_grouped_matmul([X.double()], [W[0].double()], group_type=-1)
    with pytest.raises(RuntimeError, match="needs antiquant_scale"):
        facade.npu_grouped_matmul([X.half()], [W[0].char()], group_type=-1)
    with pytest.raises(RuntimeError, match="needs scale"):
        facade.npu_grouped_matmul([X.char()], [W[0].char()], group_type=-1)
    with pytest.raises(RuntimeError, match="different k"):
        facade.npu_grouped_matmul([X], [W[0, :20]], group_type=-1)
    with pytest.raises(RuntimeError, match="must equal the num of weight"):
        facade.npu_grouped_matmul([X], list(W), group_type=-1)
    with pytest.raises(RuntimeError, match=r"group_list\[1\] - group_list\[0\] should be larger"):
        facade.npu_grouped_matmul([X], list(W), group_list=[4, 2, 7], split_item=2)


def test_add(facade):
    x, w, total = torch.randn(7, 4).bfloat16(), torch.randn(7, 6).bfloat16(), torch.randn(12, 6)
    want, begin = [], 0
    for end in ENDS:
        want.append(x[begin:end].double().T @ w[begin:end].double())
        begin = end
    want = total.double() + torch.cat(want)
    kept = total.clone()
    other = facade.npu_grouped_matmul_add(total, x, w, torch.tensor(ENDS))
    assert torch.equal(total, kept)
    torch.testing.assert_close(other.double(), want, rtol=1e-5, atol=1e-5)
    assert facade.npu_grouped_matmul_add_(total, x, w, torch.tensor(ENDS)) is total
    assert torch.equal(total, other)
    with pytest.raises(RuntimeError, match="group_type only supports 2"):
        facade.npu_grouped_matmul_add_(total, x, w, torch.tensor(ENDS), group_type=0)
    with pytest.raises(RuntimeError, match="running totals"):
        facade.npu_grouped_matmul_add_(total, x, w, torch.tensor(SIZES), group_list_type=1)


def swiglu_loop(x, w, scale, rows, ends, smooth=None):
    found, factors, begin = np.zeros((x.shape[0], w.shape[2] // 2), np.int8), np.zeros(x.shape[0], np.float32), 0
    for expert, end in enumerate(ends):
        for row in range(begin, end):
            value = (x[row].double().numpy() @ w[expert].double().numpy()) * scale[expert].double().numpy()
            value = value * float(rows[row])
            half = value.size // 2
            gated = value[:half] / (1 + np.exp(-value[:half])) * value[half:]
            if smooth is not None:
                gated = gated * smooth[expert].double().numpy()
            factors[row] = np.abs(gated).max() / 127
            found[row] = np.round(gated / factors[row]) if factors[row] else 0
        begin = end
    return torch.from_numpy(found), torch.from_numpy(factors)


def near(found, want):
    torch.testing.assert_close(found[0].int(), want[0].int(), rtol=0, atol=1)  # ties of the rounding
    assert (found[0] == want[0]).float().mean() > 0.9
    torch.testing.assert_close(found[1], want[1], rtol=1e-4, atol=1e-6)


def test_swiglu_quant(facade):
    x, w = torch.randint(-99, 99, (7, 64), dtype=torch.int8), torch.randint(-9, 9, (3, 64, 64), dtype=torch.int8)
    scale, rows, ends = torch.rand(3, 64) * 0.01, torch.rand(7) * 0.1, torch.tensor([3, 3, 6])
    want = swiglu_loop(x, w, scale, rows, [3, 3, 6])
    first = facade.npu_grouped_matmul_swiglu_quant(x, w, ends, scale, rows)
    near(first, want)
    assert first[2].shape == ()
    assert not first[0][6:].any()
    tiles = w.reshape(3, 4, 16, 2, 32).permute(0, 3, 1, 2, 4).contiguous()
    near(facade.npu_grouped_matmul_swiglu_quant(x, tiles, ends, scale, rows), want)
    sizes = torch.tensor([3, 0, 3])
    near(facade.npu_grouped_matmul_swiglu_quant_v2(x, [w], [scale], rows, sizes, group_list_type=1), want)


def test_swiglu_quant_of_four_bits(facade):
    x, w = torch.randint(-8, 8, (7, 64), dtype=torch.int8), torch.randint(-8, 8, (3, 64, 64), dtype=torch.int8)
    scale, rows, smooth = torch.rand(3, 64) * 0.01, torch.rand(7), torch.rand(3, 32)
    found = facade.npu_grouped_matmul_swiglu_quant_v2(
        pack4(x), [pack4(w)], [float_bits(scale)], rows, torch.tensor(ENDS), smooth_scale=smooth
    )
    near(found, swiglu_loop(x, w, scale, rows, ENDS, smooth))
    assist = (8 * (w.double() * scale.double().unsqueeze(1)).sum(1)).float()
    found = facade.npu_grouped_matmul_swiglu_quant_v2(
        x, [pack4(w)], [float_bits(scale)], rows, torch.tensor(ENDS), weight_assist_matrix=[assist]
    )
    near(found, swiglu_loop(x, w, scale, rows, ENDS))
    with pytest.raises(RuntimeError, match="assist matrix"):
        facade.npu_grouped_matmul_swiglu_quant_v2(x, [pack4(w)], [float_bits(scale)], rows, torch.tensor(ENDS))
    with pytest.raises(RuntimeError, match="dequant_mode 1 does not go"):
        facade.npu_grouped_matmul_swiglu_quant_v2(x, [w], [scale], rows, torch.tensor(ENDS), dequant_mode=1)


@pytest.mark.parametrize("four_bit", [False, True])
def test_finalize_routing(facade, four_bit):
    x, w = torch.randint(-99, 99, (6, 32), dtype=torch.int8), torch.randint(-8, 8, (2, 32, 16), dtype=torch.int8)
    scale, rows, logit = torch.rand(2, 1, 16) * 0.1, torch.rand(6), torch.rand(6)
    index, shared = torch.tensor([1, 0, 2, 2, 1, 0]), torch.randn(2, 16).bfloat16()
    offset = torch.randint(-5, 5, (2, 1, 16)).float()
    factor = w.double() * scale.double() + (offset.double() if four_bit else 0)
    want = torch.zeros(3, 16, dtype=torch.float64)
    for row in range(6):
        want[index[row]] += x[row].double() @ factor[row // 3] * float(rows[row]) * float(logit[row])
    want[1:] += 0.5 * shared.double()
    kept = {
        "pertoken_scale": rows, "logit": logit, "row_index": index, "shared_input": shared, "shared_input_weight": 0.5,
        "shared_input_offset": 1, "output_bs": 3,
    }  # fmt: skip
    if four_bit:
        kept |= {"scale": float_bits(scale), "offset": offset, "bias": 8 * (w * scale).sum(1)}
    else:
        kept["scale"] = scale[:, 0]
    weight = pack4(w) if four_bit else w
    found = facade.npu_grouped_matmul_finalize_routing(x, weight, torch.tensor([3, 3]), **kept)
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-2)
    totals = facade.npu_grouped_matmul_finalize_routing(x, weight, torch.tensor([3, 6]), **kept, group_list_type=0)
    assert torch.equal(found, totals)
    with pytest.raises(RuntimeError, match="value 0 or 1"):
        facade.npu_grouped_matmul_finalize_routing(x, weight, torch.tensor([3, 6]), **kept, group_list_type=2)
