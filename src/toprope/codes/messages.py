"""Finds codes and known messages in texts and in logs of any size."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from toprope.codes.catalogue import Rule, codes, explain, rules
from toprope.codes.model import Explanation, Seen
from toprope.errors import UsageError

__all__ = ["in_log", "in_text"]

_LETTERS = re.compile(r"(?<![A-Za-z0-9_])(?:ERR\d{5}|E[A-Z]\d{4}|E[1-9]\d{4})(?![A-Za-z0-9_])")
_DIGITS = re.compile(r"(?<![A-Za-z0-9_.])[1-9]\d{5}(?![A-Za-z0-9_])(?!\.\d)")
_INNER = re.compile(r"(?<![A-Za-z0-9_])(?:0x0?7[0-2][0-9A-Fa-f]{5}|11[789]\d{6})(?![A-Za-z0-9_])")
# a number of six digits in a log is a code where it is said to be one; elsewhere it may be a process id or a size
_SAID = re.compile(r"(?:code|result|ret|errno?|error|status)\W{0,4}(?:is)?\W{0,4}$", re.IGNORECASE)
_RANGES = re.compile(r"1(?:0[07]|4[58]|61)\d{3}|2(?:0[07]|45)\d{3}|3(?:00|45|61)\d{3}|5(?:0[07]|45|61)\d{3}")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# the same without assertions before the code, which make a search slow: where they match, the others are tried
_MAY_BE_CODE = (
    re.compile(rb"E(?:RR\d{5}|[A-Z]\d{4}|[1-9]\d{4})(?!\w)"),
    re.compile(rb"[\s:=(\[](?:1[0-6]|2[04]|3[046]|5[046])\d{4}(?!\w)"),
    re.compile(rb"0x0?7[0-2][0-9A-Fa-f]{5}(?!\w)"),
    re.compile(rb"11[789]\d{6}(?!\w)"),
)

BLOCK = 1 << 20  # bytes that are searched at once
SHORT = 100  # lines; in a shorter log a number counts that has an entry, without being said to be a code
# lines that a finding waits for one that says more: torch_npu prints its number first and the reason below it
LATER = {"text": 0, "letters": 5, "number": 10, "digits": 40, "inner": 50, "own": 60}


@dataclass
class _Found:
    what: Explanation
    line: int
    column: int
    later: int
    text: str
    count: int = 0
    last: int = 0


def in_text(text: str) -> tuple[Explanation, ...]:
    """The explanations of the codes and known messages in a text, in the order in which they come, each once.

    Numbers of six digits count where they are said to be a code, or have an entry.
    """
    search = _Search(lenient=True)
    lines = [line.encode(errors="replace") + b"\n" for line in text.splitlines()]
    everything = dict.fromkeys(range(len(lines)), {None: None})  # also numbers that nothing calls a code
    for index, candidates in sorted((everything | _candidates(lines)).items()):
        search.read(index + 1, lines[index].decode(), {**candidates, None: None})
    return tuple(each.what for each in sorted(search.found.values(), key=lambda each: (each.line, each.column)))


def in_log(lines: Iterable[bytes]) -> tuple[Seen, ...]:
    """The explanations of the codes and known messages in a log, the first cause first.

    Causes come before waits for something that failed elsewhere, and those before reports that something failed;
    within each the earliest line is first. Lines are read once and not kept.

    Args:
        lines: of the log, such as an open binary file.

    Example:
        >>> log = [b"rank 1: EI0002: The wait execution times out", b"rank 0: NPU out of memory. Tried to allocate 2 GiB"]
        >>> [(seen.what.code, seen.line) for seen in in_log(log)]
        [('out-of-memory', 2), ('EI0002', 1)]
    """
    search = _Search(lenient=False)
    number = 0
    block: list[bytes] = []
    for block in _blocks(lines):
        if number == 0 and len(block) < SHORT:
            search = _Search(lenient=True)
        for index, candidates in sorted(_candidates(block).items()):
            search.read(number + index + 1, block[index].decode(errors="replace"), candidates)
        number += len(block)
    ordered = sorted(search.found.values(), key=lambda each: (each.what.order, each.line + each.later, each.column))
    return tuple(Seen(each.what, each.line, each.count, each.text) for each in ordered)


def _blocks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines in lists of about BLOCK bytes, each ended by a newline."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        block.append(line if line.endswith(b"\n") else line + b"\n")
        size += len(line)
        if size > BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _candidates(lines: list[bytes]) -> dict[int, dict[Rule | None, None]]:
    """For lines that may say something: the rules that may match it; None among them where it may have a code."""
    text = b"".join(lines)
    small = text.lower()
    ends = list(accumulate(map(len, lines)))
    found: dict[int, dict[Rule | None, None]] = {}
    for hint, fitting in _hints().items():
        place = small.find(hint)
        while place >= 0:
            index = bisect_right(ends, place)
            found.setdefault(index, {}).update(fitting)
            place = small.find(hint, ends[index])
    for pattern in _MAY_BE_CODE:
        for match in pattern.finditer(text):
            # the character before a number may be the end of the line before it
            found.setdefault(bisect_right(ends, match.end() - 1), {})[None] = None
    return found


@functools.cache
def _hints() -> dict[bytes, dict[Rule | None, None]]:
    hints: dict[bytes, dict[Rule | None, None]] = {}
    for rule in rules():
        for hint in rule.hints:
            hints.setdefault(hint.encode(), {})[rule] = None
    return hints


class _Search:
    """Findings of the lines that were read, each once."""

    def __init__(self, *, lenient: bool) -> None:
        self.found: dict[str, _Found] = {}
        self._lenient = lenient
        self._entries = frozenset(codes())

    def read(self, number: int, line: str, candidates: Iterable[Rule | None]) -> None:
        """Add the findings of one line."""
        if "\x1b" in line:
            line = _COLOURS.sub("", line)
        for rule in candidates:
            for column, what, kind in self._codes(line) if rule is None else _of_rule(rule, line):
                found = self.found.get(what.code)
                if found is None or (number, column) < (found.line, found.column):
                    text = line.strip() if len(line) <= 240 else line[max(0, column - 80) :].strip()[:240] + " ..."
                    count, last = (0, 0) if found is None else (found.count, found.last)
                    found = _Found(what, number, column, LATER[kind], text, count, last)
                    self.found[what.code] = found
                found.count += found.last != number
                found.last = number

    def _codes(self, line: str) -> Iterator[tuple[int, Explanation, str]]:
        for match in _LETTERS.finditer(line):
            code = match[0]
            if code[1].isdigit() and code not in self._entries and line[match.end() : match.end() + 1] not in (":", ")"):
                continue  # E and digits are common elsewhere: CANN puts a colon after its codes, or brackets round them
            yield from _explained(match.start(), code, "own" if code.startswith("ERR") else "letters")
        for match in _DIGITS.finditer(line):
            code = match[0]
            if (self._lenient and code in self._entries) or (_RANGES.fullmatch(code) and _said(line, match.start())):
                yield from _explained(match.start(), code, "digits")
        for match in _INNER.finditer(line):
            if self._lenient or _said(line, match.start()):
                code = match[0] if match[0][1] == "x" else hex(int(match[0]))
                yield from _explained(match.start(), code, "inner")


def _said(line: str, place: int) -> bool:
    """Whether the text before a number says that it is a code."""
    return _SAID.search(line[max(0, place - 24) : place]) is not None


def _explained(place: int, code: str, kind: str) -> Iterator[tuple[int, Explanation, str]]:
    try:
        yield place, explain(code), kind
    except UsageError:
        pass  # looks like a code, and is none of Ascend's


def _of_rule(rule: Rule, line: str) -> Iterator[tuple[int, Explanation, str]]:
    match = rule.pattern.search(line)
    if match is None:
        return
    groups = match.groupdict()
    if not rule.values:
        filled = {name: value or "..." for name, value in groups.items()}
        what = rule.what
        texts = (tuple(each.format_map(filled) for each in part) for part in (what.causes, what.try_))
        causes, try_ = texts
        yield match.start(), replace(what, means=what.means.format_map(filled), causes=causes, try_=try_), "text"
        return
    value = int(groups["value"]) if groups.get("value") else int(groups["hex"], 16)
    if value:
        what = rule.values.get(value) or replace(rule.what, code=f"{rule.what.code} {value}")
        yield match.start(), what, "number"
