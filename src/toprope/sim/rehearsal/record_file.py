"""Reading of the C++ core's record of a rehearsal: holders of memory, and lines that wait in every step; pure.

The layout is given by `struct Rehearsal` in csrc/core/rehearsal.h. A run keeps the record in a file next to each
process's counters, so it is up to date even when the process was killed.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "KINDS", "SIZE", "STEPS", "SUFFIX", "CardMemory", "Held", "Line", "Record", "Sample", "SiteSteps", "parse",
    "read_run",
]  # fmt: skip

SUFFIX = ".rehearsal"
KINDS = ("others", "weights", "gradients", "optimizer", "activations")
"""Uses of memory, in the order of `enum Held`."""

STEPS = ("training", "inference", "forward")
"""Kinds of steps, in the order of `enum Step`."""

_MAX_LINES, _MAX_SITES, _MAX_LACKS, _MAX_CARDS, _SAMPLES = 512, 256, 32, 16, 256
_HEADER = struct.Struct("<8sQQqQ3Q3Q")
_LINE = struct.Struct("<144sQ")
_SITE = struct.Struct("<9Q")
_LACKS = struct.Struct(f"<{_MAX_LACKS}Q")
_NUMBER = struct.Struct("<48sQ")
_BAD_NUMBERS = ("nan", "overflow")
_CARD = struct.Struct("<4Q5Q5QqQ")
_SAMPLE = struct.Struct("<q5Q")
_KINDS = struct.Struct("<5Q")
_BY_LINE = _MAX_LINES * _KINDS.size
_CARD_SIZE = _CARD.size + _SAMPLES * _SAMPLE.size + 3 * _BY_LINE
_SITES_AT = _HEADER.size + _MAX_LINES * _LINE.size
_LACKS_AT = _SITES_AT + _MAX_SITES * _SITE.size
_NUMBERS_AT = _LACKS_AT + _LACKS.size
_CARDS_AT = _NUMBERS_AT + len(_BAD_NUMBERS) * _NUMBER.size
SIZE = _CARDS_AT + _MAX_CARDS * _CARD_SIZE
"""Bytes of a record."""

_MAGIC = b"TRREHEA\x02"
_SMALL, _BEFORE = 0, 1


@dataclass(frozen=True)
class Line:
    """A line of the program, or a group of blocks without one.

    Attributes:
        file: the file, or its last 143 bytes; BACKWARD or NO_PYTHON of `toprope.sim.metrics.counters`; "" for a group.
        line: number of the line.
        group: what the blocks are that have no line; "" for those that have one.
    """

    file: str
    line: int
    group: str = ""


@dataclass(frozen=True)
class Held:
    """Bytes that one line held, by kind (`KINDS`)."""

    line: Line
    bytes: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(self.bytes.values())


@dataclass(frozen=True)
class Sample:
    """Memory in use at a moment: the largest of its time.

    Attributes:
        seconds: since the record began.
        bytes: in use by kind (`KINDS`).
    """

    seconds: float
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class CardMemory:
    """The memory of one card in one process; sizes in bytes.

    Attributes:
        peak: most memory in use at once.
        at_peak: what held it then, the most first.
        wanted: size of the last allocation that failed; 0 for none.
        wanted_line: the line that asked for it.
        at_shortage: what held the memory when it failed.
        runtime: memory that the runtime takes for itself and the allocator does not see.
        samples: memory in use over time.
        to_come: gradients of parameters that optimizers have, and states of these optimizers, that did not exist yet
            when it failed, by kind (`KINDS`).
    """

    peak: int
    at_peak: tuple[Held, ...]
    wanted: int
    wanted_line: Line
    at_shortage: tuple[Held, ...]
    runtime: int
    samples: tuple[Sample, ...]
    to_come: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SiteSteps:
    """Steps of one kind in which a place of the counters copied back or waited.

    Attributes:
        first: steps that had ended when it did so first.
        seen: different steps in which it did.
    """

    first: int
    seen: int


@dataclass(frozen=True)
class Record:
    """The record of one process.

    Attributes:
        pid: the process.
        smallest: bytes of the smallest block with a line of its own.
        steps: steps that were counted while all places were looked up, by kind (`STEPS`).
        all_steps: steps until the end, by kind.
        sites: steps of each place, by the place's number in the counters and by kind.
        lacks: the line of each lack, by its position in the counters; None where none is known.
        cards: memory by the card's number in the process.
        numbers: operator and line of the first NaN ("nan") and of the first overflow ("overflow"), where they were
            looked for.
    """

    pid: int
    smallest: int
    steps: Mapping[str, int]
    all_steps: Mapping[str, int]
    sites: tuple[Mapping[str, SiteSteps], ...]
    lacks: tuple[Line | None, ...]
    cards: Mapping[int, CardMemory]
    numbers: Mapping[str, tuple[str, Line]] = field(default_factory=dict)


def parse(data: bytes | memoryview, exact: bool = True) -> Record | None:
    """The record in these bytes; None where it is none, or was never filled in.

    Args:
        data: bytes of a record.
        exact: whether the places of all copies and waits were looked up until the end.
    """
    if len(data) < SIZE:
        return None
    magic, pid, smallest, _, line_count, *numbers = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return None
    lines = [_line(data, number, smallest) for number in range(min(max(line_count, 2), _MAX_LINES))]
    all_steps, looked_up = dict(zip(STEPS, numbers[:3], strict=True)), dict(zip(STEPS, numbers[3:], strict=True))
    return Record(
        pid, smallest, all_steps if exact else looked_up, all_steps,
        tuple(_site(data, number) for number in range(_MAX_SITES)),
        tuple(lines[each] if 1 < each < len(lines) else None for each in _LACKS.unpack_from(data, _LACKS_AT)),
        {number: card for number in range(_MAX_CARDS) if (card := _card(data, number, lines)) is not None},
        dict(_numbers(data, lines)),
    )  # fmt: skip


def noted_numbers(address: int) -> list[str]:
    """The kinds of bad numbers that a record in this process's memory has: "nan", "overflow"."""
    data = ctypes.string_at(address + _NUMBERS_AT, len(_BAD_NUMBERS) * _NUMBER.size)
    found = (_NUMBER.unpack_from(data, place * _NUMBER.size)[0][0] for place in range(len(_BAD_NUMBERS)))
    return [kind for kind, first in zip(_BAD_NUMBERS, found, strict=True) if first]


