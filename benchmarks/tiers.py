"""Times of `toprope.tiers` as multiples of what disk, link and computation allow, next to accelerate in the same run.

    python benchmarks/tiers.py                     tables, and exit status 1 when a target is missed
    python benchmarks/tiers.py --json              the same as JSON
    python benchmarks/tiers.py --quick             a small model and few runs, to see that everything works
    python benchmarks/tiers.py --folder /data      where the model's 2.15 GB are written (and, for accelerate, again)
    python benchmarks/tiers.py --old FOLDER        the same passes with another checkout's code, in turns; status 1 when
                                                   one is more than 5 % slower now

The model is 32 x Linear(4096, 4096) in fp32, in files; the device is an arena of 0.5 GB in the host's memory. A run is:
the disk and the computation alone (calibration), a pass whose weights come from the disk, the same with accelerate, and
the calibration again. It does not count where the two calibrations differ by more than 20 %.

The figure is T/T*. T is the time of the pass. T*, its limit, is the longer of two times by the faster calibration:
computing with all weights in memory, and reading the pass's bytes at the disk's speed. Further columns:

* "hot": T/T* with the disk's speed into buffers that stay in the CPU's cache (4 MiB for each thread). T* itself has the
  speed into 128 MiB, since weights go into memory.
* "both alone": the same reading and computing, begun at once and without toprope. It is more than T* where the two
  disturb each other, as they share cores and memory.
* "copied": rows of a model whose weights do not begin at a multiple of 16 bytes in their files. They cannot be read
  into their place and are copied once more.

A timed pass follows another one, so that nothing is read ahead for it between runs. Files are dropped from the page
cache before; `/proc/self/io` says whether a pass has read what it should.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures. Summaries are in `parts.limits`. `TARGETS` are
demands on the product, which the test has too; what is measured must stay comparable: direct reads, files out of the
page cache, a run dropped where its calibrations differ.

Tests: tests/tiers/test_tiers_benchmark.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from parts.limits import Row, line, row
from parts.old_code import Rows, compare, is_served, report, serve
from safetensors.torch import save_file
from torch import nn

from toprope.tiers import attach, skeleton

ROWS = (1, 128, 512)
APART = 1.2  # calibrations that differ by more make a run worthless
TARGETS = {
    "disk, 1 row": 1.15, "disk, 128 rows": 1.25, "disk, 512 rows": 1.25, "disk, 1 row, copied": 1.15,
    "disk, 128 rows, copied": 1.25, "host, 4 GB/s, 16 rows": 1.10,
}  # fmt: skip
COPIED_ROWS = 128  # the most that are measured with copied weights
PIECE = 4 * 2**20  # bytes of a request to the disk
ROOM = 2**27  # bytes of memory that the disk's speed is measured into
HOT = 2**23  # bytes that stay in the CPU's cache


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of its runs."""

    layers: int = 32
    width: int = 4096
    shards: int = 4
    arena: int = 500_000_000
    runs: int = 7
    tries: int = 14
    link: float = 4e9
    apart: float = APART

    @property
    def weights(self) -> int:
        """Bytes."""
        return self.layers * self.width * self.width * 4


QUICK = Size(layers=8, width=512, shards=2, arena=4_500_000, runs=1, tries=2, link=1e9, apart=1e9)


def build(size: Size) -> nn.Sequential:
    """The model, with random weights."""
    return nn.Sequential(*(nn.Linear(size.width, size.width, bias=False) for _ in range(size.layers)))


