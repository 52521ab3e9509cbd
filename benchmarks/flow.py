"""Pipelines of `toprope.flow` next to Ray's compiled graphs on this machine: medians of rounds that take turns.

    python benchmarks/flow.py                 tables, and exit status 1 when a target is missed
    python benchmarks/flow.py --json          the same as JSON
    python benchmarks/flow.py --without-ray   ours alone: what is measured against Ray has no verdict then
    python benchmarks/flow.py --old FOLDER    next to the code of another checkout: no row may be more than 5 % slower
    python benchmarks/flow.py --share 0.05    fewer inputs, to see that all of it runs

Each stage returns what it is given, in a process of its own on both sides. Ray is the extra `cluster`.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures. Turns and rows are in `parts.turns`. Both
sides must do the same work with as many inputs under way; targets (`limit` of a row) are demands on the product, not on
this machine, and are not raised to pass.

Tests: tests/flow/test_flow_benchmark.py.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TOPROPE_SIM", "910B4x1")

import numpy as np
import torch
from parts.processes import memory
from parts.turns import SLOWER, Measure, Row, Work, one_by_one, several

from toprope import flow
from toprope.flow.exceptions import QUEUE_FULL

ROUNDS = 5
INPUTS, PIPELINED, GROWTH = 1000, 2000, 10_000
"""Inputs of a round one after the other, inputs of a round with several under way, inputs of the test of memory."""

WINDOW = 8
"""Inputs that are under way where there are several, on both sides."""

MB = 10**6
GROWTH_BYTES = 8 * 2**20
"""Memory that driver and stages may have more after the inputs of the test of memory."""

LARGE = np.random.default_rng(0).integers(0, 255, MB, "u1")
WAIT_MS = 60_000

flow.init({})


@flow.pyflow
def same(value: Any) -> Any:
    return value


@flow.npu_model(resources={"num_cpus": 1})  # the simulated card computes on the CPU, with as many threads
def same_on_card(value: torch.Tensor) -> torch.Tensor:
    return value


class Ours:
    """A chain of stages of toprope.flow.

    Args:
        hops: number of stages.
        stage: what they run.
        options: of the graph.
    """

    def __init__(self, hops: int, stage: Any = same, **options: Any) -> None:
        self._input = flow.FlowData()
        last: Any = self._input
        for _ in range(hops):
            last = stage.fnode()(last)
        self._graph = flow.FlowGraph([last], **options)
        self.once(torch.zeros(4))

    def once(self, value: Any) -> Any:
        """One input, there and back."""
        self._feed(value)
        return self._fetch()

    def pipelined(self, value: Any, count: int) -> None:
        """Process `count` inputs, of which several are under way at a time."""
        for number in range(count + WINDOW):
            if number >= WINDOW:
                self._fetch()
            if number < count:
                self._feed(value)

    def filled(self, value: Any) -> int:
        """Feed until nothing fits any more, and fetch all of it; how many inputs that were."""
        count = 0
        while (code := self._graph.feed({self._input: value}, 500)) == 0:
            count += 1
        if code != QUEUE_FULL:
            raise RuntimeError(f"feed returned {code}: {self._graph.error}")
        for _ in range(count):
            self._fetch()
        return count

    def flooded(self, value: Any, count: int) -> int:
        """Process `count` inputs, with as many under way as fit; return the most that an edge held."""
        feeding = threading.Thread(target=lambda: [self._feed(value) for _ in range(count)])
        feeding.start()
        deepest = 0
        for number in range(count):
            self._fetch()
            if number % 20 == 0:
                deepest = max([deepest, *(each.depth for each in self._graph.metrics())])
        feeding.join()
        return deepest

    def value(self, is_large: bool) -> Any:
        """The input: a large array, or a small one."""
        return torch.from_numpy(LARGE.copy()) if is_large else None

    def pids(self) -> list[int]:
        """The processes of driver and stages."""
        return [os.getpid(), *set(self._graph._runner.pids().values())]

    def _feed(self, value: Any) -> None:
        if code := self._graph.feed({self._input: value}, WAIT_MS):
            raise RuntimeError(f"feed returned {code}: {self._graph.error}")

    def _fetch(self) -> Any:
        values, code = self._graph.fetch(None, WAIT_MS)
        if code:
            raise RuntimeError(f"fetch returned {code}: {self._graph.error}")
        return values[0]

    def close(self) -> None:
        self._graph.close()


class Echo:
    """A stage on Ray's side."""

    def same(self, value: Any) -> Any:
        return value

    def pid(self) -> int:
        return os.getpid()


