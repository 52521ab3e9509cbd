"""Time of a training step as a multiple of what disk and computation allow, activations and Adam's states on the disk.

    python benchmarks/tiers_training.py                  a table, and exit status 1 when the target is missed
    python benchmarks/tiers_training.py --json
    python benchmarks/tiers_training.py --quick          a small model and few runs, to see that everything works
    python benchmarks/tiers_training.py --old FOLDER     the same steps with another checkout's code, in turns; status 1
                                                         when one is more than 5 % slower now

A stack of square Linear layers in fp32 trains on the CPU; its weights stay in the arena (the device's memory here), the
activations that forward saves and Adam's states go to a file. A run is: a step with everything in memory and the disk
alone (calibration), a step with tiers, and the calibration again. It does not count where the two calibrations differ
by more than 20 %.

The figure is T/T*. T is the time of the step. T*, its limit, is the longer of two times by the faster calibration: the
step in memory, and the disk's work for the bytes that the step moves, as if the two could overlap as a whole. Further
columns:

* "after backward": a limit that can be reached. States are read after the last gradient, so the disk's work for them
  overlaps with the optimizer's step alone: the rest of the step, and then the longer of these two.
* "both alone": a step in memory and the disk's work, begun at once and without toprope. It is more than T* where the
  two disturb each other, as they share cores and memory.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures. Summaries are in `parts.limits`. `TARGET` is a
demand on the product; sizes are free, but the figures of the page are those of `Size()`.

Tests: tests/tiers/test_tiers_benchmark.py.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from parts.limits import Row, line, row
from parts.old_code import Rows, compare, is_served, report, serve
from torch import nn

from toprope.tiers import attach

if TYPE_CHECKING:
    from toprope.tiers import Handle

PIECE = 4 * 2**20


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of its runs."""

    layers: int = 8
    width: int = 2048
    rows: tuple[int, ...] = (64, 512)
    probe: int = 2**28
    runs: int = 7
    tries: int = 20
    apart: float = 1.2


QUICK = Size(layers=2, width=768, rows=(8,), probe=2**24, runs=1, tries=2, apart=1e9)
TARGET = 1.3


class Trained:
    """A model, its optimizer and a batch."""

    def __init__(self, size: Size, rows: int) -> None:
        torch.manual_seed(0)
        layers = [(nn.Linear(size.width, size.width, bias=False), nn.GELU()) for _ in range(size.layers)]
        self.model = nn.Sequential(*[each for pair in layers for each in pair])
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.x, self.y = torch.randn(2, rows, size.width)
        self.steps = 0

    def step(self) -> tuple[float, float]:
        """Seconds of a step, and of the optimizer's part of it."""
        begin = time.perf_counter()
        loss = (self.model(self.x) - self.y).square().mean()
        loss.backward()
        before = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad()
        now = time.perf_counter()
        self.steps += 1
        return now - begin, now - before


class Disk:
    """A file that two threads write and read directly, 4 MiB at a time, and do nothing else."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self.nbytes = nbytes
        self.descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        os.posix_fallocate(self.descriptor, 0, nbytes)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def move(self, nbytes: float, *, write: bool) -> float:
        """Seconds that `nbytes` take, around the file as often as needed."""
        places, lock = iter(range(0, int(nbytes) - PIECE + 1, PIECE)), threading.Lock()
        call = os.pwritev if write else os.preadv

        def work() -> None:
            with mmap.mmap(-1, PIECE) as area:
                while True:
                    with lock:
                        place = next(places, None)
                    if place is None:
                        return
                    call(self.descriptor, [area], place % (self.nbytes // PIECE * PIECE))

        threads = [threading.Thread(target=work) for _ in range(2)]
        begin = time.perf_counter()
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return time.perf_counter() - begin


def disk_speeds(folder: Path, size: Size) -> tuple[float, float]:
    """Bytes a second that are written, and read."""
    with Disk(folder, size.probe) as disk:
        write, read = (size.probe / disk.move(size.probe, write=write) for write in (True, False))
    return write, read


def concurrently(plain: Trained, folder: Path, size: Size, moved: dict[str, int]) -> float:
    """Seconds until a step in memory and the disk's work of ours are done, begun at once, with nothing of toprope."""
    with Disk(folder, size.probe) as disk:

        def work() -> None:
            disk.move(moved["disk_write"], write=True)
            disk.move(moved["disk_read"], write=False)

        mover = threading.Thread(target=work)
        begin = time.perf_counter()
        mover.start()
        plain.step()
        mover.join()
        return time.perf_counter() - begin


