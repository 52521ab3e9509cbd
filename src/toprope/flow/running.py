"""Location of the calling stage: its card, its instance number, and the number of instances.

For users, in functions of a stage (`get_running_device_id`, ..., CANN's names). The stage's process sets it for its
threads; threads of the user's own see the process's last stage. Tests: tests/flow/test_flow_func.py,
tests/flow/test_flow_threads.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toprope.flow.session import logger
from toprope.flow.stage.spec import StageContext

__all__ = [
    "get_running_device_id",
    "get_running_instance_id",
    "get_running_instance_num",
    "is_stage",
    "set_running",
]

_process: StageContext | None = None  # for threads that the user's code has started
_thread = threading.local()


def enter(context: StageContext) -> None:
    """Mark this thread as a stage's."""
    global _process
    _process = _thread.context = context


def set_running(**numbers: int) -> None:
    """Set what this process answers where no stage runs in it, for functions that are tried out without a graph.

    Args:
        numbers: device_id, instance_id or instance_num.
    """
    enter(replace(_process or StageContext("", 0, 0), **numbers))  # type: ignore[arg-type]


def is_stage() -> bool:
    """Ask whether a stage runs in this process."""
    return _process is not None


def inside(context: StageContext, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a stage: it knows where it runs, whichever thread calls it."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        _thread.context = context
        return function(*args)

    return call


def _context(name: str) -> StageContext | None:
    found = getattr(_thread, "context", None) or _process
    if found is None:
        logger.error("%s can only be asked in a stage", name)
    return found


def get_running_device_id() -> int | None:
    """The card of the stage; 0 where it is shown only its own. None outside stages, with an error in the log."""
    found = _context("get_running_device_id")
    return None if found is None else found.device_id


def get_running_instance_id() -> int | None:
    """Return the number of this instance of the stage. None outside stages, with an error in the log."""
    found = _context("get_running_instance_id")
    return None if found is None else found.instance_id


def get_running_instance_num() -> int | None:
    """Return the number of instances of the stage. None outside stages, with an error in the log."""
    found = _context("get_running_instance_num")
    return None if found is None else found.instance_num
