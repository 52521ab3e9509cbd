"""candle-org/candle#558: a training step of a transformer under FSDP2 on two cards, float16, SGD.

A program of benchmarks/measurements/models.toml: benchmarks/model_estimates.py runs it on the simulated card, and
compares the estimate with the time that this issue reports. It does what is described there and is not tuned.

No test runs it: it is what was measured.
"""

import os
import sys

import torch
import torch_npu  # noqa: F401
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

layers, batch, length, width, heads = map(int, sys.argv[1:6])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        size = width // heads
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.transpose(-1, -2) / size**0.5, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
distributed.init_process_group("hccl")
model = nn.Sequential(*(Block() for _ in range(layers))).half().npu()
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(batch, length, width, device="npu").half()
for _ in range(5):
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()
torch.npu.synchronize()
distributed.destroy_process_group()
