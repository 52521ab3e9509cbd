"""Match calls that asked torch for CUDA at run time (`toprope run --trace-cuda FILE`) with the places of the port.

A place that the port found itself is marked with the number of calls. If it found none, since a device's name came from
a file or an argument, the line that asked becomes a place of its own.

Called by `cli.port --with-trace`; the file is written by `compat.cuda` in a run. Tests:
tests/port/test_port_recorded.py, tests/port/test_port_options.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from toprope.errors import UsageError
from toprope.port.finding import Finding, Ported
from toprope.port.ignore import ignored_lines, is_ignored
from toprope.port.rule import Example, Kind, Rule
from toprope.port.syntax.source import Source, UnreadableError

__all__ = ["AT_RUN_TIME", "Site", "mark", "read"]

AT_RUN_TIME = Rule(
    "TR000", Kind.REVIEW, "a place that only a run shows: what it asks of CUDA is not written there",
    "A device's name from a file, an argument or a variable cannot be read in the source. "
    "`toprope run --trace-cuda FILE` saw it reach torch; `toprope port --with-trace FILE` says where it was asked. "
    "It is reported, never rewritten: send the name through portable.device() there, or where it comes from.",
    "what the program did",
    (Example("model.to(settings['device'])"),),
    "trace",
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """One place of a trace.

    Attributes:
        what: "a device", "a function" or "a backend".
        text: its name, such as "cuda:0" or "torch.cuda.synchronize".
        count: how often it was asked.
        stack: files and lines of the program, the innermost first.
    """

    what: str
    text: str
    count: int
    stack: tuple[tuple[str, int], ...]


def read(path: Path) -> list[Site]:
    """The places of a trace.

    Raises:
        UsageError: it cannot be read, or is no such trace.
    """
    try:
        found = json.loads(path.read_bytes())
        if found["version"] != 1:
            raise ValueError(f"its version is {found['version']}")
        return [
            Site(
                str(site["what"]), str(site["text"]), int(site["count"]),
                tuple((str(frame["file"]), int(frame["line"])) for frame in site["stack"]),
            )
            for site in found["sites"]
        ]  # fmt: skip
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", do="name a file of --trace-cuda") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no trace of toprope run --trace-cuda.",
            looked_at=f"{type(error).__name__}: {error}",
            do="make one: toprope run --trace-cuda FILE PROGRAM",
        ) from None


def mark(files: Sequence[Ported], sites: Sequence[Site], leave: Callable[[Finding], bool] | None = None) -> int:
    """Note in the findings what was seen at run time, and add places where there is no finding.

    Args:
        files: the port of every file, before anything is written.
        sites: of the trace, made with the same files.
        leave: says of a finding that it is not wanted.

    Returns:
        The number of places that lie in none of the files: in packages, or in notebooks.
    """
    known = {os.path.realpath(each.path): each for each in files if not each.skipped}
    elsewhere = 0
    for site in sites:
        depth = next((at for at, frame in enumerate(site.stack) if os.path.realpath(frame[0]) in known), None)
        if depth is None:
            elsewhere += 1
            continue
        place = site.stack[depth]
        _note(known[os.path.realpath(place[0])], place[1], site, None if depth == 0 else site.stack[0], leave)
    return elsewhere


def _note(
    file: Ported, line: int, site: Site, through: tuple[str, int] | None, leave: Callable[[Finding], bool] | None
) -> None:
    there = [each for each in file.sites if each.line <= line <= each.end_line and each.cell is None]
    if there:
        for each in _meant(there, site):
            each.seen += site.count
        return
    finding = _finding(file, line, site, through)
    if finding is None:
        return
    try:
        ignored = is_ignored(finding, ignored_lines(Source(file.before)))
    except UnreadableError:
        ignored = False
    if ignored or (leave is not None and leave(finding)):
        file.ignored += 1
        return
    finding.seen = site.count
    file.findings = sorted((*file.findings, finding), key=lambda each: (each.line, each.column, each.rule.code))


def _meant(findings: Sequence[Finding], site: Site) -> Iterator[Finding]:
    """Of several places of a line those whose text has the name's last part; all where none has."""
    last = site.text.rpartition(".")[2]
    named = [each for each in findings if last in each.before]
    yield from named or findings


def _finding(file: Ported, line: int, site: Site, through: tuple[str, int] | None) -> Finding | None:
    try:
        source = Source(file.before)
    except UnreadableError:
        return None
    if line > len(source.starts):
        return None  # the file is no longer the one that ran
    whole = source.line(line).rstrip()
    text = whole.lstrip()
    column = len(whole) - len(text) + 1
    said = f"{site.what} of CUDA reached torch from here: {site.text}"
    if through is not None:
        said += f", through {through[0]}:{through[1]}"
    return Finding(AT_RUN_TIME, line, column, line, column + len(text), text, message=said)
