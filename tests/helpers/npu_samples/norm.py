"""Sample calls of normalisations.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x, gamma = torch.randn(4, 16, dtype=torch.bfloat16), torch.randn(16, dtype=torch.bfloat16)
    mean, rstd = torch.randn(4, 1), torch.rand(4, 1)
    image, weight = torch.randn(2, 4, 3), torch.randn(4)
    two, pair = (x, x.flip(0), gamma), torch.rand(2, 2)
    return {
        "npu_rms_norm": ((x, gamma), {}),
        "npu_add_rms_norm": (two, {}),
        "npu_add_rms_norm_cast": (two, {}),
        "npu_add_rms_norm_v2": (two, {}),
        "npu_add_rms_norm_v2_functional": (two, {}),
        "npu_gemma_rms_norm": ((x, gamma), {}),
        "npu_rms_norm_backward": ((x.flip(0), x, gamma, rstd), {}),
        "npu_deep_norm": ((x, x.flip(0), gamma, gamma), {}),
        "npu_deep_norm_backward": ((x, x, x.flip(0), gamma, mean, rstd), {}),
        "npu_add_layer_norm": ((x, x.flip(0), gamma, gamma), {"additional_output": True}),
        "npu_add_layer_norm_backward": ((x, x, x.flip(0), rstd, mean, gamma, x), {}),
        "npu_layer_norm_eval": ((x, [16], gamma, gamma), {}),
        "npu_layernorm_grad": ((x, x.flip(0), [16], mean, rstd, gamma, gamma), {}),
        "npu_group_norm_silu": ((image, weight, weight, 2), {}),
        "npu_group_norm_swish": ((image, 2, weight, weight), {}),
        "npu_group_norm_swish_grad": ((image, image, 2, weight, weight, pair, pair, [True, True, True]), {}),
    }
