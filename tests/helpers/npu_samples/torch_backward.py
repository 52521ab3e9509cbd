"""Sample calls of gradients that torch_npu registers as operators.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x, y, p = torch.randn(4, 8), torch.randn(4, 8), torch.rand(4, 8)
    one = torch.randn(())
    image, kernel = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    unit = ([1, 1], [0, 0], [1, 1])
    return {
        "fft_c2r_backward": ((x, [1], 0), {}),
        "fft_r2c_backward": ((torch.randn(4, 5, dtype=torch.complex64), [1], 0, True, 8), {}),
        "stft_backward": (
            (torch.randn(2, 5, 3, dtype=torch.complex64), torch.randn(2, 12), 8, 2, 6),
            {"return_complex": True},
        ),
        "kl_div_backward": ((one, x, p), {}),
        "kl_div_target_backward": ((one, x, p), {}),
        "l1_loss_backward": ((one, x, y, 1), {}),
        "npu_binary_cross_entropy_with_logits_backward": ((one, x, p, p, None, 1), {}),
        "repeat_interleave_backward_int": ((torch.randn(4, 16), x, 2, 1), {}),
        "repeat_interleave_backward_tensor": ((torch.randn(6, 8), x, torch.tensor([1, 0, 3, 2]), 0), {}),
        "npu_gather_backward": ((y, [4, 9], 1, torch.randint(0, 9, (4, 8)), False), {}),
        "npu_renorm_backward": ((y, x, 2, 0, 1.5), {}),
        "matmul_double_backward": ((x, y.mT, torch.randn(4, 4), y, x.mT, [True, True, True]), {}),
        "slow_conv_dilated2d_backward": (
            (torch.randn(2, 4, 3, 3), image, kernel, [3, 3], *unit, [True, True, True]),
            {},
        ),
        "slow_conv_transpose2d_backward": (
            (
                torch.randn(2, 3, 7, 7),
                torch.randn(2, 4, 5, 5),
                kernel,
                [3, 3],
                [1, 1],
                [0, 0],
                [0, 0],
                [1, 1],
                [True] * 3,
            ),
            {},
        ),
        "_conv_depthwise2d_backward": (
            (torch.randn(2, 3, 3, 3), image, torch.randn(3, 1, 3, 3), [3, 3], *unit, [True, True]),
            {},
        ),
    }
