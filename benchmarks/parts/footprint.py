"""Footprint of a session of `toprope.functions`: memory, open descriptors and processes of driver and fork server.

Used by benchmarks/functions.py, to see that ended instances leave nothing behind. Reads /proc, whose forms are Linux's,
and finds the fork server by the name of its module, `worker.forkserver`, which has to follow when that moves.

Tests: tests/functions/test_functions_benchmark.py (slow ones).
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Footprint", "settled"]


@dataclass(frozen=True)
class Footprint:
    """Resident bytes, open descriptors and child processes of the driver and its fork server."""

    memory: int
    descriptors: int
    processes: int

    @staticmethod
    def now() -> Footprint:
        gc.collect()
        pids = [os.getpid(), *(pid for pid in _children(os.getpid()) if b"worker.forkserver" in _file(pid, "cmdline"))]
        resident = sum(int(_file(pid, "statm").split()[1]) for pid in pids) * os.sysconf("SC_PAGE_SIZE")
        descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        return Footprint(resident, descriptors, sum(len(_children(pid)) for pid in pids))


def settled(like: Footprint | None = None) -> Footprint:
    """The footprint once the workers that are on their way are there or gone."""
    until = time.monotonic() + 5
    found = Footprint.now()
    while time.monotonic() < until:
        time.sleep(0.2)
        last, found = found, Footprint.now()
        same = (found.descriptors, found.processes) == ((like or last).descriptors, (like or last).processes)
        if same:
            break
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def _file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
