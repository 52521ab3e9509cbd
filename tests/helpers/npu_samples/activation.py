"""Sample calls of activations and their gradients.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x, grad = torch.randn(4, 16, dtype=torch.float16), torch.randn(4, 16, dtype=torch.float16)
    half = torch.randn(4, 8, dtype=torch.float16)
    both = {
        name: ((x,), {})
        for name in (
            "npu_swiglu", "npu_geglu", "npu_gelu", "npu_fast_gelu", "npu_silu", "fast_gelu", "npu_mish", "npu_silu_",
            "npu_gelu_mul",
        )
    }  # fmt: skip
    return both | {
        "npu_clipped_swiglu": ((x,), {"group_index": torch.tensor([1, 2])}),
        "npu_swiglu_backward": ((half, x), {}),
        "npu_geglu_grad": ((half, x, half), {}),
        "npu_gelu_backward": ((grad, x), {}),
        "npu_fast_gelu_backward": ((grad, x), {}),
        "npu_silu_backward": ((grad, x, x), {}),
        "npu_mish_backward": ((grad, x), {}),
        "npu_swiglu_group_quant_backward": (
            (half, x),
            {"weight": torch.rand(4, 1), "y_origin": half, "group_index": torch.tensor([1, 2]), "clamp_limit": 1.0},
        ),
    }
