"""Start and end of the dataflow API, and its options.

`init` and `finalize`, for users; graphs read the options and register to be closed. Option names and the levels of the
log are CANN's. `toprope.strict` turns on quirks of CANN's API that toprope leaves out otherwise. Tests:
tests/flow/test_flow_graph.py, tests/flow/test_flow_semantics.py.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from toprope.flow.exceptions import NOT_INIT, DfException
from toprope.flow.graph.nodes import forget_names

__all__ = ["finalize", "given", "init", "is_strict", "logger", "options"]

logger = logging.getLogger("DATAFLOW")
"""Logger that explains returned codes. Level: ASCEND_GLOBAL_LOG_LEVEL, 0 debug to 3 errors (default)."""

STRICT = "toprope.strict"
"""Option that enables the reference's quirks."""

_LEVELS = {"0": logging.DEBUG, "1": logging.INFO, "2": logging.WARNING, "3": logging.ERROR, "4": logging.CRITICAL}

_lock = threading.Lock()
_options: dict[str, str] | None = None


class _Closing(Protocol):
    def close(self) -> None: ...


_graphs: weakref.WeakSet[Any] = weakref.WeakSet()


def init(flow_options: dict[str, str]) -> None:
    """Begin the use of the dataflow API, with options for all graphs.

    Args:
        flow_options: options by their names; "ge.graphRunMode" is set in it, as the reference does. A second call
            changes nothing but logs a warning.

    Raises:
        DfException: a name or a value is no text.
    """
    global _options
    check(flow_options)
    _prepare_log()
    with _lock:
        if _options is not None:
            logger.warning("init was called before: these options are ignored")
            return
        flow_options["ge.graphRunMode"] = "0"
        _options = dict(flow_options)


def check(flow_options: Any) -> None:
    """Refuse options that are none.

    Raises:
        DfException: they are no dict of texts.
    """
    if not isinstance(flow_options, dict):
        raise DfException(f"options must be a dict of str to str, got {type(flow_options).__name__}")
    for name, value in flow_options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise DfException(f"options must be a dict of str to str, got {name!r}: {value!r}")


def finalize() -> None:
    """End all graphs, and the session of toprope.functions where it is flow's own. Called at the program's end too."""
    global _options
    for each in list(_graphs):
        each.close()
    _graphs.clear()
    with _lock:
        _options = None
    forget_names()
    running = sys.modules.get("toprope.flow.executor.runner")
    if running is not None:
        running.end_session()


def note(graph: _Closing) -> None:
    """End a graph when the session ends."""
    _graphs.add(graph)


def options() -> Mapping[str, str]:
    """The options that `init` was given.

    Raises:
        DfException: it was not called (145001).
    """
    if _options is None:
        raise DfException("init was not called", NOT_INIT)
    return _options


def given() -> Mapping[str, str] | None:
    """Return the options that `init` was given; None before it, and after `finalize`."""
    return _options


def is_strict(graph_options: Mapping[str, str] | None = None) -> bool:
    """True if the reference's quirks are enabled, by option "toprope.strict" or TOPROPE_FLOW_STRICT=1."""
    for each in (graph_options, _options):
        if each is not None and STRICT in each:
            return each[STRICT] == "1"
    return os.environ.get("TOPROPE_FLOW_STRICT") == "1"


def _prepare_log() -> None:
    """Give the logger its level, and standard error where nobody else gave it a place."""
    logger.setLevel(_LEVELS.get(os.environ.get("ASCEND_GLOBAL_LOG_LEVEL", "3"), logging.ERROR))
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(levelname)s] DATAFLOW: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


@atexit.register
def _at_exit() -> None:
    finalize()
