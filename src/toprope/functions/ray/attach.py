"""Names that all processes of a session on Ray share, and the backend of a process that Ray has started.

A worker has no `yr.init`: `attached` gives it a backend when a reference or a call first needs one. The package
registers at its import what makes it (`cluster.startup`), so that modules below need not import it. The names are ours;
`toprope status` and sessions of other versions find instances by NAMESPACE and SESSION, so these stay. Tests:
tests/functions/test_functions_ray.py (slow).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toprope.functions import context

if TYPE_CHECKING:
    from toprope.functions.backend import Backend

__all__ = ["BARE", "NAMESPACE", "SESSION", "attach", "attached", "manager_name", "set_maker"]

NAMESPACE = "toprope"
"""Ray namespace of the instances of all programs."""

SESSION = "session-"
"""Prefix of the names of session actors; instances have other names."""

BARE = "bare_"
"""Prefix of an actor's methods that call the user's methods without arguments."""


def manager_name() -> str:
    """The name of the actor that serves this job."""
    import ray

    return f"{SESSION}{ray.get_runtime_context().get_job_id()}"


_make: Callable[[Any], Backend] | None = None


def set_maker(make: Callable[[Any], Backend]) -> None:
    """Register what makes the backend of a worker.

    Args:
        make: is given the instance of the process; None in a worker for functions.
    """
    global _make
    _make = make


def attach(host: Any = None) -> None:
    """Make a backend for this process, which is a worker, and use it.

    Args:
        host: the instance of this process; None in a worker for functions.
    """
    assert _make is not None, "toprope.functions.ray was not imported"
    context.set_backend(_make(host))


def attached() -> Any:
    """Return the `RayBackend` of this process; a worker gets one at the first use."""
    if not context.is_set():
        os.environ.setdefault("INSTANCE_ID", f"function-{uuid.uuid4().hex[:12]}")
        attach()
    return context.backend()
