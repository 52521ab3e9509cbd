"""Counters, trace and cards of this process in the folder of its run, TOPROPE_RUN_DIR.

Called when the card is installed in a process of `toprope run`; cli reads the files at the end of the run. Tests:
tests/sim/simulated/test_counters_file.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from toprope.errors import EnvironmentProblem

if TYPE_CHECKING:
    from toprope.sim.native import Native

__all__ = ["join_run", "trace_fork"]

_TRACED = 2**20
"""Records (48 bytes each) that a process of a traced run keeps; older ones give way."""

_TIMED = 2**16
"""Records of a run that is rehearsed: the last steps, from which its time is estimated."""

_PASSED_OVER = ("torch", "toprope")
"""Packages whose lines are not the program's."""

_joined = 0
"""The process that has joined the run: a fork of it has not."""


def trace_fork() -> None:
    """Keep a trace of this process too, where it is a fork of one that keeps one.

    A fork keeps none by itself: most of them soon become another program, and a trace's file is large.
    """
    global _joined
    folder = Path(os.environ.get("TOPROPE_RUN_DIR", ""))
    if _joined in (0, os.getpid()) or not os.environ.get("TOPROPE_TRACE") or not folder.is_dir():
        return
    from toprope.sim.native import native

    _joined = os.getpid()
    stem = _stem(folder)
    _keep(native().keep_counters_in, stem.with_suffix(".counters"))  # which has the names that the trace refers to
    _keep_trace(native(), stem, _TRACED)


def _stem(folder: Path) -> Path:
    return folder / f"{os.getpid()}-{time.time_ns()}"


def _keep(step: Callable[[bytes], int], path: Path) -> None:
    error = step(str(path).encode())
    if error:
        raise EnvironmentProblem(
            "the record of this run cannot be kept.",
            f"{path}: {os.strerror(error)}",
            "make the folder named by TOPROPE_RUN_DIR writable, or unset the variable",
        )


def _keep_trace(library: Native, stem: Path, capacity: int) -> None:
    from toprope.sim.tracing import signatures

    _keep(library.keep_signatures, stem.with_suffix(signatures.SUFFIX))
    _keep(lambda path: int(library.start_trace(capacity, path)), stem.with_suffix(".trace"))


def join_run(library: Native) -> None:
    """Keep counters, and a trace where one is wanted, in the run's folder, and share its cards with its processes.

    The files outlive a process that is killed. A process that starts after its run has ended finds no folder, and
    keeps all to itself.
    """
    global _joined
    for package in _PASSED_OVER:
        library.pass_over(f"{Path(str(sys.modules[package].__file__)).parent}/".encode())
    folder = Path(os.environ.get("TOPROPE_RUN_DIR", ""))
    if not folder.name or not folder.is_dir():
        return
    from toprope.sim.metrics import cards
    from toprope.sim.rehearsal import recorder  # not needed by a process outside a run

    _joined = os.getpid()
    stem = _stem(folder)
    _keep(library.keep_counters_in, stem.with_suffix(".counters"))
    _keep(library.share_cards, folder / cards.FILE)
    if os.environ.get(recorder.VARIABLE):
        recorder.begin_of_run(library, stem)
    if os.environ.get("TOPROPE_TRACE"):
        _keep_trace(library, stem, _TRACED)
    elif os.environ.get(recorder.VARIABLE):
        _keep_trace(library, stem, _TIMED)
