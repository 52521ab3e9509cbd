"""Record of the uncaught error that ended a process of a `toprope run`: one file for each such process.

toprope.compat.finder installs it at the start of every Python process of a run, so it imports only the standard
library. It reads `sys.last_value`, which Python sets for an uncaught error, and must never raise.
cli/reports/failure.py reads the files for the run's report and must follow their fields. Tests:
tests/cli/test_run_failed.py with processes that fail, tests/cli/test_failure.py for the reader.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

__all__ = ["SUFFIX", "install_for_run"]

SUFFIX = ".ended"
_MOST_ERRORS, _MOST_TEXT = 16, 20_000
_FOREIGN = ("torch", "toprope")


def install_for_run() -> None:
    """Have this process write down the error that ends it. Its hooks stay its own."""
    folder = os.environ.get("TOPROPE_RUN_DIR", "")
    if folder:
        atexit.register(_write, folder)


def _write(folder: str) -> None:
    """Write the uncaught error that Python has just printed, with those that it came from."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return
    try:
        import json

        facts = {
            "pid": os.getpid(),
            "rank": os.environ.get("RANK", ""),
            "errors": [
                {"type": type(each).__name__, "text": _text(each), "place": _place(each)} for each in _chain(error)
            ],
        }
        path = os.path.join(folder, f"{os.getpid()}-{time.time_ns()}{SUFFIX}")
        with open(path, "x", encoding="utf-8") as file:
            json.dump(facts, file)
    except Exception:
        pass  # the run is over, or the disk is full: the program's end is its own


def _chain(error: BaseException) -> list[BaseException]:
    """The error, its causes and contexts, and the members of groups."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting and len(found) < _MOST_ERRORS:
        each = waiting.pop(0)
        if any(each is known for known in found):
            continue
        found.append(each)
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
    return found


def _text(error: BaseException) -> str:
    try:
        return str(error)[-_MOST_TEXT:]  # the text of a child's error is at the end
    except Exception:
        return ""


def _place(error: BaseException) -> str:
    """The innermost line of the program in the error's traceback, such as "/home/me/train.py:41"; "" for none."""
    folders = [f"{os.path.dirname(sys.modules[name].__file__ or '')}/" for name in _FOREIGN if name in sys.modules]
    found, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith(("<frozen", *folders)):
            found = f"{file}:{step.tb_lineno}"
        step = step.tb_next
    return found