def write(folder: Path, size: Size, start: int = 0) -> None:
    """The model's files, their weights at multiples of 16 bytes and `start`, a multiple of 8."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    each = size.layers // size.shards
    for shard in range(size.shards):
        scale = size.width**-0.5
        tensors = {
            f"{number}.weight": torch.randn(size.width, size.width) * scale
            for number in range(shard * each, (shard + 1) * each)
        }
        file = folder / f"model-{shard}.safetensors"
        for more in range(0, 24, 8):
            save_file(tensors, file, {"format": "pt"} | ({"more": "x" * more} if more else {}))
            with file.open("rb") as stream:
                begin = 8 + int.from_bytes(stream.read(8), "little")
            if begin % 16 == start:
                break
        assert begin % 16 == start
    drop(folder)


def drop(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for file in folder.iterdir():
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def buffers(nbytes: int) -> list[mmap.mmap]:
    """Buffers of two threads, of `nbytes` together; their memory is touched before it is read into, as a slot's is."""
    made = [mmap.mmap(-1, nbytes // 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
    for each in made:
        each.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to a request: the disk is faster so
        for page in range(0, len(each), mmap.PAGESIZE):
            each[page] = 1
    return made


def read(folder: Path, share: float, into: Sequence[mmap.mmap]) -> int:
    """Read a share of the files directly, 4 MiB at a time, with a thread for each buffer, filled again and again.

    Returns:
        The number of bytes.
    """
    places = [
        (file, offset)
        for file in sorted(folder.glob("*.safetensors"))
        for offset in range(0, file.stat().st_size - PIECE, PIECE)
    ]
    places = places[: max(2, int(len(places) * share))]
    turn = iter(places)
    lock = threading.Lock()
    moved = [0] * len(into)

    def work(number: int) -> None:
        opened: dict[Path, int] = {}
        with memoryview(into[number]) as view:
            at = 0
            while True:
                with lock:
                    place = next(turn, None)
                if place is None:
                    break
                if place[0] not in opened:
                    opened[place[0]] = os.open(place[0], os.O_RDONLY | os.O_DIRECT)
                moved[number] += os.preadv(opened[place[0]], [view[at : at + PIECE]], place[1])
                at = (at + PIECE) % len(view)
        for each in opened.values():
            os.close(each)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(into))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(moved)


def disk_speed(folder: Path, share: float = 1.0, room: int = ROOM) -> float:
    """Bytes a second of reading a share of the files into a buffer of this size, and doing nothing else."""
    into = buffers(room)
    begin = time.perf_counter()
    return read(folder, share, into) / (time.perf_counter() - begin)


def concurrently(folder: Path, nbytes: int, work: Callable[[], object]) -> float:
    """Seconds until both reading `nbytes` and computing are done, begun at once and without toprope."""
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    reader = threading.Thread(target=read, args=(folder, nbytes / total, buffers(ROOM)))
    begin = time.perf_counter()
    reader.start()
    work()
    reader.join()
    return time.perf_counter() - begin


def memory_speed(size: Size) -> float:
    """Bytes copied a second in the host's memory by one thread."""
    import ctypes

    source, target = torch.ones(64 * 2**20, dtype=torch.uint8), torch.ones(64 * 2**20, dtype=torch.uint8)
    begin, times = time.perf_counter(), 4
    for _ in range(times):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())
    return times * source.numel() / (time.perf_counter() - begin)


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def read_bytes() -> int:
    """Bytes that this process has had read from disks."""
    text = Path("/proc/self/io").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("read_bytes")).split()[1])


def resident(folder: Path, size: Size) -> nn.Sequential:
    """The model with all its weights in memory."""
    from safetensors.torch import load_file

    model = build(size)
    state = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    model.load_state_dict(state)
    del state  # its files are mapped, and cannot be dropped so long
    gc.collect()
    drop(folder)
    return model


