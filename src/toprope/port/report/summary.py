"""Report on the port of a program: totals, a text for a terminal, and the same facts as JSON.

Called by `cli.port`. The JSON is an interface for programs: docs/port.md, tests/port/test_port_reported.py,
tests/port/test_port_cli.py.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from toprope.port.finding import DEPENDS, KNOWN, Finding, Ported
from toprope.port.project.context import Target
from toprope.port.project.folders import EXCLUDED, LeftAlone
from toprope.port.rule import Kind
from toprope.port.syntax.source import Source, UnreadableError

__all__ = ["Totals", "as_dict", "diff", "text", "totals", "unknown_operators"]

_MOST_NAMES = 8
_MOST_LEFT = 3
_MOST_LETTERS = 40
_FOLLOWS = ("it stays with ", "it stays in this test", "it decides where", "the condition asks torch.cuda")
"""Reasons that many places of a file have: they are one line of the report."""
_HINTS = "advice on code that is not CUDA's; --check does not fail for it"
_NAMES = {Kind.PRESERVING: "converted", Kind.REVIEW: "to review", Kind.NOT_CONVERTIBLE: "left"}


@dataclass(frozen=True)
class Totals:
    """Numbers of a port.

    Attributes:
        files, lines: all that were looked at.
        concerned: files with at least one site.
        changed: files that the port changes.
        places: sites by kind.
        hints: places of rules that only advise, which are no sites.
        converted: places that are rewritten, by kind.
        skipped: files that could not be looked at.
        ignored: places that comments and options left out.
        known: places that are in the baseline.
        seen: places that a trace saw at run time.
    """

    files: int
    lines: int
    concerned: int
    changed: int
    places: dict[Kind, int]
    hints: int
    converted: dict[Kind, int]
    skipped: int
    ignored: int
    known: int
    seen: int

    @property
    def rate(self) -> float | None:
        """The part of all places that is rewritten; None where there are none."""
        places = sum(self.places.values())
        return sum(self.converted.values()) / places if places else None


def totals(files: Sequence[Ported]) -> Totals:
    """The numbers of a port."""
    findings = [finding for each in files for finding in each.sites]
    return Totals(
        files=len(files),
        lines=sum(each.lines for each in files),
        concerned=sum(bool(each.sites) for each in files),
        changed=sum(each.changed for each in files),
        places={kind: sum(finding.kind is kind for finding in findings) for kind in Kind},
        hints=sum(len(each.findings) for each in files) - len(findings),
        converted={kind: sum(finding.kind is kind and finding.converted for finding in findings) for kind in Kind},
        skipped=sum(bool(each.skipped) for each in files),
        ignored=sum(each.ignored for each in files),
        known=sum(finding.known for finding in findings),
        seen=sum(bool(finding.seen) for finding in findings),
    )


def text(
    name: str,
    files: Sequence[Ported],
    *,
    written: bool = False,
    notes: Sequence[str] = (),
    left_alone: Sequence[LeftAlone] = (),
    card: Target | None = None,
    shown: bool = False,
) -> str:
    """The report for a terminal: totals, then the places that need a person, one line each. Known ones are counted.

    Args:
        name: what was looked at.
        files: the port of every file.
        written: whether the files were changed on the disk.
        notes: lines about the whole, below the totals.
        left_alone: what was not looked at.
        card: what operators were looked up for.
        shown: whether the changes are shown already.
    """
    sums = totals(files)
    places = sum(sums.places.values())
    lines = [f"{name}: {_many(sums.files, 'file')}, {sums.concerned} with sites, {_many(places, 'site')}"]
    if places:
        review, left = sums.places[Kind.REVIEW], sums.places[Kind.NOT_CONVERTIBLE]
        rewritten = sums.converted[Kind.REVIEW]
        rows = [
            (Kind.PRESERVING, "keep their meaning on CUDA"),
            (Kind.REVIEW, f"numerics, speed or a branch may change off CUDA ({rewritten} rewritten)" if review else ""),
            (Kind.NOT_CONVERTIBLE, f"need another kernel or tool: {_most(files)}" if left else ""),
        ]
        lines += [f"  {_NAMES[kind]:10} {sums.places[kind]:5}   {what:70} {kind}".rstrip() for kind, what in rows]
    if sums.hints:
        lines.append(f"  hints      {sums.hints:5}   {_HINTS:70} hint")
    if sums.ignored:
        lines.append(f"  ignored    {sums.ignored:5}   by a comment or an option")
    if sums.known:
        lines.append(f"  known      {sums.known:5}   stand in the baseline, and are not listed here")
    if sums.seen:
        lines.append(f"  seen       {sums.seen:5}   reached torch when the trace was made")
    lines += _operators(files, card)
    named = sorted(left_alone, key=lambda each: -each.files)
    lines += [f"  left alone {each.files:5}   {each.path}: {each.reason}" for each in named[:_MOST_NAMES]]
    if len(named) > _MOST_NAMES:
        rest = named[_MOST_NAMES:]
        lines.append(f"  left alone {sum(each.files for each in rest):5}   in {len(rest)} more places: --format json")
    if any(each.reason != EXCLUDED for each in left_alone):
        lines.append("             --include 'GLOB', or a folder named itself, has them looked at")
    lines += notes
    if written:
        lines.append(f"{_many(sums.changed, 'file')} written")
    elif sums.changed:
        see = "" if shown else "see it: --diff · "
        lines.append(f"nothing was written · {see}do it: --write · in CI: --check")
    for each in files:
        lines += _places(each)
    lines += [f"{each.path}: skipped, {each.skipped}" for each in files if each.skipped]
    return "\n".join(lines) + "\n"


def _operators(files: Sequence[Ported], card: Target | None) -> list[str]:
    """Lines on the calls of operators: how many the tables decide, and how many they do not."""
    unknown, depends, calls = unknown_operators(files)
    if card is None or not calls:
        return []
    lines = [f"  operators  {calls:5}   calls of torch's operators, looked up for {card.text}"]
    if depends:
        lines.append(
            f"  depends    {depends:5}   of them run on the card or the host by their arguments: only a run shows it"
        )
    if unknown:
        named = ", ".join(name for name, _ in unknown.most_common(_MOST_NAMES))
        more = f" and {len(unknown) - _MOST_NAMES} more" if len(unknown) > _MOST_NAMES else ""
        lines.append(
            f"  unknown    {sum(unknown.values()):5}   of them by {_many(len(unknown), 'name')} that the tables lack, "
            f"which may run anywhere: {named}{more}"
        )
    return lines


def unknown_operators(files: Sequence[Ported]) -> tuple[Counter[str], int, int]:
    """Return calls by names that the tables lack, calls that depend on arguments, and all calls of operators."""
    sums: Counter[str] = Counter()
    for each in files:
        sums.update(each.operators)
    calls = sum(sums.values())
    depends = sums.pop(DEPENDS, 0)
    sums.pop(KNOWN, None)
    return sums, depends, calls


def _is_for_a_person(finding: Finding) -> bool:
    return not finding.known and (finding.kind is not Kind.PRESERVING or (bool(finding.seen) and not finding.converted))


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _most(files: Sequence[Ported]) -> str:
    """The commonest of what is left."""
    found = Counter(
        _shortened(finding.before.split("(")[0].split("\n")[0].strip())
        for each in files
        for finding in each.sites
        if finding.kind is Kind.NOT_CONVERTIBLE
    )
    named = ", ".join(f"{what} ({number})" for what, number in found.most_common(_MOST_LEFT))
    rest = sum(number for _, number in found.most_common()[_MOST_LEFT:])
    return f"{named} and {rest} more" if rest else named


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def _places(file: Ported) -> list[str]:
    """A line for each place that needs a person; one for all that stay with the same condition."""
    found = [finding for finding in file.findings if _is_for_a_person(finding)]
    lines, said = [], set()
    for finding in found:
        with_it = [each for each in found if (each.cell, each.held_back) == (finding.cell, finding.held_back)]
        if not finding.held_back.startswith(_FOLLOWS) or len(with_it) == 1:
            lines.append(_line(file, finding))
        elif (finding.cell, finding.held_back) not in said:
            said.add((finding.cell, finding.held_back))
            codes = ", ".join(sorted({each.rule.code for each in with_it}))
            numbers = ", ".join(map(str, sorted({each.line for each in with_it})))
            where = f"{file.path}:{finding.line}:{finding.column}{_cell(finding)}"
            what = f"{len(with_it)} places stay: {finding.held_back}"
            what = what.replace(": it stays ", " ", 1)
            lines.append(f"{where}  {codes} {finding.label}  {what}: lines {numbers}")
    return lines


def _cell(finding: Finding) -> str:
    return f" (cell {finding.cell})" if finding.cell is not None else ""


def _line(file: Ported, finding: Finding) -> str:
    said = f"{finding.said}; left as it is: {finding.held_back}" if finding.held_back else finding.said
    if finding.seen:
        said += f" (asked {_many(finding.seen, 'time')} in the trace)"
    label = f"{finding.label} rewritten" if finding.converted else finding.label
    return f"{file.path}:{finding.line}:{finding.column}{_cell(finding)}  {finding.rule.code} {label}  {said}"


def diff(file: Ported) -> str:
    """The port's changes of a file as a unified diff; "" if it changes nothing."""
    if not file.changed:
        return ""
    before, after = (_decoded(data) for data in (file.before, file.after))
    name = file.path.lstrip("/")
    parts = list(difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}"))
    if file.companion is not None:
        added = str(PurePath(name).with_name(file.companion[0]))
        parts += difflib.unified_diff([], _lines(_decoded(file.companion[1])), "/dev/null", f"b/{added}")
    return "".join(part if part.endswith("\n") else f"{part}\n\\ No newline at end of file\n" for part in parts)


