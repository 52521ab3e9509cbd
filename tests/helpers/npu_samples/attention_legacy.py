"""Sample calls of the older fused attention operators.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16) * 0.1


def samples() -> dict[str, Sample]:
    query, mask = half(2, 2, 4, 8), half(2, 1, 1, 4)
    weights, kept = torch.rand(2, 2, 4, 4).half().softmax(-1), torch.ones(64, dtype=torch.uint8)
    backward = (half(8, 16), weights, query, query, query, kept, 0.3, 1.0)
    x, kernels, biases = half(32, 256), [half(256, 256) for _ in range(4)], [half(256) for _ in range(4)]
    heads, scores = [half(2, 16, 16, 16) for _ in range(3)], torch.rand(2, 16, 16, 16).softmax(-1)
    sizes = (16, 16, 16, 16, 0.0, True)
    bits = torch.full((2 * 16 * 16 * 16 // 8,), 255, dtype=torch.uint8)
    return {
        "npu_attn_softmax_": ((torch.randn(2, 3, 4),), {}),
        "npu_attn_softmax_backward_": (
            (torch.rand(2, 3, 4).softmax(-1), half(2, 3, 5).float(), half(2, 4, 5).float()),
            {},
        ),
        "npu_fused_attention_score": ((query, query, query, mask, 0.3, 1.0), {}),
        "npu_fused_attention_score_fwd": ((query, query, query, mask, 0.3, 1.0), {}),
        "npu_fused_attention_score_backward": (backward, {}),
        "npu_fused_attention_score_grad": (backward, {}),
        "npu_multi_head_attention": (
            (x, x, x, *kernels[:3], half(2, 1, 16, 16), kernels[3], *biases, None, *sizes),
            {},
        ),
        "npu_multi_head_attention_backward": (
            (x, x, x, *kernels, *biases, *heads, scores, scores.half(), x, x, bits, *sizes),
            {},
        ),
        "npu_fused_attention_layernorm_qkv_fwd": ((x, *kernels[:3], *biases[:2], *biases[:3], 16, 16), {}),
        "npu_fused_attention_qkv_grad": ((x, x, x, *kernels[:3], x, x), {}),
    }
