import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x, table = torch.randn(2, 3, 8, 16, dtype=torch.float16), torch.randn(1, 1, 8, 16, dtype=torch.float16)
    return {"npu_rotary_mul": ((x, table, table.flip(2)), {})}
