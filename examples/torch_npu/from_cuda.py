"""A program for CUDA, unchanged below its first lines."""

import torch
import torch_npu  # noqa: F401
from torch import nn
from torch_npu.contrib import transfer_to_npu  # noqa: F401

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.cuda.manual_seed_all(0)
model = nn.Linear(16, 4).cuda()
scaler = torch.cuda.amp.GradScaler()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
x, target = torch.randn(64, 16, device=device), torch.randint(0, 4, (64,), device="cuda:0")

first = None
for _ in range(30):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), target)
    first = loss.item() if first is None else first
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

torch.cuda.synchronize()
print(f"on {x.device.type}, the loss fell: {loss.item() < first}")
