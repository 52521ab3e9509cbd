"""Time of the checks of `toprope.cores`, and its growth with the program; minima of rounds, in one process.

    python benchmarks/cores.py                     tables, and exit status 1 when a target is missed
    python benchmarks/cores.py --json              the same as JSON
    python benchmarks/cores.py --figure FILE.svg   the growth of a check drawn as well

The programs are random, from a fixed seed: streams that hand their cores on by events, and ranks that all run the same.

S1 and S2 are the checker's two sums (docs/cores.md). Run by hand and by benchmarks/run.py, which reads its JSON;
docs/benchmarks.md has the figures, benchmarks/growth.py calls `growth`. The programs have to be what their names say:
`handed_on` safe by S2 alone, `ranks` with limits 48 a deadlock.

Tests: tests/cores/test_cores_benchmark.py.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parts.growth_plot import Panel, draw

from toprope.cores import Card, Collective, Communicator, Demand, Discipline, Op, Program, Stream, Times, Work, plan
from toprope.cores.check import Result, check
from toprope.cores.order import Graph
from toprope.cores.proof.bounds import heaviest_sets
from toprope.cores.proof.exact import search
from toprope.cores.proof.exact_solver import available, solve

ROUNDS = 3
CORES = 48
SIZES = (1000, 2000, 5000, 10_000, 20_000, 40_000, 80_000)


@dataclass(frozen=True)
class Row:
    """One measurement. Seconds; `target` in seconds, None without one."""

    name: str
    answer: str
    seconds: float
    target: float | None = None

    @property
    def met(self) -> bool:
        """True if it is within its target, or has none."""
        return self.target is None or self.seconds <= self.target


def best(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function several times; return its last result and the least seconds of a call."""
    least, found = float("inf"), None
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        found = work()
        least = min(least, time.perf_counter() - begin)
    return found, least


