"""A program as it is written for CUDA. Prints what it sees, one line of JSON.

Run by tests of `toprope run --from cuda` and of transfer_to_npu (tests/compat); it is not changed to suit toprope.
"""

import json
import sys
import tempfile

import torch
from torch import nn

told = {}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
net = nn.Linear(4, 4).cuda()  # SITE Tensor.cuda
x = torch.ones(2, 4, device="cuda:0")  # SITE cuda:0
told["seen"] = [x.is_cuda, x.device.type, str(next(net.parameters()).device), str(device)]
optimizer = torch.optim.AdamW(net.parameters())
scaler = torch.cuda.amp.GradScaler()
with torch.autocast("cuda", dtype=torch.bfloat16):  # SITE cuda
    loss = net(x).float().sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
generator = torch.Generator(device="cuda").manual_seed(1)
told["generator"] = [
    isinstance(generator, torch.Generator),
    list(torch.randn(2, generator=generator, device=device).shape),
]
y = torch.cuda.FloatTensor([1, 2])
told["class"] = [str(y.dtype), isinstance(x, torch.cuda.FloatTensor)]
with tempfile.TemporaryFile() as file:
    torch.save({"x": x}, file)
    file.seek(0)
    told["loaded"] = torch.load(file, map_location="cuda")["x"].device.type
torch.cuda.synchronize()
told["memory"] = torch.cuda.memory_allocated() > 0  # SITE torch.cuda.memory_allocated
told["weights"] = float(net.weight.detach().cpu().double().sum())
json.dump(told, sys.stdout)
