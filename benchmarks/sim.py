"""Speed of the simulated card next to the CPU, in one process: minima of repeats, one thread.

    python benchmarks/sim.py            a table, and exit status 1 when a target is missed
    python benchmarks/sim.py --json     the same as JSON

The figures say what the simulation costs on top of the host's own work; they say nothing about a real card.

Run by hand and by benchmarks/run.py, which reads its JSON; docs/benchmarks.md has the figures. Targets are demands on
the simulation; models and sizes are free, but the figures of the page are those of these.

No test runs it: `make bench` does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import toprope.sim

toprope.sim.install("910B3", count=1)

import torch  # noqa: E402 - the card first
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812 - torch's own name for it

ROUNDS = 7


@dataclass(frozen=True)
class Row:
    """One comparison. Times in microseconds; `target` in words; `met` whether it holds (None: no target)."""

    name: str
    cpu: float
    npu: float
    target: str = ""
    met: bool | None = None


def best(functions: dict[str, Callable[[], object]], calls: int) -> dict[str, float]:
    """Least microseconds a call of each function; they take turns, so that a slow moment hits both."""
    least = dict.fromkeys(functions, float("inf"))
    for function in functions.values():
        for _ in range(max(3, calls // 10)):
            function()
    for _ in range(ROUNDS):
        for name, function in functions.items():
            begin = time.perf_counter_ns()
            for _ in range(calls):
                function()
            least[name] = min(least[name], (time.perf_counter_ns() - begin) / calls / 1000)
    return least


def compare(name: str, make: Callable[[str], Callable[[], object]], calls: int, **target: float) -> Row:
    """Both devices side by side. Targets: `ratio` at most, or `more` microseconds at most, whichever is larger."""
    found = best({device: make(device) for device in ("cpu", "npu")}, calls)
    cpu, npu = found["cpu"], found["npu"]
    if not target:
        return Row(name, cpu, npu)
    limit = max(cpu * target.get("ratio", 0.0), cpu + target["more"] if "more" in target else 0.0)
    words = " or ".join(
        [f"<= {target['ratio']:.2f}x"] * ("ratio" in target)
        + [f"<= +{target.get('more', 0):.1f} us"] * ("more" in target)
    )
    return Row(name, cpu, npu, words, npu <= limit)


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """A small language model over bytes."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(256, width), nn.Parameter(torch.zeros(128, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def train_step(layers: int, width: int, batch: int, length: int) -> Callable[[str], Callable[[], object]]:
    """A maker of train steps (forward, backward, AdamW)."""

    def make(device: str) -> Callable[[], object]:
        torch.manual_seed(0)
        model = GPT(layers, width).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        tokens = torch.randint(0, 256, (batch, length)).to(device)

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()

        return step

    return make


def with_tensor(size: tuple[int, ...], work: Callable[[torch.Tensor], object]) -> Callable[[str], Callable[[], object]]:
    """A maker of calls of `work` on a tensor of ones."""

    def make(device: str) -> Callable[[], object]:
        tensor = torch.ones(size, device=device)
        return lambda: work(tensor)

    return make


def traced_step() -> Row:
    """The four-layer step with and without a trace, on the card."""
    step = train_step(4, 256, 4, 128)("npu")

    def traced() -> None:
        with toprope.sim.trace(2**16):
            step()

    found = best({"plain": step, "traced": traced}, 2)
    return Row("GPT 4 layers, traced / plain", found["plain"], found["traced"], "<= 1.10x",
               found["traced"] <= 1.10 * found["plain"])  # fmt: skip


def rehearsed_steps() -> Row:
    """Eight four-layer steps with and without the record of a report, on the card."""
    step = train_step(4, 256, 4, 128)("npu")

    def plain() -> None:
        for _ in range(8):
            step()

    def rehearsed() -> None:
        with toprope.sim.rehearse():
            plain()

    found = best({"plain": plain, "rehearsed": rehearsed}, 1)
    return Row("8 x GPT 4 layers, rehearsed / plain", found["plain"], found["rehearsed"], "<= 1.10x",
               found["rehearsed"] <= 1.10 * found["plain"])  # fmt: skip


def import_cost() -> Row:
    """Time that the installed card adds to `import torch`: medians of CPU time in fresh processes that take turns."""
    times: dict[str, list[float]] = {"": [], "910B3": []}
    code = "import time; t = time.process_time(); import torch; print(time.process_time() - t)"
    for _ in range(2 * ROUNDS + 1):
        for spec, found in times.items():
            environment = {**_environment(), "TOPROPE_SIM": spec}
            done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
            found.append(float(done.stdout) * 1e6)
    plain, simulated = (statistics.median(found) for found in times.values())
    return Row("import torch, with the card (medians)", plain, simulated, "<= +40 ms", simulated <= plain + 40_000)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("TOPROPE_")}


def rows() -> list[Row]:
    """All comparisons; the targets are those that the project has set itself."""
    return [
        compare("add, 16 floats", with_tensor((16,), lambda t: t + t), 5000, ratio=1.7, more=1.0),
        compare("add_, 16 floats", with_tensor((16,), lambda t: t.add_(1)), 5000),
        compare("erf, 16 floats (boxed path)", with_tensor((16,), torch.erf), 5000),
        compare("cat, 2 x 16 floats", with_tensor((16,), lambda t: torch.cat([t, t])), 5000),
        compare("view", with_tensor((16,), lambda t: t.view(4, 4)), 5000),
        compare("empty, 16 floats", lambda device: lambda: torch.empty(16, device=device), 5000),
        compare("item", with_tensor((1,), lambda t: t.item()), 5000),
        compare("add, 16 MB", with_tensor((1 << 22,), lambda t: t + t), 20, ratio=1.3),
        compare("matmul 64", with_tensor((64, 64), lambda t: t @ t), 2000),
        compare("matmul 1024", with_tensor((1024, 1024), lambda t: t @ t), 4, ratio=1.05),
        compare("GPT 2 layers d64 B2 T32, train step", train_step(2, 64, 2, 32), 10, ratio=1.6),
        compare("GPT 4 layers d256 B4 T128, train step", train_step(4, 256, 4, 128), 2, ratio=1.10),
        traced_step(),
        rehearsed_steps(),
        import_cost(),
    ]


def main() -> int:
    """Prints the table; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = rows()
    if arguments.json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    else:
        print(f"torch {torch.__version__}, one thread, minima of {ROUNDS} rounds, measured here; microseconds\n")
        print("| | CPU | npu | npu / CPU | target | |\n|---|---:|---:|---:|---|---|")
        for row in found:
            met = {None: "", True: "met", False: "missed"}[row.met]
            print(f"| {row.name} | {row.cpu:.2f} | {row.npu:.2f} | {row.npu / row.cpu:.2f} | {row.target} | {met} |")
    return 1 if any(row.met is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
