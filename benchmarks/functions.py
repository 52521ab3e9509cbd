"""Instances of `toprope.functions` next to Ray's actors on this machine: medians of rounds in which both take turns.

    python benchmarks/functions.py                 tables, and exit status 1 when a target is missed
    python benchmarks/functions.py --json          the same as JSON
    python benchmarks/functions.py --without-ray   ours alone: what is measured against Ray has no verdict then
    python benchmarks/functions.py --share 0.05    fewer calls, to see that all of it runs
    python benchmarks/functions.py --old FOLDER    next to the toprope of another work tree (git worktree add FOLDER
                                                   COMMIT) in the place of Ray; exit status 1 when a row is slower

Ray is the extra `cluster`. The card is a simulated one: a real card's own start comes on top of both sides.

Run by hand and by benchmarks/run.py, which reads its JSON; docs/benchmarks.md has the figures. `--old` uses
`parts.versions`. Both sides run the same classes, `NPUInstance` as its user wrote it. Targets are demands on the
product and are not loosened to pass; numbers of calls and rounds are free.

Tests: tests/functions/test_functions_benchmark.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TOPROPE_SIM", "910B4x2")

import numpy as np
from parts.footprint import Footprint, settled
from parts.versions import Compared, Version, compare_versions, serve

from toprope import functions as yr

ROUNDS = 5
CALLS, PIPELINED, CREATED, GROWTH = 2000, 10_000, 5, 1000
"""Calls of a round, calls at once, instances of a round, instances one after the other."""

KB, MB = 1000, 10**6
CREATION_MS = 20.0
GROWTH_BYTES = 8 * 2**20
"""Memory that driver and forkserver may have more after a thousand instances: what is remembered of the last 500."""


class Probe:
    """The class that both sides run."""

    def nothing(self) -> None:
        """Only the way there and back."""

    def size(self, value: np.ndarray) -> int:
        return value.nbytes


class NPUInstance:
    """The mission's class."""

    def __init__(self) -> None:
        self.device = None

    def getEnv(self) -> str:  # noqa: N802 - as its user wrote it
        return f"ASCEND_RT_VISIBLE_DEVICES: {os.getenv('ASCEND_RT_VISIBLE_DEVICES')}"

    def run(self) -> str:
        import torch

        tensor = torch.randn(3, 3).to("npu:0")
        return f"Tensor device: {tensor.device}, result: \n {tensor}"


class Ours:
    """Instances of the yr API, of whichever backend the session has."""

    def __init__(self) -> None:
        self._of_card = yr.instance(NPUInstance).options(yr.InvokeOptions(custom_resources={"NPU/.+/count": 1}))
        self._probe = yr.instance(Probe).invoke()
        self.nothing()

    def nothing(self) -> None:
        yr.get(self._probe.nothing.invoke())

    def pipelined(self, count: int) -> None:
        yr.get([self._probe.nothing.invoke() for _ in range(count)])

    def size(self, value: Any) -> int:
        return yr.get(self._probe.size.invoke(value))

    def put(self, value: Any) -> Any:
        return yr.put(value)

    def create(self) -> Any:
        instance = self._of_card.invoke()
        yr.get(instance.getEnv.invoke())
        return instance

    def run(self, instance: Any) -> None:
        yr.get(instance.run.invoke())

    def end(self, instance: Any) -> None:
        instance.terminate(is_sync=True)

    def close(self) -> None:
        self._probe.terminate()


