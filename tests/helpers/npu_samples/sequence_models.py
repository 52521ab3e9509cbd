"""Sample calls of delta rule and causal convolution.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    query, value = (torch.randn(5, heads, 8).bfloat16() * 0.3 for heads in (2, 4))
    gates = {"beta": torch.rand(5, 4).bfloat16(), "g": -torch.rand(5, 4), "scale": 0.4}
    lengths = torch.tensor([2, 3], dtype=torch.int32)
    slots = torch.arange(5, dtype=torch.int32)
    steps = {**gates, "actual_seq_lengths": lengths, "ssm_state_indices": slots}
    states = torch.rand(6, 4, 8, 8).bfloat16()
    x, weight = torch.randn(7, 2, 64).half(), torch.randn(3, 64).half()
    mask = torch.rand(2, 7) < 0.5
    starts = torch.tensor([0, 3, 7], dtype=torch.int32)
    fused = (x[:, 0].contiguous(), weight, torch.randn(2, 2, 64).half())
    return {
        "npu_recurrent_gated_delta_rule": ((query, query, value, states), steps),
        "npu_recurrent_gated_delta_rule_functional": ((query, query, value, states), steps),
        "npu_chunk_gated_delta_rule": (
            (query, query, value),
            {**gates, "initial_state": states[:2].clone(), "actual_seq_lengths": lengths},
        ),
        "npu_masked_causal_conv1d": ((x, weight), {"mask": mask}),
        "npu_masked_causal_conv1d_backward": ((x, x, weight), {"mask": mask}),
        "npu_fused_causal_conv1d": (fused, {"query_start_loc": starts}),
        "npu_fused_causal_conv1d_v2": (fused, {"query_start_loc": starts}),
    }
