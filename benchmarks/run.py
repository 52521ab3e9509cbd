"""Runs the benchmarks one after the other and prints one table: `make bench`.

    python benchmarks/run.py                 everything that is here, in at most 30 minutes
    python benchmarks/run.py sim port        these alone
    python benchmarks/run.py --folder OUT    what each printed as JSON, and the drawing of growth, are kept in OUT

Each benchmark runs with fewer rounds or smaller sizes than alone, so that all fit; the figures of docs/benchmarks.md
are those of the whole ones. A peer that is not installed is named, and its rows have no ratio. A benchmark that takes
longer than its limit is ended and named. Exit status 1 when a target was missed or a benchmark failed.

A benchmark is added to `BENCHMARKS` with a function that reads its JSON; the keys that the functions read are fixed by
the benchmarks' --json. The limits together must stay within 30 minutes. Tests: tests/project/test_benchmarks.py, of the
table and of benchmarks that fail; the readers run in `make bench` alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        name: what was measured.
        figure: ours, with its unit.
        peer: what it is compared with, with its figure; "" for none.
        ratio: ours by the peer's, or to a limit of the machine; None for none.
        target: in words; "" for none.
        met: whether the target is met; None where there is none, or nothing to measure it against.
    """

    name: str
    figure: str
    peer: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _sim(found: Any) -> Iterator[Figure]:
    for row in found:
        ratio = row["npu"] / row["cpu"]
        yield Figure(
            row["name"], _time(row["npu"] / 1e6), f"CPU {_time(row['cpu'] / 1e6)}", ratio, row["target"], row["met"]
        )


def _device(found: Any) -> Iterator[Figure]:
    for row in found["calls"]:
        yield Figure(
            row["name"], _time(row["ours"] / 1e6), f"torch {_time(row['torch'] / 1e6)}", row["ours"] / row["torch"]
        )
    load = found["load"]
    yield Figure(
        f"load a safetensors file of {load['megabytes']} MB", _time(load["load"]),
        f"read and copy {_time(load['read_and_copy'])}", load["load"] / load["read_and_copy"],
    )  # fmt: skip


def _next_to_ray(found: Any) -> Iterator[Figure]:
    for row in found["rows"]:  # in microseconds
        ours, ray = row["ours"], row["ray"]
        peer = "" if ray is None else f"Ray {_time(ray / 1e6)}"
        ratio = None if ray is None else ours / ray
        yield Figure(row["name"], _time(ours / 1e6), peer, ratio, row["target"] or "", row["met"])


def _flow(found: Any) -> Iterator[Figure]:
    rows = [row | {"target": f"<= {row['limit']:g}x" if row["limit"] else ""} for row in found["rows"]]
    return _next_to_ray({"rows": rows})


def _cores(found: Any) -> Iterator[Figure]:
    for row in found["rows"]:
        target, seconds = row["target"], row["seconds"]
        yield Figure(
            f"{row['name']}: {row['answer']}", _time(seconds), target=f"<= {target:g} s" if target else "",
            met=seconds <= target if target else None,
        )  # fmt: skip


def _limits(found: Any) -> Iterator[Figure]:
    """Rows that are compared with what the machine allows, and with other libraries by the same measure."""
    for row in found["rows"]:
        peers = ", ".join(f"{name} {value:.2f}" for name, value in row["others"].items())
        target = "" if row["target"] is None else f"<= {row['target']:g}"
        met = None if row["target"] is None or row["ratio"] != row["ratio"] else row["met"]
        yield Figure(row["name"], f"{row['ratio']:.2f} of the limit", peers, row["ratio"], target, met)


def _offload(found: Any) -> Iterator[Figure]:
    for row in found["rows"]:
        link = "without a link" if row["link"] is None else f"link of {row['link'] / 1e9:g} GB/s"
        times = {name: _time(value / 1e3) for name, value in row["milliseconds"].items()}
        peers = ", ".join(f"{name} {value}" for name, value in times.items() if "slot" not in name)
        yield Figure(link, times["one slot"], peers, row["ratio"], f"<= {row['target']:g}", row["met"])