def calibrate(plain: Trained, folder: Path, size: Size) -> tuple[float, float, float, float]:
    took, optimizer = min(plain.step() for _ in range(2))
    write, read = disk_speeds(folder, size)
    return took, optimizer, write, read


def attached(ours: Trained, folder: Path) -> Handle:
    """With room for all weights and gradients, and for tiles of the optimizer's step."""
    weights = sum(each.nbytes for each in ours.model.parameters())
    return attach(
        ours.model, 2 * weights + 2**26, 2**27, folder, on="cpu", training=True, states="disk", activations="disk"
    )


def training(folder: Path, size: Size, rows: int) -> Row:
    """Steps with tiers against steps in memory."""
    plain, ours = Trained(size, rows), Trained(size, rows)
    weights = sum(each.nbytes for each in ours.model.parameters())
    ratios, told, discarded = [], [], 0
    with attached(ours, folder) as handle:
        handle.optimizer(ours.optimizer)
        for each in (plain, plain, ours, ours):
            each.step()
        for _ in range(size.tries):
            before = calibrate(plain, folder, size)
            ours.step()
            handle.reset_stats()
            took, optimizer = ours.step()
            moved = handle.stats().moved
            both = concurrently(plain, folder, size, moved)
            after = calibrate(plain, folder, size)
            if any(max(pair) > size.apart * min(pair) for pair in zip(before[::2], after[::2], strict=True)):
                discarded += 1
                continue
            compute, part = min(before[0], after[0]), min(before[1], after[1])
            write, read = max(before[2], after[2]), max(before[3], after[3])
            states = 2 * weights / write + 2 * weights / read
            io = moved["disk_write"] / write + moved["disk_read"] / read
            limit = max(compute, io)
            ratios.append(took / limit)
            after_backward = compute - part + max(part, states)
            moved_mb = (moved["disk_read"] + moved["disk_write"]) / 1e6
            told.append({
                "limit_s": limit, "step_s": took, "in memory_s": compute, "disk_s": io,
                "after backward_s": after_backward, "both alone_s": both, "optimizer_s": optimizer,
                "moved_mb": moved_mb,
            })  # fmt: skip
            if len(ratios) == size.runs:
                break
        while plain.steps < ours.steps:
            plain.step()
        while ours.steps < plain.steps:
            ours.step()
        handle.detach()
    same = all(map(torch.equal, plain.model.parameters(), ours.model.parameters()))
    if not same:
        raise AssertionError("the weights are others than those of training in memory")
    return row(f"training, {rows} rows", ratios, TARGET, discarded, told)


@contextmanager
def turns_of(folder: Path, size: Size, rows: int) -> Iterator[Callable[[], float]]:
    """Steps with tiers."""
    ours = Trained(size, rows)
    with attached(ours, folder) as handle:
        handle.optimizer(ours.optimizer)
        for _ in range(3):
            ours.step()
        yield lambda: ours.step()[0]


def turns(folder: Path, size: Size) -> Rows:
    """The work that is also measured with an older code (--old)."""
    return {f"training, {rows} rows": partial(turns_of, folder, size, rows) for rows in size.rows}


def measure(folder: Path, size: Size) -> list[Row]:
    """All rows."""
    with torch.enable_grad():
        return [training(folder, size, rows) for rows in size.rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="a small model and few runs")
    parser.add_argument("--folder", type=Path, help="on which disk")
    parser.add_argument("--rows", type=int, nargs="*", help="rows of a batch")
    parser.add_argument("--runs", type=int, help="how many runs must count")
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="a checkout of the code to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each row with --old")
    given = parser.parse_args()
    size = QUICK if given.quick else Size()
    if given.runs:
        size = replace(size, runs=given.runs, tries=3 * given.runs)
    if given.rows:
        size = replace(size, rows=tuple(given.rows))
    if is_served():
        serve(turns(given.folder, size))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="toprope-bench-") as folder:
        if given.old is not None:
            names = list(turns(Path(folder), size))
            arguments = ["--folder", folder, *(["--quick"] if given.quick else []), "--rows", *map(str, size.rows)]
            return report(compare(Path(__file__), arguments, given.old, names, given.rounds), as_json=given.json)
        rows = measure(Path(folder), size)
    load = os.getloadavg()[0]
    if given.json:
        about = {"size": asdict(size), "load": load, "torch": torch.__version__}
        print(json.dumps({"rows": [asdict(each) | {"met": each.met} for each in rows], **about}, indent=2))
    else:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load:.1f}")
        print(f"{size.layers} x Linear({size.width}, {size.width}), Adam, fp32")
        print("\n".join(map(line, rows)))
    return 1 if not given.quick and not all(each.met for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
