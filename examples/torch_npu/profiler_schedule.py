"""Profile two of six steps of training with a schedule, into the folder that the vendor's tools read."""

import sys
import tempfile
from pathlib import Path

import torch
import torch_npu
from torch import nn

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with torch_npu.profiler.profile(
    activities=[torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU],
    schedule=torch_npu.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
    on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(folder),
    record_shapes=True,
) as profiler:
    for _ in range(6):
        loss = model(torch.randn(32, 64).npu()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        profiler.step()

written = sorted({path.name for path in Path(folder).rglob("*") if path.suffix in (".csv", ".json")})
print([name for name in written if name in ("kernel_details.csv", "operator_details.csv", "trace_view.json")])
