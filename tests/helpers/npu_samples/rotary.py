"""Sample calls of rotary embeddings and operators that contain one.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def kv_rope_cache():
    kv, gamma = torch.randn(2, 1, 1, 576).bfloat16(), torch.randn(512).bfloat16()
    cos, sin = torch.randn(2, 1, 1, 64).bfloat16(), torch.randn(2, 1, 1, 64).bfloat16()
    caches = torch.zeros(2, 16, 1, 64).bfloat16(), torch.zeros(2, 16, 1, 512).bfloat16()
    return (kv, gamma, cos, sin, torch.tensor([3, -1]), *caches), {"cache_mode": "PA_NZ", "is_output_kv": True}


def qkv_rope_cache():
    qkv, gamma = torch.randn(4, 4 * 32).half(), torch.randn(32).half()
    cos, sin, q_out = torch.randn(4, 32).half(), torch.randn(4, 32).half(), torch.zeros(4, 64).half()
    caches = torch.zeros(2, 2, 4, 16).half(), torch.zeros(2, 2, 4, 16).half()
    index = torch.tensor([3, 0, 5, -1])
    sizes = [2, 2, 4, 32], [2, 1, 1]
    return (qkv, gamma, gamma, cos, sin, index, q_out, *caches, *sizes), {"is_output_qkv": True}


def mla_prolog(hidden=7168):
    tokens = torch.randn(2, hidden).bfloat16()
    weights = (
        torch.randn(hidden, 1536).bfloat16() / 64,
        torch.randn(1536, 192).bfloat16() / 32,
        torch.randn(1, 128, 512).bfloat16() / 8,
        torch.randn(hidden, 576).bfloat16() / 64,
    )
    gammas = torch.rand(1536).bfloat16(), torch.rand(512).bfloat16()
    angles = torch.randn(2, 64).bfloat16(), torch.randn(2, 64).bfloat16()
    caches = torch.zeros(2, 16, 1, 512).bfloat16(), torch.zeros(2, 16, 1, 64).bfloat16()
    return (tokens, *weights, *gammas, *angles), torch.tensor([3, 17]), caches


def samples() -> dict[str, Sample]:
    x, angle = torch.randn(2, 3, 8, 64).half(), torch.randn(1, 1, 8, 64).half()
    query, key = torch.randn(2, 3, 4, 64).half(), torch.randn(2, 3, 1, 64).half()
    cos, sin = torch.randn(2, 3, 1, 64).half(), torch.randn(2, 3, 1, 64).half()
    flat, cache = torch.randn(3, 64).half(), torch.randn(5, 32).half()
    positions = torch.tensor([4, 0, 2])
    kv, fused = kv_rope_cache(), qkv_rope_cache()
    quant = (torch.randn(2, 3, 64).half(), cos[..., :16], sin[..., :16], *torch.zeros(2, 3, 5, 1, 16).char()[:2])
    quant += (torch.tensor([0, 2], dtype=torch.int32), torch.rand(16), torch.rand(16), [32, 16, 16])
    old, index, caches = mla_prolog()
    new, _, _ = mla_prolog(1024)
    return {
        "npu_rotary_mul": ((x, angle, angle.flip(3)), {}),
        "npu_rotary_mul_backward": ((x, x.flip(0), angle, angle.flip(3)), {}),
        "npu_interleave_rope": ((torch.randn(2, 4, 3, 64).half(), cos.transpose(1, 2), sin.transpose(1, 2)), {}),
        "npu_apply_rotary_pos_emb": ((query, key, cos, sin), {}),
        "npu_mrope": ((positions, flat, flat.flip(0), cache, 32), {}),
        "_npu_rotary_embedding": ((positions, flat, flat.flip(0), 32, cache, True), {}),
        "npu_kv_rmsnorm_rope_cache": kv,
        "npu_kv_rmsnorm_rope_cache_v2": kv,
        "npu_kv_rmsnorm_rope_cache_v2_functional": kv,
        "npu_qkv_rms_norm_rope_cache": fused,
        "npu_qkv_rms_norm_rope_cache_functional": fused,
        "npu_rope_quant_kvcache": (quant, {"kv_output": True}),
        "npu_mla_prolog": ((*old, index, *caches), {}),
        "npu_mla_prolog_v2": ((*old, index, *caches), {}),
        "npu_mla_prolog_v3": ((*new, *caches), {"cache_index": index, "query_norm_flag": True}),
        "npu_mla_prolog_v3_functional": ((*new, *caches), {"cache_index": index}),
    }