def _modes(found: Any) -> Iterator[Figure]:
    for row in found["rows"]:
        if row["mode"] != "plain":
            name = f"{row['mode']}, {row['pass']}, batch {row['batch']}"
            yield Figure(
                name, _time(row["ms, median"] / 1e3), "plain fp32", 1 / row["x of plain"], row["target"],
                {"met": True, "missed": False}.get(row[""]),
            )  # fmt: skip


def _pages(found: Any) -> Iterator[Figure]:
    for title, rows in found["tables"].items():
        for row in rows:
            values = {key: value for key, value in row.items() if key not in ("", "target")}
            names = [str(value) for value in values.values() if not isinstance(value, float)]
            shown = [f"{key} {value:.3g}" for key, value in values.items() if isinstance(value, float)]
            of_torch = values.get("x of torch bf16")
            yield Figure(
                f"{title}: {', '.join(names)}", ", ".join(shown), "torch bf16" if of_torch else "",
                1 / of_torch if of_torch else None, str(row.get("target", "")),
                {"met": True, "missed": False}.get(row.get("", "")),
            )  # fmt: skip


def _serve(found: Any) -> Iterator[Figure]:
    ours, *peers = found["rows"]
    yield Figure(f"requests/s at p99 <= {found['limit_ms']:g} ms", f"{ours['rps']:.0f}/s")
    for row in peers:
        ratio = row["ratio"] and row["ratio"][0]
        met = None if ratio is None else ratio >= 1.5
        yield Figure(f"the same, {row['name']}", f"{ours['rps']:.0f}/s", f"{row['rps']:.0f}/s", ratio, ">= 1.5x", met)


def _port(found: Any) -> Iterator[Figure]:
    total = found["all"]
    yield Figure("a port", f"{total['lines_per_second']:,} lines/s")
    for name, met in total["met"].items():
        yield Figure("the port of public repositories", "", target=name, met=met)


def _alarms(found: Any) -> Iterator[Figure]:
    for discipline, alarms in found["alarms"].items():
        yield Figure(f"false alarms of {discipline}", f"{alarms} of {len(found['programs'])} programs")


def _growth(found: Any) -> Iterator[Figure]:
    for panel in found:
        for name, line in panel["lines"].items():
            (small, least), (large, most) = line[0], line[-1]
            yield Figure(
                f"{panel['title']}: {name}, from {small:,.0f} to {large:,.0f} {panel['unit']}",
                f"{_time(least)} to {_time(most)}",
            )


@dataclass(frozen=True)
class Benchmark:
    """One script.

    Attributes:
        options: so that all of them together take less than half an hour.
        limit: seconds after which it is ended.
        figures: rows of what it prints.
        needs: a module without which it is left out.
    """

    script: str
    figures: Callable[[Any], Iterator[Figure]]
    limit: int
    options: tuple[str, ...] = ()
    needs: str = ""
    settings: dict[str, str] = field(default_factory=dict)


BENCHMARKS = {
    "sim": Benchmark("sim", _sim, 120),
    "device": Benchmark("device", _device, 60, ("--megabytes", "500")),
    "functions": Benchmark("functions", _next_to_ray, 120, ("--share", "0.2"), "ray"),
    "flow": Benchmark("flow", _flow, 120, ("--share", "0.2", "--rounds", "3"), "ray"),
    "serve": Benchmark("serve", _serve, 180, ("--rounds", "2", "--untuned", "--seconds", "1"), "uvicorn"),
    "tiers": Benchmark("tiers", _limits, 300, ("--runs", "1")),
    "offload": Benchmark("tiers_offload", _offload, 60, settings={"TOPROPE_SIM": "910B3"}),
    "training": Benchmark("tiers_training", _limits, 90, ("--runs", "1")),
    "modes": Benchmark("modes", _modes, 60, ("--rounds", "3")),
    "pages": Benchmark("pages", _pages, 40, ("--size", "2048")),
    "cores": Benchmark("cores", _cores, 150, ("--share", "0.5", "--rounds", "1")),
    "alarms": Benchmark("cores_false_alarms", _alarms, 90),
    "port": Benchmark("port", _port, 120),
    "growth": Benchmark("growth", _growth, 240, ("--share", "0.8")),
}


