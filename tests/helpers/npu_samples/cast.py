"""Sample calls of npu_dtype_cast and its relatives.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x = torch.randn(4, 8)
    return {
        "_npu_dtype_cast": ((x, torch.float16), {}),
        "_npu_dtype_cast_backward": ((x.half(), torch.float32), {}),
        "npu_dtype_cast_backward": ((x.half(), torch.float32), {}),
        "npu_dtype_cast_": ((x.half(), x), {}),
    }
