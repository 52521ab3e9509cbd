"""A transformer's inference in each mode of `toprope.tiers`, next to plain fp32.

    nice -n -15 python benchmarks/modes.py     tables in Markdown, and exit status 1 when a target is missed
    python benchmarks/modes.py --loaded        where others use the machine: a thread's CPU time decides, not wall time
    python benchmarks/modes.py --json          the same figures as JSON
    python benchmarks/modes.py --width 128 --layers 2 --rounds 1      to see that all of it runs, without a verdict

Each mode has a process of its own, with the same weights and inputs; they take turns, in another order each round. Two
kinds of passes are timed: decoding, one new token for each sequence after 128 that are in the cache of keys and values,
and reading in, 16 tokens for each. Errors are relative root mean squares: of the logits relative to fp32, and the
largest of a layer's weight. Weights are random, Gaussian.

The target holds for the speed mode, where the CPU has instructions for bf16: at least 1.5 times plain fp32, decoding
at batch 1 and at batch 32.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures.

Tests: tests/tiers/test_tiers_modes_benchmark.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

PLAIN = "plain"
MODES = (PLAIN, "balanced", "speed", "memory", "full")
BATCHES = (1, 32)
TARGET = 1.5
HELD = 1024
"""The width from which on figures are held against the target."""

PAST, READ = 128, 16
"""Tokens in the cache; tokens that are read in at once."""

VOCABULARY = 8192


class Block(nn.Module):
    """A block with norms first, as decoders have it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, past: torch.Tensor | None) -> torch.Tensor:
        normed = self.norm1(x)
        query, key, value = (
            each(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        if past is not None:
            past[0, :, :, PAST:], past[1, :, :, PAST:] = key, value
            key, value = past[0].to(key.dtype), past[1].to(key.dtype)
        causal = past is None
        out = functional.scaled_dot_product_attention(query.to(key.dtype), key, value, is_causal=causal)
        x = x + self.out(out.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Blocks between an embedding and a head of its own."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, past: list[torch.Tensor] | None = None) -> torch.Tensor:
        x = self.embed(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, None if past is None else past[number])
        return self.head(self.norm(x[:, -1]))


class Runs:
    """A model in one mode, and its passes.

    Args:
        mode: one of `MODES`.
        width, layers: of the model.
    """

    def __init__(self, mode: str, width: int, layers: int) -> None:
        from toprope.tiers import modes

        self.width, self.layers, self.mode = width, layers, mode
        torch.manual_seed(0)
        self.model = Decoder(width, layers).eval()
        for each in self.model.modules():
            if isinstance(each, nn.Linear):
                nn.init.normal_(each.weight, std=width**-0.5)
        if mode != PLAIN:
            modes.enable(mode, on="cpu")
            modes.optimize(self.model)
        self.inputs = {}
        for batch in BATCHES:
            torch.manual_seed(batch)
            heads = max(1, width // 64)
            past = [torch.randn(2, batch, heads, PAST + 1, width // heads) for _ in range(layers)]
            self.inputs["decoding", batch] = (torch.randint(0, VOCABULARY, (batch, 1)), past)
            self.inputs["reading in", batch] = (torch.randint(0, VOCABULARY, (batch, READ)), None)

    def figures(self) -> dict[str, Any]:
        """Figures of the mode's changes to the model."""
        from toprope.tiers import modes

        active = modes.active()
        return {} if active is None else active.models()[0]

    @torch.no_grad()
    def run(self, kind: str, batch: int) -> tuple[float, float, torch.Tensor]:
        """Wall and CPU seconds of a pass, and its logits."""
        tokens, past = self.inputs[kind, batch]
        wall, mine = time.perf_counter(), time.thread_time()
        out = self.model(tokens, past)
        return time.perf_counter() - wall, time.thread_time() - mine, out


def work(mode: str, width: int, layers: int, threads: int) -> None:
    """The process of one mode: reads what to run from stdin, tells the seconds."""
    torch.set_num_threads(threads)
    runs = Runs(mode, width, layers)
    print(json.dumps(runs.figures()), flush=True)
    for line in sys.stdin:
        kind, batch, path = json.loads(line)
        wall, mine, out = runs.run(kind, batch)
        if path:
            torch.save(out.float(), path)
        print(json.dumps([wall, mine]), flush=True)


class Worker:
    """A process of one mode."""

    def __init__(self, mode: str, chosen: argparse.Namespace, folder: str) -> None:
        self.mode, self.folder = mode, folder
        command = [sys.executable, __file__, "--worker", mode, "--width", str(chosen.width)]
        command += ["--layers", str(chosen.layers), "--threads", str(chosen.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.figures = json.loads(self._line())

    def run(self, kind: str, batch: int, keep: bool = False) -> tuple[float, float]:
        """Wall and CPU seconds of a pass."""
        assert self.process.stdin is not None
        path = str(self.kept(kind, batch)) if keep else ""
        self.process.stdin.write(json.dumps([kind, batch, path]) + "\n")
        self.process.stdin.flush()
        wall, mine = json.loads(self._line())
        return wall, mine

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of the mode {self.mode} ended with {self.process.wait()}")
        return line

    def kept(self, kind: str, batch: int) -> Path:
        """The file with the logits."""
        return Path(self.folder) / f"{self.mode}-{kind.replace(' ', '-')}-{batch}.pt"

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def bf16_instructions() -> list[str]:
    """The CPU's instructions for products of bf16, as the system names them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    flags = set(next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "").split())
    return sorted(flags & {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"})


def rows_of(
    seconds: dict[str, list[tuple[float, float]]], errors: dict[str, float], figures: dict[str, dict[str, Any]],
    *, kind: str, batch: int, loaded: bool, held: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the table for one kind of pass, with verdicts.

    Args:
        seconds: of each mode, wall and CPU, in each round.
        errors: of the logits.
        figures: what each mode did.
        kind, batch: of the passes.
        loaded: CPU time decides.
        held: whether there are verdicts.
    """
    found = []
    plain = seconds[PLAIN]
    for mode, times in seconds.items():
        wall, mine = (statistics.median(each[place] for each in times) for place in (0, 1))
        ratios = [
            statistics.median(first[place] / each[place] for first, each in zip(plain, times, strict=True))
            for place in (0, 1)
        ]
        target = mode == "speed" and kind == "decoding"
        met = ratios[1 if loaded else 0] >= TARGET
        found.append(
            {
                "pass": kind, "batch": batch, "mode": mode, "ms, median": 1e3 * wall, "x of plain": ratios[0],
                "CPU ms, median": 1e3 * mine, "x of plain, CPU": ratios[1], "error of logits": errors[mode],
                "largest error of a weight": figures[mode].get("largest_weight_error", 0.0),
                "target": f">= {TARGET}" if target else "", "": ("met" if met else "missed") if target and held else "",
            }
        )  # fmt: skip
    return found


def measure(chosen: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """All rows."""
    workers = {mode: Worker(mode, chosen, folder) for mode in chosen.modes}
    orders, found = random.Random(0), []
    held = chosen.width >= HELD and bool(bf16_instructions())
    try:
        for kind in ("decoding", "reading in"):
            for batch in BATCHES:
                seconds: dict[str, list[tuple[float, float]]] = {mode: [] for mode in workers}
                for worker in workers.values():
                    worker.run(kind, batch, keep=True)
                    worker.run(kind, batch)
                for _ in range(chosen.rounds):
                    for mode in orders.sample(list(workers), len(workers)):
                        seconds[mode].append(workers[mode].run(kind, batch))
                logits = {mode: torch.load(worker.kept(kind, batch)) for mode, worker in workers.items()}
                errors = {
                    mode: float((each - logits[PLAIN]).norm() / logits[PLAIN].norm()) for mode, each in logits.items()
                }
                figures = {mode: worker.figures for mode, worker in workers.items()}
                found += rows_of(
                    seconds, errors, figures, kind=kind, batch=batch, loaded=chosen.loaded, held=held
                )  # fmt: skip
    finally:
        for worker in workers.values():
            worker.close()
    return found


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--loaded", action="store_true", help="hold the target against one thread's CPU time")
    parser.add_argument("--width", type=int, default=1024, help="of the model")
    parser.add_argument("--layers", type=int, default=8, help="of the model")
    parser.add_argument("--rounds", type=int, default=9, help="of turns")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: one where --loaded is given, else all")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="which; plain is always there")
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    chosen = parser.parse_args(given)
    chosen.threads = chosen.threads or (1 if chosen.loaded else torch.get_num_threads())
    chosen.modes = [PLAIN, *(each for each in chosen.modes if each != PLAIN)]
    return chosen


def main() -> int:
    """Measure, print, and tell by the status whether the target was missed."""
    import tempfile

    chosen = arguments()
    if chosen.worker:
        work(chosen.worker, chosen.width, chosen.layers, chosen.threads)
        return 0
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(chosen, folder)
    missed = [row for row in rows if row[""] == "missed"]
    instructions = bf16_instructions()
    facts = {
        "torch": torch.__version__, "threads": chosen.threads, "bf16 instructions": ", ".join(instructions) or "none",
        "load before": [round(each, 1) for each in before], "load after": [round(each, 1) for each in os.getloadavg()],
        "width": chosen.width, "layers": chosen.layers, "rounds": chosen.rounds,
    }  # fmt: skip
    if chosen.json:
        print(json.dumps({"facts": facts, "rows": rows}))
    else:
        print(", ".join(f"{name} {value}" for name, value in facts.items()) + "\n")
        if not instructions:
            print("this CPU has no instructions for bf16: there is no verdict\n")
        print("| " + " | ".join(rows[0]) + " |")
        print("| " + " | ".join("---" for _ in rows[0]) + " |")
        for row in rows:
            told = (f"{each:.3g}" if isinstance(each, float) else str(each) for each in row.values())
            print("| " + " | ".join(told) + " |")
        for row in missed:
            print(f"missed: {row}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
