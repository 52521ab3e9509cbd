"""Reads `kernel_details.csv` of the vendor's profiler (and msprof's `op_summary`), one file a rank or more; pure.

A part of `cores.record`. Fixed by the vendor: the columns of its releases (`_COLUMNS`), names of collectives
(`hcom_...`) and of kernels; tests/cores/test_cores_record_csv.py has files of each release. What such a file does not
say stays unknown: it holds no events between streams, so its streams count as independent, and a message between two
ranks has no partner. Tests: tests/cores/test_cores_record_csv.py.
"""

from __future__ import annotations

import csv
import io
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from toprope.cores.formats.schedule_json import card_of_chip
from toprope.cores.model import Card, Collective, Communicator, Cores, Op, Program, Stream
from toprope.errors import ScheduleError
from toprope.support.all_blocks import communicates, needs_all_blocks

__all__ = ["from_csv", "looks_like_csv"]

# What each column was called in the releases of the profiler, and in msprof's op_summary.
_COLUMNS = {
    "name": ("Name", "Op Name"),
    "type": ("Type", "OP Type"),
    "core": ("Accelerator Core", "Task Type"),
    "state": ("OP State",),
    "start": ("Start Time(us)", "Task Start Time(us)"),
    "duration": ("Duration(us)", "Task Duration(us)"),
    "blocks": ("Block Num", "Block Dim"),
    "mixed": ("Mix Block Num", "Mix Block Dim"),
    "stream": ("Stream ID",),
    "device": ("Device_id", "Device ID", "Device Id"),
}
_NEEDED = ("name", "core", "start", "blocks", "stream")
_NOTHING = ("", "N/A", "NA")
_COMMUNICATION = ("HCCL", "COMMUNICATION")

# hcom_allReduce__606_0_1: the last three digits of the communicator's hash, the sequence number in it, the iteration.
_HCOM = re.compile(r"hcom_(?P<what>[A-Za-z]+)_(?P<engine>[A-Za-z]*)_(?P<group>\w{3})_(?P<index>\d+)_(?P<iteration>\d+)")
# The Ascend Transformer Boost library registers its kernels by the names of C++ classes, as `PpMatMulF16Kernel`.
_ATB_KERNEL = re.compile(r"(?!.*Aiv)[A-Z]\w+Kernel(?:\d\w*)?")
_AIV_KERNEL = re.compile(r"aiv_.*|.*AivKernel", re.IGNORECASE)


@dataclass(frozen=True)
class _Row:
    name: str
    type: str
    core: str
    ignores_limit: str
    start: float
    microseconds: float | None
    cores: Cores
    stream: str
    card: str
    source: str

    @property
    def end(self) -> float:
        return self.start + (self.microseconds or 0.0)


def looks_like_csv(text: str) -> bool:
    """True if the first line has columns of the profiler."""
    header = {each.strip() for each in text.lstrip("\ufeff").partition("\n")[0].split(",")}
    return sum(not header.isdisjoint(_COLUMNS[each]) for each in _NEEDED) >= 2


def from_csv(texts: Mapping[str, str], chip: str) -> Program:
    """The program that the profiler saw.

    Args:
        texts: the files of all ranks, by the name that errors and `Op.source` use.
        chip: the chip of the cards, such as "910B3"; the files do not say it.

    Raises:
        ScheduleError: a file is no such CSV, lacks a column, is cut short, or there is no such chip.
    """
    files = [(source, list(_rows(source, text))) for source, text in texts.items()]
    rows = list(_with_cards(files))
    cards = {row.card: card_of_chip(row.card, chip, row.source) for row in rows}
    cards = {name: cards[name] for name in sorted(cards, key=_by_number)}
    collectives, engines, absorbed = _collectives(rows)
    groups = _communicators(collectives, engines)
    queues: dict[tuple[str, str], list[Op]] = {}
    for row in sorted(rows, key=lambda row: (_by_number(row.card), row.start)):
        if row not in absorbed:
            kernel, member = collectives.get(row, (row, None))
            queues.setdefault((row.card, kernel.stream or "none"), []).append(_op(row, kernel, member, cards[row.card]))
    streams = tuple(
        Stream(stream, card, tuple(ops))
        for (card, stream), ops in sorted(queues.items(), key=lambda each: tuple(map(_by_number, each[0])))
    )
    return Program(tuple(cards.values()), streams, groups)


