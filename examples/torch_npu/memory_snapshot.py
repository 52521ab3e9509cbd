"""Record what the allocator does during a step of training, and write a snapshot for https://pytorch.org/memory_viz."""

import pickle
import sys
import tempfile
from pathlib import Path

import torch
import torch_npu  # noqa: F401
from torch import nn

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).npu()
optimizer = torch.optim.AdamW(model.parameters())

torch.npu.memory._record_memory_history(max_entries=100_000)
loss = model(torch.randn(64, 256).npu()).logsumexp(1).mean()
loss.backward()
optimizer.step()
torch.npu.memory._dump_snapshot(str(folder / "snapshot.pickle"))
torch.npu.memory._record_memory_history(enabled=None)

with (folder / "snapshot.pickle").open("rb") as file:
    snapshot = pickle.load(file)
events = snapshot["device_traces"][0]
here = sum(any(frame["filename"] == __file__ for frame in event["frames"]) for event in events)
print(f"allocations: {sum(event['action'] == 'alloc' for event in events) > 20}")
print(f"events with a line of this program: {here > 20}")
print(torch.npu.memory_summary(abbreviated=True).splitlines()[1])