class Accelerate:
    """The same model with accelerate's disk_offload; None of it where it is not installed."""

    def __init__(self, folder: Path, model: nn.Sequential, size: Size) -> None:
        self.model = None
        try:
            from accelerate import disk_offload
        except ImportError:
            return
        import warnings

        self.folder = folder / "accelerate"
        self.folder.mkdir()
        twin = build(size)
        twin.load_state_dict(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = disk_offload(twin, str(self.folder), execution_device=torch.device("cpu"))

    def run(self, x: torch.Tensor) -> float | None:
        if self.model is None:
            return None
        drop(self.folder)
        return timed(lambda: self.model(x))


def from_disk(
    folder: Path, plain: nn.Sequential, other: Accelerate | None, size: Size, rows: int, kind: str = ""
) -> Row:
    """A pass whose weights come from the disk."""
    torch.manual_seed(1)
    x = torch.randn(rows, size.width)
    with skeleton():
        model = build(size)
    ratios, others, told, discarded = [], [], [], 0
    begin = time.perf_counter()
    with attach(model, size.arena, 0, folder) as handle:
        start = time.perf_counter() - begin
        want = plain(x)
        assert torch.equal(model(x), want)
        for _ in range(size.tries):
            model(x)  # the order and the times are known
            computes = [min(timed(lambda: plain(x)) for _ in range(2))]
            speeds, hot = [disk_speed(folder, 0.5)], [disk_speed(folder, 0.5, HOT)]
            model(x)
            handle.reset_stats()
            was = read_bytes()
            took = timed(lambda: model(x))
            stats, moved = handle.stats(), read_bytes() - was
            # What is read ahead for the next pass is read in this one's time, as this one's was in the last one's.
            loaded = sum(each.bytes for each in handle.plan.loads)
            both = concurrently(folder, loaded, lambda: plain(x))
            theirs = None if other is None else other.run(x)
            speeds.append(disk_speed(folder, 0.5))
            hot.append(disk_speed(folder, 0.5, HOT))
            computes.append(min(timed(lambda: plain(x)) for _ in range(2)))
            if max(speeds) > size.apart * min(speeds) or max(computes) > size.apart * min(computes):
                discarded += 1
                print(f"  not counted: disk {speeds}, computing {computes}", file=sys.stderr)
                continue
            limit = max(min(computes), loaded / max(speeds))
            ratios.append(took / limit)
            text = f"  {rows} rows: {took:.2f} s, limit {limit:.2f} s, both alone {both:.2f} s, accelerate {theirs}"
            print(text, file=sys.stderr)
            by_hot = took / max(min(computes), loaded / max(hot))
            told.append({
                "limit_s": limit, "pass_s": took,
                "read by the system / counted": moved / max(1, stats.moved["disk_read"]),
                "overlap": stats.overlap, "disk_gb_per_s": max(speeds) / 1e9, "hot": by_hot, "both_alone_s": both,
                "attach_s": start,
            })  # fmt: skip
            if theirs is not None:
                others.append(theirs / max(min(computes), size.weights / max(speeds)))
            if len(ratios) == size.runs:
                break
        assert torch.equal(model(x), want)
    name = f"disk, {rows} row{'s' if rows > 1 else ''}{kind}"
    return row(name, ratios, TARGETS.get(name), discarded, told, {"accelerate": others})


def from_host(plain: nn.Sequential, size: Size, rows: int) -> Row:
    """A pass whose weights come from the host over an emulated link."""
    torch.manual_seed(1)
    x = torch.randn(rows, size.width)
    model = build(size)
    model.load_state_dict(plain.state_dict())
    ratios, told, discarded = [], [], 0
    with attach(model, size.arena, size.weights, link=size.link) as handle:
        want = plain(x)
        assert torch.equal(model(x), want)
        for _ in range(size.tries):
            model(x)
            computes = [min(timed(lambda: plain(x)) for _ in range(2))]
            copies = [memory_speed(size)]
            model(x)
            took = timed(lambda: model(x))
            copies.append(memory_speed(size))
            computes.append(min(timed(lambda: plain(x)) for _ in range(2)))
            if max(copies) > size.apart * min(copies) or max(computes) > size.apart * min(computes):
                discarded += 1
                continue
            moved = sum(each.bytes for each in handle.plan.loads)
            memory = (2 * moved + size.weights) / (2 * max(copies))
            limit = max(min(computes), moved / size.link, memory)
            ratios.append(took / limit)
            told.append({"limit_s": limit, "pass_s": took})
            if len(ratios) == size.runs:
                break
    name = f"host, {size.link / 1e9:g} GB/s, {rows} rows"
    return row(name, ratios, TARGETS.get(name), discarded, told)


@contextmanager
def disk_turns(folder: Path, size: Size, rows: int) -> Iterator[Callable[[], float]]:
    """Passes whose weights come from the disk."""
    torch.manual_seed(1)
    x = torch.randn(rows, size.width)
    with skeleton():
        model = build(size)
    with attach(model, size.arena, 0, folder):
        for _ in range(3):
            model(x)
        yield lambda: timed(lambda: model(x))


@contextmanager
def host_turns(size: Size, rows: int, link: float | None) -> Iterator[Callable[[], float]]:
    """Passes whose weights come from the host, over an emulated link where one is given."""
    torch.manual_seed(1)
    x = torch.randn(rows, size.width)
    model = build(size)
    with attach(model, size.arena, size.weights, link=link) as handle:
        for _ in range(3):
            model(x)
        yield lambda: timed(lambda: model(x))
        handle.close()  # the weights are not looked at again


@contextmanager
def small_turns() -> Iterator[Callable[[], float]]:
    """Passes of small layers that come and go: time of Python."""
    model, x = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(64))), torch.randn(1, 64)
    with attach(model, 40 * 64 * 64 * 4, "1GB", small=1):
        for _ in range(5):
            model(x)
        yield lambda: min(timed(lambda: model(x)) for _ in range(20))


def turns(size: Size, folder: Path, counts: Sequence[int]) -> Rows:
    """The work that is also measured with an older code (--old)."""
    found: Rows = {
        **{f"disk, {count} rows": partial(disk_turns, folder / "whole", size, count) for count in counts},
        **{
            f"disk, {count} rows, copied": partial(disk_turns, folder / "odd", size, count)
            for count in counts
            if count <= COPIED_ROWS
        },
        **{
            f"host, {'no link' if link is None else f'{link / 1e9:g} GB/s'}, {count} rows": partial(
                host_turns, size, count, link
            )
            for link in (None, size.link, 4 * size.link)
            for count in (16, 128)
        },
        "64 small layers": small_turns,
    }
    return found


