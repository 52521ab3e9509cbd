"""Verdicts of a reader on places and edits of the port, and the figures that follow from them.

`benchmarks/data/port_labels.csv` has one place or edit a line: `what` ("site" or "edit"), repository, commit, path,
line, column (from 1), rule (of an edit) or kind (of a place), verdict, reason. Verdicts of places: "site" (needs a
port) or "none" (does not: the reason says why). Verdicts of edits: "right", "wrong" or "needless". A wrong or needless
edit in the file was found by the reader and is fixed since: the port must no longer make it.

Used by benchmarks/port.py and tests/port/test_port_corpus.py. Rows are added by reading further places; a verdict is
changed only with a reason.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from parts.port_corpus import DATA, Place, PortedRepository

from toprope.port.finding import Finding

__all__ = ["Figures", "Key", "figures", "read"]

Key = tuple[str, str, int, int, str]
"""Repository, path, line, column, rule or kind."""


@dataclass(frozen=True)
class Figures:
    """Figures of a run of the port, by the labels.

    Attributes:
        sites: places that were read and that need a port, by what the port does: converted, reported, missed.
        edits: edits that the port makes, by the verdict; "unread" are those without one.
        missed: the places that are missed, and those that nothing is said about and no one looked at.
        bad: edits that are made although the reader called them wrong or needless.
        gone: edits that were called right and are no longer made.
    """

    sites: Counter[str]
    edits: Counter[str]
    missed: list[Key]
    bad: list[Key]
    gone: list[Key]

    @property
    def recall(self) -> float:
        """The part of the places that is converted or reported."""
        return 1 - self.sites["missed"] / max(1, self.sites.total())


def read() -> dict[str, dict[Key, str]]:
    """The verdicts, by "site" and "edit"."""
    found: dict[str, dict[Key, str]] = {"site": {}, "edit": {}}
    with (DATA / "port_labels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["repository"], row["path"], int(row["line"]), int(row["column"]), row["rule"]
            found[row["what"]][key] = row["verdict"]
    return found


def place_key(name: str, place: Place) -> Key:
    """The key of a place in the labels."""
    return name, place.path, place.site.line, place.site.column + 1, place.site.kind


def edit_key(name: str, path: str, finding: Finding) -> Key:
    """The key of an edit in the labels."""
    return name, path, finding.line, finding.column, finding.rule.code


def figures(ported: Iterable[PortedRepository]) -> Figures:
    """Compare the labels with what the port does to repositories now."""
    verdicts = read()
    sites: Counter[str] = Counter()
    edits: Counter[str] = Counter()
    missed, bad, made, names = [], [], set(), set()
    for each in ported:
        names.add(each.name)
        for place in each.places:
            key = place_key(each.name, place)
            verdict = verdicts["site"].get(key)
            if verdict == "site":
                sites[place.state] += 1
            if place.state == "missed" and verdict != "none":
                missed.append(key)
        for path, finding in each.edits():
            key = edit_key(each.name, path, finding)
            made.add(key)
            verdict = verdicts["edit"].get(key, "unread")
            edits[verdict] += 1
            if verdict in ("wrong", "needless"):
                bad.append(key)
    gone = [key for key, verdict in verdicts["edit"].items() if verdict == "right" and key[0] in names - {""}]
    return Figures(sites, edits, missed, bad, [key for key in gone if key not in made])
