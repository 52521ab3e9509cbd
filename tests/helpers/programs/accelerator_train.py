"""Train a small network with accelerate's Accelerator on whatever device it chooses; print what it did as JSON."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
inputs = torch.randn(64, 8)
data = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=8, shuffle=True, pin_memory=True)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
losses, devices = [], set()
for _ in range(2):
    for features, labels in data:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss).mean().item())
        devices.add(str(features.device))
print(
    json.dumps(
        {
            "device": str(accelerator.device),
            "data": sorted(devices),
            "losses": losses,
            "weights": [parameter.abs().sum().item() for parameter in accelerator.unwrap_model(model).parameters()],
        }
    )
)