class Rays:
    """A chain of actors in a compiled graph of Ray.

    Args:
        ray: the module.
        hops: number of actors.
    """

    def __init__(self, ray: Any, hops: int) -> None:
        from ray.dag import InputNode

        self._ray = ray
        self._actors = [ray.remote(num_cpus=0)(Echo).remote() for _ in range(hops)]
        self._pids = [os.getpid(), *ray.get([each.pid.remote() for each in self._actors])]
        with InputNode() as last:
            for actor in self._actors:
                last = actor.same.bind(last)
        self._graph = last.experimental_compile(_buffer_size_bytes=2 * MB, _max_inflight_executions=WINDOW)
        self.once(0)

    def once(self, value: Any) -> Any:
        """One input, there and back."""
        return self._ray.get(self._graph.execute(value), timeout=60)

    def pipelined(self, value: Any, count: int) -> None:
        """Process `count` inputs, of which several are under way at a time."""
        under_way: deque[Any] = deque()
        for number in range(count + WINDOW):
            if number >= WINDOW:
                self._ray.get(under_way.popleft(), timeout=60)
            if number < count:
                under_way.append(self._graph.execute(value))

    def value(self, is_large: bool) -> Any:
        """The input: a large array, or a small one."""
        return LARGE.copy() if is_large else None

    def pids(self) -> list[int]:
        """The processes of driver and actors."""
        return self._pids

    def close(self) -> None:
        for actor in self._actors:  # teardown of its graph was seen to wait for ever
            self._ray.kill(actor)


