"""Guard process: waits for the end of another process, and kills its remaining descendants. Runs without toprope.

`worker.process` starts one for an instance on Ray, as a program of its own that imports the standard library only.
Ray ends the children of a worker that are in its group of processes; with a session of their own they would stay, and
hold a card's memory. Arguments, which `worker.process` alone passes: number of the process, and the variable, with its
value, that its descendants have. It must be no child of the worker, or Ray kills it, too. Tests:
tests/functions/test_functions_ray_parts.py.
"""

from __future__ import annotations

import os
import select
import signal
import sys

__all__ = ["main"]

_ROUNDS = 3
_LAST = 0.05


def main(process: int, mark: bytes) -> None:
    """Wait for the end of a process, then kill all that have its mark, and what they have just started."""
    try:
        handle = os.pidfd_open(process)
    except OSError:
        pass  # it has ended already
    else:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
    try:
        os.killpg(process, signal.SIGKILL)
    except OSError:
        pass  # it had no group of its own, or that is gone
    quiet = 0
    while quiet < _ROUNDS:
        quiet = 0 if _end(mark) else quiet + 1
        select.select([], [], [], _LAST)


def _end(mark: bytes) -> bool:
    found = False
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and mark in _environment(name):
            try:
                os.kill(int(name), signal.SIGKILL)
                found = True
            except OSError:
                pass
    return found


def _environment(name: str) -> list[bytes]:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # Ray kills the children of a worker that it ends: this is to be none
    main(int(sys.argv[1]), sys.argv[2].encode())
