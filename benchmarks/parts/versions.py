"""This version of toprope and an older one, each in a process of its own, measured in turns: ratios with intervals.

Used by benchmarks/functions.py with `--old FOLDER`, which names a work tree. The script of now is run with the older
package, so it may use only what both have.

Tests: tests/functions/test_functions_benchmark.py.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Compared", "Version", "compare_versions", "serve"]

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; a few more make no difference.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

SLOWER = 1.05
"""New / old above which a row is slower."""


@dataclass
class Compared:
    """One row: microseconds in each round, of both versions."""

    name: str
    new: list[float] = field(default_factory=list)
    old: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """New / old, and its 95 % interval: the geometric mean over the rounds, each of which is a pair."""
        logs = [math.log(new / old) for new, old in zip(self.new, self.old, strict=True)]
        middle = statistics.fmean(logs)
        if len(logs) < 2:
            return math.exp(middle), 0.0, math.inf
        half = _T[min(len(logs) - 1, len(_T)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)

    @property
    def verdict(self) -> str:
        """The meaning of the interval for the limit."""
        _, low, high = self.ratio
        if high <= SLOWER:
            return f"no more than {SLOWER - 1:.0%} slower"
        return "slower" if low > SLOWER else "undecided: more rounds"

    def as_dict(self) -> dict[str, Any]:
        ratio, low, high = self.ratio
        times = {"new": statistics.median(self.new), "old": statistics.median(self.old)}
        return {"name": self.name, **times, "ratio": ratio, "interval": [low, high], "verdict": self.verdict}


class Version:
    """A process that measures with the toprope of a work tree.

    Args:
        folder: the work tree.
        program: the benchmark; it has an option `--serve`, for which it calls `serve`.
        arguments: further arguments of it.
    """

    def __init__(self, folder: Path, program: str, *arguments: str) -> None:
        source = folder.resolve() / "src"
        if not (source / "toprope" / "__init__.py").is_file():
            raise SystemExit(
                f"{folder} is no work tree of toprope: it has no src/toprope. do: git worktree add {folder} COMMIT"
            )
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            [sys.executable, program, "--serve", *arguments], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        told = self._ask({})
        if not Path(told["from"]).is_relative_to(source):
            raise SystemExit(f"the toprope of {folder} cannot be measured: {told['from']} is imported in its place")
        self.rows: list[str] = told["rows"]

    def measure(self, row: str) -> float:
        """Microseconds of a row, measured once."""
        return float(self._ask({"row": row})["time"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"a process that measures has ended with status {process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


def serve(work: Mapping[str, Callable[[], float]], origin: str, questions: TextIO, answers: TextIO) -> None:
    """Measure what is asked for, until there are no more questions.

    Args:
        work: measures each row once, in microseconds.
        origin: the file of the package that is measured.
        questions, answers: a line of JSON each.
    """
    for line in questions:
        row = json.loads(line).get("row")
        answer = {"from": origin, "rows": list(work)} if row is None else {"time": work[row]()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compare_versions(new: Version, old: Version, rounds: int) -> list[Compared]:
    """Measure the rows that both have, in turns; who begins changes from round to round. One round more comes first and
    does not count."""
    rows = [Compared(name) for name in new.rows if name in old.rows]
    for number in range(rounds + 1):
        for row in rows:
            pair = [(new, row.new), (old, row.old)]
            for version, times in pair if number % 2 else reversed(pair):
                found = version.measure(row.name)
                if number:
                    times.append(found)
    return rows
