"""Counting of names that are missing and calls that are refused in Python, for the report of the run.

Called where toprope.sim and the facades raise such an error; the C++ core counts its own (`Lack` of
csrc/core/counters.h). Tests: tests/cli/test_run_failed.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toprope.sim.dtypes import NUMBERS
from toprope.sim.native import native
from toprope.sim.state import installed

if TYPE_CHECKING:
    from toprope.sim.metrics.counters import Lack

__all__ = ["note", "note_missing"]


def note(lack: Lack, name: str, text: str, dtype: str | None = None) -> None:
    """Keep an error that is about to be raised. It may be caught: the report finds the one that ended the program.

    Args:
        lack: the reason.
        name: operator, or name of the API.
        text: message of the error, from its beginning.
        dtype: name of the dtype that is refused.
    """
    if installed() is not None:
        native().note_lack(int(lack), name.encode(), -1 if dtype is None else NUMBERS[dtype], text.encode())


def note_missing(name: str, text: str) -> None:
    """Keep the error of a name that is not there."""
    from toprope.sim.metrics.counters import Lack  # not needed by a program that names what is there

    note(Lack.NAME, name, text)