class Chains:
    """The rows of a chain of `hops` stages.

    Args:
        ray: the module; None to measure ours alone.
        hops: number of stages.
        share: of the inputs of a whole measurement.
    """

    def __init__(self, ray: Any, hops: int, share: float) -> None:
        self._name = f"{hops} stages" if hops > 1 else "1 stage"
        self._few = max(3, int(INPUTS * share))
        self._many = max(3, int(PIPELINED * share))
        self.sides: list[Ours | Rays] = []
        self.work: list[Work] = []
        plain = Ours(hops)
        rays = Rays(ray, hops) if ray is not None else None
        self._add("empty", 1.0, one_by_one(False, self._few), plain, rays)
        self._add("1 MB", 0.5, one_by_one(True, self._few // 2 + 1), plain, rays)
        if hops > 1:
            several_empty, several_large = several(False, self._many), several(True, self._many // 4 + 1)
            self._add(f"empty, {WINDOW} under way", 0.5, several_empty, plain, rays)
            self._add(f"1 MB, {WINDOW} under way", 0.5, several_large, plain, rays)
        self._add_apart("on a simulated card", Ours(hops, same_on_card), (True,))
        if hops > 1:
            self._add_apart("colocate=True", Ours(hops, colocate=True), (False, True))

    def _add(self, name: str, limit: float | None, measure: Measure, ours: Ours, rays: Rays | None) -> None:
        self.sides += [each for each in (ours, rays) if each is not None and each not in self.sides]
        self.work.append(Work(Row(f"{self._name}, {name}", limit), ours, rays, measure))

    def _add_apart(self, name: str, ours: Ours, sizes: tuple[bool, ...]) -> None:
        for is_large in sizes:
            text = f"{name}, {'1 MB' if is_large else 'empty'}"
            self._add(text, None, one_by_one(is_large, self._few // 2 + 1), ours, None)

    def close(self) -> None:
        for side in self.sides:
            side.close()


class Old:
    """The same chains with the code of another checkout, in a program of its own.

    Args:
        folder: the checkout.
        hops, share: see `Chains`.
    """

    def __init__(self, folder: Path, hops: int, share: float) -> None:
        environment = os.environ | {"PYTHONPATH": str(folder / "src")}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--answer", str(hops), "--share", str(share)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        found = self._answer()
        if Path(found["code"]).resolve() != (folder / "src" / "toprope" / "__init__.py").resolve():
            raise SystemExit(f"the old code was not used but {found['code']}. do: name a checkout with --old")
        self.pids: list[int] = found["pids"]

    def _answer(self) -> Any:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"the program of the old code has ended with status {self._process.wait()}")
        return json.loads(line)

    def measure(self, place: int) -> float:
        """Microseconds of an input in the row at this place."""
        self._process.stdin.write(f"{place}\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return float(self._answer())

    def close(self) -> None:
        self._process.communicate("")


def answer(hops: int, share: float) -> None:
    """Measure the rows whose places come on standard input, see `Old`."""
    import toprope

    chains = Chains(None, hops, share)
    pids = sorted({pid for each in chains.sides for pid in each.pids()})
    print(json.dumps({"code": toprope.__file__, "pids": pids}), flush=True)
    for line in sys.stdin:
        work = chains.work[int(line)]
        print(json.dumps(work.once(work.ours)[0]), flush=True)
    chains.close()
    flow.finalize()


def compare(ray: Any, share: float, rounds: int, old: Path | None) -> list[Row]:
    """All rows. One round before does not count."""
    rows = []
    for hops in (1, 3):
        chains = Chains(ray, hops, share)
        before = None if old is None else Old(old, hops, share)
        if before is not None:
            for place, each in enumerate(chains.work):
                each.old = functools.partial(before.measure, place)
        for number in range(rounds + 1):
            for each in chains.work:
                each.turn(number, chains.sides, () if before is None else before.pids)
        if before is not None:
            before.close()
        chains.close()
        rows += [each.row for each in chains.work]
    return rows


# Memory


@dataclass(frozen=True)
class Growth:
    """Memory and queue lengths after many inputs.

    Attributes:
        count: number of inputs.
        depth: the most messages that an edge held.
        before, after: memory of driver and stages in bytes.
    """

    count: int
    depth: int
    before: int
    after: int

    @property
    def met(self) -> bool:
        """True if the edges held no more than they may, and nothing has grown."""
        return self.depth <= 128 and self.after - self.before <= GROWTH_BYTES


def growth(count: int) -> Growth:
    """Feed as fast as there is room, and fetch."""
    side = Ours(3)
    value = torch.zeros(100_000, dtype=torch.uint8)
    side.filled(value)  # memory that is kept to be used again is there afterwards
    side.flooded(value, max(30, count // 10))
    before = memory(side.pids())
    depth = side.flooded(value, count)
    after = memory(side.pids())
    side.close()
    return Growth(count, depth, before, after)


# The whole


def started_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    logging.getLogger("ray._private.accelerators.npu").disabled = True  # there is no acl here, and it says so at length
    ray.init(
        address="local", num_cpus=8, resources={"NPU": 1}, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR,
    )  # fmt: skip
    return ray


def show(rows: list[Row], grown: Growth, rounds: int) -> None:
    """Print the tables."""
    words = {None: "", True: "met", False: "missed"}
    load = os.getloadavg()[0]
    print(f"Medians of {rounds} rounds, measured here on {os.cpu_count()} processors with a load of {load:.1f}\n")
    print("| microseconds for an input | toprope | Ray | toprope / Ray (interval) | target | | CPU toprope | CPU Ray |")
    print("|---|---:|---:|---:|---|---|---:|---:|")
    for row in rows:
        found = row.as_dict()
        ray = found["ray"]
        target = "" if row.limit is None else f"<= {row.limit:g}x"
        text = ("", "") if ray is None else (f"{ray:.0f}", str(row.to_ray))
        theirs = "" if ray is None else f"{found['rays_processor']:.0f}"
        print(f"| {row.name} | {found['ours']:.0f} | {text[0]} | {text[1]} | {target} | {words[row.met]}"
              f" | {found['our_processor']:.0f} | {theirs} |")  # fmt: skip
    if any(row.old for row in rows):
        print(
            "\n| median ratio to the old code | toprope / old (interval, confidence) | target | |\n|---|---:|---|---|"
        )
        for row in rows:
            print(f"| {row.name} | {row.to_old} | <= {SLOWER:g} | {words[not row.is_slower]} |")
    before, after = grown.before / MB, grown.after / MB
    print(f"\n{grown.count} inputs of 100 KB through 3 stages, as many under way as fit: at most {grown.depth} in an")
    print(f"edge, driver and stages {before:.1f} MB before and {after:.1f} MB after: {words[grown.met]}")


def main() -> int:
    """Prints the tables; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("--without-ray", action="store_true", help="ours alone")
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs of a whole measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count")
    parser.add_argument(
        "--growth", type=int, default=0, help=f"inputs of the test of memory ({GROWTH}, or the share of it)"
    )
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="a checkout whose code takes turns with this one's")
    parser.add_argument("--answer", type=int, metavar="HOPS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.old is not None and not (arguments.old / "src" / "toprope").is_dir():
        parser.error(f"--old {arguments.old}: there is no src/toprope in it. do: name the folder of a checkout")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.old is not None:
            arguments.old = arguments.old.resolve()
        os.chdir(folder)  # stages have a folder each, where the program is
        if arguments.answer is not None:
            answer(arguments.answer, arguments.share)
            return 0
        grown = growth(arguments.growth or max(30, int(GROWTH * arguments.share)))  # Ray has threads in the driver too
        ray = None if arguments.without_ray else started_ray()
        rows = compare(ray, arguments.share, arguments.rounds, arguments.old)
        flow.finalize()
        os.chdir("/")
    if arguments.json:
        found = {"count": grown.count, "depth": grown.depth, "before": grown.before, "after": grown.after,
                 "met": grown.met}  # fmt: skip
        print(json.dumps({"rows": [row.as_dict() for row in rows], "growth": found}, indent=1))
    else:
        show(rows, grown, arguments.rounds)
    return 1 if not grown.met or any(row.met is False or row.is_slower for row in rows) else 0


def end(code: int) -> None:
    """Shut Ray down, within a limit of seconds: now and then it waits for its compiled graphs for ever."""
    if "ray" in sys.modules:
        ending = threading.Thread(target=sys.modules["ray"].shutdown, daemon=True)
        ending.start()
        ending.join(20)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
