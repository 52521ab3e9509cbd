import torch

from . import Sample


def samples() -> dict[str, Sample]:
    x = torch.randn(4, 16, dtype=torch.float16)
    return {name: ((x,), {}) for name in ("npu_fast_gelu", "npu_geglu", "npu_gelu", "npu_silu", "npu_swiglu")}
