"""Sample calls of operators without arithmetic.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x = torch.randn(4, 8)
    return {
        "npu_prefetch": ((x, None, 16), {}),
        "npu_view_copy": ((torch.zeros(8, 4).mT, x, False), {}),
        "one_": ((x,), {}),
        "npu_alloc_float_status": ((x,), {}),
        "npu_get_float_status": ((x,), {}),
        "npu_clear_float_status": ((x,), {}),
    }
