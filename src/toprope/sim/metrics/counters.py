"""Figures of the simulated cards of one process, read from the file that the C++ core keeps while it runs.

For the reports of a run; totals.py sums processes. The core maps the file into memory (`struct Counters` of
csrc/core/counters.h, see layouts.py), so it is up to date even when the process was killed. BACKWARD and NO_PYTHON are
words of csrc/torch/sites.cpp. Tests: tests/sim/test_counters.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from toprope.sim import dtypes, layouts
from toprope.sim.layouts import Lack

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
SIZE = ctypes.sizeof(layouts.Counters)
"""Bytes of a counters file."""

EXACT_EVENTS = 256
"""Copies back and waits of a process whose places are all looked up, where no rehearsal wants more; later ones are
samples (`exact_events` of counters.h)."""

BACKWARD = "<backward>"
"""The file of a site in torch's backward pass, outside Python."""

NO_PYTHON = "<no Python>"
"""The file of a site in a thread, or at a time, without Python."""


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
    return raw.decode("utf-8", "replace")


def parse(data: bytes) -> Counters | None:
    """The figures in the bytes of a counters file; None when it is not one or was never filled in."""
    if len(data) < SIZE or not data.startswith(MAGIC):
        return None
    kept = layouts.Counters.from_buffer_copy(data)
    operators: dict[str, int] = {}
    undocumented: dict[str, int] = {}
    for kind in kept.kinds[: kept.kind_count]:
        name = _text(kind.name)
        if kind.calls:
            operators[name] = operators.get(name, 0) + kind.calls
        if kind.undocumented:
            undocumented[name] = kind.undocumented
    return Counters(
        kept.pid, _text(kept.chip), _text(kept.torch_version), bool(kept.flags & 1),
        tuple(_card(index, card) for index, card in enumerate(kept.cards[: kept.card_count])),
        kept.copies_to_card, kept.bytes_to_card, kept.copies_from_card, kept.bytes_from_card, kept.copies_between,
        kept.bytes_between, kept.synchronisations, kept.operators, operators,
        _text(kept.mask) if kept.flags & 2 else None, undocumented, tuple(_sites(kept)),
        kept.site_events > (kept.flags >> 32 or EXACT_EVENTS), tuple(dict.fromkeys(_assumed(kept))),
        tuple(_lacks(kept)), _text(kept.torch_npu), tuple(_host_sites(kept)),
    )  # fmt: skip


def _card(index: int, card: layouts.CardCounters) -> CardCounters:
    return CardCounters(
        index, card.physical, card.capacity, card.allocated, card.peak_allocated, card.reserved, card.peak_reserved,
        card.allocations, card.oom_retries, card.ooms, card.kernels,
    )  # fmt: skip


def _sites(kept: layouts.Counters) -> Iterator[Site]:
    for number, site in enumerate(kept.sites[: kept.site_count]):
        if site.back or site.waits:
            yield Site(_text(site.operation), _text(site.file), site.line, site.back, site.waits, number)


def _assumed(kept: layouts.Counters) -> Iterator[Assumed]:
    for one in kept.assumed[: kept.assumed_count]:
        if one.kind < min(kept.kind_count, layouts.MAX_KINDS):
            position = one.position if one.position >= 0 else None
            yield Assumed(_text(kept.kinds[one.kind].name), position, *dtypes.names(1 << one.dtype))


def _lacks(kept: layouts.Counters) -> Iterator[LackRecord]:
    for one in kept.lacks[: kept.lack_count]:
        which = None if one.dtype < 0 else next(iter(dtypes.names(1 << one.dtype)), None)
        yield LackRecord(_text(one.name), Lack(one.lack), which, one.times, one.last_ns, _text(one.text))


def _host_sites(kept: layouts.Counters) -> Iterator[HostSite]:
    for site in kept.host_sites[: kept.host_site_count]:
        if site.times:
            yield HostSite(
                _text(site.operation), _text(site.file), site.line, site.times, site.bytes_to_host, site.bytes_back
            )


def names(data: bytes) -> list[str]:
    """Names of operators by the index that traces hold."""
    kept = layouts.Counters.from_buffer_copy(data)
    return [_text(kind.name) for kind in kept.kinds[: kept.kind_count]]


def chip(data: bytes) -> str:
    """Name of the chip."""
    return _text(layouts.Counters.from_buffer_copy(data).chip)


def read(path: Path) -> Counters | None:
    """The figures in a counters file; None when it is not one or was never filled in."""
    return parse(path.read_bytes())


def read_run(folder: Path) -> list[Counters]:
    """The figures of all processes that kept their counters in this folder, by process number."""
    found = (read(path) for path in sorted(folder.glob("*.counters")))
    return sorted((counters for counters in found if counters is not None), key=lambda counters: counters.pid)
