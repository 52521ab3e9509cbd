"""Growth of time with size: an operator, a call, a check, a port, a model larger than its card; peers in the same run.

    python benchmarks/growth.py                     a table
    python benchmarks/growth.py --figure FILE.svg   drawn as well
    python benchmarks/growth.py --json              the same as JSON
    python benchmarks/growth.py --part calls port   these alone
    python benchmarks/growth.py --share 0.1         smaller sizes only, to see that all of it runs

Medians of rounds in which both sides take turns. Peers: the CPU for operators on the simulated card, Ray's actors for
calls, accelerate's cpu_offload for models; without them the line is left out and named. A check and a port have none.

Run by hand and by benchmarks/run.py; docs/benchmarks.md shows the figure, which `parts.growth_plot` draws. Sizes, and
parts (`PARTS`), may be added. Tests: tests/project/test_benchmarks.py sees that operators and the port run,
tests/cores/test_cores_benchmark.py the checks.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TOPROPE_SIM", "910B3")

import numpy as np
import torch
from parts.growth_plot import Line, Panel, draw

ROUNDS = 5
ELEMENTS = tuple(4**power for power in range(2, 12))
ARGUMENT = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 64_000_000)
FILES = (10, 30, 100, 300)
LAYERS, WIDTH, ON_CARD = (4, 8, 16, 32), 1024, 4

PROGRAM = """
import torch
import torch.nn as nn


class Block{0}(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        with torch.cuda.amp.autocast():
            return self.inner(x.cuda()) + torch.zeros_like(x, device="cuda")


def train{0}(loader, width=64):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Block{0}(width).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.cuda(non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(torch.cuda.max_memory_allocated() // 2**20, "MiB")
"""


def turns(works: Mapping[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each, in rounds in which all take turns; each ran once before."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in times.items()}


def lines_of(found: list[tuple[float, dict[str, float]]]) -> dict[str, Line]:
    """The lines of measurements: for each name its sizes with seconds."""
    return {name: [(size, times[name]) for size, times in found] for name in found[0][1]}


def operators(share: float) -> Panel:
    """Seconds of x + y by elements, on the simulated card and on the CPU; one thread."""
    torch.set_num_threads(1)
    found = []
    for count in ELEMENTS[: max(2, round(share * len(ELEMENTS)))]:
        calls = max(1, 200_000 // count)
        works = {}
        for name, device in (("toprope, npu", "npu"), ("CPU", "cpu")):
            x = torch.ones(count, device=device)

            def work(x: torch.Tensor = x, calls: int = calls, device: str = device) -> None:
                for _ in range(calls):
                    x + x
                if device == "npu":
                    torch.npu.synchronize()

            works[name] = work
        found.append((float(count), {name: seconds / calls for name, seconds in turns(works).items()}))
    return Panel("An operator: x + y", "elements", lines_of(found))


class Probe:
    """The class that an instance and an actor run."""

    def size(self, value: np.ndarray) -> int:
        return value.nbytes


def calls(share: float) -> Panel:
    """Seconds of a call with an array by its bytes: an instance of yr on this machine, and an actor of Ray."""
    from toprope import functions as yr

    yr.init()
    probe = yr.instance(Probe).invoke()
    sides: dict[str, Callable[[np.ndarray], object]] = {"toprope": lambda value: yr.get(probe.size.invoke(value))}
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError:
        print("Ray is not installed: no line of it", file=sys.stderr)
    else:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        actor = ray.remote(num_cpus=0.5)(Probe).remote()
        sides["Ray"] = lambda value: ray.get(actor.size.remote(value))
    found = []
    for size in ARGUMENT[: max(2, round(share * len(ARGUMENT)))]:
        value = np.zeros(size, dtype=np.uint8)
        works = {name: partial(side, value) for name, side in sides.items()}
        found.append((float(size), turns(works, 15)))
    yr.finalize()
    if "Ray" in sides:
        ray.shutdown()
    return Panel("A call with an array", "bytes", lines_of(found))


def checks(share: float) -> Panel:
    """Seconds of a check by operators of the program."""
    from cores import growth

    return Panel("A check for deadlocks", "operators", growth(share))


def ports(share: float) -> Panel:
    """Seconds of a port by lines, in one process."""
    from toprope.port.scan import find, port_files

    found = []
    with tempfile.TemporaryDirectory() as below:
        for count in FILES[: max(2, round(share * len(FILES)))]:
            folder = Path(below, str(count))
            folder.mkdir()
            for number in range(count):
                (folder / f"program{number}.py").write_text(PROGRAM.format(number), encoding="utf-8")
            files = find([folder])
            lines = count * PROGRAM.count("\n")
            found.append((float(lines), turns({"toprope": lambda files=files: list(port_files(files))}, 2)))
    return Panel("A port", "lines", lines_of(found))


def models(share: float) -> Panel:
    """Seconds of a pass by bytes of the model, of which the simulated card holds four layers."""
    from torch import nn

    from toprope import device as devices
    from toprope.tiers import attach

    card = devices.get()
    x = torch.randn(16, WIDTH).to(card.torch_device)
    found = []
    for count in LAYERS[: max(2, round(share * len(LAYERS)))]:

        def build(count: int = count) -> nn.Sequential:
            torch.manual_seed(0)
            return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)))

        handle = attach(build(), ON_CARD * 4 * WIDTH * WIDTH, "10GB", on=card, small=1)

        def run(model: Any) -> None:
            model(x)
            card.synchronize()

        works: dict[str, Callable[[], object]] = {"toprope.tiers": lambda model=handle.model: run(model)}
        try:
            from accelerate import cpu_offload
        except ImportError:
            print("accelerate is not installed: no line of it", file=sys.stderr)
        else:
            theirs = cpu_offload(build(), execution_device=card.torch_device)
            works["accelerate cpu_offload"] = lambda model=theirs: run(model)
        try:
            found.append((4.0 * count * WIDTH * WIDTH, turns(works)))
        finally:
            handle.close()
    return Panel(
        f"A pass of a model; the card holds {4 * ON_CARD * WIDTH * WIDTH / 1e6:.0f} MB", "bytes", lines_of(found)
    )


PARTS: dict[str, Callable[[float], Panel]] = {
    "operators": operators, "calls": calls, "check": checks, "port": ports, "tiers": models,
}  # fmt: skip


def main() -> None:
    """Print the table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path, help="where to draw the growth, as SVG")
    parser.add_argument("--json", action="store_true", help="the lines as JSON")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS), help="which")
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes, the smallest first")
    given = parser.parse_args()
    panels = [PARTS[name](given.share) for name in given.part]
    if given.figure:
        given.figure.write_text(draw(panels), encoding="utf-8")
    if given.json:
        print(json.dumps([{"title": each.title, "unit": each.unit, "lines": each.lines} for each in panels], indent=1))
        return
    print("| what | size | seconds, measured |\n| --- | --- | --- |")
    for panel in panels:
        for name, line in panel.lines.items():
            sizes = ", ".join(f"{size:,.0f}" for size, _ in line)
            print(f"| {panel.title}: {name} | {sizes} {panel.unit} | {', '.join(f'{each:.3g}' for _, each in line)} |")


if __name__ == "__main__":
    main()