def handed_on(streams: int, length: int, cards: int = 1, seed: int = 0) -> Program:
    """A program in which each operator waits for the cores of random earlier ones: S1 does not prove it safe, S2 does.

    S1 adds the largest needs of all streams; S2 adds only needs of operators that can run at the same time.
    """
    chance = random.Random(seed)
    left: dict[tuple[int, int] | None, int] = {None: CORES}
    needs: list[list[int]] = [[] for _ in range(streams)]
    waits: dict[tuple[int, int], list[str]] = {}
    records: dict[tuple[int, int], list[str]] = {}
    while any(len(each) < length for each in needs):
        stream = chance.choice([number for number, each in enumerate(needs) if len(each) < length])
        me, wants, got = (stream, len(needs[stream])), chance.randint(1, 2 * CORES // 3), 0
        for giver in chance.sample(list(left), len(left)):
            taken = min(left[giver], wants - got)
            got, left[giver] = got + taken, left[giver] - taken
            if taken and giver is not None and giver[0] != stream:
                event = f"{giver}{me}"
                waits.setdefault(me, []).append(event)
                records.setdefault(giver, []).append(event)
        left = {giver: count for giver, count in left.items() if count} | {me: got}
        needs[stream].append(got)

    def op(card: int, me: tuple[int, int], vector: int) -> Op:
        events = [tuple(f"{card}:{event}" for event in found.get(me, ())) for found in (waits, records)]
        return Op("op", vector=vector, sync_all=True, waits=events[0], records=events[1])

    made = [
        Stream(f"s{stream}", str(card), tuple(op(card, (stream, place), need) for place, need in enumerate(queue)))
        for card in range(cards)
        for stream, queue in enumerate(needs)
    ]
    return Program(tuple(Card(str(card), 24, CORES) for card in range(cards)), tuple(made))


def ranks(cards: int, length: int, limits: tuple[int, ...], seed: int = 7) -> Program:
    """Every card runs the same: two streams with collectives, the others without, events between them."""
    chance = random.Random(seed)
    sizes = (8, 16, 24, 32, 40, 48)
    queues = [
        [(min(limit, chance.choice(sizes)), stream < 2 and chance.random() < 0.5) for _ in range(length)]
        for stream, limit in enumerate(limits)
    ]
    waits: dict[tuple[int, int], list[str]] = {}
    records: dict[tuple[int, int], list[str]] = {}
    for place in range(1, length):
        if chance.random() < 0.3:
            later, earlier = chance.sample(range(len(limits)), 2)
            waits.setdefault((later, place), []).append(f"e{place}")
            records.setdefault((earlier, place - 1), []).append(f"e{place}")
    made = []
    for card in range(cards):
        for stream, queue in enumerate(queues):
            ops, count = [], 0
            for place, (vector, together) in enumerate(queue):
                events = [
                    tuple(f"{card}:{event}" for event in found.get((stream, place), ())) for found in (waits, records)
                ]
                collective = Collective(f"c{stream}", count) if together else None
                count += together
                ops.append(Op(f"op{stream}", 0, vector, True, collective, events[0], events[1]))
            made.append(Stream(f"s{stream}", str(card), tuple(ops)))
    names = tuple(str(card) for card in range(cards))
    groups = tuple(Communicator(f"c{stream}", names) for stream in range(2))
    return Program(tuple(Card(name, 24, CORES) for name in names), tuple(made), groups)


def sums() -> list[Row]:
    """Measure S2, the sum over operators that can run at the same time, for 80,000 operators."""
    rows = []
    for name, program in (
        ("S2 of one card, 4 streams x 20,000", handed_on(4, 20_000)),
        ("S2 of one card, 8 streams x 10,000", handed_on(8, 10_000)),
        ("S2 of two cards, 4 streams x 10,000 each", ranks(2, 10_000, (24,) * 4)),
    ):
        graph = Graph.of(program)
        bounds, seconds = best(lambda graph=graph: heaviest_sets(graph))
        most = max(bound.total for bound in bounds or ())
        rows.append(Row(name, f"{most}{'' if most <= CORES else ' or more'} cores", seconds, 2.0))
    return rows


def exact() -> list[Row]:
    """Measure the exact solvers and the whole check, for 1,600 operators on four cards."""
    rows = []
    for limits in ((12, 12, 12, 13), (24, 24, 24, 24), (48, 48, 48, 48)):
        program = ranks(4, 100, limits)
        graph = Graph.of(program)
        for discipline in (Discipline.D0, Discipline.D1):
            name = f"limits {', '.join(map(str, limits))}, {discipline}"
            if available():
                outcome, seconds = best(lambda g=graph, d=discipline: solve(g, d, time.thread_time() + 60))
                answer = "deadlock" if outcome.witness else "safe" if outcome.whole else "unknown"
                rows.append(Row(f"CP-SAT, 1,600 operators, {name}", answer, seconds, 2.0))
            plain, seconds = best(lambda g=graph, d=discipline: search(g, d, time.thread_time() + 1))
            answer = "deadlock" if plain.witness else "safe" if plain.whole else "unknown after 1 s"
            rows.append(Row(f"plain search, 1,600 operators, {name}", answer, seconds))
            result, seconds = best(lambda p=program, d=discipline: check(p, discipline=d, findings=False))
            rows.append(Row(f"whole check, 1,600 operators, {name}", str(result.verdict), seconds))
    return rows


def planned() -> Row:
    """Measure a plan for eight streams."""
    times = [[Times.estimate(5.0, 100.0 * (number + place + 1), CORES) for place in range(20)] for number in range(8)]
    demands = [Demand(f"s{number}", tuple(map(Work, each))) for number, each in enumerate(times)]
    found, seconds = best(lambda: plan(demands, Card("0", 24, CORES)))
    return Row("plan for 8 streams of 20 operators", f"{found.makespan:.0f} us", seconds, 0.1)


def growth(share: float = 1.0) -> dict[str, list[tuple[int, float]]]:
    """Measure the check over the number of operators, for programs that S1, S2 or a witness decides.

    Args:
        share: part of the sizes that is measured, the smallest first.

    Returns:
        By the name of the program: number of operators and seconds.
    """
    makers: dict[str, Callable[[int], Program]] = {
        "safe by S1": lambda size: ranks(2, size // 8, (12,) * 4),
        "safe by S2": lambda size: handed_on(4, size // 4),
        "deadlock": lambda size: ranks(2, size // 8, (48,) * 4),
    }
    found: dict[str, list[tuple[int, float]]] = {}
    for name, make in makers.items():
        for size in SIZES[: max(2, round(share * len(SIZES)))]:
            program = make(size)
            result, seconds = best(lambda program=program: check(program, findings=False))
            assert _expected(name, result), (name, size, result.verdict, result.proof)
            found.setdefault(name, []).append((size, seconds))
    return found


def _expected(name: str, result: Result) -> bool:
    return result.verdict == name.split()[0]


def main() -> int:
    """Prints the tables; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("--figure", type=Path, help="where to draw the growth, as SVG")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of which the least counts")
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes of the growth, the smallest first")
    arguments = parser.parse_args()
    globals()["ROUNDS"] = arguments.rounds
    rows, lines = [*sums(), *exact(), planned()], growth(arguments.share)
    if arguments.figure:
        arguments.figure.write_text(draw([Panel("A check", "operators", lines)]), encoding="utf-8")
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "growth": lines}, indent=1))
    else:
        print(f"Python {platform.python_version()}, minima of {ROUNDS} rounds, measured here\n")
        print("| | answer | seconds | target | |\n|---|---|---:|---:|---|")
        for row in rows:
            target = f"{row.target:g}" if row.target else ""
            print(f"| {row.name} | {row.answer} | {row.seconds:.3f} | {target} | "
                  f"{'' if row.target is None else 'met' if row.met else 'missed'} |")  # fmt: skip
        print("\nSeconds of a check by operators:\n\n| | " + " | ".join(f"{size:,}" for size in SIZES) + " |")
        print("|---|" + "---:|" * len(SIZES))
        for name, line in lines.items():
            print(f"| {name} | " + " | ".join(f"{seconds:.3f}" for _, seconds in line) + " |")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
