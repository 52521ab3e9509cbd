"""Sample calls of softmax operators.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x, mask = torch.randn(1, 2, 32, 32), torch.rand(1, 1, 32, 32) > 0.5
    logits, labels = torch.randn(4, 8), torch.rand(4, 8)
    return {
        "npu_scaled_masked_softmax": ((x, mask, 0.5), {}),
        "npu_scaled_masked_softmax_backward": ((x, x.softmax(-1), mask, 0.5, False), {}),
        "npu_softmax_cross_entropy_with_logits": ((logits, labels), {}),
        "npu_softmax_cross_entropy_with_logits_backward": ((torch.randn(4), logits, labels), {}),
    }
