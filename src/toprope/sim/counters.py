"""Figures of the simulated cards of a process: reading of the file that the C++ core keeps while it runs.

The layout is the one of `struct Counters` in csrc/core/counters.h; the core maps the file into memory, so it is up to
date even when the process was killed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from toprope.sim import dtypes

__all__ = [
    "BACKWARD",
    "NO_PYTHON",
    "Assumed",
    "CardCounters",
    "Counters",
    "HostSite",
    "Lack",
    "LackRecord",
    "Site",
    "chip",
    "names",
    "parse",
    "read",
    "read_run",
]

MAGIC = b"TOPROPE\x01"
MAX_CARDS = 16
MAX_KINDS = 2048
_HEADER = struct.Struct("<8sQ32s32sQ64sQ")
_TOTALS = struct.Struct("<8Q")
_CARD = struct.Struct("<10Q")
_KIND_COUNT = struct.Struct("<Q")
_KIND = struct.Struct("<48sQQ")
_FOUND = struct.Struct("<4Q")
_SITE = struct.Struct("<48s144sQQQ")
_ASSUMED = struct.Struct("<Ihh")
_LACK = struct.Struct("<64sIiQQ424s")
_RELEASE = struct.Struct("<64sQ")
_HOST_SITE = struct.Struct("<80s144sQQQQ")
_MAX_SITES, _MAX_ASSUMED, _MAX_LACKS, _MAX_HOST_SITES = 256, 512, 32, 128
_KINDS_END = _HEADER.size + _TOTALS.size + MAX_CARDS * _CARD.size + _KIND_COUNT.size + MAX_KINDS * _KIND.size
_LACKS_END = (
    _KINDS_END + _FOUND.size + _MAX_SITES * _SITE.size + _MAX_ASSUMED * _ASSUMED.size + _MAX_LACKS * _LACK.size
)  # fmt: skip
SIZE = _LACKS_END + _RELEASE.size + _MAX_HOST_SITES * _HOST_SITE.size
"""Bytes of a counters file."""

EXACT_EVENTS = 256
"""Copies back and waits of a process whose places are all looked up, where no rehearsal wants more; later ones are
samples (`exact_events` of counters.h)."""

BACKWARD = "<backward>"
"""The file of a site in torch's backward pass, outside Python."""

NO_PYTHON = "<no Python>"
"""The file of a site in a thread, or at a time, without Python."""


class Lack(IntEnum):
    """Reasons for which an operator, or a name of the vendor's API, ends in an error (`enum Lack` of counters.h)."""

    KERNEL = 1
    DTYPE = 2
    LAYOUT = 3
    REFUSED = 4
    BY_TEST = 5
    FORMAT = 6
    INDEX = 7
    NAME = 8


@dataclass(frozen=True)
class Site:
    """A place of the program that copies from a card or waits for one.

    Attributes:
        operation: operator or call.
        file: Python file of the line, or its last 143 bytes; BACKWARD or NO_PYTHON where there is none.
        line: number of the line.
        back: copies from a card to the host.
        waits: times that the host waited.
        number: its number in the counters, by which other records refer to it.
    """

    operation: str
    file: str
    line: int
    back: int
    waits: int
    number: int = -1


@dataclass(frozen=True)
class HostSite:
    """A place of the program where an operator leaves the card, here and on a real one.

    Attributes:
        operation: the operator that torch_npu's warning names.
        file: as of `Site`.
        line: number of the line.
        times: runs on the host.
        bytes_to_host: bytes of the operands that went there.
        bytes_back: bytes of the results that came back.
    """

    operation: str
    file: str
    line: int
    times: int
    bytes_to_host: int
    bytes_back: int


@dataclass(frozen=True)
class Assumed:
    """A dtype that an operator ran with and no document of the vendor mentions.

    Attributes:
        operator: its name.
        position: the first argument that had the dtype, from 0; None where the documents do not mention the operator.
        dtype: name of the dtype.
    """

    operator: str
    position: int | None
    dtype: str


