"""Kirrito-k423/GroundUpScale, issue 30: the forward pass of decoder layers in float32, of plain operators.

A program of benchmarks/measurements/models.toml: benchmarks/model_estimates.py runs it on the simulated card, and
compares the estimate with the time that this issue reports. It does what is described there and is not tuned.

No test runs it: it is what was measured.
"""

import sys

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    def __init__(self, width=512, inner=2048):
        super().__init__()
        self.before, self.between = Norm(width), Norm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.before(x)
        q, k, v = (part(y).view(batch, length, 8, 64).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.125, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


model = nn.Sequential(*(Layer() for _ in range(int(sys.argv[1])))).to("npu")
x = torch.randn(1, 512, 512, device="npu")
with torch.no_grad():
    for _ in range(6):
        model(x)
torch.npu.synchronize()
