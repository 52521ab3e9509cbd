"""SwiGLU that is quantised, and rotary embedding into quantised caches, against plain loops.

Holds rope_quant.py in src/toprope/compat/torch_npu/operators.
"""

import math

import pytest
import torch


def silu(value):
    return value / (1 + math.exp(-value))


def swiglu(row, left, mode=0, limit=7.0, alpha=1.702, bias=1.0):
    """SwiGLU of one row, place by place."""
    half = len(row) // 2
    if mode == 1:
        gates, linear = row[::2], row[1::2]
    else:
        gates, linear = (row[:half], row[half:]) if left else (row[half:], row[:half])
    if mode == 0:
        return [silu(gate) * value for gate, value in zip(gates, linear, strict=True)]
    out = []
    for gate, value in zip(gates, linear, strict=True):
        gate, value = min(gate, limit), max(-limit, min(limit, value))
        out.append(gate / (1 + math.exp(-alpha * gate)) * (value + bias))
    return out


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("by_channel", [False, True])
def test_groups_by_given_scales(facade, left, kind, by_channel):
    x, shape = torch.randn(5, 8), (2, 4) if by_channel else (2,)
    smooth, offsets = torch.rand(shape) * 30, torch.randn(shape)
    groups = torch.tensor([2, 4] if kind == 0 else [2, 2], dtype=torch.int32)
    y, scale = facade.npu_swiglu_quant(
        x, smooth_scales=smooth, offsets=offsets, group_index=groups, activate_left=left, group_list_type=kind
    )
    for row in range(4):
        wide = torch.tensor(swiglu(x[row].tolist(), left)) * smooth[row // 2] + offsets[row // 2]
        assert (y[row] - wide).abs().max() <= 0.51
    assert y[4].abs().max() == 0
    assert scale.shape == (5,)


def test_tokens_after_the_last_group_are_zero_and_so_are_their_scales(facade):
    x, groups = torch.randn(5, 8), torch.tensor([2, 4], dtype=torch.int32)
    smooth = torch.rand(2) + 0.5
    y, scale = facade.npu_swiglu_quant(x, smooth_scales=smooth, group_index=groups, quant_mode=1)
    for row in range(4):
        wide = torch.tensor(swiglu(x[row].tolist(), False)) * smooth[row // 2]
        torch.testing.assert_close(scale[row], 127 / wide.abs().max())
        assert (y[row] - wide * scale[row]).abs().max() <= 0.51
    assert scale[4] == 0
    assert y[4].abs().max() == 0


@pytest.mark.parametrize("dst_type", [None, torch.quint4x2])
def test_tokens(facade, dst_type):
    x = torch.randn(2, 3, 8, dtype=torch.float16)
    y, scale = facade.npu_swiglu_quant(x, quant_mode=1, dst_type=dst_type)
    wide = torch.tensor([swiglu(row, False) for row in x.float().reshape(6, 8).tolist()]).reshape(2, 3, 4)
    largest = 127 if dst_type is None else 7
    torch.testing.assert_close(scale, largest / wide.abs().amax(-1))
    if dst_type is not None:
        y = torch.stack(((y & 15 ^ 8) - 8, y >> 4), -1).flatten(-2)
    assert (y - wide * scale.unsqueeze(-1)).abs().max() <= 0.51


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, torch.float32])
def test_product_of_integers(facade, mode, dynamic, bias_dtype):
    x = torch.randint(-90, 90, (5, 8), dtype=torch.int32)
    weight, activation, quant = torch.rand(2, 8) / 10, torch.rand(5), torch.rand(2, 4) + 0.5
    bias = None if bias_dtype is None else (torch.randn(2, 8) * 5).to(bias_dtype)
    counts = torch.tensor([2, 2])
    y, scale = facade.npu_dequant_swiglu_quant(
        x,
        weight_scale=weight,
        activation_scale=activation,
        bias=bias,
        quant_scale=quant / (1 if dynamic else 20),
        quant_offset=None if dynamic else quant,
        group_index=counts,
        activate_left=True,
        quant_mode=int(dynamic),
        swiglu_mode=mode,
        clamp_limit=3.0,
    )
    for row in range(4):
        wide = x[row].float()
        if bias_dtype == torch.int32:
            wide = wide + bias[row // 2]
        wide = wide * weight[row // 2] * activation[row]
        if bias_dtype == torch.float32:
            wide = wide + bias[row // 2]
        out = torch.tensor(swiglu(wide.tolist(), True, mode, 3.0))
        if dynamic:
            out = out * quant[row // 2]
            torch.testing.assert_close(scale[row], out.abs().max() / 127)
            out = out / scale[row]
        else:
            out = out / (quant[row // 2] / 20) + quant[row // 2]
        assert (y[row] - out.clamp(-128, 127)).abs().max() <= 0.51
    assert y[4].abs().max() == 0


def test_floats_without_groups(facade):
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    y, scale = facade.npu_dequant_swiglu_quant(x, quant_mode=1)
    wide = torch.tensor([swiglu(row, False) for row in x.float().tolist()])
    torch.testing.assert_close(scale, wide.abs().amax(-1) / 127)
    y, scale = facade.npu_dequant_swiglu_quant(x, quant_mode=1, dst_type=facade.float8_e4m3fn)
    torch.testing.assert_close(y.float() * scale.unsqueeze(-1), wide, rtol=0.07, atol=0.01)
    y, scale = facade.npu_dequant_swiglu_quant(x[:2], activate_dim=0, dst_type=facade.float4_e2m1fn_x2)
    assert (y.shape, scale.shape) == ((1, 4), (1,))


WHOLE = torch.ones(2, 8, dtype=torch.int32)
REFUSED = [
    ("npu_swiglu_quant", (WHOLE.half(),), {"quant_mode": 2}, "quant_mode only support 0"),
    ("npu_swiglu_quant", (WHOLE.half(),), {"group_list_type": 2}, "group_list_type only support 0"),
    ("npu_swiglu_quant", (WHOLE.half(),), {"dst_type": torch.int32}, "dtype must be torch.int8"),
    ("npu_swiglu_quant", (WHOLE.half(),), {}, "smooth_scales and offsets should have the same shape"),
    ("npu_swiglu_quant", (WHOLE[:, :7].half(),), {"quant_mode": 1}, "x last dim size should be even"),
    ("npu_swiglu_quant", (WHOLE[:, :6].half(),), {"quant_mode": 1, "dst_type": torch.quint4x2}, "must be divded by 4"),
    ("npu_swiglu_quant", (torch.ones(2, 8194),), {"quant_mode": 1}, "should not be larger than 8192"),
    ("npu_dequant_swiglu_quant", (WHOLE[0],), {}, "x dim should larger than 1"),
    ("npu_dequant_swiglu_quant", (WHOLE,), {}, "an x of int32 needs weight_scale"),
    ("npu_dequant_swiglu_quant", (WHOLE.half(),), {"weight_scale": torch.ones(8)}, "only for an x of int32"),
    ("npu_dequant_swiglu_quant", (WHOLE.half(),), {"swiglu_mode": 3}, "swiglu_mode only support 0, 1 or 2"),
    ("npu_dequant_swiglu_quant", (WHOLE.half(),), {"clamp_limit": 0.0}, "clamp_limit should be positive finite"),
    ("npu_dequant_swiglu_quant", (WHOLE.half(),), {"glu_alpha": math.inf}, "glu_alpha should be finite"),
    ("npu_dequant_swiglu_quant", (WHOLE.half(),), {"round_mode": 5}, "round_mode only support"),
    ("npu_dequant_swiglu_quant", (WHOLE.half(),), {"swiglu_mode": 1}, "swiglu_mode 1 needs activate_left=True"),
    ("npu_dequant_swiglu_quant", (WHOLE[:, :7].half(),), {}, "x last dim should be even"),
]


@pytest.mark.parametrize(("name", "arguments", "options", "text"), REFUSED)
def test_refused(facade, name, arguments, options, text):
    with pytest.raises(RuntimeError, match=text):
        getattr(facade, name)(*arguments, **options)


def rope(row, cos, sin):
    half = len(row) // 2
    turned = [-value for value in row[half:]] + row[:half]
    return [a * c + b * s for a, b, c, s in zip(row, turned, cos, sin, strict=True)]


@pytest.mark.parametrize("mode", ["contiguous", "page"])
def test_keys_and_values_go_into_caches(facade, mode):
    x = torch.randn(2, 3, 16 + 4 + 4)
    cos, sin = torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 4)
    caches = [torch.zeros(2, 8, 1, 4, dtype=torch.int8) for _ in range(2)]
    where = torch.tensor([1, 5] if mode == "contiguous" else [15, 0, 3, 7, 9, 2], dtype=torch.int32)
    scales, offset = (torch.rand(4) / 20 + 0.01, torch.rand(4) / 20 + 0.01), torch.randn(4)
    half = (x.half(), cos.half(), sin.half())
    q, k, v, k_cache, _ = facade.npu_rope_quant_kvcache(
        *half, *caches, where, *scales, [16, 4, 4], offset_k=offset, kv_output=True, cache_mode=mode
    )
    assert k_cache is caches[0]
    assert (q.shape, k.shape, v.shape) == ((2, 3, 4, 4), (2, 3, 1, 4), (2, 3, 1, 4))
    flat = [cache.reshape(-1, 4) for cache in caches]
    for batch in range(2):
        for token in range(3):
            row, angles = half[0][batch, token].tolist(), [part[batch, token, 0].tolist() for part in half[1:]]
            key, value = rope(row[16:20], *angles), row[20:]
            place = 8 * batch + where[batch] + token if mode == "contiguous" else where[3 * batch + token]
            wide = (torch.tensor(key) / scales[0] + offset).clamp(-128, 127)
            assert (flat[0][place] - wide).abs().max() <= 0.51
            wide = (torch.tensor(value) / scales[1]).clamp(-128, 127)
            assert (flat[1][place] - wide).abs().max() <= 0.51
            turned = torch.tensor(rope(row[4:8], *angles))
            torch.testing.assert_close(q[batch, token, 1].float(), turned, rtol=1e-2, atol=1e-2)
    with pytest.raises(RuntimeError, match="is not simulated"):
        facade.npu_rope_quant_kvcache(*half, *caches, where, *scales, [16, 4, 4], quant_mode=1)


def test_integers_go_into_caches(facade):
    whole = torch.randint(-9, 9, (2, 24), dtype=torch.int32)
    table = torch.ones(2, 1, 4, dtype=torch.float16)
    caches = [torch.zeros(2, 8, 1, 4, dtype=torch.int8) for _ in range(2)]
    where, scale = torch.tensor([0, 7], dtype=torch.int32), torch.ones(4)
    weight, rows = torch.rand(24), torch.rand(2)
    results = facade.npu_dequant_rope_quant_kvcache(
        whole, table, table * 0, *caches, where, scale / 9, scale / 9, [16, 4, 4],
        weight_scale=weight, activation_scale=rows, bias=torch.ones(24, dtype=torch.int32),
    )  # fmt: skip
    wide = (whole + 1) * weight * rows[:, None]
    assert results[0].shape == (2, 4, 4)
    assert results[1].numel() == 0
    assert (caches[1][[0, 1], [0, 7], 0] - wide[:, 20:] * 9).abs().max() <= 0.51
    with pytest.raises(RuntimeError, match="x dtype should be Int32"):
        facade.npu_dequant_rope_quant_kvcache(
            whole.half(), table, table, *caches, where, scale, scale, [16, 4, 4], weight_scale=weight
        )
