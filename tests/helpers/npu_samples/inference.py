"""Sample calls of attention for inference, KV caches and torch.ops.atb.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample

HALF = torch.float16


def samples() -> dict[str, Sample]:
    return fused() | flash() | paged() | transfers() | latent() | updates()


def fused() -> dict[str, Sample]:
    query, key = torch.randn(2, 4, 8, 16, dtype=HALF), torch.randn(2, 2, 12, 16, dtype=HALF)
    heads = {"input_layout": "BNSD_BSND", "num_key_value_heads": 2}
    first = heads | {"num_heads": 4, "scale": 0.25, "softmax_lse_flag": True}
    second = heads | {"num_query_heads": 4, "softmax_scale": 0.25, "return_softmax_lse": True}
    out = {
        "out": [torch.zeros(2, 8, 4, 16, dtype=HALF), torch.zeros(2, 4, 8, 1)],
        "workspace": torch.zeros(1, dtype=HALF),
    }
    names = {"input_layout": "BNSD", "num_key_value_heads": 2}
    three = (query, key, key)
    return {
        "npu_fused_infer_attention_score": (three, first),
        "npu_fused_infer_attention_score.out": (three, first | out),
        "npu_fused_infer_attention_score_v2": (three, second),
        "npu_fused_infer_attention_score_v2.out": (three, second | out),
        "_npu_fused_infer_attention_score_get_max_workspace": (three, first),
        "_npu_fused_infer_attention_score_v2_get_max_workspace": (three, second),
        "_npu_fused_infer_attention_score_infer_output": ((query, key), names | {"num_heads": 4}),
        "_npu_fused_infer_attention_score_v2_infer_output": ((query, key), names | {"num_query_heads": 4}),
        "npu_prompt_flash_attention": (three, names | {"num_heads": 4, "scale_value": 0.25}),
        "npu_incre_flash_attention": (
            (query[:, :, :1].contiguous(), key, key),
            names | {"num_heads": 4, "scale_value": 0.25, "actual_seq_lengths": [3, 12]},
        ),
    }


def flash() -> dict[str, Sample]:
    tokens, key = torch.randn(9, 4, 16, dtype=HALF), torch.randn(9, 2, 16, dtype=HALF)
    lengths, out = torch.tensor([4, 5], dtype=torch.int32), torch.zeros(9, 4, 16, dtype=HALF)
    mask = torch.triu(torch.full((16, 16), -10000.0, dtype=HALF), 1)
    cache, table = torch.randn(6, 4, 2, 16, dtype=HALF), torch.tensor([[1, 3], [0, 5]], dtype=torch.int32)
    three = (tokens, key, key)
    kept = {"mask": mask, "mask_type": 1, "scale_value": 0.25, "num_heads": 4, "num_kv_heads": 2, "out": out}
    return {
        "_npu_flash_attention": ((*three, mask, lengths, 0.25, 4, 2, out), {}),
        "_npu_flash_attention_v2.out": ((*three, [4, 5]), kept),
        "_npu_flash_attention_v3": ((*three, mask, lengths, 0.25, 4, 2), {"out": out}),
        "_npu_flash_attention_unpad": ((*three, lengths, 0.25, 4, 2, out), {}),
        "_npu_flash_attention_unpad_v2": ((*three, lengths, 0.25, 4, 2), {"out": out}),
        "_npu_flash_attention_qlens": ((tokens, cache, cache, table, mask, lengths, lengths + 2, 2, 4, 0.25, out), {}),
        "_npu_flash_attention_prefix_v2.out": (
            (tokens, cache, cache, table, mask, [4, 5], [6, 7]),
            {"num_kv_heads": 2, "num_heads": 4, "scale_value": 0.25, "out": out},
        ),
    }


def paged() -> dict[str, Sample]:
    query, out = torch.randn(2, 4, 16, dtype=HALF), torch.zeros(2, 4, 16, dtype=HALF)
    cache, table = torch.randn(6, 4, 2, 16, dtype=HALF), torch.tensor([[1, 3], [0, 5]], dtype=torch.int32)
    lengths = torch.tensor([6, 7], dtype=torch.int32)
    mask = torch.triu(torch.full((16, 16), -10000.0, dtype=HALF), 1)
    ones, scales = torch.ones(2, dtype=torch.int32), torch.full((4,), 0.01)
    stored = (cache * 20).round().to(torch.int8)
    tail = {"value_cache": cache, "num_kv_heads": 2, "num_heads": 4, "scale_value": 0.25, "out": out}
    plain = (query, cache, cache, 2, 4, 0.25, table, lengths, out)
    split = (query, cache, cache, table, lengths)
    quant = ((query * 20).round().to(torch.int8), stored, stored, 2, 4, 0.25, table, lengths, 3, 1, scales, scales, out)
    return {
        "_npu_paged_attention": (plain, {}),
        "_npu_paged_attention_get_workspace": (plain, {}),
        "_npu_paged_attention_v2.out": ((query, cache, table, [6, 7]), tail),
        "_npu_paged_attention_v2_get_workspace": ((query, cache, table, [6, 7]), tail),
        "_npu_paged_attention_mla": ((query, cache, 2, 4, 0.25, table, lengths, 8, out[..., :8].contiguous()), {}),
        "_npu_paged_attention_splitfuse": ((*split, torch.zeros(2, 8, dtype=HALF), ones, 2, 4, 0.25, out), {}),
        "_npu_paged_attention_splitfuse_v2": ((*split, mask, ones, 2, 4, 0.25), {"out": out}),
        "_npu_paged_attention_quant": (quant, {}),
    }


def transfers() -> dict[str, Sample]:
    tokens, cache = torch.randn(5, 2, 16, dtype=HALF), torch.zeros(6, 4, 2, 16, dtype=HALF)
    slots = torch.tensor([3, 9, -1, 0, 17], dtype=torch.int32)
    table, lengths = torch.tensor([[1, 3], [0, 5]], dtype=torch.int32), torch.tensor([2, 3], dtype=torch.int32)
    pair, caches = (tokens, tokens), (cache, cache.clone())
    full = (torch.randn(6, 4, 2, 16, dtype=HALF), torch.randn(6, 4, 2, 16, dtype=HALF))
    return {
        "npu_scatter_pa_kv_cache": ((*pair, *caches, slots), {"cache_mode": "Norm"}),
        "npu_scatter_pa_kv_cache_functional": ((*pair, *caches, slots), {"cache_mode": "Norm"}),
        "npu_scatter_pa_cache.value": ((tokens, slots), {"key_cache": cache}),
        "_npu_reshape_and_cache": ((*pair, *caches, slots), {}),
        "_npu_reshape_and_cache_siso": ((tokens, cache, slots), {}),
        "npu_gather_pa_kv_cache": ((*full, table, lengths, tokens, tokens.clone()), {}),
        "npu_gather_pa_kv_cache_functional": ((*full, table, lengths, tokens, tokens.clone()), {}),
        "npu_paged_cache_load.out": ((*full, table, lengths), {"key": tokens, "value": tokens.clone()}),
    }


def latent() -> dict[str, Sample]:
    query = (torch.randn(2, 4, 512, dtype=HALF), torch.randn(2, 4, 64, dtype=HALF))
    caches = (torch.randn(6, 4, 1, 512, dtype=HALF), torch.randn(6, 4, 1, 64, dtype=HALF))
    mla = (*query, *caches, torch.tensor([[1, 3], [0, 5]], dtype=torch.int32), [6, 7], 4, 0.05, 1)
    calc = {"calc_type": "calc_type_ring"}
    output, lse = torch.zeros(2, 4, 512, dtype=HALF), torch.zeros(2, 4, 1, dtype=HALF)
    parts = [torch.randn(6, 16, dtype=HALF) for _ in range(3)]
    ring = (torch.randn(4, 2, 32, dtype=HALF), torch.rand(2, 2, 4, 8), torch.rand(2, 2, 4, 8) + 0.5)  # 2 heads
    return {
        "npu_multi_head_latent_attention": (mla, {}),
        "npu_multi_head_latent_attention.out": (mla, {"output": output}),
        "npu_multi_head_latent_attention.lse": ((*mla, True), calc),
        "npu_multi_head_latent_attention.lse_out": ((*mla, True), calc | {"output": output, "lse": lse}),
        "_npu_multi_head_latent_attention_get_workspace.lse": ((*mla, True), calc),
        "npu_attention_update": (([torch.randn(6) for _ in range(3)], parts, 1), {}),
        "npu_ring_attention_update": ((*ring, *ring), {}),
    }


def updates() -> dict[str, Sample]:
    data, places = torch.randn(2, 3, 8, 4, dtype=HALF), torch.tensor([1, 5])
    at = (data, places, torch.randn(2, 3, 2, 4, dtype=HALF), -2)
    nd = (torch.randn(3, 4), torch.tensor([[0, 1], [2, 3]]), torch.randn(2))
    long = [torch.arange(4) for _ in range(4)]
    step = (long[0], torch.tensor([[7], [8]]), *long[1:], torch.arange(12).reshape(4, 3), 4, 2, 4)
    return {
        "scatter_update": (at, {}),
        "scatter_update_": (at, {}),
        "npu_scatter_nd_update": (nd, {}),
        "npu_scatter_nd_update_": (nd, {}),
        "npu_advance_step_flashattn": (step, {}),
    }
