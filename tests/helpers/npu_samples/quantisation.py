"""Sample calls of quantisation and compression.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    return _given_scales() | _dynamic() | _norms() | _activations() | _caches() | _casts()


def _given_scales() -> dict[str, Sample]:
    x, scale = torch.randn(4, 16, dtype=torch.float16), torch.rand(16) + 0.5
    ends, group_scale = torch.tensor([1, 4], dtype=torch.int32), torch.rand(2, 16) + 0.5
    whole = torch.randint(-100, 100, (4, 16), dtype=torch.int32)
    half = torch.randn(2, 3, 16, dtype=torch.float16)
    long, points = torch.randn(3, 128, dtype=torch.float16), torch.zeros(16, dtype=torch.int32)
    return {
        "npu_rotate_quant": ((long, torch.randn(32, 32, dtype=torch.float16)), {}),
        "_quantize_per_channel_impl.out": ((x, scale.half(), points, 1, torch.qint32), {"result": whole.clone()}),
        "_quantize_per_tensor_impl.out": ((x, scale[:1].half(), points[:1], torch.qint32), {"result": whole.clone()}),
        "npu_quantize": ((x, scale.half(), None, torch.qint8, -1), {}),
        "npu_group_quant": ((x, group_scale.half(), ends), {"dst_dtype": torch.qint8}),
        "npu_anti_quant": ((whole.to(torch.int8), scale), {"dst_dtype": torch.bfloat16}),
        "npu_trans_quant_param": ((scale, torch.randn(16) * 100), {}),
        "npu_dequant_bias": ((whole, scale, torch.rand(4), torch.randn(16)), {"output_dtype": torch.float16}),
        "npu_convert_weight_to_int4pack": ((whole % 16 - 8,), {}),
        "npu_kronecker_quant": ((half, torch.randn(3, 3).half(), torch.randn(16, 16).half()), {"clip_ratio": 0.9}),
        "_npu_quantize_per_tensor": ((x, scale.half(), torch.ones(16, dtype=torch.int8), whole.to(torch.int8)), {}),
    }


def _dynamic() -> dict[str, Sample]:
    x, smooth = torch.randn(4, 16, dtype=torch.bfloat16), torch.rand(2, 16, dtype=torch.bfloat16)
    groups = {"smooth_scales": smooth, "group_index": torch.tensor([1, 4], dtype=torch.int32)}
    return {
        "npu_dynamic_quant": ((x,), groups | {"dst_type": torch.quint4x2}),
        "npu_dynamic_quant_asymmetric": ((x,), groups),
        "npu_dynamic_block_quant": ((x,), {"dst_type": 1}),
    }


def _norms() -> dict[str, Sample]:
    x, gamma = torch.randn(4, 16, dtype=torch.bfloat16), torch.randn(16, dtype=torch.bfloat16)
    scale, offset = torch.ones(1, dtype=torch.bfloat16) / 8, torch.ones(1, dtype=torch.int8)
    place = torch.zeros(4, 16, dtype=torch.int8)
    return {
        "npu_add_rms_norm_quant": ((x, x.flip(0), gamma, torch.rand(16) + 0.5, None), {}),
        "npu_add_rms_norm_dynamic_quant": ((x, x.flip(0), gamma), {"output_mask": [True, True]}),
        "npu_rms_norm_quant": ((x, gamma, gamma, scale, offset), {}),
        "_npu_quant_rms_norm": ((x, gamma, gamma, scale, offset, place), {}),
    }


def _activations() -> dict[str, Sample]:
    x, whole = torch.randn(4, 16, dtype=torch.float16), torch.randint(-100, 100, (4, 16), dtype=torch.int32)
    groups = torch.tensor([1, 3])
    static = {"smooth_scales": torch.rand(2, 8), "offsets": torch.rand(2, 8)}
    dynamic = {"weight_scale": torch.rand(2, 16), "activation_scale": torch.rand(4), "quant_mode": 1}
    return {
        "npu_swiglu_quant": ((x,), static | {"group_index": groups.to(torch.int32), "group_list_type": 1}),
        "npu_dequant_swiglu_quant": ((whole,), dynamic | {"group_index": groups, "activate_left": True}),
    }


def _caches() -> dict[str, Sample]:
    cache, update = torch.zeros(2, 5, 16, dtype=torch.int8), torch.randn(2, 1, 16, dtype=torch.float16)
    scatter = (cache, torch.tensor([1, 3], dtype=torch.int32), update, torch.rand(16) + 0.5)
    keys, table = torch.zeros(2, 5, 1, 8, dtype=torch.int8), torch.randn(2, 1, 1, 8, dtype=torch.float16)
    places, scales = torch.tensor([0, 4], dtype=torch.int32), (torch.rand(8) * 20, torch.rand(8) * 20)
    x, whole = torch.randn(2, 1, 32, dtype=torch.float16), torch.randint(-9, 9, (2, 1, 32), dtype=torch.int32)
    after = (table, table.flip(3), keys, keys.clone(), places, *scales, [16, 8, 8])
    return {
        "npu_quant_scatter": (scatter, {}),
        "npu_quant_scatter_": (scatter, {}),
        "npu_rope_quant_kvcache": ((x, *after), {"kv_output": True}),
        "npu_dequant_rope_quant_kvcache": ((whole, *after), {"weight_scale": torch.rand(32)}),
    }


def _casts() -> dict[str, Sample]:
    x, long = torch.randn(4, 16, dtype=torch.float16), torch.randn(32768)
    pdf, mantissa, fixed, var = torch.zeros(256, dtype=torch.int32), *map(torch.zeros, (24576, 4096, 4096))
    split = (mantissa, fixed, var, pdf)
    return {
        "npu_dtype_cast_": ((torch.zeros(4, 16), x), {}),
        "npu_dtype_cast_backward": ((x, torch.float32), {}),
        "_npu_dtype_cast": ((x, torch.bfloat16), {}),
        "_npu_dtype_cast_backward": ((x, torch.float32), {}),
        "npu_hans_encode.out": ((long, True), {"out": [pdf, mantissa, fixed, var]}),
        "npu_hans_decode.out": (split, {"out": long}),
    }
