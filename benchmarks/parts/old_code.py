"""Compare the rows of a benchmark between this code and an older one, in turns, in two processes (option --old).

A benchmark that can do this has a function `turns`: by name, what prepares a row and gives the call that is timed
(`Rows`). Each process holds one row at a time, and is stopped while the other one measures. The lines of JSON between
the processes are those of `serve` and `_Side.ask`, both in the script of now, which therefore may use only what both
codes have.

Used by benchmarks/pages.py, tiers.py and tiers_training.py, its `interval` by tiers_offload.py too; `parts.versions`
does the same for benchmarks/functions.py with times that the benchmark takes itself.

Tests: tests/tiers/test_tiers_benchmark.py.
"""

from __future__ import annotations

import gc
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parts.processes import stopped

__all__ = ["Compared", "Rows", "compare", "interval", "is_served", "report", "serve"]

Rows = Mapping[str, Callable[[], AbstractContextManager[Callable[[], float]]]]
"""By the name of a row: a context in which a call measures once and gives seconds."""

SLOWER = 1.05
"""The most that the code of now may take, in times of the old code's."""

_FLAG = "TOPROPE_BENCHMARK_TURNS"


@dataclass(frozen=True)
class Compared:
    """One row: seconds with the code of now divided by seconds with the old one.

    Attributes:
        name: of the row.
        ratio: the median over the rounds.
        low, high: an interval that has the median with a probability of `coverage`.
        coverage: of that interval; 0.95 and more from six rounds on.
        new, old: median seconds.
        rounds: how many.
        missing: why there is no figure; empty where there is one.
    """

    name: str
    ratio: float
    low: float
    high: float
    coverage: float
    new: float
    old: float
    rounds: int
    missing: str = ""

    @property
    def met(self) -> bool:
        """True if it is no more than 5 % slower."""
        return not self.missing and self.ratio <= SLOWER


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """An interval that has the median of what these are drawn from, whatever its distribution, and its coverage.

    The narrowest between two of the values that has it with at least 95 %, by the sign test; the widest there is where
    none has.
    """
    ordered, count = sorted(ratios), len(ratios)

    def outside(rank: int) -> float:
        return 2.0 * sum(math.comb(count, each) for each in range(rank)) / 2.0**count

    rank = 1
    while rank + 1 <= count // 2 and outside(rank + 1) <= 0.05:
        rank += 1
    return ordered[rank - 1], ordered[count - rank], max(0.0, 1.0 - outside(rank))


def serve(rows: Rows) -> None:
    """Measure what the process that compares asks for: one row after another, one turn after another."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the benchmark prints is no answer

    def answer(value: Any) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    for line in sys.stdin:
        name = json.loads(line)
        try:
            with rows[name]() as turn:
                answer("ready")
                for asked in sys.stdin:
                    if json.loads(asked) == "end":
                        break
                    answer(turn())
        except Exception as error:  # the old code may not have what a row measures
            answer({"error": f"{type(error).__name__}: {error}"})
        else:
            answer("ended")
        gc.collect()


def is_served() -> bool:
    """True if this process measures for another one."""
    return bool(os.environ.get(_FLAG))


class _Side:
    """A process that measures with one version of the code."""

    def __init__(self, script: Path, arguments: Sequence[str], source: Path) -> None:
        path = os.pathsep.join([str(source), str(script.parent)])
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments], env=os.environ | {"PYTHONPATH": path, _FLAG: "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, value: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that measures has ended with status {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def source_of(folder: Path) -> Path:
    """The folder to put on sys.path for a checkout, or for a folder of packages."""
    for each in (folder / "src", folder):
        if (each / "toprope" / "__init__.py").is_file():
            return each.resolve()
    raise SystemExit(f"{folder} has no toprope: name a checkout of the old code, such as one of `git worktree add`")


def compare(script: Path, arguments: Sequence[str], old: Path, names: Sequence[str], rounds: int) -> list[Compared]:
    """Measure rows with both versions, in rounds in which the first one changes.

    Args:
        script: the benchmark.
        arguments: for the processes that measure.
        old: the other checkout.
        names: of the rows.
        rounds: of each row; one more is not counted.
    """
    sides: list[_Side] = []
    found = []
    try:
        for source in (source_of(Path(__file__).parents[2]), source_of(old)):
            sides.append(_Side(script, arguments, source))
        for name in names:
            found.append(_one(sides, name, rounds))
            print(line(found[-1]), file=sys.stderr, flush=True)
    finally:
        for each in sides:
            each.close()
    return found


def _one(sides: list[_Side], name: str, rounds: int) -> Compared:
    """Measure one row with both versions; a side that lacks the row is named."""
    started, said = [], []
    for place, side in enumerate(sides):
        with stopped([sides[1 - place].process.pid]):
            reply = side.ask(name)
        if reply == "ready":
            started.append(side)
        else:
            said.append(f"{('the code of now', 'the old code')[place]}: {reply['error']}")
    times: dict[int, list[float]] = {0: [], 1: []}
    if not said:
        for number in range(rounds + 1):
            for place in ((0, 1), (1, 0))[number % 2]:
                with stopped([sides[1 - place].process.pid]):
                    took = sides[place].ask("turn")
                if isinstance(took, dict):
                    started.remove(sides[place])
                    said.append(f"{('the code of now', 'the old code')[place]}: {took['error']}")
                elif number:
                    times[place].append(took)
            if said:
                break
    for side in started:
        side.ask("end")
    if said:
        missing = float("nan")
        return Compared(name, missing, missing, missing, 0.0, missing, missing, 0, "; ".join(said))
    ratios = [new / before for new, before in zip(times[0], times[1], strict=True)]
    middle = statistics.median
    return Compared(name, middle(ratios), *interval(ratios), middle(times[0]), middle(times[1]), len(ratios))


def line(row: Compared) -> str:
    """A row as text."""
    if row.missing:
        return f"{row.name:34} no figure: {row.missing}"
    return (
        f"{row.name:34} new/old {row.ratio:.3f} ({row.low:.3f}-{row.high:.3f}, {row.coverage:.0%}, {row.rounds} rounds)"
        f"   {row.new * 1000:.2f} ms against {row.old * 1000:.2f}   {'met' if row.met else 'MISSED'}"
    )


def report(rows: Sequence[Compared], *, as_json: bool) -> int:
    """Print the rows; the exit status is 1 where one is more than 5 % slower, or has no figure."""
    if as_json:
        print(json.dumps({"slower_at_most": SLOWER, "rows": [asdict(each) | {"met": each.met} for each in rows]}))
    else:
        print("\n".join(map(line, rows)))
    return 0 if all(each.met for each in rows) else 1
