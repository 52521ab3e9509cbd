"""The backend in use in this process: the driver's session, or a worker's relay to it.

`yr.init` and the start of a worker set it; every call of the API asks for it, and gets a clear error if there is
none. A fork of the process has none: its parent's workers and sockets are not its own. The texts, but for the one about
a fork, are openYuanrong's. Tests: tests/functions/test_functions_instances.py,
tests/functions/test_functions_objects.py, tests/functions/test_functions_options.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from toprope.functions.exceptions import CODES, YRRuntimeError

if TYPE_CHECKING:
    from toprope.functions.backend import Backend

__all__ = ["backend", "finalized", "is_set", "set_backend", "unreferenced"]

_backend: Backend | None = None
_was_set = False
_is_fork = False


def backend() -> Backend:
    """The backend in use.

    Raises:
        YRRuntimeError: there is none: `yr.init` was not called, or `yr.finalize` was.
    """
    if _backend is None:
        if _is_fork:
            what = "this process is a fork of the one that called yr.init: call yr.init in it too"
            raise YRRuntimeError(what, CODES["incorrect usage"])
        if _was_set:
            raise YRRuntimeError("already finalized", CODES["finalized"])
        raise YRRuntimeError("system not initialized, call yr.init() first", CODES["incorrect usage"])
    return _backend


def is_set() -> bool:
    """True if this process has a backend."""
    return _backend is not None


def set_backend(backend: Backend) -> None:
    """Use a backend; a fork of this process has none."""
    global _backend, _was_set, _is_fork
    if not _was_set:
        os.register_at_fork(after_in_child=_forked)
    _backend, _was_set, _is_fork = backend, True, False


def unreferenced(instance: str) -> None:
    """Note that a handle to an instance was deleted. May be called at any moment, in any thread."""
    if _backend is not None:
        _backend.unreferenced(instance)


def finalized() -> None:
    """Forget the backend: the session has ended."""
    global _backend
    _backend = None


def _forked() -> None:
    global _backend, _is_fork
    _is_fork = _is_fork or _backend is not None
    _backend = None
