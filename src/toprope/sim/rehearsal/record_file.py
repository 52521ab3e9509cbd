"""Reading of the C++ core's record of a rehearsal: holders of memory, and lines that wait in every step; pure.

For facts.py and the reports. A run keeps the record (`struct Rehearsal` of csrc/core/rehearsal.h, see layouts.py) in a
file next to each process's counters, so it is up to date even when the process was killed. Tests:
tests/sim/test_rehearsal.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toprope.sim import layouts

__all__ = [
    "KINDS", "SIZE", "STEPS", "SUFFIX", "CardMemory", "Held", "Line", "Record", "Sample", "SiteSteps", "parse",
    "read_run",
]  # fmt: skip

SUFFIX = ".rehearsal"
KINDS = tuple(kind.name.lower() for kind in layouts.Held if kind is not layouts.Held.NOT_COUNTED)
"""Uses of memory: "others", "weights", "gradients", "optimizer", "activations"."""

STEPS = tuple(step.name.lower() for step in layouts.Step)
"""Kinds of steps: "training", "inference", "forward"."""

SIZE = ctypes.sizeof(layouts.Rehearsal)
"""Bytes of a record."""

_MAGIC = b"TRREHEA\x03"
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
    kept = _kept(data)
    return None if kept is None else _record(kept, exact)


def _kept(data: bytes | memoryview) -> layouts.Rehearsal | None:
    if len(data) < SIZE or data[: len(_MAGIC)] != _MAGIC:
        return None
    return layouts.Rehearsal.from_buffer_copy(data)


def _record(kept: layouts.Rehearsal, exact: bool) -> Record:
    lines = [_line(number, line, kept.smallest) for number, line in enumerate(kept.lines[: max(kept.line_count, 2)])]
    all_steps = _by(STEPS, kept.steps)
    return Record(
        kept.pid, kept.smallest, all_steps if exact else _by(STEPS, kept.looked_up), all_steps,
        tuple(_site(site) for site in kept.sites),
        tuple(lines[each] if 1 < each < len(lines) else None for each in kept.lack_lines),
        {number: found for number, card in enumerate(kept.cards) if (found := _card(card, lines)) is not None},
        dict(_numbers(list(kept.numbers), lines)),
    )  # fmt: skip


def noted_numbers(address: int) -> list[str]:
    """The kinds of bad numbers that a record in this process's memory has: "nan", "overflow"."""
    kept = layouts.Rehearsal.from_address(address)
    return [kind.name.lower() for kind in layouts.BadNumber if kept.numbers[kind].operation]


def read_run(folder: Path, sampled: Mapping[int, bool]) -> dict[int, Record]:
    """The records of the processes of a run, by process.

    Args:
        folder: the run's.
        sampled: the processes, and whether the places of their copies and waits are samples.
    """
    records = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if (kept := _kept(path.read_bytes())) is not None:
            records[kept.pid] = _record(kept, not sampled.get(kept.pid, False))
    return records


def _by(kinds: Sequence[str], numbers: Iterable[int]) -> dict[str, int]:
    return dict(zip(kinds, numbers, strict=True))


def _line(number: int, line: layouts.Line, smallest: int) -> Line:
    if number == _SMALL:
        return Line("", 0, f"blocks below {smallest // 2**20} MiB" if smallest else "blocks without a line")
    if number == _BEFORE:
        return Line("", 0, "before the rehearsal began")
    text = line.file.decode("utf-8", "replace")
    return Line(text, line.line, "" if text else "other lines")


def _numbers(numbers: Sequence[layouts.FirstNumber], lines: Sequence[Line]) -> Iterator[tuple[str, tuple[str, Line]]]:
    for kind in layouts.BadNumber:
        if text := numbers[kind].operation.decode("utf-8", "replace"):
            yield kind.name.lower(), (text, _of(lines, numbers[kind].line))


def _of(lines: Sequence[Line], number: int) -> Line:
    return lines[number] if number < len(lines) else lines[_SMALL]


def _site(site: layouts.SiteSteps) -> dict[str, SiteSteps]:
    return {kind: SiteSteps(site.first[place], site.seen[place]) for place, kind in enumerate(STEPS)}


def _card(card: layouts.CardMemory, lines: Sequence[Line]) -> CardMemory | None:
    if not (card.peak or card.wanted or card.runtime):
        return None
    gradients, states = card.to_come
    return CardMemory(
        card.peak, _held(card.live if card.is_rising else card.at_peak, lines), card.wanted,
        _of(lines, card.wanted_line), _held(card.at_shortage, lines), card.runtime,
        tuple(Sample(sample.ns / 1e9, _by(KINDS, sample.bytes)) for sample in card.samples if sample.ns),
        {"gradients": gradients, "optimizer": states},
    )  # fmt: skip


def _held(by_line: Iterable[Iterable[int]], lines: Sequence[Line]) -> tuple[Held, ...]:
    found = (
        Held(line, {kind: size for kind, size in _by(KINDS, sizes).items() if size})
        for line, sizes in zip(lines, by_line, strict=False)
    )
    return tuple(sorted((held for held in found if held.bytes), key=lambda one: -one.total))
