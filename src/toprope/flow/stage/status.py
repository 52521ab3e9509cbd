"""Status cells that each function of a stage shares with the driver: its current input, and the times of its calls.

`worker.loop` writes them; `executor.processes` reads them for deadlines and `observability.metrics` for figures. The
layout is the constants here, and free: both sides use them. The bounds of the buckets are seen in Prometheus, where a
change breaks the comparison with older figures. Tests: tests/flow/test_serve_parts.py, tests/flow/test_flow_far.py.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left as _bucket
from pathlib import Path

__all__ = ["BOUNDS_NS", "BUCKETS", "CELLS", "MORE_INPUTS", "SINCE", "TOTAL_NS", "TRANSACTION", "Recorder", "Status"]

TRANSACTION, SINCE, MORE_INPUTS, TOTAL_NS, BUCKETS = range(5)
"""Cells: the transaction that is worked on (0 for none), since when in ns of the steady clock, inputs of all calls less
the number of calls, nanoseconds of all calls, and from there on the number of calls in each bucket."""

BOUNDS_NS = tuple(
    round(each * 1e9)
    for each in (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
)
"""Upper bounds of the buckets; the last bucket has none."""

CELLS = BUCKETS + len(BOUNDS_NS) + 1
"""Cells of one function."""


class Recorder:
    """Counts the calls of a function in its cells, which nobody else writes.

    Args:
        cells: of the function.
    """

    __slots__ = ("_cells", "_counts", "_inputs", "_total")

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells
        self._total = self._inputs = 0
        self._counts = [0] * (len(BOUNDS_NS) + 1)

    def add(self, inputs: int, nanoseconds: int) -> None:
        """Count a call.

        Args:
            inputs: of the call; several where they were batched.
            nanoseconds: of the call, without the time that it waited for room.
        """
        cells, counts = self._cells, self._counts
        self._total = cells[TOTAL_NS] = self._total + nanoseconds
        if inputs != 1:
            self._inputs = cells[MORE_INPUTS] = self._inputs + inputs - 1
        place = _bucket(BOUNDS_NS, nanoseconds)
        counts[place] = cells[BUCKETS + place] = counts[place] + 1


class Status:
    """The figures of the functions of a process, in a file that the driver reads.

    Args:
        path: the file.
        functions: number of functions.
    """

    def __init__(self, path: Path, functions: int = 1) -> None:
        size = -(-8 * CELLS * max(1, functions) // 4096) * 4096
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, size)
            self._cells = memoryview(mmap.mmap(file, size)).cast("Q")
        finally:
            os.close(file)

    def cells(self, place: int) -> memoryview:
        """The figures of a function."""
        return self._cells[CELLS * place : CELLS * (place + 1)]
