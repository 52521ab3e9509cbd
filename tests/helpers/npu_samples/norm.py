import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x, gamma = torch.randn(4, 16, dtype=torch.bfloat16), torch.randn(16, dtype=torch.bfloat16)
    return {"npu_rms_norm": ((x, gamma), {}), "npu_add_rms_norm": ((x, x.flip(0), gamma), {})}