def _rows(source: str, text: str) -> Iterator[_Row]:
    lines = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""))
    header = [each.strip() for each in next(lines, [])]
    places = {key: header.index(name) for key, names in _COLUMNS.items() for name in names if name in header}
    for key in _NEEDED:
        if key not in places:
            raise ScheduleError(
                f"{source} has no column {' or '.join(map(repr, _COLUMNS[key]))}.",
                looked_at=f"its columns: {', '.join(header) or 'none'}",
                do="give kernel_details.csv of the profiler; where that has no Stream ID, msprof's op_summary_*.csv",
            )
    for line in lines:
        if not line:
            continue
        where = f"{source}: line {lines.line_num}"
        if len(line) < len(header):
            raise ScheduleError(
                f"{source} is cut short.",
                looked_at=f"{where}: {len(line)} of {len(header)} columns",
                do="copy the file again, and wait until the profiler has ended",
            )
        values = {key: line[place].strip() for key, place in places.items()}
        yield _row(values, where)


def _row(values: Mapping[str, str], where: str) -> _Row:
    core = values["core"].upper()
    blocks = _number(values, "blocks", where)
    mixed = _number(values, "mixed", where)
    cores = {
        "AI_CORE": (blocks, 0), "AIC": (blocks, 0), "AI_VECTOR_CORE": (0, blocks), "AIV": (0, blocks),
        "MIX_AIC": (blocks, mixed), "MIX_AIV": (mixed, blocks),
    }.get(core, (0, 0))  # fmt: skip
    duration = values.get("duration", "")
    return _Row(
        name=values["name"],
        type=values.get("type", ""),
        core=core if core not in _NOTHING else "",
        ignores_limit=_ignores_limit(values),
        start=_real(values["start"], "start", where),
        microseconds=None if duration in _NOTHING else _real(duration, "duration", where),
        cores=cores,
        stream="" if values["stream"] in _NOTHING else values["stream"],
        card="" if values.get("device", "") in _NOTHING else values["device"],
        source=where,
    )


def _ignores_limit(values: Mapping[str, str]) -> str:
    """Reason why a core limit has no effect on a kernel; empty where it has.

    From the vendor's page on core limits: limits reach operators when they are tiled.
    """
    if values.get("state", "").casefold() == "static":
        return "static kernel: its blocks were fixed when it was compiled"
    return "ATB operator" if _ATB_KERNEL.fullmatch(values.get("type", "")) else ""


def _with_cards(files: list[tuple[str, list[_Row]]]) -> Iterator[_Row]:
    """Rows with the names of their cards: the device's number, or with the file's where two files have the same."""
    seen: dict[str, set[str]] = {}
    for source, rows in files:
        for row in rows:
            seen.setdefault(row.card, set()).add(source)
    clash = any(len(sources) > 1 for sources in seen.values())
    for number, (_, rows) in enumerate(files):
        for row in rows:
            own = f"{number}:{row.card}" if row.card else str(number)
            yield replace(row, card=own if clash else row.card or "0")


_Members = dict[_Row, tuple[_Row, Collective | None]]


def _collectives(rows: list[_Row]) -> tuple[_Members, dict[str, str], set[_Row]]:
    """Rows that are collectives, each with the row of the kernel that does its work and what it is a member of.

    The n-th kernel of one type of MC2 on each card is one collective: the files do not say which cards it is of.

    The second is the engine of each communicator, the third are the rows that others speak for: the kernels of
    collectives, and a second row of the same collective.
    """
    keys: dict[_Row, tuple[str, tuple[int, int]]] = {}
    engines: dict[str, str] = {}
    absorbed: set[_Row] = set()
    taken: set[tuple[str, str, tuple[int, int]]] = set()
    for row in sorted(rows, key=lambda row: row.core not in _COMMUNICATION):
        found = _HCOM.match(row.name)
        if found is None:
            continue
        group, place = found["group"], (int(found["iteration"]), int(found["index"]))
        if "aicpu" in found["engine"].casefold():
            engines.setdefault(group, "aicpu")
        if found["what"].casefold() in ("send", "recv", "receive", "batchsendrecv"):
            continue
        if (row.card, group, place) in taken:
            absorbed.add(row)
            continue
        taken.add((row.card, group, place))
        keys[row] = group, place
    numbers = _numbers(keys.values())
    kernels = _kernels(rows)
    members: _Members = {}
    for row, (group, place) in keys.items():
        kernel = _inside(kernels.get(row.card, []), row, absorbed)
        if kernel is not None:
            absorbed.add(kernel)
            engines[group] = "aiv"
        stream = (kernel or row).stream or f"hccl {group}"
        members[row] = replace(kernel or row, stream=stream), Collective(group, numbers[group, place])
    counts: dict[tuple[str, str], int] = {}
    for row in sorted(rows, key=lambda row: row.start):
        if not any(row.cores) or _AIV_KERNEL.fullmatch(row.name) or not communicates(row.type):
            continue
        number = counts.get((row.card, row.type), 0)
        counts[row.card, row.type] = number + 1
        members[row] = row, Collective(row.type, number)
    return members, engines, absorbed


