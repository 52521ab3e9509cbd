"""Sample calls of npu_dtype_cast and its relatives; see the package."""

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