def against(old: Path, given: argparse.Namespace, size: Size) -> int:
    """The passes with the code of now and with an older one's, in turns; the exit status."""
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="toprope-bench-") as name:
        folder = Path(name)
        write(folder / "whole", size)
        write(folder / "odd", size, 8)
        arguments = ["--folder", name, *(["--quick"] if given.quick else []), "--rows", *map(str, given.rows)]
        names = list(turns(size, folder, given.rows))
        return report(compare(Path(__file__), arguments, old, names, given.rounds), as_json=given.json)


def overhead() -> float:
    """Microseconds of Python a layer: small layers that come and go, against the same ones in memory."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(64)))
    x = torch.randn(1, 64)
    plain = min(timed(lambda: model(x)) for _ in range(50))
    with attach(model, 40 * 64 * 64 * 4, "1GB", small=1) as handle:
        for _ in range(5):
            model(x)
        took = min(timed(lambda: model(x)) for _ in range(50))
        assert handle.plan.slots
    return (took - plain) / 64 * 1e6


MEMORY = """
import sys, threading, time, torch
sys.path.insert(0, {folder!r})
import tiers
size = tiers.Size(**{size!r})
with tiers.skeleton():
    model = tiers.build(size)
x = torch.randn(8, size.width)
torch.nn.Linear(size.width, size.width, bias=False)(x)
def anon():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))
peak, going = 0, True
def watch():
    global peak
    while going:
        peak = max(peak, anon())
        time.sleep(0.002)
before = anon()
thread = threading.Thread(target=watch)
thread.start()
with torch.no_grad(), tiers.attach(model, size.arena, 0, {model!r}) as handle:
    for _ in range(2):
        model(x)
going = False
thread.join()
print((peak - before) / size.arena)
"""


def memory(folder: Path, size: Size) -> float:
    """The most memory that a process takes in addition to what it had, as a part of the device's budget."""
    code = MEMORY.format(folder=str(Path(__file__).parent), size=asdict(size), model=str(folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(size: Size, folder: Path, counts: Sequence[int] = ROWS) -> tuple[list[Row], dict[str, float]]:
    """Measure all rows: weights from the disk, from the host, and the costs of Python and memory."""
    torch.set_grad_enabled(False)
    whole, odd = folder / "whole", folder / "odd"
    write(whole, size)
    plain = resident(whole, size)
    other = Accelerate(folder, plain, size)
    rows = [from_disk(whole, plain, other, size, count) for count in counts]
    if other.model is not None:
        shutil.rmtree(other.folder)
    del other
    gc.collect()
    write(odd, size, 8)
    rows += [from_disk(odd, plain, None, size, count, ", copied") for count in counts if count <= COPIED_ROWS]
    shutil.rmtree(odd)
    rows += [from_host(plain, size, count) for count in (16, 128)]
    return rows, {"python_us_a_layer": overhead(), "memory_of_budget": memory(whole, size)}


LIMITS = {"python_us_a_layer": 100.0, "memory_of_budget": 1.05}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="a small model and few runs")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS, help="how many rows the passes from the disk have")
    parser.add_argument("--folder", type=Path, help="where the model is written")
    parser.add_argument("--runs", type=int, help="how many runs must count")
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="a checkout of the code to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each row with --old")
    given = parser.parse_args()
    size = QUICK if given.quick else Size()
    if given.runs:
        size = replace(size, runs=given.runs, tries=2 * given.runs)
    if is_served():
        torch.set_grad_enabled(False)
        serve(turns(size, given.folder, given.rows))
        return 0
    if given.old is not None:
        return against(given.old, given, size)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="toprope-bench-") as folder:
        rows, figures = measure(size, Path(folder), given.rows)
    load = os.getloadavg()[0]
    if given.json:
        about = {"size": asdict(size), "load": load, "torch": torch.__version__, "machine": platform.machine()}
        print(json.dumps({"rows": [asdict(each) | {"met": each.met} for each in rows], **figures, **about}, indent=2))
    else:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load:.1f}")
        print(f"{size.layers} x Linear({size.width}, {size.width}), {size.weights / 1e9:.2f} GB")
        print(f"arena of {size.arena / 1e9} GB")
        print("\n".join(map(line, rows)))
        for name, value in figures.items():
            mark = "met" if value <= LIMITS[name] else "MISSED"
            print(f"{name:20} {value:.2f}   target {LIMITS[name]} {mark}")
    missed = [each for each in rows if not each.met] or [
        name for name, value in figures.items() if value > LIMITS[name]
    ]
    return 1 if missed and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main())
