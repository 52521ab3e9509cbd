"""State of the cards that the processes of one run share, read from the file that the C++ core keeps.

For `npu-smi`, `toprope status` and sessions of toprope.functions. The layout is `struct Cards` of csrc/core/cards.h
(see layouts.py). Pure but for /proc. Tests: tests/sim/test_cards_file.py.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from toprope.sim import layouts

__all__ = ["FILE", "CardState", "ProcessState", "parse", "read"]

FILE = "cards"
"""Name of the file in the folder of a run."""

SIZE = ctypes.sizeof(layouts.Cards)
"""Bytes of the file."""


@dataclass(frozen=True)
class ProcessState:
    """A process that has used a card.

    Attributes:
        pid: its number.
        name: its name, as the system shows it.
        started: when it started, in clock ticks since boot.
        reserved: bytes it holds of each physical card.
    """

    pid: int
    name: str
    started: int
    reserved: tuple[int, ...]


@dataclass(frozen=True)
class CardState:
    """A physical card.

    Attributes:
        physical: its number.
        reserved: bytes held by all living processes.
        unhealthy: the code with which it fails, 0 while it is well.
        processes: those that hold memory of it.
    """

    physical: int
    reserved: int
    unhealthy: int
    processes: tuple[ProcessState, ...]


def parse(data: bytes, count: int = layouts.MAX_CARDS) -> tuple[CardState, ...]:
    """The first `count` cards in the bytes of a cards file, with every process that the file names."""
    kept = layouts.Cards.from_buffer_copy(data.ljust(SIZE, b"\0"))
    processes = [
        ProcessState(slot.pid, slot.name.decode("utf-8", "replace"), slot.started, tuple(slot.reserved))
        for slot in kept.processes
        if 0 < slot.pid < 2**32
    ]
    return tuple(
        CardState(
            physical,
            sum(process.reserved[physical] for process in processes),
            card.unhealthy,
            tuple(process for process in processes if process.reserved[physical]),
        )
        for physical, card in enumerate(kept.cards[:count])
    )


def read(folder: Path, count: int = layouts.MAX_CARDS) -> tuple[CardState, ...]:
    """The cards of a run as its living processes hold them; a run that has used none has an empty file or none."""
    try:
        data = (folder / FILE).read_bytes()
    except FileNotFoundError:
        data = b""
    cards = parse(data, count)
    # by start as well as by number: a later process may have the number of a dead one
    living = {process for card in cards for process in card.processes if _is_alive(process)}
    return tuple(
        CardState(
            card.physical,
            sum(process.reserved[card.physical] for process in card.processes if process in living),
            card.unhealthy,
            tuple(process for process in card.processes if process in living),
        )
        for card in cards
    )


def _is_alive(process: ProcessState) -> bool:
    try:
        # the name, in brackets, may hold blanks and brackets itself
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in ("Z", "X") and int(fields[19]) == process.started
