"""npu_fusion_attention in its layouts, with a causal mask in compressed form, against attention of PyTorch."""

import math

import torch
import torch_npu

batch, heads, length, size = 2, 4, 32, 16
query, key, value = (torch.randn(batch, heads, length, size).half().npu() for _ in range(3))
scale = 1 / math.sqrt(size)
expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1).npu()  # for sparse_mode 2, any length

TO = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2).contiguous(),
    "BSH": lambda x: x.transpose(1, 2).reshape(batch, length, heads * size),
    "SBH": lambda x: x.permute(2, 0, 1, 3).reshape(length, batch, heads * size),
    "TND": lambda x: x.transpose(1, 2).reshape(batch * length, heads, size),
}

for layout, convert in TO.items():
    lengths = {}
    if layout == "TND":  # ends of the sequences in the packed tensor
        lengths = {"actual_seq_qlen": [length, 2 * length], "actual_seq_kvlen": [length, 2 * length]}
    found = torch_npu.npu_fusion_attention(
        *map(convert, (query, key, value)), heads, layout, atten_mask=mask, scale=scale, sparse_mode=2, **lengths
    )[0]
    print(f"{layout}: {torch.allclose(found, convert(expected), atol=2e-3)}")
