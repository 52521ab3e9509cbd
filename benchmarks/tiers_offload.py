"""Weights on the host: toprope.tiers next to accelerate's cpu_offload and diffusers' leaf_level, with as much memory.

    TOPROPE_SIM=910B3 python benchmarks/tiers_offload.py          a table, and exit status 1 when a target is missed
    TOPROPE_SIM=910B3 python benchmarks/tiers_offload.py --json   the same as JSON
    TOPROPE_SIM=910B3 python benchmarks/tiers_offload.py --quick  a small model and few rounds

A chain of equal Linear layers in fp32 lies in the host's memory. On the simulated card a copy is one in the host's
memory; for a link of N GB/s each copy takes at least as long as it would over that link, with all of them. "one
slot" has the device memory that the others take: one layer. "two slots" has twice that, and loads while it computes.
The others run without streams of their own. All take turns in each round; a figure is the median of the rounds' ratios
to the faster one of the others, with an interval of 95 %. All outputs are equal to the bit.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures. The comparison is fair only while all sides
have the same memory of the device and the same emulated link; `TARGETS` are demands on the product.

No test runs it: `--quick` shows that all of it works.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from parts.old_code import interval
from torch import nn

from toprope import device as devices
from toprope.errors import TopropeError
from toprope.tiers import attach
from toprope.tiers.store.transfer import Link

LINKS = (None, 4e9, 8e9, 16e9)
TARGETS = {True: 0.9, False: 1.0}
"""The most of "one slot", in times of the faster one of the others: with an emulated link, and without."""


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of its runs."""

    layers: int = 16
    width: int = 2048
    rows: int = 32
    rounds: int = 7

    @property
    def layer(self) -> int:
        """Bytes of a layer's weight."""
        return self.width * self.width * 4


QUICK = Size(layers=4, width=256, rounds=2)


@dataclass
class Row:
    """One link."""

    link: float | None
    ratio: float
    low: float
    high: float
    target: float
    milliseconds: dict[str, float]
    peak_mb: dict[str, float]

    @property
    def met(self) -> bool:
        """True if it is within its target."""
        return self.ratio <= self.target


def build(size: Size) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(size.width, size.width, bias=False) for _ in range(size.layers)))


@contextmanager
def slowed(link: Link | None) -> Iterator[None]:
    """Let `Tensor.to` between host and device take as long as over the link."""
    if link is None:
        yield
        return
    plain: Any = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        begin = time.perf_counter()
        moved: torch.Tensor = plain(tensor, *args, **kwargs)
        kinds = {tensor.device.type, moved.device.type}
        if len(kinds) > 1 and "meta" not in kinds:
            link.carry(moved.nbytes, begin)
        return moved

    torch.Tensor.to = to  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.Tensor.to  # its base class has the original


def others(size: Size, there: torch.device) -> dict[str, nn.Module]:
    """The same model, offloaded by what is installed."""
    found: dict[str, nn.Module] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from accelerate import cpu_offload

            found["accelerate cpu_offload"] = cpu_offload(build(size), execution_device=there)
        except ImportError:
            pass
        try:
            from diffusers.hooks import apply_group_offloading

            model = build(size)
            apply_group_offloading(
                model, onload_device=there, offload_device=torch.device("cpu"), offload_type="leaf_level"
            )
            found["diffusers leaf_level"] = model
        except ImportError:
            pass
    if not found:
        raise SystemExit("neither accelerate nor diffusers is installed: there is nothing to compare with")
    return found


def measure(size: Size, link: float | None) -> Row:
    """Measure one link: each offloader in turns, all outputs compared."""
    card = devices.get()
    there = card.torch_device
    if not card.capabilities.separate_memory:
        raise SystemExit("there is no card with memory of its own: set TOPROPE_SIM=910B3")
    torch.manual_seed(1)
    x = torch.randn(size.rows, size.width).to(there)
    works: dict[str, Callable[[], torch.Tensor]] = {}
    theirs = others(size, there)
    slow = None if link is None else Link(link)
    for name, model in theirs.items():
        works[name] = lambda model=model: model(x)  # type: ignore[misc]
    handles = {
        name: attach(build(size), slots * size.layer, "100GB", on=card, small=1, link=link)
        for slots, name in ((1, "one slot"), (2, "two slots"))
    }
    for name, handle in handles.items():
        works[name] = lambda handle=handle: handle.model(x)  # type: ignore[misc]

    def turn(name: str) -> tuple[float, torch.Tensor, int]:
        before = card.memory_allocated() or 0
        card.reset_peak_memory()
        with slowed(slow) if name in theirs else nullcontext():
            begin = time.perf_counter()
            out = works[name]()
            card.synchronize()
            took = time.perf_counter() - begin
        peak = (card.max_memory_allocated() or 0) - before
        held = handles[name].plan.device_bytes if name in handles else 0
        return took, out.cpu(), peak + held

    try:
        wanted = None
        for name in works:
            for _ in range(3):
                _, out, _ = turn(name)
                wanted = out if wanted is None else wanted
                if not torch.equal(out, wanted):
                    raise AssertionError(f"{name} has another output")
        times: dict[str, list[float]] = {name: [] for name in works}
        peaks = dict.fromkeys(works, 0)
        names = list(works)
        for number in range(size.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                took, _, peak = turn(name)
                times[name].append(took)
                peaks[name] = max(peaks[name], peak)
    finally:
        for handle in handles.values():
            handle.close()
    fastest = min(theirs, key=lambda name: statistics.median(times[name]))
    ratios = [ours / its for ours, its in zip(times["one slot"], times[fastest], strict=True)]
    low, high, _ = interval(ratios)
    return Row(
        link, statistics.median(ratios), low, high, TARGETS[link is not None],
        {name: 1000 * statistics.median(each) for name, each in times.items()},
        {name: each / 1e6 for name, each in peaks.items()},
    )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    names = list(rows[0].milliseconds)
    lines = [
        "| link | one slot / the faster of the others | interval | target | "
        + " | ".join(f"{name}, ms (peak MB)" for name in names) + " |",
        "| --- | ---: | --- | --- | " + " | ".join("---:" for _ in names) + " |",
    ]  # fmt: skip
    for each in rows:
        link = "none" if each.link is None else f"{each.link / 1e9:g} GB/s"
        cells = [f"{each.milliseconds[name]:.1f} ({each.peak_mb[name]:.1f})" for name in names]
        mark = "met" if each.met else "missed"
        lines.append(
            f"| {link} | {each.ratio:.2f} | {each.low:.2f}, {each.high:.2f} | <= {each.target}: {mark} | "
            + " | ".join(cells) + " |"
        )  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds")
    parser.add_argument("--links", type=float, nargs="*", help="GB/s of emulated links; 0 for none")
    given = parser.parse_args()
    size = QUICK if given.quick else Size()
    links = LINKS if given.links is None else [each * 1e9 or None for each in given.links]
    try:
        with torch.no_grad():
            rows = [measure(size, each) for each in links]
    except TopropeError as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({"size": asdict(size), "rows": [asdict(each) | {"met": each.met} for each in rows]}))
    else:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
        print(f"{size.layers} x Linear({size.width}, {size.width}), {size.rows} rows")
        print(table(rows))
    return 1 if not given.quick and not all(each.met for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
