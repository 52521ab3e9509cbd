"""Names that all processes of a session on Ray share, and the backend of a process that Ray has started.

A worker has no `yr.init`: `attached` gives it a backend when a reference or a call first needs one. The names are ours;
`toprope status` and sessions of other versions find instances by NAMESPACE and SESSION, so these stay. Tests:
tests/functions/test_functions_ray.py (slow).
"""

from __future__ import annotations

import os
import uuid
from typing import Any

from toprope.functions import context

__all__ = ["BARE", "NAMESPACE", "SESSION", "attached", "manager_name"]

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


def attached() -> Any:
    """Return the `RayBackend` of this process; a worker gets one at the first use."""
    if not context.is_set():
        from toprope.functions.ray.worker.worker_backend import WorkerBackend

        os.environ.setdefault("INSTANCE_ID", f"function-{uuid.uuid4().hex[:12]}")
        context.set_backend(WorkerBackend())
    return context.backend()
