"""Work before the interpreter ends: torch's backward threads become idle, and the C++ core stops calling Python.

Registered by installer.py. Without it a thread may be ended inside a destructor, which aborts the process. Tests:
tests/sim/test_at_exit.py.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

from toprope.sim.native import native

__all__ = ["register"]

_LIMIT = 2.0  # seconds


def register() -> None:
    """Let torch's backward threads finish before Python does, and stop the C++ core from calling Python by then."""
    atexit.register(_wait_for_backward_threads)
    atexit.register(native().stop_sites)
    atexit.register(native().set_graph_calls, None)
    atexit.register(native().watch_memory, None)


def _wait_for_backward_threads() -> None:
    """Wait until torch's threads for the cards' backward passes are idle.

    A thread that has just finished one still drops Python objects. It needs the interpreter's lock for that, and when
    the interpreter ends meanwhile, Python ends the thread inside a destructor, which aborts the process. With the lock
    free, as it is here while sleeping, a thread that sleeps has nothing left to drop.
    """
    end = time.monotonic() + _LIMIT
    quiet = 0
    while quiet < 2 and time.monotonic() < end:
        states = _states("pt_autograd_")
        if not states:
            return
        time.sleep(0.001)
        quiet = quiet + 1 if all(state == "S" for state in states) else 0


def _states(name: str) -> list[str]:
    """States of this process's threads whose names begin so: "S" sleeps, "R" runs."""
    states = []
    for task in Path("/proc/self/task").glob("*/stat"):
        try:
            text = task.read_text()
        except OSError:
            continue  # ended meanwhile
        if text.partition("(")[2].startswith(name):
            states.append(text.rpartition(")")[2].split()[0])
    return states
