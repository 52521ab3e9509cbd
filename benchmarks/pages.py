"""Quantised weights ("pages"): errors, speed of decoding next to the memory's write speed, products next to torch's.

    python benchmarks/pages.py                tables in Markdown, and exit status 1 when a target is missed
    python benchmarks/pages.py --loaded       where others use the machine: targets are held against a thread's CPU time
    python benchmarks/pages.py --json         the same figures as JSON
    python benchmarks/pages.py --size 1024    smaller matrices, to see that all of it runs; speed has no verdict then
    python benchmarks/pages.py --old FOLDER   decoding and products with another checkout's code too, in turns; status 1
                                              when one is more than 5 % slower now

Every figure of a table is from this run; those that are compared took turns, in another order each round, so that each
finds the cache filled by one of the others. Products are measured twice: by all of torch's threads in wall time, and by
one thread in the time that the CPU gave it, which a loaded machine disturbs less. Medians are shown next to the minima;
the minima count. torchao and bitsandbytes are measured where they are installed.

Run by hand and by benchmarks/run.py, which reads its JSON; docs/benchmarks.md has the figures. `ERRORS` and the targets
of speed are demands on the product. Rows of `--old` are those of `turns`, for `parts.old_code`.

No test runs it: `--size 1024` shows that all of it works. tests/tiers/test_tiers_benchmark.py holds `parts.old_code`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parts.old_code import Rows, compare, is_served, serve
from parts.old_code import report as report_turns
from torch.nn import functional

from toprope.tiers import pages

ROUNDS = 25
HELD = 4096
"""Rows and columns from which on figures of speed are held against targets: smaller outputs stay in the cache."""

FOUR_BITS = ("nvfp4, bf16", "mxfp4, bf16", "nf4, bf16")
FEW_ROUNDS = 3
"""For what takes a hundred times longer."""

ERRORS = {
    ("nvfp4", "reference"): 0.096, ("nvfp4", "search"): 0.088, ("mxfp4", "reference"): 0.115,
    ("mxfp4", "search"): 0.112, ("nf4", "reference"): 0.093, ("nf4", "search"): 0.093,
}  # fmt: skip
"""Relative root mean square errors on Gaussian weights that are allowed."""


@dataclass
class Report:
    """Rows of all tables, and what was missed."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def add(self, table: str, met: bool | None = None, **row: Any) -> None:
        """One row; `met` is its verdict where it has a target."""
        self.tables.setdefault(table, []).append(row | {"": "" if met is None else "met" if met else "missed"})
        if met is False:
            self.missed.append(f"{table}: {', '.join(map(str, row.values()))}")

    def print(self) -> None:
        """All tables in Markdown."""
        for name, rows in self.tables.items():
            print(f"\n{name}\n")
            print("| " + " | ".join(rows[0]) + " |")
            print("| " + " | ".join("---" for _ in rows[0]) + " |")
            for row in rows:
                print(
                    "| "
                    + " | ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in row.values())
                    + " |"
                )


