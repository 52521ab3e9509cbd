"""Warnings and errors of the torch_npu profiler: a line on stderr, after which the program goes on.

Used by the modules of this folder. The texts are torch_npu's; it writes them to stdout, which here is the program's
own. Under `toprope run` they also go to the report (toprope.compat.run_remarks). Tests:
tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from toprope.compat.run_remarks import note

__all__ = ["error", "flag", "reported", "say_times", "warn"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_TIMES = "torch_npu.profiler: every time in its files was measured on this machine's CPU, not on a card"


def warn(text: str) -> None:
    """Say that an argument or a call is wrong, and what is done instead.

    Silent on ranks other than 0 and with TORCH_NPU_WARNING_DISABLE=1, as torch_npu's warnings are.
    """
    if os.environ.get("TORCH_NPU_WARNING_DISABLE") != "1" and os.environ.get("RANK", "0") == "0":
        _line("WARNING", text)


def flag(name: str, value: object, *, default: bool = False) -> bool:
    """The value of an argument that is a bool; the default, with a warning, where it is none."""
    if isinstance(value, bool):
        return value
    warn(f"{name} is {value!r}, and no bool; {default} is taken.")
    return default


def error(text: str) -> None:
    """Say that a call had no result; the report of a run says it too."""
    _line("ERROR", text)
    note("profiler-error", f"torch_npu.profiler: {' '.join(text.split())}")


def _line(level: str, text: str) -> None:
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stderr.write(f"[{moment}] [{level}] [{os.getpid()}] profiler.py: {text}\n")


@functools.cache
def say_times() -> None:
    """Say once that times in the files are this machine's: in the report of a run, else on stderr."""
    if os.environ.get("TOPROPE_RUN_DIR"):
        note("profiler", _TIMES)
    else:
        sys.stderr.write(f"{_TIMES}\n")


def reported(function: Callable[_P, Any]) -> Callable[_P, Any]:
    """Have a call report what goes wrong in it and return None: the real profiler never ends a program."""

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as problem:
            error(f"{function.__qualname__.replace('._', '.')} failed: {problem}")
            return None

    return call