class Rays:
    """Actors of Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._of_card = ray.remote(num_cpus=0.5, resources={"NPU": 1})(NPUInstance)
        self._probe = ray.remote(num_cpus=0.5)(Probe).remote()
        self.nothing()

    def nothing(self) -> None:
        self._ray.get(self._probe.nothing.remote())

    def pipelined(self, count: int) -> None:
        self._ray.get([self._probe.nothing.remote() for _ in range(count)])

    def size(self, value: Any) -> int:
        return self._ray.get(self._probe.size.remote(value))

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def create(self) -> Any:
        actor = self._of_card.remote()
        self._ray.get(actor.getEnv.remote())
        return actor

    def end(self, actor: Any) -> None:
        self._ray.kill(actor)


Side = Ours | Rays


@dataclass
class Row:
    """One comparison; times in microseconds.

    Attributes:
        name: what is done.
        target: in words; "" for none.
        holds: whether the target is met by our time and Ray's, None where Ray was not measured.
        needs_ray: whether the target is relative to Ray.
        ours, ray: a time for each round.
    """

    name: str
    target: str = ""
    holds: Callable[[float, float | None], bool] | None = None
    needs_ray: bool = True
    ours: list[float] = field(default_factory=list)
    ray: list[float] = field(default_factory=list)

    @property
    def times(self) -> tuple[float, float | None]:
        """The medians of both sides."""
        return statistics.median(self.ours), statistics.median(self.ray) if self.ray else None

    @property
    def met(self) -> bool | None:
        """True if the target is met; None where there is none, or nothing to measure it against."""
        if self.holds is None or (self.needs_ray and not self.ray):
            return None
        return self.holds(*self.times)

    def as_dict(self) -> dict[str, Any]:
        ours, ray = self.times
        return {"name": self.name, "ours": ours, "ray": ray, "target": self.target, "met": self.met}


def faster(times: float) -> dict[str, Any]:
    """The target to be faster than Ray by this factor."""
    return {"target": f">= {times:g}x faster", "holds": lambda ours, ray: ours * times <= ray}


def median_of(call: Callable[[], object], count: int) -> float:
    """The median time of a call in microseconds."""
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return statistics.median(times)


Work = list[tuple[Row, Callable[[Side], float]]]


def compare(sides: list[Side], share: float) -> list[Row]:
    """The rows about calls and arguments."""
    work = calls(sides, share)
    take_turns(sides, work)
    return [row for row, _ in work]


def calls(sides: list[Side], share: float) -> Work:
    """How calls and arguments are measured."""

    def some(count: int) -> int:
        return max(3, int(count * share))

    small, middle, large = (np.random.default_rng(0).bytes(size) for size in (10 * KB, MB, 100 * MB))
    values = [np.frombuffer(each, "u1") for each in (small, middle, large)]
    refs = {id(side): side.put(values[2]) for side in sides}
    pipelined = some(PIPELINED)
    return [
        (Row("a call and its reply", **faster(15)), lambda side: median_of(side.nothing, some(CALLS))),
        (Row("calls one after the other without waiting, each", **faster(15)),
         lambda side: median_of(lambda: side.pipelined(pipelined), 3) / pipelined),
        (Row("10 KB argument"), lambda side: median_of(lambda: side.size(values[0]), some(CALLS // 4))),
        (Row("1 MB argument", **faster(15)), lambda side: median_of(lambda: side.size(values[1]), some(CALLS // 10))),
        (Row("100 MB put once, passed by reference", **faster(8)),
         lambda side: median_of(lambda: side.size(refs[id(side)]), some(CALLS // 20))),
        (Row("100 MB by value", "no slower than Ray", lambda ours, ray: ours <= ray),
         lambda side: median_of(lambda: side.size(values[2]), some(10))),
    ]  # fmt: skip


def take_turns(sides: list[Side], work: Work, rounds: int = ROUNDS) -> None:
    """Measure in rounds; in each, every side once. One round before does not count."""
    for number in range(rounds + 1):
        for row, measure in work:
            for side in sides:
                found = measure(side)
                if number:
                    (row.ours if side is sides[0] else row.ray).append(found)


def creation(sides: list[Side], share: float) -> list[Row]:
    """From the wish for an instance that holds a card to the first reply of it, workers being warm."""
    target = f"<= {CREATION_MS:g} ms"
    rows = [
        Row("the mission's class on a simulated card, made and asked once", target,
            lambda ours, ray: ours <= 1000 * CREATION_MS, needs_ray=False),
        Row("... and the first tensor on its card"),
    ]  # fmt: skip
    for number in range(max(3, int(ROUNDS * CREATED * share))):
        for side in sides:
            made, found = created(side)
            if isinstance(side, Ours):
                rows[1].ours.append(median_of(lambda side=side, made=made: side.run(made), 1))
            if number:
                (rows[0].ours if side is sides[0] else rows[0].ray).append(found)
            side.end(made)
    return rows


def created(side: Side) -> tuple[Any, float]:
    """An instance that holds a card, and the microseconds until it has answered once."""
    time.sleep(0.3)  # the next worker gets warm
    begin = time.perf_counter()
    made = side.create()
    return made, (time.perf_counter() - begin) * 1e6


# Another version


def serve_rows(share: float) -> None:
    """Measure rows of this process's toprope as another process asks for them."""
    yr.init(yr.Config(num_cpus=16))
    side = Ours()
    rows: dict[str, Callable[[], float]] = {row.name: partial(measure, side) for row, measure in calls([side], share)}

    def create() -> float:
        made, found = created(side)
        side.end(made)
        return found

    rows["the mission's class on a simulated card, made and asked once"] = lambda: statistics.median(
        create() for _ in range(max(1, int(CREATED * share)))
    )
    import toprope

    assert toprope.__file__ is not None
    serve(rows, toprope.__file__, sys.stdin, sys.stdout)
    side.close()
    yr.finalize()


