"""Search for codes and known messages in texts and in logs of any size.

Behind `toprope.codes.in_text` and `in_log`, which `toprope doctor FILE` calls. The patterns are data (texts.toml,
families*.toml, cases.toml, fallbacks.toml); here is which of them count, and in which order they are shown. A log is
read once, block by block: what is kept has a limit (the constants at the top), and a pattern is tried only on lines
with one of its hints, or large logs take minutes. Tests: tests/base/test_codes.py,
tests/device/test_doctor_texts.py, tests/device/test_doctor_families.py.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from toprope.codes import packages, reasons
from toprope.codes.catalogue import Rule, codes, explain, owners, rules
from toprope.codes.model import Explanation, Seen
from toprope.errors import UsageError

__all__ = ["in_log", "in_text"]

_LETTERS = re.compile(r"(?<![A-Za-z0-9_])(?:ERR\d{5}|E[A-Z]\d{4}|E[1-9]\d{4})(?![A-Za-z0-9_])")
_DIGITS = re.compile(r"(?<![A-Za-z0-9_.])[1-9]\d{5}(?![A-Za-z0-9_])(?!\.\d)")
_INNER = re.compile(r"(?<![A-Za-z0-9_])(?:0x0?7[0-2][0-9A-Fa-f]{5}|11[789]\d{6})(?![A-Za-z0-9_])")
# a number of six digits in a log is a code where it is said to be one; elsewhere it may be a process id or a size
_SAID = re.compile(r"(?:code|result|ret|errno?|error|status|failure|failed)\W{0,4}(?:is)?\W{0,4}$", re.IGNORECASE)
_RANGES = re.compile(r"1(?:0[07]|4[58]|61)\d{3}|2(?:0[07]|45)\d{3}|3(?:00|45|61)\d{3}|5(?:0[07]|45|61)\d{3}")
_MINOR = re.compile(r"(?i:warning)|\b(?:WARN|INFO|DEBUG)\b")  # a line of this level says nothing of a kind that failed
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# the same without assertions before the code, which make a search slow: where they match, the others are tried
_MAY_BE_CODE = (
    re.compile(rb"E(?:RR\d{5}|[A-Z]\d{4}|[1-9]\d{4})(?!\w)"),
    re.compile(rb"(?:^|[\s:=(\[])(?:1[0-6]|2[04]|3[046]|5[046])\d{4}(?!\w)"),
    re.compile(rb"0x0?7[0-2][0-9A-Fa-f]{5}(?!\w)"),
    re.compile(rb"11[789]\d{6}(?!\w)"),
)

_KEYWORD = re.compile(rb"code|result|ret|err|status|fail|E[A-Z1-9]\d{3}", re.IGNORECASE)
_REASON = Rule(reasons.HINTS, re.compile(""), Explanation("", "", "", (), (), ()), {})
_FRAME = Rule(('file "',), re.compile(""), Explanation("", "", "", (), (), ()), {})
_VARIES = b"0123456789abcdef"  # digits, and letters of hexadecimal numbers: without them repeated lines are alike

BLOCK = 1 << 20  # bytes that are searched at once
LIMIT = 200_000  # of remembered forms of lines: some tens of MB
# lines that a finding waits for one that says more: torch_npu prints its number first and the reason below it
ARMED = 50  # lines with a code after which a reason is looked for, if the earlier ones had none
FRAMES = 12  # lines of a traceback that are kept
TRACEBACK = 60  # lines before an exception in which its frames are
BELOW = 4  # lines after a message in which a traceback begins that belongs to it
NEAR = 6  # lines after a code in which the reason that the log gives is looked for
LATER = {"text": 0, "letters": 5, "number": 10, "digits": 40, "inner": 50, "own": 60}


@dataclass
class _Found:
    what: Explanation
    line: int
    column: int
    later: int
    text: str
    rule: Rule | None = None
    count: int = 0
    last: int = 0
    whole: str = ""  # the line of a message with no traceback above it
    frames: list[str] = field(default_factory=list)  # of the traceback below such a line

    @property
    def place(self) -> tuple[int, bool, int, int]:
        """Sort key: causes first, and of those the earliest line, with lines that wait for one that says more.

        Of reports those with a reason in the log come first.
        """
        report = self.what.order == 2 and not self.what.reason
        return self.what.order, report, self.line + (0 if self.what.order else self.later), self.column


def in_text(text: str) -> tuple[Explanation, ...]:
    """The explanations of the codes and known messages in a text, in the order in which they come, each once.

    Numbers of six digits count where they are said to be a code, or have an entry.

    Example:
        >>> [each.code for each in in_text("libhccl.so: cannot open shared object file, error code 507034")]
        ['libhccl', '507034']
    """
    search = _Search(lenient=True)
    lines = [line.encode(errors="replace") + b"\n" for line in text.splitlines()]
    for index, candidates in enumerate(_candidates(lines)):
        search.read(index + 1, lines[index], (None, *candidates))
    return tuple(each.what for each in sorted(search.results(), key=lambda each: (each.line, each.column)))


def in_log(lines: Iterable[bytes]) -> tuple[Seen, ...]:
    """The explanations of the codes and known messages in a log, the first cause first.

    Causes come before waits for something that failed elsewhere, and those before reports that something failed;
    within each the earliest line is first. Lines are read once and not kept.

    Args:
        lines: of the log, such as an open binary file.

    Example:
        >>> log = [b"rank 1: EI0002: The wait timed out", b"rank 0: NPU out of memory. Tried to allocate 2 GiB"]
        >>> [(seen.what.code, seen.line) for seen in in_log(log)]
        [('out-of-memory', 2), ('EI0002', 1)]
    """
    search = _Search(lenient=False)
    forms: dict[bytes, tuple[Rule | None, ...]] = {}
    number = 0
    for block in _blocks(lines):
        of_lines = [line.translate(None, _VARIES) for line in block]
        if len(forms) > LIMIT:
            forms.clear()
        new = {form: line for form, line in zip(of_lines, block, strict=True) if form not in forms}
        forms |= zip(new, _candidates(list(new.values())), strict=True)
        for index, form in enumerate(of_lines):
            if forms[form]:
                search.read(number + index + 1, block[index], forms[form])
        number += len(block)
    return tuple(Seen(each.what, each.line, each.count, each.text) for each in search.results())


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


def _candidates(lines: list[bytes]) -> list[tuple[Rule | None, ...]]:
    """For each line the rules that may match it, those that explain a kind of line last, in their order.

    None is among them where the line, or one of its form, may have a code.
    """
    text = b"".join(lines)
    small = text.lower()
    ends = list(accumulate(map(len, lines)))
    found: list[dict[Rule | None, None]] = [{} for _ in lines]
    for hint, fitting in _hints().items():
        place = small.find(hint)
        while place >= 0:
            index = bisect_right(ends, place)
            found[index].update(fitting)
            place = small.find(hint, ends[index])
    for match in _KEYWORD.finditer(text):
        found[bisect_right(ends, match.start())][None] = None
    return [tuple(sorted(each, key=_places().__getitem__)) for each in found]


@functools.cache
def _places() -> dict[Rule | None, int]:
    """Sort key of rules: codes and messages with an entry first, then families, then lines that count alone."""
    general = sorted((rule for rule in rules() if rule.general), key=lambda rule: rule.alone)
    others: dict[Rule | None, int] = dict.fromkeys((None, _REASON, _FRAME, *rules()), 0)
    return others | {rule: place for place, rule in enumerate(general, 1)}


@functools.cache
def _hints() -> dict[bytes, dict[Rule | None, None]]:
    hints: dict[bytes, dict[Rule | None, None]] = {}
    for rule in (*rules(), _REASON, _FRAME):
        for hint in rule.hints:
            hints.setdefault(hint.encode(), {})[rule] = None
    return hints


class _Search:
    """Findings of the lines that were read, each once."""

    def __init__(self, *, lenient: bool) -> None:
        self.found: dict[str, _Found] = {}
        self._lenient = lenient
        self._waiting: dict[str, tuple[int, str]] = {}  # codes for which no reason was read yet: line and process
        self._frames: deque[tuple[int, bytes]] = deque(maxlen=FRAMES)
        self._headless: list[_Found] = []  # messages below which their traceback may follow, as servers print it
        self._entries = frozenset(codes())

    def read(self, number: int, raw: bytes, candidates: Iterable[Rule | None]) -> None:
        """Add the findings of one line."""
        line = ""
        gives_reason = known = False
        for rule in candidates:
            if rule is _REASON:
                gives_reason = True
                continue
            if rule is _FRAME:
                self._frames.append((number, raw))
                self._below(number, raw)
                continue
            if rule is None and not self._lenient and not any(pattern.search(raw) for pattern in _MAY_BE_CODE):
                continue
            if known and rule is not None and rule.general:
                break
            line = line or _decoded(raw)
            for column, what, kind in self._codes(line) if rule is None else self._of_rule(rule, line, number):
                found = self.found.get(what.code)
                if found is None or (number, column) < (found.line, found.column):
                    text = line.strip() if len(line) <= 240 else line[max(0, column - 80) :].strip()[:240] + " ..."
                    count, last = (0, 0) if found is None else (found.count, found.last)
                    found = _Found(what, number, column, LATER[kind], text, rule, count, last)
                    self.found[what.code] = found
                    if rule is not None and rule.general and not self._near(line, number):
                        found.whole = line
                        self._headless.append(found)
                if kind not in ("text", "own") and not found.what.reason and found.count < ARMED:
                    self._waiting[what.code] = (number, reasons.process(line))
                found.count += found.last != number
                found.last = number
                known = known or (kind != "own" and (rule is None or not rule.partners))
        if gives_reason and self._waiting:
            self._reason(number, line or _decoded(raw))

    def _below(self, number: int, raw: bytes) -> None:
        """Keep a frame for a message that came just before its traceback."""
        self._headless = [each for each in self._headless if number - each.line < (TRACEBACK if each.frames else BELOW)]
        frame = _decoded(raw) if self._headless else ""
        own = reasons.process(frame)
        for each in self._headless:
            if own == reasons.process(each.whole):
                each.frames.append(frame)

    def _reason(self, number: int, line: str) -> None:
        """Give the codes of this line and of the ones just before it the reason that the line states."""
        own = reasons.process(line)
        for code, (begin, process) in list(self._waiting.items()):
            if number - begin > NEAR:
                del self._waiting[code]
            elif process == own and (text := reasons.of_line(line)):
                found = self.found[code]
                what = replace(found.what, reason=text)
                found.what = reasons.fitting(what, found.text) if what.open else what
                del self._waiting[code]

    def results(self) -> list[_Found]:
        """All findings, the first cause first; those that count next to another one alone come just before it."""
        for found in self.found.values():
            if found.frames and found.rule is not None and (match := found.rule.pattern.search(found.whole)):
                groups = match.groupdict()
                found.what = _filled(found.rule, groups, _around(groups.get("name") or "", reversed(found.frames)))
        wanted = {code: found.rule.partners if found.rule is not None else () for code, found in self.found.items()}
        found_with = {
            code: [self.found[each].place for each in names if each in self.found] for code, names in wanted.items()
        }
        able = {code: found for code, found in self.found.items() if found_with[code] or not wanted[code]}
        counting = {code: found for code, found in able.items() if found.rule is None or not found.rule.alone}
        # torch_npu's own codes say that something failed, no more
        said = [found for code, found in counting.items() if not code.startswith("ERR")]
        others = [found for code, found in able.items() if code not in counting]
        if not any(found.what.order < 2 or found.rule is None or found.rule.values for found in said):
            crash = all(found.what.open and found.what.order == 1 for found in said)
            others = [each for each in others if crash or not each.what.order]
            others.sort(key=lambda each: (each.what.order, each.line))
            counting |= {each.what.code: each for each in others[:1]}
        places = {
            code: (*min(found.place, *found_with[code]), 0) if wanted[code] else (*found.place, 1)
            for code, found in counting.items()
        }
        return [self.found[code] for code in sorted(places, key=lambda code: places[code])]

    def _codes(self, line: str) -> Iterator[tuple[int, Explanation, str]]:
        for match in _LETTERS.finditer(line):
            code = match[0]
            after = line[match.end() : match.end() + 1] or " "
            if code[1].isdigit() and after not in ":)[" and not (self._lenient and code in self._entries):
                continue  # E and digits are common elsewhere: CANN puts a colon after its codes, or brackets round them
            yield from _explained(match.start(), code, "own" if code.startswith("ERR") else "letters")
        for match in _DIGITS.finditer(line):
            code = match[0]
            if (self._lenient and code in self._entries) or (
                _RANGES.fullmatch(code) and _is_announced(line, *match.span())
            ):
                yield from _explained(match.start(), code, "digits")
        for match in _INNER.finditer(line):
            if self._lenient or _is_announced(line, *match.span()):
                code = match[0] if match[0][1] == "x" else hex(int(match[0]))
                yield from _explained(match.start(), code, "inner")

    def _of_rule(self, rule: Rule, line: str, number: int) -> Iterator[tuple[int, Explanation, str]]:
        match = rule.pattern.search(line)
        if match is None or (rule.general and _MINOR.search(line, 0, 100)):
            return
        if not rule.values:
            known = self.found.get(rule.what.code)
            earlier = known is None or (number, match.start()) < (known.line, known.column)
            if earlier:
                groups = match.groupdict()
                around = _around(groups.get("name") or "", self._near(line, number))
                yield match.start(), _filled(rule, groups, around), "text"
            else:
                yield match.start(), rule.what, "text"
            return
        groups = match.groupdict()
        value = int(groups["value"]) if groups.get("value") else int(groups["hex"], 16)
        if value:  # 0 is success
            what = rule.values.get(value) or replace(rule.what, code=f"{rule.what.code} {value}")
            yield match.start(), what, "number"

    def _near(self, line: str, number: int) -> list[str]:
        """The frames just above a line, of the same process, the innermost first."""
        own = reasons.process(line)
        near = (_decoded(raw) for at, raw in reversed(self._frames) if number - at < TRACEBACK)
        return [frame for frame in near if reasons.process(frame) == own]


def _around(name: str, frames: Iterable[str]) -> Mapping[str, str]:
    """Values of a family: the owner of a name, and the place of the innermost of the frames."""
    return {**packages.of_name(name, owners()), **packages.of_frames(frames, owners())}


def _decoded(raw: bytes) -> str:
    line = raw.decode(errors="replace").rstrip("\n")
    return _COLOURS.sub("", line) if "\x1b" in line else line


def _is_announced(line: str, begin: int, end: int) -> bool:
    """True if the text before a number says that it is a code, or the number is all of its line."""
    return _SAID.search(line[max(0, begin - 24) : begin]) is not None or not (line[:begin] + line[end:]).strip()


def _explained(place: int, code: str, kind: str) -> Iterator[tuple[int, Explanation, str]]:
    what = _known(code)
    if what is not None:
        yield place, what, kind


@functools.cache
def _known(code: str) -> Explanation | None:
    try:
        return explain(code)
    except UsageError:
        return None  # looks like a code, and is none of Ascend's


def _filled(rule: Rule, groups: Mapping[str, str | None], around: Mapping[str, str]) -> Explanation:
    """The explanation of a rule with what its pattern read out of the line, and with what is around the line."""
    what = rule.what
    empty = "" if rule.general or any(groups.values()) else "..."
    values = {name: value or ("a library" if name == "library" else empty) for name, value in groups.items()}
    values |= around
    causes, try_ = (tuple(each.format_map(values) for each in part) for part in (what.causes, what.try_))
    means = what.means.format_map(values)
    filled = replace(what, means=" ".join(means.split()).rstrip(" :"), causes=causes, try_=try_)
    return reasons.computed(filled, groups)
