"""Findings: what the port found and did at one place of a file, and for a whole file.

Made by `file`, `files` and `engine`; read by `report`, `write`, `cli.port` and benchmarks. Fields are in the JSON of
the report, so names stay. Tests: tests/port/test_port_operators.py, tests/port/test_port_reports.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from toprope.port.rule import Kind, Rule
from toprope.port.syntax.edits import Edit

__all__ = ["DEPENDS", "KNOWN", "Finding", "Ported", "folded"]

KNOWN = ""
"""Key of calls that the tables of operators decide, in `Ported.operators`."""
_MOST_SHOWN = 70
_MOST_LINES = 6
DEPENDS = "*"
"""Key of calls that run on the card or on the host by their arguments."""


@dataclass
class Finding:
    """One place.

    Attributes:
        rule: what it is a case of.
        line, column: where it begins, both counted from 1, columns in characters.
        end_line, end_column: where it ends; the column is the first that no longer belongs to it.
        before: the text of the place.
        edits: what is done about it; none where it is only reported.
        message: what a person should know, as a sentence without a full stop; the rule's title where there is nothing
            to add.
        after: the text of the place afterwards; "" where nothing is done there.
        held_back: why the edits were not made although the rule has some; "" where they were.
        doubt: why a person should read the edits although the rule is of class P; "" where nobody needs to.
        cell: the number of the notebook's cell, from 1; None elsewhere.
        seen: how often a trace saw it asked of torch.
        known: whether it is in the baseline.
    """

    rule: Rule
    line: int
    column: int
    end_line: int
    end_column: int
    before: str
    edits: tuple[Edit, ...] = ()
    message: str = ""
    after: str = ""
    held_back: str = ""
    doubt: str = ""
    cell: int | None = None
    seen: int = 0
    known: bool = False

    @property
    def converted(self) -> bool:
        """Return whether the file is changed because of it."""
        return bool(self.edits) and not self.held_back

    @property
    def kind(self) -> Kind:
        """P, R or N, as its rule; R where a P could not be rewritten, or where its edits are in doubt."""
        is_left = not self.converted and (self.edits or self.held_back)
        return Kind.REVIEW if self.rule.kind is Kind.PRESERVING and (is_left or self.doubt) else self.rule.kind

    @property
    def said(self) -> str:
        """Text for reports: the message, else the text of the place with the consequence of its rule and the doubt."""
        text = " ".join(self.before.split())
        shown = text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
        said = self.message if self.message and not self.held_back else f"{shown}: {self.rule.consequence}"
        return f"{said}; {self.doubt}" if self.doubt and self.converted else said

    @property
    def is_site(self) -> bool:
        """Return whether it is a place of CUDA's, and not a hint."""
        return not self.rule.hint

    @property
    def label(self) -> str:
        """The class as reports name it: P, R, N or hint."""
        return str(self.kind) if self.is_site else self.rule.label


@dataclass
class Ported:
    """A file after the port looked at it.

    Attributes:
        path: the file's name as it was given.
        before: its bytes.
        after: its bytes afterwards; the same where nothing is changed.
        findings: its places, in their order.
        skipped: why it was not looked at, as a sentence without a full stop; "" where it was.
        lines: number of its lines, 0 where it was skipped.
        ignored: how many places a comment or an option left out.
        operators: number of calls of torch's operators: under KNOWN, under DEPENDS, or under a name that no table has.
        companion: name and bytes of a file that is put next to it when it is written, and must not be there yet.
        guards: what answers of other files guard in it and stays CUDA's, where the port was asked for it.
        asked: keys of texts of devices that questions in it are about, each with the place (`conditions.asked_texts`).
    """

    path: str
    before: bytes = b""
    after: bytes = b""
    findings: Sequence[Finding] = field(default_factory=list)
    skipped: str = ""
    lines: int = 0
    ignored: int = 0
    operators: Counter[str] = field(default_factory=Counter)
    companion: tuple[str, bytes] | None = None
    guards: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Return whether the port would write the file, or one next to it."""
        return self.before != self.after or self.companion is not None

    @property
    def sites(self) -> list[Finding]:
        """The findings that are no hints."""
        return [finding for finding in self.findings if finding.is_site]

    def counts(self) -> Counter[Kind]:
        """Number of sites of each kind."""
        return Counter(finding.kind for finding in self.sites)


def folded(findings: Iterable[Finding], key: Callable[[Finding], Hashable | None]) -> list[Finding]:
    """Make one finding of those with the same key, the first, which names the other lines; None is no key."""
    found: dict[Hashable, list[Finding]] = {}
    kept = []
    for each in findings:
        name = key(each)
        same = found.setdefault(name, []) if name is not None else []
        if not same:
            kept.append(each)
        same.append(each)
    for first, *others in found.values():
        if where := _also_in(first, others):
            first.message = f"{first.said}; also in {where}"
    return kept


def _also_in(first: Finding, others: Sequence[Finding]) -> str:
    """The lines of other places that the line of a first one stands for; "" where they are in its own line."""
    lines = list(dict.fromkeys(f"line {each.line}" for each in others if each.line != first.line))
    more = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
    return f"{', '.join(lines[:_MOST_LINES])}{more}"