@dataclass(frozen=True)
class Done:
    """Result of a benchmark: its rows, or the reason why there are none."""

    figures: tuple[Figure, ...]
    seconds: float
    reason: str = ""


def run(name: str, folder: Path, python: str = sys.executable) -> Done:
    """One benchmark in a process of its own; what it prints is kept in the folder."""
    benchmark = BENCHMARKS[name]
    if (
        benchmark.needs
        and subprocess.run([python, "-c", f"import {benchmark.needs}"], capture_output=True, check=False).returncode
    ):
        return Done((), 0.0, f"{benchmark.needs} is not installed")
    drawing = ("--figure", str(folder / "growth.svg")) if name == "growth" else ()
    command = [python, str(ROOT / "benchmarks" / f"{benchmark.script}.py"), "--json", *benchmark.options, *drawing]
    begin = time.monotonic()
    with (folder / f"{name}.json").open("wb") as out, (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=out, stderr=log, env=os.environ | benchmark.settings, start_new_session=True
        )
        try:
            process.wait(benchmark.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Done((), time.monotonic() - begin, f"ended after {benchmark.limit} s")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    seconds, text = time.monotonic() - begin, (folder / f"{name}.json").read_text(encoding="utf-8")
    try:
        return Done(tuple(benchmark.figures(json.loads(text))), seconds)
    except (ValueError, KeyError, TypeError) as error:
        last = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        said = text.strip().splitlines()[:1] or last or [repr(error)]
        return Done((), seconds, f"gave no figures (exit status {process.returncode}): {said[0]}")


def table(found: dict[str, Done]) -> str:
    """All rows in Markdown, then what gave none."""
    lines = ["| part | measured | toprope | peer | ratio | target | |", "|---|---|---:|---|---:|---|---|"]
    words = {None: "", True: "met", False: "missed"}
    for part, done in found.items():
        lines += [
            f"| {part} | {one.name} | {one.figure} | {one.peer} | {'' if one.ratio is None else f'{one.ratio:.2f}'} "
            f"| {one.target} | {words[one.met]} |"
            for one in done.figures
        ]
    lines += ["", *(f"{part}: no figures, {done.reason}" for part, done in found.items() if done.reason)]
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for, print the table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(BENCHMARKS))
    parser.add_argument("--folder", type=Path, help="where to keep what each printed, and the drawing of growth")
    given = parser.parse_args()
    unknown = sorted(set(given.parts) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}. do: choose of {', '.join(BENCHMARKS)}")
    begin, found = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as below:
        folder = given.folder or Path(below)
        folder.mkdir(parents=True, exist_ok=True)
        for name in given.parts or BENCHMARKS:
            print(f"bench: {name}", file=sys.stderr, flush=True)
            found[name] = run(name, folder)
            print(f"bench: {name} took {found[name].seconds:.0f} s {found[name].reason}", file=sys.stderr, flush=True)
    load = os.getloadavg()[0]
    print(f"Measured here: Python {platform.python_version()}, {os.cpu_count()} processors, load {load:.1f}, ", end="")
    print(f"{(time.monotonic() - begin) / 60:.0f} minutes in all\n\n{table(found)}")
    missed = any(one.met is False for done in found.values() for one in done.figures)
    return 1 if missed or any("not installed" not in done.reason for done in found.values() if done.reason) else 0


if __name__ == "__main__":
    sys.exit(main())