@dataclass(frozen=True)
class LackRecord:
    """Errors that were raised because of one lack, and may have been caught.

    Attributes:
        name: the operator, with or without its overload, or the name of the API.
        lack: the reason.
        dtype: name of the dtype; None where it does not matter.
        times: such errors.
        last_ns: wall clock of the last one.
        text: the beginning of its message.
    """

    name: str
    lack: Lack
    dtype: str | None
    times: int
    last_ns: int
    text: str


@dataclass(frozen=True)
class CardCounters:
    """Figures of one card as one process saw it; sizes in bytes.

    Attributes:
        index: the card's number in the program (`npu:0`).
        physical: the card's number on the simulated machine, before ASCEND_RT_VISIBLE_DEVICES.
        capacity: device memory of the card.
        allocated: bytes in use by tensors when the file was read.
        peak_allocated: most bytes in use at once.
        reserved: bytes taken from the card, in use or cached, when the file was read.
        peak_reserved: most bytes taken at once.
        allocations: blocks handed out so far.
        oom_retries: allocations that fitted only after cached memory was given back.
        ooms: allocations that failed.
        kernels: kernels that the program launched with `toprope.sim.launch`.
    """

    index: int
    physical: int
    capacity: int
    allocated: int
    peak_allocated: int
    reserved: int
    peak_reserved: int
    allocations: int
    oom_retries: int
    ooms: int
    kernels: int = 0

    @property
    def used(self) -> bool:
        """True if the process ever asked for memory on this card, or launched a kernel there."""
        return self.peak_reserved > 0 or self.kernels > 0 or self.ooms > 0


@dataclass(frozen=True)
class Counters:
    """Figures of one process.

    Attributes:
        pid: the process.
        chip: name of the chip.
        torch_version: torch.__version__ of the process.
        hbm_by_user: whether the capacity was set by the user and is not the chip's own.
        cards: one entry for each visible card.
        copies_to_card: copies from the host to a card.
        bytes_to_card: their bytes.
        copies_from_card: copies from a card to the host.
        bytes_from_card: their bytes.
        copies_between: copies from one card to another.
        bytes_between: their bytes.
        synchronisations: times the host waited for a card (synchronize, item, blocking copies).
        operator_calls: operators run on the cards.
        operators: operators by name with their number of calls.
        mask: ASCEND_RT_VISIBLE_DEVICES as the process's first use of a card found it; None where it was not set.
        undocumented: operators that ran with dtypes which no document of the vendor mentions for them, with these
            dtypes as bits (c10::ScalarType).
        sites: places that copied from a card or waited for one.
        sampled: whether the figures of the sites are estimates from samples.
        assumed: the undocumented dtypes with the arguments that had them.
        lacks: errors that were raised because an operator or a name is not there or refuses.
        torch_npu: branch of the release of torch_npu that the cards stand for.
        host_sites: places where an operator ran on the host because that release has no kernel for it.
    """

    pid: int
    chip: str
    torch_version: str
    hbm_by_user: bool
    cards: tuple[CardCounters, ...]
    copies_to_card: int
    bytes_to_card: int
    copies_from_card: int
    bytes_from_card: int
    copies_between: int
    bytes_between: int
    synchronisations: int
    operator_calls: int
    operators: dict[str, int]
    mask: str | None = None
    undocumented: dict[str, int] = field(default_factory=dict)
    sites: tuple[Site, ...] = ()
    sampled: bool = False
    assumed: tuple[Assumed, ...] = ()
    lacks: tuple[LackRecord, ...] = ()
    torch_npu: str = ""
    host_sites: tuple[HostSite, ...] = ()


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def parse(data: bytes) -> Counters | None:
    """The figures in the bytes of a counters file; None when it is not one or was never filled in."""
    if len(data) < SIZE:
        return None
    magic, pid, chip, torch_version, flags, mask, count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return None
    place = _HEADER.size
    to_n, to_b, from_n, from_b, between_n, between_b, waits, calls = _TOTALS.unpack_from(data, place)
    place += _TOTALS.size
    cards = tuple(
        CardCounters(index, *_CARD.unpack_from(data, place + index * _CARD.size))
        for index in range(min(count, MAX_CARDS))
    )
    place += MAX_CARDS * _CARD.size
    kinds = min(_KIND_COUNT.unpack_from(data, place)[0], MAX_KINDS)
    place += _KIND_COUNT.size
    operators: dict[str, int] = {}
    undocumented: dict[str, int] = {}
    for index in range(kinds):
        name, dtypes, number = _KIND.unpack_from(data, place + index * _KIND.size)
        if number:
            operators[_text(name)] = operators.get(_text(name), 0) + number
        if dtypes:
            undocumented[_text(name)] = dtypes
    events, sites, assumed, lacks = _FOUND.unpack_from(data, _KINDS_END)
    all_names = names(data)
    return Counters(
        pid, _text(chip), _text(torch_version), bool(flags & 1), cards,
        to_n, to_b, from_n, from_b, between_n, between_b, waits, calls, operators,
        _text(mask) if flags & 2 else None, undocumented,
        tuple(_sites(data, sites)), events > (flags >> 32 or EXACT_EVENTS),
        tuple(dict.fromkeys(_assumed(data, assumed, all_names))),
        tuple(_lacks(data, lacks)), *_host_sites(data),
    )  # fmt: skip


