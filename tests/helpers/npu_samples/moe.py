"""Sample calls of the operators for mixtures of experts.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    return _permutation() | _with_routing_map() | _routing() | _gating()


def _permutation() -> dict[str, Sample]:
    tokens, indices = torch.randn(4, 8, dtype=torch.float16), torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1]])
    rows = torch.argsort(torch.argsort(indices.reshape(-1), stable=True)).to(torch.int32)
    permuted, probs = torch.randn(8, 8, dtype=torch.float16), torch.rand(4, 2, dtype=torch.float16)
    return {
        "npu_moe_token_permute": ((tokens, indices), {}),
        "npu_moe_token_permute_grad": ((tokens, permuted, indices, rows), {}),
        "npu_moe_token_permute_grad_v2": ((permuted, rows, 4, torch.float16, 2), {}),
        "npu_moe_token_unpermute": ((permuted, rows, probs), {}),
        "_npu_moe_token_unpermute": ((permuted, rows, probs), {}),
        "npu_moe_token_unpermute_grad": ((permuted, tokens, rows, probs), {}),
        "npu_moe_token_unpermute_grad_v2": (
            (tokens, rows, 8, torch.float16),
            {"probs": probs, "permuted_tokens": permuted},
        ),
    }


def _with_routing_map() -> dict[str, Sample]:
    tokens, permuted = torch.randn(3, 8, dtype=torch.float16), torch.randn(6, 8, dtype=torch.float16)
    routing = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 1, 1]], dtype=torch.bool)
    probs, grad = torch.rand(3, 3, dtype=torch.float16), torch.randn(6, dtype=torch.float16)
    rows = torch.tensor([0, 4, 1, 2, 3, 5], dtype=torch.int32)
    keywords = {"probs": probs, "routing_map": routing}
    return {
        "npu_moe_token_permute_with_routing_map": ((tokens, routing), {"probs": probs, "num_out_tokens": 6}),
        "npu_moe_token_permute_with_routing_map_grad": ((permuted, grad, rows, routing, 3, 3, False), {}),
        "npu_moe_token_unpermute_with_routing_map": ((permuted, rows, [3, 8]), keywords),
        "_npu_moe_token_unpermute_with_routing_map": ((permuted, rows, [3, 8]), keywords),
        "npu_moe_token_unpermute_with_routing_map_grad": (
            (tokens, rows, rows, routing, permuted, probs, False, [3, 8]),
            {},
        ),
    }


def _routing() -> dict[str, Sample]:
    x, experts = torch.randn(4, 16, dtype=torch.float16), torch.tensor([[2, 0], [1, 2], [0, 3], [2, 1]]).int()
    slots = torch.arange(8, dtype=torch.int32).view(2, 4).T.contiguous()
    rows, scales = torch.randn(8, 16, dtype=torch.float16), torch.rand(4, 2, dtype=torch.float16)
    received = torch.tensor([[1, 2], [2, 1]])
    table = torch.tensor([[2, 0, 1], [1, 1, 0], [2, 1, 0], [1, 0, 0]], dtype=torch.int32)
    options = {"expert_num": 4, "expert_tokens_num_type": 1, "expert_tokens_num_flag": True, "quant_mode": 1}
    return {
        "npu_moe_init_routing": ((x, slots, experts, 3), {}),
        "npu_moe_init_routing_v2": ((x, experts), {**options, "active_expert_range": [1, 3]}),
        "npu_moe_init_routing_quant": ((x, experts), {"active_num": 0, "expert_num": 4, "expert_tokens_num_mode": 2}),
        "npu_moe_finalize_routing": (
            (rows, x, x.flip(0), torch.randn(4, 16, dtype=torch.float16), scales, torch.randperm(8).int(), experts),
            {},
        ),
        "npu_moe_compute_expert_tokens": ((experts.reshape(-1).sort().values, 4), {}),
        "npu_moe_re_routing": ((torch.randn(6, 16, dtype=torch.float16), received), {}),
        "npu_moe_update_expert": (
            (experts, table),
            {
                "expert_scales": torch.rand(4, 2),
                "pruning_threshold": torch.tensor([0.3, 0.5]),
                "local_rank_id": 1,
                "world_size": 2,
            },
        ),
    }


def _gating() -> dict[str, Sample]:
    x, bias = torch.randn(4, 16), torch.randn(16)
    groups = {"k_group": 2, "group_count": 4, "group_select_mode": 1, "norm_type": 1, "out_flag": True}
    fused = {"activation_type": "activation_sigmoid", "group_num": 4, "group_topk": 2, "n": 2, "k": 3}
    return {
        "npu_moe_gating_top_k": ((x, 3), {"bias": bias, **groups}),
        "npu_moe_gating_top_k_backward": (
            (torch.rand(4, 16), torch.randn(4, 2), torch.tensor([[1, 3], [0, 2], [5, 4], [7, 15]]).int()),
            {"norm_type": 1},
        ),
        "npu_moe_gating_top_k_softmax": ((x.half(), torch.tensor([False, True, False, False]), 3), {}),
        "npu_moe_gating_top_k_softmax_v2": ((x.half(),), {"k": 3, "output_softmax": True}),
        "_npu_group_topk": ((x.half(), 2, 4, 2), {}),
        "npu_fused_add_topk_div": ((x, bias), fused),
        "npu_fused_add_topk_div.out": (
            (x, bias),
            {**fused, "y": torch.zeros(4, 3), "indices": torch.zeros(4, 3, dtype=torch.int32)},
        ),
        "npu_top_k_top_p": ((x, torch.full((4,), 0.7), torch.tensor([3, 1, 16, 5]).int()), {}),
    }
