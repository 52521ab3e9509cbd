"""Share of ordinary two-stream programs that `toprope run --check-cores` calls a possible deadlock, by discipline.

    python benchmarks/cores_false_alarms.py          a table
    python benchmarks/cores_false_alarms.py --json   the same as JSON

Each program keeps two streams busy as training and inference programs do, and none of them hangs on a card: its streams
meet at events, or run independent operators. A verdict "deadlock" is therefore a false alarm of the discipline.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures. D0 to D2 are the disciplines by which a card
may hand out cores (`toprope.cores.model`). A program is added to `PROGRAMS` only if no card can hang on it; none is
left out because it is an alarm. What is read is the "cores" of `toprope run --json`.

No test runs it: `make bench` does. tests/cli/test_cli_cores.py holds the check of a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

DISCIPLINES = ("D0", "D0b", "D1", "D2")

HEAD = """
import torch, torch_npu
import torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(0)
side, main = torch.npu.Stream(), torch.npu.current_stream()
x = torch.randn(64, 64, device="npu")
y = torch.randn(64, 64, device="npu")
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).npu()
torch.npu.synchronize()
"""

PROGRAMS = {
    "prefetch of the next batch": """
batches = [torch.randn(64, 64).pin_memory() for _ in range(3)]
for batch in batches:
    with torch.npu.stream(side):
        ahead = batch.npu(non_blocking=True)
    main.wait_stream(side)
    model(ahead).sum()
""",
    "two matrix products side by side": """
with torch.npu.stream(side):
    a = x @ y
b = y @ x
main.wait_stream(side)
(a + b).sum().item()
""",
    "shared expert next to routed experts": """
side.wait_stream(main)
with torch.npu.stream(side):
    shared = F.silu(x @ y) * (x @ y)
routed = torch.softmax(x @ y, -1) @ y
main.wait_stream(side)
(shared + routed).sum().item()
""",
    "gradients are copied off while backward goes on": """
loss = model(x).square().mean()
loss.backward()
with torch.npu.stream(side):
    side.wait_stream(main)
    copies = [p.grad.to("cpu", non_blocking=True) for p in model.parameters()]
model(y).sum()
torch.npu.synchronize()
""",
    "weights of the next layer are loaded": """
weights = [torch.randn(64, 64).pin_memory() for _ in range(4)]
ready = weights[0].npu()
for following in weights[1:]:
    with torch.npu.stream(side):
        loaded = following.npu(non_blocking=True)
    x = torch.relu(x @ ready)
    main.wait_stream(side)
    ready = loaded
""",
    "two branches of a network": """
side.wait_stream(main)
with torch.npu.stream(side):
    a = F.layer_norm(F.gelu(x @ y), (64,))
b = F.softmax(y @ x, -1)
main.wait_stream(side)
torch.cat((a, b)).sum().item()
""",
    "sampling next to the next step's preparation": """
logits = x @ y
side.wait_stream(main)
with torch.npu.stream(side):
    top = torch.topk(logits, 8)
mask = torch.triu(torch.ones(64, 64, device="npu")) * y
main.wait_stream(side)
(top.values.sum() + mask.sum()).item()
""",
    "sort and topk without an event": """
with torch.npu.stream(side):
    torch.topk(x, 3)
torch.sort(y)
torch.npu.synchronize()
""",
    "two evaluations": """
with torch.npu.stream(side):
    a = model(x).argmax(-1)
b = model(y).argmax(-1)
torch.npu.synchronize()
""",
    "metrics on a side stream": """
out = model(x)
side.wait_stream(main)
with torch.npu.stream(side):
    accuracy = (out.argmax(-1) == 0).float().mean()
out.square().mean().backward()
torch.npu.synchronize()
""",
    "exponential average of weights": """
average = [p.detach().clone() for p in model.parameters()]
for _ in range(2):
    model(x).sum().backward()
    side.wait_stream(main)
    with torch.npu.stream(side):
        for kept, p in zip(average, model.parameters()):
            kept.mul_(0.9).add_(p.detach(), alpha=0.1)
torch.npu.synchronize()
""",
    "the norm of gradients while they are clipped": """
model(x).sum().backward()
side.wait_stream(main)
with torch.npu.stream(side):
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
main.wait_stream(side)
for p in model.parameters():
    p.grad.mul_(0.5)
""",
    "random numbers ahead of their use": """
with torch.npu.stream(side):
    noise = torch.randn(64, 64, device="npu")
hidden = x @ y
main.wait_stream(side)
(hidden + noise).sum().item()
""",
    "boolean index next to a product": """
side.wait_stream(main)
with torch.npu.stream(side):
    chosen = x[x > 0]
product = x @ y
main.wait_stream(side)
""",
    "unique next to a reduction": """
with torch.npu.stream(side):
    found = torch.unique((x * 3).int())
total = y.sum(0)
torch.npu.synchronize()
""",
    "key and value next to query": """
side.wait_stream(main)
with torch.npu.stream(side):
    k, v = x @ y, y @ x
q = x @ x
main.wait_stream(side)
F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None]).sum().item()
""",
    "loss of two tasks": """
hidden = model(x)
side.wait_stream(main)
with torch.npu.stream(side):
    one = F.cross_entropy(hidden, torch.zeros(64, dtype=torch.long, device="npu"))
two = F.mse_loss(hidden, y)
main.wait_stream(side)
(one + two).backward()
""",
    "convolutions of two images": """
conv = nn.Conv2d(3, 8, 3).npu()
images = torch.randn(2, 1, 3, 16, 16, device="npu")
with torch.npu.stream(side):
    a = conv(images[0])
b = conv(images[1])
torch.npu.synchronize()
""",
    "embedding look-up next to a cast": """
table = nn.Embedding(100, 64).npu()
ids = torch.arange(64, device="npu")
side.wait_stream(main)
with torch.npu.stream(side):
    rows = table(ids)
half = y.half()
main.wait_stream(side)
(rows.half() + half).sum().item()
""",
    "cumulative sum next to a maximum": """
with torch.npu.stream(side):
    sums = torch.cumsum(x, 0)
most = y.max()
torch.npu.synchronize()
""",
}


def verdicts(name: str) -> dict[str, str]:
    """The verdict of each discipline on a program."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(HEAD + PROGRAMS[name], encoding="utf-8")
        words = [sys.executable, "-m", "toprope", "run", "--chip", "910B3", "--check-cores=D0", "--json", str(program)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    report = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("{")), "")
    if not report:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(report)["cores"]
    return {**found.get("weaker", {}), found.get("discipline", "D0"): found["verdict"]}


def main() -> None:
    """Run all programs and print the share of false alarms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(PROGRAMS, pool.map(verdicts, PROGRAMS), strict=True))
    alarms = {each: sum(of.get(each) == "deadlock" for of in found.values()) for each in DISCIPLINES}
    if options.json:
        print(json.dumps({"programs": found, "alarms": alarms}, indent=2))
        return
    for name, of in found.items():
        print(f"{name:50} " + "  ".join(f"{each} {of.get(each, 'unknown'):8}" for each in DISCIPLINES))
    print("false alarms: " + ", ".join(f"{each} {count} of {len(found)}" for each, count in alarms.items()))


if __name__ == "__main__":
    main()
