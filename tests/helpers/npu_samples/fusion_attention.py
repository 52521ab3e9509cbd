import torch

from . import Sample


def samples() -> dict[str, Sample]:
    query = torch.randn(2, 3, 8, 16, dtype=torch.float16)
    return {"npu_fusion_attention": ((query, query, query, 3, "BNSD"), {"scale": 0.25})}
