"""Standard streams that are closed or full: a command ends with one line and exit status 1, without a traceback.

Around the commands `toprope`, `npu-smi` and `yr`. Only errors of the streams themselves end so: an OSError that names a
file belongs to its caller. A stream that was closed stays closed for a program of `toprope run`. Tests:
tests/cli/test_standard_streams.py.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["guarded"]

_FAILED = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def guarded(command: Callable[[], int], name: str = "toprope") -> int:
    """Run a command and return its exit status; 1 if what it writes is not taken.

    Args:
        command: writes to sys.stdout and sys.stderr, and returns its exit status.
        name: begins the line on stderr that says that the output could not be written.
    """
    _replace_closed()
    try:
        status = command()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        if error.errno not in _FAILED or error.filename is not None:
            raise
        try:
            sys.stderr.write(f"{name}: the output cannot be written: {error.strerror}\n")
        except OSError:
            pass  # stderr is the one that fails
        _discard(sys.stdout)
        _discard(sys.stderr)
        return 1
    return status


def _replace_closed() -> None:
    """Open what was closed when this process began, where Python has None and the next file would take its number.

    From stdin nothing is read; writing to stdout fails, since an answer is lost; what goes to stderr is lost.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.set_inheritable(file, name == "stderr")  # a program under `toprope run` finds its stdout closed, too
            stream = open(file, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
            setattr(sys, name, stream)


def _discard(stream: Any) -> None:
    """Drop what a stream still holds, which Python would else try to write when it ends."""
    stream = getattr(stream, "wrapped", stream)  # click's wrapper around a pipe that was closed
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()
