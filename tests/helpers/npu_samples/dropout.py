"""Sample calls of dropout operators.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x = torch.randn(4, 8)
    bits, each = torch.full((16,), 0b10110010, dtype=torch.uint8), torch.ones(4, 8, dtype=torch.uint8)
    square = torch.randn(1, 32, 128, 128).half()
    mask = torch.ones(square.numel(), dtype=torch.uint8)
    return {
        "_npu_dropout": ((x, 0.3), {}),
        "npu_dropout_do_mask": ((x, bits, 0.5), {}),
        "npu_dropout_backward": ((x, bits, 0.5), {}),
        "_npu_dropout_gen_mask.Tensor": ((x, [4, 8], 0.5, 3, 10), {}),
        "_dropout_with_byte_mask": ((x, 0.3), {}),
        "_dropout_with_byte_mask_backward": ((x, each, 0.3), {}),
        "dropout_with_byte_mask": ((x, 0.3, True), {}),
        "npu_dropout_with_add_softmax": ((square, square.flip(0), 0.5, 0.1, -1), {}),
        "npu_dropout_with_add_softmax_backward": ((square, mask, square, 0.5, 0.1, -1), {}),
    }