def in_turns(works: dict[str, Callable[[], object]], clock: Callable[[], float], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work in each round, by `clock`; the first round is not counted.

    Each round has an order of its own: what a work finds in the caches depends on the one before.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    orders = random.Random(0)
    for number in range(rounds + 1):
        for name in orders.sample(list(works), len(works)):
            begin = clock()
            works[name]()
            took = clock() - begin
            if number:
                seconds[name].append(took)
    return seconds


def errors(report: Report, size: int) -> None:
    """Errors on Gaussian weights."""
    torch.manual_seed(0)
    weight = torch.randn(size, size) * 0.02
    for form in pages.FORMATS:
        for rule in ("reference", "search"):
            page = pages.encode(weight, form, rule)
            error = float((pages.decode(page) - weight).norm() / weight.norm())
            most = ERRORS.get((form, rule))
            report.add(
                "Relative error on Gaussian weights", None if most is None else error <= most,
                format=form, scales=rule, bits=8 * page.nbytes / weight.numel(), error=error, target=most or "",
            )  # fmt: skip


def decoding(report: Report, size: int, clock: Callable[[], float]) -> None:
    """Bytes that one core decodes in a second, next to those that it writes to memory."""
    held = size >= HELD
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    part = torch.randn(64, 4 * size)
    for dtype in (torch.bfloat16, torch.float32):
        out = torch.empty(4 * size, 4 * size, dtype=dtype)
        works: dict[str, Callable[[], object]] = {
            "torch's fill_": lambda out=out: out.fill_(1.5),
            "memset": lambda out=out: ctypes.memset(out.data_ptr(), 7, out.nbytes),
        }
        for form in pages.FORMATS:
            page = pages.encode(part, form, "reference")
            whole = pages.QuantisedTensor(
                page.format, tuple(out.shape), dtype, page.codes.repeat(size // 16), page.scales.repeat(size // 16),
                page.global_scale,
            )  # fmt: skip
            works[form] = lambda whole=whole, out=out: pages.decode(whole, out=out)
        seconds = in_turns(works, clock, 9)
        speeds = {name: out.nbytes / min(each) / 1e9 for name, each in seconds.items()}
        write = max(speeds["torch's fill_"], speeds["memset"])
        for name, speed in speeds.items():
            report.add(
                "Decoding with one core", speed >= 0.6 * write if held and name in pages.FORMATS else None,
                work=name, dtype=str(dtype)[6:], **{"GB/s written": speed, "of the write speed": speed / write},
                target=">= 0.6" if name in pages.FORMATS else "",
            )  # fmt: skip
    torch.set_num_threads(threads)


def others(weight: torch.Tensor, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The same product by what else is installed."""
    found: dict[str, Callable[[], object]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if importlib.util.find_spec("torchao") is not None:
            from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

            stored = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=per_tensor_amax_to_scale(weight.abs().max()))
            found["torchao nvfp4"] = lambda: functional.linear(x, stored.dequantize())
        if importlib.util.find_spec("bitsandbytes") is not None:
            import bitsandbytes

            layer = bitsandbytes.nn.Linear4bit(*reversed(weight.shape), bias=False, quant_type="nf4")
            layer.weight = bitsandbytes.nn.Params4bit(weight.clone(), requires_grad=False, quant_type="nf4")
            layer = layer.to("cpu")
            found["bitsandbytes nf4"] = lambda: layer(x)
    return found


def products(report: Report, size: int, loaded: bool) -> None:
    """Products with few rows of activations, next to torch's in bf16, fp32 and int4."""
    torch.manual_seed(0)
    weight = torch.randn(size, size).bfloat16()
    wide = weight.float()
    int4 = torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (size, size), dtype=torch.int32), 1)
    int4_scales = torch.rand(size // 128, size, 2).bfloat16()
    stored = {form: pages.encode(weight, form, "reference") for form in pages.FORMATS}
    another = pages.encode(weight, "nvfp4", "reference")  # which does not bring the weight in bf16 into the cache
    kept = {form: [page.codes.clone(), page.scales.clone()] for form, page in stored.items()}
    for batch in (1, 8, 32):
        x = torch.randn(batch, size, dtype=torch.bfloat16)
        x_wide = x.float()
        works: dict[str, Callable[[], object]] = {
            "torch bf16": lambda x=x: functional.linear(x, weight),
            "torch int4": lambda x=x: torch._weight_int4pack_mm_for_cpu(x, int4, 128, int4_scales),
            "torch fp32": lambda x_wide=x_wide: functional.linear(x_wide, wide),
        }
        for form, page in stored.items():
            works[f"{form}, bf16"] = lambda x=x, page=page: pages.product(x, page)
        works["nvfp4, fp32"] = lambda x_wide=x_wide: pages.product(x_wide, another)
        wall = in_turns(works, time.perf_counter, ROUNDS)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        alone = in_turns(works, time.thread_time, ROUNDS)
        torch.set_num_threads(threads)
        slow = in_turns(others(weight, x), time.perf_counter, FEW_ROUNDS)
        best = {name: min(each) for name, each in (alone if loaded else wall | slow).items()}
        for name, seconds in (wall | slow).items():
            fastest = best.get(name, min(seconds))
            met = None
            target = ""
            if name in FOUR_BITS and size >= HELD and batch == 1:
                target = ">= 2x of bf16, <= 1.3 x int4's time"
                met = best["torch bf16"] >= 2 * fastest and fastest <= 1.3 * best["torch int4"]
            if name in FOUR_BITS and size >= HELD and batch == 32:
                target, met = ">= 1x of bf16", fastest <= best["torch bf16"]
            report.add(
                f"{size} x {size} times so many rows", met, rows=batch, work=name,
                **{
                    "ms, least": 1000 * min(seconds), "ms, median": 1000 * statistics.median(seconds),
                    "x of torch bf16": best["torch bf16"] / fastest,
                    "one thread, CPU ms": 1000 * min(alone[name]) if name in alone else "",
                },
                target=target,
            )  # fmt: skip
    for form, page in stored.items():
        unchanged = torch.equal(page.codes, kept[form][0]) and torch.equal(page.scales, kept[form][1])
        report.add("Stored bytes after all products", unchanged, format=form, MB=page.nbytes / 1e6, target="unchanged")


@contextmanager
def decode_turns(size: int, form: str, dtype: torch.dtype) -> Iterator[Callable[[], float]]:
    """Decoding a matrix into memory that is there."""
    torch.manual_seed(0)
    page, out = pages.encode(torch.randn(size, size), form, "reference"), torch.empty(size, size, dtype=dtype)
    yield least(lambda: pages.decode(page, out=out))


@contextmanager
def product_turns(size: int, form: str, dtype: torch.dtype, batch: int) -> Iterator[Callable[[], float]]:
    """Products of a few rows with a matrix."""
    torch.manual_seed(0)
    page, x = pages.encode(torch.randn(size, size).bfloat16(), form, "reference"), torch.randn(batch, size).to(dtype)
    yield least(lambda: pages.product(x, page))


def least(work: Callable[[], object]) -> Callable[[], float]:
    """The least seconds of five calls."""

    def measured() -> float:
        took = []
        for _ in range(5):
            begin = time.perf_counter()
            work()
            took.append(time.perf_counter() - begin)
        return min(took)

    measured()
    return measured


def turns(size: int) -> Rows:
    """The work that is also measured with an older code (--old)."""
    dtypes = (torch.bfloat16, torch.float32)
    return {
        **{f"decode {form}, {str(dtype)[6:]}": partial(decode_turns, size, form, dtype)
           for form in pages.FORMATS for dtype in dtypes},
        **{f"{form}, {str(dtype)[6:]}, {batch} rows": partial(product_turns, size, form, dtype, batch)
           for form in pages.FORMATS for dtype in dtypes for batch in (1, 8, 32)},
    }  # fmt: skip


def against(old: Path, size: int, rounds: int, *, as_json: bool) -> int:
    """The turns with both versions; the exit status."""
    arguments: Sequence[str] = ["--size", str(size)]
    return report_turns(compare(Path(__file__), arguments, old, list(turns(size)), rounds), as_json=as_json)


def main() -> int:
    """Measure, print, and tell by the status whether a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--loaded", action="store_true", help="hold targets against one thread's CPU time")
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the weights")
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="a checkout of the code to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each row with --old")
    chosen = parser.parse_args()
    if is_served():
        with torch.no_grad():
            serve(turns(chosen.size))
        return 0
    if chosen.old is not None:
        return against(chosen.old, chosen.size, chosen.rounds, as_json=chosen.json)
    from toprope.tiers.quant import kernels as native  # older code has it elsewhere

    kernels = native.kernels()
    if kernels is None:
        print(f"nothing to measure: {native.why_none()}", file=sys.stderr)
        return 3
    report = Report()
    with torch.no_grad():
        errors(report, chosen.size)
        decoding(report, chosen.size, time.thread_time if chosen.loaded else time.perf_counter)
        products(report, chosen.size, chosen.loaded)
    if chosen.json:
        print(json.dumps({"tables": report.tables, "missed": report.missed}))
    else:
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, kernels {kernels.paths[-1]}, load {load}")
        report.print()
        for each in report.missed:
            print(f"missed: {each}", file=sys.stderr)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