def _decoded(data: bytes) -> str:
    try:
        return Source(data).text
    except UnreadableError:  # no Python, and no comment that names its encoding
        return data.decode(errors="replace")


def _lines(content: str) -> list[str]:
    lines = content.split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), *([lines[-1]] if lines[-1] else [])]


def as_dict(
    name: str,
    files: Sequence[Ported],
    *,
    written: bool = False,
    left_alone: Sequence[LeftAlone] = (),
    card: Target | None = None,
) -> dict[str, Any]:
    """The report for machines."""
    sums = totals(files)
    unknown, depends, calls = unknown_operators(files)
    return {
        "name": name,
        "written": written,
        "files": sums.files,
        "lines": sums.lines,
        "files_with_sites": sums.concerned,
        "files_changed": sums.changed,
        "sites": {str(kind): number for kind, number in sums.places.items()},
        "rewritten": {str(kind): number for kind, number in sums.converted.items()},
        "hints": sums.hints,
        "rate": sums.rate,
        "ignored": sums.ignored,
        "known": sums.known,
        "seen": sums.seen,
        "left_alone": [{"path": str(each.path), "reason": each.reason, "files": each.files} for each in left_alone],
        "operators": {
            "chip": card and card.chip,
            "torch_npu": card and card.release.text,
            "calls": calls,
            "depending_on_arguments": depends,
            "unknown": dict(unknown.most_common()),
        },
        "skipped": [{"path": each.path, "reason": each.skipped} for each in files if each.skipped],
        "findings": [_finding(each, finding) for each in files for finding in each.findings],
    }


def _finding(file: Ported, finding: Finding) -> dict[str, Any]:
    return {
        "path": file.path,
        "cell": finding.cell,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "rule": finding.rule.code,
        "kind": str(finding.kind),
        "hint": not finding.is_site,
        "rewritten": finding.converted,
        "before": finding.before,
        "after": finding.after,
        "message": finding.said,
        "held_back": finding.held_back,
        "seen": finding.seen,
        "known": finding.known,
        "page": finding.rule.page,
    }