def compare_with(old: Path, share: float, rounds: int) -> list[Compared]:
    """The rows of this work tree and of another."""
    here = Path(__file__).resolve()
    versions = []
    try:
        for folder in (here.parents[1], old):
            versions.append(Version(folder, str(here), "--share", str(share)))
        return compare_versions(versions[0], versions[1], rounds)
    finally:
        for each in versions:
            each.close()


def show_versions(rows: list[Compared], old: Path, rounds: int) -> None:
    """Print the table."""
    print(f"Medians of {rounds} rounds next to {old}; new / old: geometric mean and 95 % interval\n")
    print("| | new | old | new / old | interval | |\n|---|---:|---:|---:|---|---|")
    for each in rows:
        ratio, low, high = each.ratio
        times = f"{time_of(statistics.median(each.new))} | {time_of(statistics.median(each.old))}"
        print(f"| {each.name} | {times} | {ratio:.3f} | {low:.3f} to {high:.3f} | {each.verdict} |")


def on_ray(ray: Any, share: float) -> list[Row]:
    """Rows of toprope's Ray backend, next to Ray's own calls."""
    little_more = {"target": "<= 1.15x Ray's own", "holds": lambda ours, ray: ours <= 1.15 * ray}
    yr.init(yr.Config(server_address="ray"))
    value = np.zeros(MB, "u1")
    count = max(3, int(CALLS * share))
    work: Work = [
        (Row("on Ray: a call and its reply", **little_more), lambda side: median_of(side.nothing, count)),
        (Row("on Ray: 1 MB argument", **little_more), lambda side: median_of(lambda: side.size(value), count // 5)),
    ]
    sides: list[Side] = [Ours(), Rays(ray)]
    take_turns(sides, work)
    sides[0].close()
    yr.finalize()
    return [row for row, _ in work]


# Growth


@dataclass(frozen=True)
class Growth:
    """Memory, descriptors and processes that are left after many instances, one after the other."""

    count: int
    seconds: float
    before: Footprint
    after: Footprint

    @property
    def met(self) -> bool:
        """True if nothing has grown."""
        before, after = self.before, self.after
        same = (before.descriptors, before.processes) == (after.descriptors, after.processes)
        return same and after.memory - before.memory <= GROWTH_BYTES


def growth(count: int) -> Growth:
    """Make instances that hold a card and end them, one after the other."""
    side = Ours()
    before = None
    begin = time.perf_counter()
    for number in range(count + 50):
        if number == 50:  # what is imported at the first use is not growth
            before = settled()
            begin = time.perf_counter()
        side.end(side.create())
    seconds = time.perf_counter() - begin
    assert before is not None
    found = Growth(count, seconds, before, settled(before))
    side.close()
    return found


# The whole


def measure(with_ray: bool, share: float, growth_count: int) -> tuple[list[Row], Growth]:
    """All rows."""
    ray = _ray() if with_ray else None
    yr.init(yr.Config(num_cpus=16))
    sides: list[Side] = [Ours(), *([Rays(ray)] if ray is not None else [])]
    rows = compare(sides, share) + creation(sides, share)
    sides[0].close()
    grown = growth(growth_count)
    yr.finalize()
    if ray is not None:
        rows += on_ray(ray, share)
        ray.shutdown()
    return rows, grown


def _ray() -> Any:
    """Start a Ray on this machine with two resources that stand for cards."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    logging.getLogger("ray._private.accelerators.npu").disabled = True  # there is no acl here, and it says so at length
    ray.init(
        address="local",
        num_cpus=8,
        resources={"NPU": 2},
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    return ray


def time_of(microseconds: float | None) -> str:
    """A time with three digits."""
    if microseconds is None:
        return ""
    return f"{microseconds:.3g} us" if microseconds < 1000 else f"{microseconds / 1000:.3g} ms"


def show(rows: list[Row], grown: Growth, with_ray: bool) -> None:
    """Print the tables."""
    words = {None: "", True: "met", False: "missed"}
    peer = "next to Ray's actors" if with_ray else "without Ray"
    print(f"Medians of {ROUNDS} rounds, {peer}, measured here on {os.cpu_count()} processors\n")
    print("| | toprope | Ray | Ray / toprope | target | |\n|---|---:|---:|---:|---|---|")
    for row in rows:
        ours, ray = row.times
        ratio = "" if ray is None else f"{ray / ours:.2f}"
        print(f"| {row.name} | {time_of(ours)} | {time_of(ray)} | {ratio} | {row.target} | {words[row.met]} |")
    before, after = grown.before, grown.after
    print(f"\n{grown.count} instances made and ended, {grown.seconds / grown.count * 1000:.1f} ms each\n")
    print("| driver and forkserver | before | after |\n|---|---:|---:|")
    print(f"| memory, MB | {before.memory / MB:.1f} | {after.memory / MB:.1f} |")
    print(f"| descriptors | {before.descriptors} | {after.descriptors} |")
    print(f"| processes started | {before.processes} | {after.processes} |")
    print(f"\nno growth: {words[grown.met]}")


def main() -> int:
    """Prints the tables; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("--without-ray", action="store_true", help="ours alone")
    parser.add_argument("--share", type=float, default=1.0, help="of the calls of a whole measurement")
    parser.add_argument(
        "--growth", type=int, default=0, help=f"instances made and ended ({GROWTH}, or the share of it)"
    )
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="a work tree of an older commit, measured in turns")
    parser.add_argument("--rounds", type=int, default=20, help="rounds with --old")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_rows(arguments.share)
        return 0
    if arguments.old is not None:
        compared = compare_with(arguments.old, arguments.share, arguments.rounds)
        if arguments.json:
            print(json.dumps({"rows": [each.as_dict() for each in compared]}, indent=1))
        else:
            show_versions(compared, arguments.old, arguments.rounds)
        return 1 if any(each.verdict == "slower" for each in compared) else 0
    count = arguments.growth or max(5, int(GROWTH * arguments.share))
    rows, grown = measure(not arguments.without_ray, arguments.share, count)
    if arguments.json:
        growth_ = {**asdict(grown), "met": grown.met}
        print(json.dumps({"rows": [row.as_dict() for row in rows], "growth": growth_}, indent=1))
    else:
        show(rows, grown, not arguments.without_ray)
    return 1 if not grown.met or any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
