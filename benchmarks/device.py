"""Cost of a call of `toprope.device` over torch's own, and speed of loading weights; minima of rounds.

    python benchmarks/device.py               tables, and exit status 1 when a target is missed
    python benchmarks/device.py --json        the same as JSON
    python benchmarks/device.py --megabytes 256   a smaller file than 2 GB

The card is the simulated one: the calls cost the same on a real one, the copies do not.

Run by hand and by benchmarks/run.py, which reads its JSON; docs/benchmarks.md has the figures. `OVER`, `RATIO` and
`HOST` are demands on the product; a call of toprope.device is added to `pairs` with torch's own next to it. Tests:
tests/device/test_device_benchmark.py sees that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import toprope.sim

toprope.sim.install("910B3", count=2)

import torch  # noqa: E402 - the card first
from safetensors.torch import save_file  # noqa: E402

from toprope import device  # noqa: E402

ROUNDS = 9
SHORT_ROUNDS, CALLS = 100, 200
"""Rounds of calls are many and short, so that both sides of a pair meet a quiet moment of the machine."""

OVER = 1.0
"""Microseconds that a call may cost over torch's own."""

RATIO = 1.3
"""The most that loading may take, relative to reading the file once and copying it once."""

HOST = 64 * 2**20
"""Bytes of the host's memory that loading may need beyond the card's own."""


@dataclass(frozen=True)
class Call:
    """One call of toprope.device next to torch's own. Microseconds."""

    name: str
    torch: float
    ours: float

    @property
    def met(self) -> bool:
        """True if the target holds."""
        return self.ours <= self.torch + OVER


@dataclass(frozen=True)
class Load:
    """Loading a file, next to reading and copying it. Seconds and bytes."""

    megabytes: int
    read_and_copy: float
    load: float
    host_bytes: int

    @property
    def met(self) -> bool:
        """True if both targets hold."""
        return self.load <= RATIO * self.read_and_copy and self.host_bytes <= HOST


def pairs() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """By name: torch's own call, and the call of toprope.device."""
    npu = torch.npu
    card = device.get("npu:1")
    stream, where = card.stream(), torch.device("npu:1")
    torch.ones(2, device=where)

    def torch_use() -> None:
        with npu.device(1):
            pass

    def our_use() -> None:
        with card.as_current():
            pass

    return {
        'get("npu:1")': (lambda: torch.device("npu:1"), lambda: device.get("npu:1")),
        "memory_allocated": (lambda: npu.memory_allocated(1), card.memory_allocated),
        "memory_info": (lambda: npu.mem_get_info(1), card.memory_info),
        "max_memory_allocated": (lambda: npu.max_memory_allocated(1), card.max_memory_allocated),
        "synchronize": (lambda: npu.synchronize(1), card.synchronize),
        "empty_cache": (npu.empty_cache, card.empty_cache),
        "current_stream": (lambda: npu.current_stream(1), card.current_stream),
        "on_stream": (lambda: npu.stream(stream), lambda: card.on_stream(stream)),
        "event": (lambda: npu.Event(enable_timing=False), card.event),
        "set_current": (lambda: npu.set_device(1), card.set_current),
        "as_current": (torch_use, our_use),
        "generator": (
            lambda: torch.Generator(device=where).manual_seed(7),
            lambda: card.generator(7),
        ),
        "is_out_of_memory": (
            lambda: isinstance(ERROR, torch.OutOfMemoryError),
            lambda: device.is_out_of_memory(ERROR),
        ),
    }


ERROR = torch.OutOfMemoryError("NPU out of memory")


def calls() -> list[Call]:
    """Every pair; the two take turns, so that a slow moment hits both."""
    found = []
    for name, both in pairs().items():
        least = [float("inf"), float("inf")]
        for _ in range(SHORT_ROUNDS):
            for side, function in enumerate(both):
                begin = time.perf_counter_ns()
                for _ in range(CALLS):
                    function()
                least[side] = min(least[side], (time.perf_counter_ns() - begin) / CALLS / 1000)
        found.append(Call(name, *least))
    torch.npu.set_device(0)
    return found


def read_and_copy(path: Path, host: torch.Tensor, card: torch.Tensor) -> float:
    """Seconds to read the file into host memory once and copy it to the card once, all pages touched before."""
    view = memoryview(host.numpy())
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(view):
            done += file.readinto(view[done : done + 2**30])
    card.copy_(host)
    torch.npu.synchronize()
    return time.perf_counter() - begin


def load(megabytes: int, folder: Path) -> Load:
    """Measure loading a file of this size, and reading and copying it, in turns; its pages are in the cache."""
    path = folder / "weights.safetensors"
    rows = megabytes * 10**6 // 4 // 16 // 4096
    save_file({f"layer{index}": torch.full((rows, 4096), float(index)) for index in range(16)}, path)
    card = device.get("npu:0")
    host = torch.ones(path.stat().st_size, dtype=torch.uint8)
    target = torch.ones(path.stat().st_size, dtype=torch.uint8, device=card.torch_device)
    weights = card.load(path)  # so that the card's pages for it are there
    del weights
    reading = loading = float("inf")
    for _ in range(ROUNDS):
        reading = min(reading, read_and_copy(path, host, target))
        begin = time.perf_counter()
        weights = card.load(path)
        card.synchronize()
        loading = min(loading, time.perf_counter() - begin)
        del weights
    return Load(megabytes, reading, loading, host_bytes(card, path))


def host_bytes(card: device.Device, path: Path) -> int:
    """The most host memory that a load needs at once: the card's own pages are all there from the loads before."""
    status = Path("/proc/self/status")

    def kibibytes(name: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5")
    before = kibibytes("VmRSS")
    weights = card.load(path)
    assert len(weights) == 16
    return (kibibytes("VmHWM") - before) * 1024


def main() -> int:
    """Prints the tables; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("--megabytes", type=int, default=2000, help="size of the file of weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = calls()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        loaded = load(arguments.megabytes, Path(folder))
    if arguments.json:
        print(json.dumps({"calls": [asdict(each) for each in found], "load": asdict(loaded)}, indent=1))
    else:
        print(f"torch {torch.__version__}, one thread, minima of rounds, measured here\n")
        print("| call | torch's own, us | the door's, us | target | |\n|---|---:|---:|---|---|")
        for each in found:
            met = "met" if each.met else "missed"
            print(f"| {each.name} | {each.torch:.2f} | {each.ours:.2f} | <= +{OVER:.0f} us | {met} |")
        ratio = loaded.load / loaded.read_and_copy
        print(f"\n{loaded.megabytes} MB of weights: read once and copied once {loaded.read_and_copy:.3f} s,"
              f" loaded {loaded.load:.3f} s = {ratio:.2f}x (target <= {RATIO}x),"
              f" host memory {loaded.host_bytes / 10**6:.1f} MB (target <= {HOST / 10**6:.0f} MB):"
              f" {'met' if loaded.met else 'missed'}")  # fmt: skip
    return 0 if loaded.met and all(each.met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
