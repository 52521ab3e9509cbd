"""Tracing a program's acts on the cards, from inside the process or for a whole run."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from toprope.errors import SimulatorError
from toprope.estimate.calls import OperatorCall
from toprope.sim import counters, records, signatures
from toprope.sim.records import Record, Trace

if TYPE_CHECKING:
    from toprope.sim.native import Native

__all__ = ["Recording", "Written", "calls_here", "read_run", "trace", "write_run"]

_CAPACITY = 2**20
"""Records that a trace holds (48 bytes each); older ones give way."""


class Recording:
    """What `trace` gives: the records, once the block has ended."""

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
        """Writes the trace as Chrome-trace JSON, which Perfetto opens."""
        Path(path).write_text(json.dumps(records.chrome([self.trace])))


_running: list[Recording] = []


@contextmanager
def trace(capacity: int = _CAPACITY) -> Iterator[Recording]:
    """Records what the process does to the simulated cards inside the block, also while its run is traced.

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
    library = native()
    error = library.start_trace(capacity, None)
    if error == errno.EBUSY and not _running:
        yield from _part_of_run(library)
        return
    if error == errno.EBUSY:
        raise SimulatorError("a trace is already being written in this process.", do="end it first")
    if error:
        raise SimulatorError("the trace cannot be written.", os.strerror(error))
    recording = Recording()
    _running.append(recording)
    try:
        yield recording
    finally:
        _running.clear()
        address = library.stop_trace()
        size = records.HEADER_SIZE + capacity * records.RECORD_SIZE
        data = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        figures = ctypes.string_at(library.counters(), counters.SIZE)
        made = records.parse(data, counters.names(figures), counters.chip(figures))
        recording._trace = made and replace(made, calls=calls_here(library, figures))
        library.forget_trace()


def calls_here(library: Native, figures: bytes) -> list[OperatorCall]:
    """The signatures that this process has kept.

    Args:
        library: the native functions.
        figures: its counters, which have the names of operators.
    """
    address = library.signatures()
    return signatures.parse(ctypes.string_at(address, signatures.SIZE), counters.names(figures)) if address else []


def _part_of_run(library: Native) -> Iterator[Recording]:
    """As `trace`, where this process writes the trace of its run: what the block adds to it."""
    file = max(Path(os.environ.get("TOPROPE_RUN_DIR", "")).glob(f"{os.getpid()}-*.trace"))
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        recording = Recording()
        first = records.count(data)
        _running.append(recording)
        try:
            yield recording
        finally:
            _running.clear()
            head = records.parse_header(data)
            assert head is not None  # the core wrote it when the process began
            figures = ctypes.string_at(library.counters(), counters.SIZE)
            chip = counters.chip(figures)
            found = tuple(records.read(data, counters.names(figures), chip, first))
            lost = records.count(data) - first - len(found)
            calls = calls_here(library, figures)
            recording._trace = replace(head, records=found, lost=max(lost, 0), chip=chip, calls=calls)


def read_run(folder: Path) -> list[Trace]:
    """The traces of all processes of a run, by process number."""
    return [
        replace(head, records=tuple(records.read(data, names, head.chip)))
        for head, data, names in sorted(_found(folder), key=lambda each: each[0].pid)
    ]


@dataclass(frozen=True)
class Written:
    """What `write_run` wrote.

    Attributes:
        records: acts in the file.
        lost: acts that the traces no longer held.
        processes: processes that kept a trace.
    """

    records: int
    lost: int
    processes: int


def write_run(folder: Path, stream: TextIO) -> Written:
    """Writes the traces of all processes of a run as one Chrome trace; none of them is ever held whole."""
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
            calls = signatures.parse(signed.read_bytes(), names) if signed.exists() else []
            yield replace(head, chip=counters.chip(figures), calls=calls), data, names
