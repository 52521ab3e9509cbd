"""The port on public repositories: figures of what it finds, converts and leaves, of its correctness and its speed.

    TOPROPE_CORPUS=FOLDER python benchmarks/port.py       the repositories of benchmarks/data/port_repositories.toml
    python benchmarks/port.py FOLDER...                   these folders
    python benchmarks/port.py --json                      the same figures as JSON

Exit status 1 when a target is missed. Without folders it says so and does nothing. The seconds are the processor's, of
one process; nothing is written.

Run by hand and by benchmarks/run.py; docs/benchmarks.md has the figures. The scan and the verdicts that it is measured
by are in `parts.port_corpus`, `parts.port_labels` and `parts.port_oracle`. Targets are demands on the product.

Tests: tests/port/test_port_corpus.py, which reads its JSON where TOPROPE_CORPUS has the repositories (a soak).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from dataclasses import asdict
from typing import Any

from parts.port_corpus import DATA, PortedRepository, commits, folders, port_repository
from parts.port_labels import Figures, figures
from parts.port_oracle import oracle

from toprope.port.rule import Kind

ROUNDS = 3
LINES = 20_000
"""Lines a second that are asked for, on one core."""

NINE = 10.0
"""Seconds that nine repositories may take."""

RECALL, PRESERVING = 0.99, 0.97
BEFORE, AFTER = "pytorch+examples-before", "pytorch+examples"


def row(ported: PortedRepository) -> dict[str, Any]:
    """The figures of a repository."""
    states = [place.state for place in ported.places]
    found, converted = ported.counts(Kind.PRESERVING)
    return {
        "repository": ported.name,
        "files": len(ported.files),
        "lines": ported.lines,
        "places": len(states),
        "converted": states.count("converted"),
        "reported": states.count("reported"),
        "neither": states.count("missed"),
        "places_after": ported.left,
        "preserving": found,
        "preserving_converted": converted,
        "edits": sum(1 for _ in ported.edits()),
        "second_run_changes": ported.again,
        "broken": ported.broken,
        "skipped": [each.skipped for each in ported.files if each.skipped],
        "seconds": round(ported.seconds, 3),
    }


def summary(rows: list[dict[str, Any]], said: Figures) -> dict[str, Any]:
    """The figures of all repositories, and whether each target is met."""
    seconds = sum(each["seconds"] for each in rows)
    speed = sum(each["lines"] for each in rows) / seconds
    nine = sum(sorted((each["seconds"] for each in rows), reverse=True)[:9])
    preserving = sum(each["preserving_converted"] for each in rows) / max(1, sum(each["preserving"] for each in rows))
    wrong = said.edits["wrong"] + said.edits["needless"]
    met = {
        f">= {LINES} lines a second": speed >= LINES,
        f"nine repositories in <= {NINE:.0f} s": nine <= NINE,
        f"class P converted >= {PRESERVING}": preserving >= PRESERVING,
        "every file parses": not any(each["broken"] for each in rows),
        "a second run changes nothing": not any(each["second_run_changes"] for each in rows),
    }
    if {each["repository"] for each in rows} >= set(commits()):  # all that was read
        met[f"recall >= {RECALL} of 200 places"] = said.recall >= RECALL and said.sites.total() >= 200
        met["no wrong edit of 300"] = wrong == 0 and said.edits["right"] >= 300
    return {
        "lines_per_second": round(speed),
        "slowest_nine_seconds": round(nine, 2),
        "preserving_converted": round(preserving, 4),
        "places_read": said.sites.total(),
        "recall": round(said.recall, 4),
        "edits_read": said.edits["right"] + wrong,
        "edits_wrong_or_needless": wrong,
        "edits_unread": said.edits["unread"],
        "missed": said.missed,
        "bad": said.bad,
        "gone": said.gone,
        "met": met,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The table of the documentation. The last column is another tool's, from the survey, and not measured here."""
    others = tomllib.loads((DATA / "port_repositories.toml").read_text(encoding="utf-8"))["figures"]
    lines = [
        "| repository | files | lines | places | converted | reported | neither | edits | s "
        "| msfmktransplt (not measured here) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for each in rows:
        there = others.get(each["repository"])
        told = (
            ""
            if there is None
            else f"{there[0]} -> {there[1]}, {there[2]} edits, {there[3]} of them wraps, {there[4]} s"
        )
        lines.append(
            f"| {each['repository'].replace('+', '/')} | {each['files']} | {each['lines']} | {each['places']} "
            f"| {each['converted']} | {each['reported']} | {each['neither']} | {each['edits']} "
            f"| {each['seconds']:.2f} | {told} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Prints the figures; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", help="repositories")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    arguments = parser.parse_args()
    found = folders(arguments.folders)
    if not found:
        print("no repositories: name folders, or the folder that has them in TOPROPE_CORPUS")
        return 0
    port_repository(found[0])  # so that the rules are loaded
    ported = [port_repository(folder, ROUNDS) for folder in found]
    rows = [row(each) for each in ported]
    sums = summary(rows, figures(ported))
    there = {each.name: (each, folder) for each, folder in zip(ported, found, strict=True)}
    if there.keys() >= {BEFORE, AFTER}:
        sums["oracle"] = asdict(oracle(there[BEFORE][0], there[AFTER][1]))
    if arguments.json:
        print(json.dumps({"repositories": rows, "all": sums}, indent=1))
    else:
        print(f"{ROUNDS} rounds, the least of them; load of the machine {os.getloadavg()[0]:.1f}\n\n{table(rows)}\n")
        for name, value in sums.items():
            print(f"{name}: {value}")
    return 0 if all(sums["met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
