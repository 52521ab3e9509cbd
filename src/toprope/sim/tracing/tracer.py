"""Tracing of a program's acts on the cards, `toprope.sim.trace`, from inside the process or for a whole run.

Also used by the profiler, the rehearsal and the reports of cli; records.py reads what it collects. Tests:
tests/sim/simulated/test_trace.py.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from toprope.errors import SimulatorError
from toprope.sim.metrics import counters
from toprope.sim.tracing import records, signatures
from toprope.sim.tracing.records import Record, Trace

if TYPE_CHECKING:
    from toprope.sim.native import Native

__all__ = ["MEMORY", "TIMED", "Recording", "Window", "Written", "read_ends", "read_run", "trace", "window", "write_run"]

MEMORY = ("allocate", "free")
"""Acts that take no time."""

TIMED = 60_000
"""Records of a program that its time is estimated from, the last ones."""

_CAPACITY = 2**20
"""Records that a trace holds (48 bytes each); older ones give way."""


class Recording:
    """The result of `trace`: the records, once the block has ended."""

    def __init__(self) -> None:
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """The trace.

        Raises:
            SimulatorError: the block has not ended yet.
        """
        if self._trace is None:
            raise SimulatorError("the trace is still being written.", do="read it after the `with` block")
        return self._trace

    @property
    def records(self) -> tuple[Record, ...]:
        """The acts, in the order in which they ended."""
        return self.trace.records

    @property
    def lost(self) -> int:
        """Acts that the trace no longer holds, the oldest ones."""
        return self.trace.lost

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as Chrome-trace JSON, which Perfetto opens."""
        Path(path).write_text(json.dumps(records.chrome([self.trace])))


_running: list[Recording] = []


@contextmanager
def trace(capacity: int = _CAPACITY) -> Iterator[Recording]:
    """Record what the process does to the simulated cards inside the block, also while its run is traced.

    Args:
        capacity: most records to hold (48 bytes each); older ones give way. A trace of the run has its own.

    Raises:
        SimulatorError: there is no simulated card, or another `trace` is running.

    Example:
        >>> import torch, toprope.sim
        >>> toprope.sim.install("910B3")
        >>> with toprope.sim.trace() as t:
        ...     y = torch.ones(4, device="npu") + 1
        >>> [record.name for record in t.records if record.act == "operator"]
        ['aten::fill_', 'aten::add']
    """
    from toprope.sim.native import native
    from toprope.sim.state import installed

    if installed() is None:
        raise SimulatorError("there is no simulated card to trace.", do="call toprope.sim.install() first")
    if _running:
        raise SimulatorError("a trace is already being written in this process.", do="end it first")
    recording = Recording()
    _running.append(recording)
    part = None
    try:
        with window(native(), capacity) as part:
            yield recording
    finally:
        _running.clear()
        recording._trace = None if part is None else part.trace


class Window:
    """A part of the trace that this process writes.

    Attributes:
        trace: what was recorded in it; None until the part has ended, and where the trace ended before.
    """

    def __init__(self, library: Native, most: int, without: Collection[str]) -> None:
        self.trace: Trace | None = None
        self._most, self._without = most, without
        self._library = library
        self._first = records.count(self._ring())

    def _ring(self) -> memoryview:
        address = self._library.trace()
        if not address:
            return memoryview(b"")
        head = ctypes.string_at(address, records.HEADER_SIZE)
        size = records.HEADER_SIZE + records.capacity(head) * records.RECORD_SIZE
        return memoryview((ctypes.c_char * size).from_address(address)).cast("B")

    def so_far(self) -> Trace | None:
        """Return the records until now; None where no trace is written any more."""
        data = self._ring()
        if (head := records.parse_header(data)) is None:
            return None
        figures = ctypes.string_at(self._library.counters(), counters.SIZE)
        names, chip = counters.names(figures), counters.chip(figures)
        last = records.count(data)
        first = max(self._first, last - min(self._most, records.capacity(data)))
        found = tuple(records.read(data, names, chip, first, without=self._without))
        lost = first - self._first
        address = self._library.signatures()
        calls = signatures.parse(ctypes.string_at(address, signatures.SIZE), names) if address else []
        return replace(head, records=found, lost=max(lost, 0), chip=chip, calls=tuple(calls))


@contextmanager
def window(
    library: Native, capacity: int = _CAPACITY, most: int = _CAPACITY, without: Collection[str] = ()
) -> Iterator[Window]:
    """Record what the process does inside the block, in a trace of its own or as a part of one that runs already.

    Args:
        library: the native functions.
        capacity: records of a trace of its own.
        most: records that are read in the end, the last ones.
        without: acts that are not read.

    Raises:
        SimulatorError: the trace cannot be written.
    """
    error = library.start_trace(capacity, None)
    if error not in (0, errno.EBUSY):
        raise SimulatorError("the trace cannot be written.", os.strerror(error))
    part = Window(library, most, without)
    try:
        yield part
    finally:
        part.trace = part.so_far()
        if not error:
            library.stop_trace()
            library.forget_trace()


def read_run(folder: Path) -> list[Trace]:
    """The traces of all processes of a run, by process number."""
    return [
        replace(head, records=tuple(records.read(data, names, head.chip)))
        for head, data, names in sorted(_found(folder), key=lambda each: each[0].pid)
    ]


def read_ends(folder: Path, most: int) -> list[Trace]:
    """The traces of all processes of a run with their last records, but for acts of memory.

    Args:
        folder: the run's.
        most: most records to read of a process.
    """
    found = []
    for head, data, names in _found(folder):
        first = max(records.count(data) - most, 0)
        kept = tuple(records.read(data, names, head.chip, first, without=MEMORY))
        found.append(replace(head, records=kept, lost=first))
    return found


@dataclass(frozen=True)
class Written:
    """The files of `write_run`.

    Attributes:
        records: acts in the file.
        lost: acts that the traces no longer held.
        processes: processes that kept a trace.
    """

    records: int
    lost: int
    processes: int


def write_run(folder: Path, stream: TextIO) -> Written:
    """Write the traces of all processes of a run as one Chrome trace; none of them is ever held whole."""
    heads = [head for head, _, _ in _found(folder)]
    first = min((head.wall_ns for head in heads), default=0)
    written = 0
    stream.write(json.dumps(records.CHROME_FRAME)[:-1] + ', "traceEvents": [')
    between = "\n"
    for head, data, names in _found(folder):
        for event in records.chrome_events(head, records.read(data, names, head.chip), first):
            stream.write(between + json.dumps(event))
            between = ",\n"
            written += event["ph"] != "M"
    stream.write("\n]}\n")
    return Written(written, sum(head.lost for head in heads), len(heads))


def _found(folder: Path) -> Iterator[tuple[Trace, bytes, list[str]]]:
    """Each trace of a run without its records, its bytes, and the names that its records refer to."""
    for path in sorted(folder.glob("*.trace")):
        data = path.read_bytes()
        head = records.parse_header(data)
        if head is not None:
            figures = path.with_suffix(".counters").read_bytes()
            names = counters.names(figures)
            signed = path.with_suffix(signatures.SUFFIX)
            signed_data = signed.read_bytes() if signed.exists() else b""
            calls = tuple(signatures.parse(signed_data, names))
            counts = tuple(signatures.calls(signed_data))
            yield replace(head, chip=counters.chip(figures), calls=calls, counts=counts), data, names