def _kernels(rows: list[_Row]) -> dict[str, list[_Row]]:
    """HCCL's own kernels on vector cores, by card and begin."""
    kernels: dict[str, list[_Row]] = {}
    for row in sorted(rows, key=lambda row: row.start):
        if row.core not in _COMMUNICATION and _AIV_KERNEL.fullmatch(row.name):
            kernels.setdefault(row.card, []).append(row)
    return kernels


def _inside(kernels: list[_Row], row: _Row, absorbed: set[_Row]) -> _Row | None:
    """The first kernel that begins while a collective runs, and does not belong to another."""
    for kernel in kernels[bisect_left(kernels, row.start, key=lambda each: each.start) :]:
        if kernel.start > row.end:
            return None
        if kernel not in absorbed:
            return kernel
    return None


def _numbers(keys: Iterable[tuple[str, tuple[int, int]]]) -> dict[tuple[str, tuple[int, int]], int]:
    """Sequence numbers from 0, in the order of iteration and index, of all collectives that any rank has seen."""
    numbers: dict[tuple[str, tuple[int, int]], int] = {}
    counts: dict[str, int] = {}
    for group, place in sorted(set(keys)):
        numbers[group, place] = counts.get(group, 0)
        counts[group] = numbers[group, place] + 1
    return numbers


def _communicators(members: _Members, engines: Mapping[str, str]) -> tuple[Communicator, ...]:
    cards: dict[str, set[str]] = {}
    for row, (_, collective) in members.items():
        if collective is not None:
            cards.setdefault(collective.communicator, set()).add(row.card)
    return tuple(
        Communicator(group, tuple(sorted(cards[group], key=_by_number)), engines.get(group, ""), as_seen=True)
        for group in sorted(cards)
    )


def _op(row: _Row, kernel: _Row, collective: Collective | None, card: Card) -> Op:
    known = needs_all_blocks(kernel.type, kernel.name, kernel.core)
    # More blocks than cores run in turns, so a kernel holds at most all cores; one with a barrier would never end.
    # So one that no source knows, and that has ended, is none of those.
    if known is None and any(count > cores for count, cores in zip(kernel.cores, card.cores, strict=True)):
        known = False
    needs_all = known is not False and collective is None and any(kernel.cores)
    cube, vector = kernel.cores if needs_all else (min(kernel.cores[0], card.cube), min(kernel.cores[1], card.vector))
    return Op(
        name=row.name,
        cube=cube,
        vector=vector,
        sync_all=needs_all,
        collective=collective,
        microseconds=row.microseconds,
        timing="" if row.microseconds is None else "profile",
        kind=kernel.core,
        ignores_limit=kernel.ignores_limit,
        assumed=needs_all and known is None,
        source=row.source,
    )


def _number(values: Mapping[str, str], key: str, where: str) -> int:
    text = values.get(key, "")
    if text in _NOTHING:
        return 0
    if not text.isdecimal():
        raise _no_number(text, key, where)
    return int(text)


def _real(text: str, key: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _no_number(text, key, where) from None
    if not 0 <= value < float("inf"):
        raise _no_number(text, key, where)
    return value


def _no_number(text: str, key: str, where: str) -> ScheduleError:
    return ScheduleError(
        f"{text!r} is no number for {_COLUMNS[key][0]}.", looked_at=where, do="give the file as the profiler wrote it"
    )


def _by_number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (10**9, text)