def read_run(folder: Path, sampled: Mapping[int, bool]) -> dict[int, Record]:
    """The records of the processes of a run, by process.

    Args:
        folder: the run's.
        sampled: the processes, and whether the places of their copies and waits are samples.
    """
    records = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        data = path.read_bytes()
        if len(data) >= SIZE and (one := parse(data, not sampled.get(_HEADER.unpack_from(data)[1], False))) is not None:
            records[one.pid] = one
    return records


def _line(data: bytes | memoryview, number: int, smallest: int) -> Line:
    if number == _SMALL:
        return Line("", 0, f"blocks below {smallest // 2**20} MiB" if smallest else "blocks without a line")
    if number == _BEFORE:
        return Line("", 0, "before the rehearsal began")
    file, line = _LINE.unpack_from(data, _HEADER.size + number * _LINE.size)
    text = file.split(b"\0", 1)[0].decode("utf-8", "replace")
    return Line(text, line, "" if text else "other lines")


def _numbers(data: bytes | memoryview, lines: list[Line]) -> Iterator[tuple[str, tuple[str, Line]]]:
    for place, kind in enumerate(_BAD_NUMBERS):
        name, line = _NUMBER.unpack_from(data, _NUMBERS_AT + place * _NUMBER.size)
        if text := name.split(b"\0", 1)[0].decode("utf-8", "replace"):
            yield kind, (text, lines[line] if line < len(lines) else lines[0])


def _site(data: bytes | memoryview, number: int) -> dict[str, SiteSteps]:
    figures = _SITE.unpack_from(data, _SITES_AT + number * _SITE.size)
    return {kind: SiteSteps(figures[place], figures[6 + place]) for place, kind in enumerate(STEPS)}


def _card(data: bytes | memoryview, number: int, lines: list[Line]) -> CardMemory | None:
    start = _CARDS_AT + number * _CARD_SIZE
    _, peak, is_rising, _, *rest = _CARD.unpack_from(data, start)
    wanted, wanted_line, runtime, gradients, states = rest[5:10]
    if not (peak or wanted or runtime):
        return None
    start += _CARD.size
    samples = (_SAMPLE.unpack_from(data, start + place * _SAMPLE.size) for place in range(_SAMPLES))
    live, at_peak, at_shortage = (
        _held(data, start + _SAMPLES * _SAMPLE.size + place * _BY_LINE, lines) for place in range(3)
    )
    return CardMemory(
        peak, live if is_rising else at_peak, wanted, lines[wanted_line] if wanted_line < len(lines) else lines[0],
        at_shortage, runtime,
        tuple(Sample(ns / 1e9, dict(zip(KINDS, sizes, strict=True))) for ns, *sizes in samples if ns),
        {"gradients": gradients, "optimizer": states},
    )  # fmt: skip


def _held(data: bytes | memoryview, start: int, lines: list[Line]) -> tuple[Held, ...]:
    found = []
    for number, line in enumerate(lines):
        sizes = _KINDS.unpack_from(data, start + number * _KINDS.size)
        if any(sizes):
            found.append(Held(line, {kind: size for kind, size in zip(KINDS, sizes, strict=True) if size}))
    return tuple(sorted(found, key=lambda one: -one.total))
