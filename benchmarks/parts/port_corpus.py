"""Port public repositories in memory, and find the places that name CUDA there with a scan that is not the port's.

The repositories are in the folder that TOPROPE_CORPUS names; the scan is `parts.port_sites`. Used by benchmarks/port.py
and tests/port/test_port_corpus.py, whose demands are for these figures.
"""

from __future__ import annotations

import os
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parts.port_sites import Site, own_names, sites

from toprope.port.finding import Finding, Ported
from toprope.port.rule import Kind
from toprope.port.scan import find, port_files
from toprope.port.syntax.source import Source

__all__ = ["DATA", "Place", "PortedRepository", "commits", "folders", "port_repository"]

DATA = Path(__file__).resolve().parent.parent / "data"


@dataclass(frozen=True)
class Place:
    """A place that the scan found, and the findings of the port that share text with it."""

    path: str
    site: Site
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """The port's treatment of it: "converted", "reported" or "missed"."""
        if not self.findings:
            return "missed"
        return "converted" if any(each.converted for each in self.findings) else "reported"


@dataclass
class PortedRepository:
    """A repository after the port.

    Attributes:
        name: its folder.
        files: what the port did to each Python file.
        seconds: processor seconds of the port, the least of some rounds.
        places: what the scan found before.
        left: number of places that it finds afterwards.
        again: number of files that a second run would change.
        broken: files that can no longer be parsed.
    """

    name: str
    files: list[Ported]
    seconds: float
    places: list[Place] = field(default_factory=list)
    left: int = 0
    again: int = 0
    broken: list[str] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """All lines of the files."""
        return sum(each.lines for each in self.files)

    def edits(self) -> Iterator[tuple[str, Finding]]:
        """The findings that are rewritten, with the file's path."""
        for each in self.files:
            yield from ((self.path(each), finding) for finding in each.findings if finding.converted)

    def path(self, file: Ported) -> str:
        """A file's path inside the repository."""
        _, _, inside = file.path.partition(f"{self.name}/")
        return inside

    def counts(self, kind: Kind) -> tuple[int, int]:
        """Numbers of places that rules of a kind found, and of those that are rewritten."""
        found = [finding for each in self.files for finding in each.sites if finding.rule.kind is kind]
        return len(found), sum(finding.converted for finding in found)


def commits() -> dict[str, str]:
    """The commit of every repository, by its folder."""
    text = (DATA / "port_repositories.toml").read_text(encoding="utf-8")
    found: dict[str, str] = tomllib.loads(text)["repositories"]
    return found


def folders(named: list[str]) -> list[Path]:
    """The repositories: those named, else those of the list that TOPROPE_CORPUS has."""
    if named:
        return [Path(each) for each in named]
    corpus = os.environ.get("TOPROPE_CORPUS", "")
    return [path for name in commits() if corpus and (path := Path(corpus, name)).is_dir()]


def port_repository(folder: Path, rounds: int = 1) -> PortedRepository:
    """Port every Python file of a folder in this process, and scan it before and after; nothing is written there."""
    files = [path for path in find([folder]) if path.suffix == ".py"]
    seconds, done = float("inf"), []
    for _ in range(rounds):
        begin = time.process_time()
        done = list(port_files(files))
        seconds = min(seconds, time.process_time() - begin)
    ported = PortedRepository(folder.name, done, seconds)
    read = [(each, Source(each.before)) for each in done if not each.skipped]
    own = own_names(source.text for _, source in read)
    for each, source in read:
        ported.places += _places(ported.path(each), each, source, own)
        after = Source(each.after)
        try:
            ported.left += len(sites(after.text, own))
        except SyntaxError:
            ported.broken.append(ported.path(each))
    ported.again = _again(folder, done)
    return ported


def _again(folder: Path, done: list[Ported]) -> int:
    """Number of files that a second run changes, with all files of the repository known, as in the first one."""
    with tempfile.TemporaryDirectory() as below:
        copies = []
        for each in done:
            copy = Path(below, folder.name, Path(each.path).relative_to(folder))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(each.after)
            copies.append(copy)
        return sum(each.changed for each in port_files(copies))


def _places(path: str, file: Ported, source: Source, own: frozenset[str]) -> Iterator[Place]:
    def offset(line: int, column: int) -> int:
        return source.starts[line - 1] + column - 1

    spans = [(offset(each.line, each.column), offset(each.end_line, each.end_column), each) for each in file.sites]
    for site in sites(source.text, own):
        start, end = source.offset(site.line, site.column), source.offset(site.end_line, site.end_column)
        yield Place(path, site, tuple(each for low, high, each in spans if low < end and start < high))
