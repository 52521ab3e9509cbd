"""Train with torch_npu's fused Adam, which works on one tensor for all parameters, and clip the gradients there."""

import torch
import torch_npu
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).npu()
optimizer = torch_npu.optim.NpuFusedAdamW(model.parameters(), lr=0.01, weight_decay=0.01)
x = torch.randn(128, 16).npu()
target = x[:, :1] * 2 - 1

losses = []
for _ in range(60):
    loss = nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    norm = optimizer.clip_grad_norm_fused_(1.0)
    optimizer.step()
    losses.append(loss.item())

print(f"norm is a number: {bool(torch.isfinite(norm).item())}")
print(f"the loss fell: {losses[-1] < losses[0] / 4}")