def _entries(data: bytes, layout: struct.Struct, start: int, count: int) -> Iterator[tuple[Any, ...]]:
    return (layout.unpack_from(data, start + index * layout.size) for index in range(count))


def _sites(data: bytes, count: int) -> Iterator[Site]:
    start = _KINDS_END + _FOUND.size
    for number, (operation, file, *figures) in enumerate(_entries(data, _SITE, start, min(count, _MAX_SITES))):
        line, back, waits = figures
        if back or waits:
            yield Site(_text(operation), _text(file), line, back, waits, number)


def _assumed(data: bytes, count: int, operators: list[str]) -> Iterator[Assumed]:
    start = _KINDS_END + _FOUND.size + _MAX_SITES * _SITE.size
    for kind, position, dtype in _entries(data, _ASSUMED, start, min(count, _MAX_ASSUMED)):
        if kind < len(operators):
            yield Assumed(operators[kind], position if position >= 0 else None, *dtypes.names(1 << dtype))


def _lacks(data: bytes, count: int) -> Iterator[LackRecord]:
    start = _LACKS_END - _MAX_LACKS * _LACK.size
    for name, lack, dtype, times, last_ns, text in _entries(data, _LACK, start, min(count, _MAX_LACKS)):
        which = None if dtype < 0 else next(iter(dtypes.names(1 << dtype)), None)
        yield LackRecord(_text(name), Lack(lack), which, times, last_ns, _text(text))


def _host_sites(data: bytes) -> tuple[str, tuple[HostSite, ...]]:
    release, count = _RELEASE.unpack_from(data, _LACKS_END)
    entries = _entries(data, _HOST_SITE, _LACKS_END + _RELEASE.size, min(count, _MAX_HOST_SITES))
    sites = (HostSite(_text(operation), _text(file), *numbers) for operation, file, *numbers in entries)
    return _text(release), tuple(site for site in sites if site.times)


def names(data: bytes) -> list[str]:
    """Names of operators by the index that traces hold."""
    place = _HEADER.size + _TOTALS.size + MAX_CARDS * _CARD.size
    kinds = min(_KIND_COUNT.unpack_from(data, place)[0], MAX_KINDS)
    place += _KIND_COUNT.size
    return [_text(_KIND.unpack_from(data, place + index * _KIND.size)[0]) for index in range(kinds)]


def chip(data: bytes) -> str:
    """Name of the chip."""
    return _text(_HEADER.unpack_from(data)[2])


def read(path: Path) -> Counters | None:
    """The figures in a counters file; None when it is not one or was never filled in."""
    return parse(path.read_bytes())


def read_run(folder: Path) -> list[Counters]:
    """The figures of all processes that kept their counters in this folder, by process number."""
    found = (read(path) for path in sorted(folder.glob("*.counters")))
    return sorted((counters for counters in found if counters is not None), key=lambda counters: counters.pid)
