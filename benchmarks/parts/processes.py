"""Processor time and memory of processes, and a context that stops them meanwhile. Reads /proc.

Used where two sides take turns: `parts.turns`, `parts.old_code`, benchmarks/flow.py, benchmarks/serve.py. Whatever
happens inside `stopped`, the processes must go on afterwards. Fields of /proc are Linux's.

Tests: tests/flow/test_flow_benchmark.py, tests/tiers/test_tiers_benchmark.py (`stopped`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["memory", "processor_time", "stopped"]


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Context in which processes are stopped (SIGSTOP), so that they do not disturb what is measured."""
    pids = list(pids)
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def processor_time(pids: Iterable[int]) -> float:
    """Seconds of processor time, of user and system, of all threads that these processes have."""
    nanoseconds = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                nanoseconds += int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue  # the thread has ended
    return nanoseconds / 1e9


def memory(pids: Iterable[int]) -> int:
    """Bytes of these processes that are in memory, without files: other programs that map the same come and go.

    What several of them share counts once for all of them.
    """
    kilobytes = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                kilobytes += int(line.split()[1])
    return kilobytes * 1024
