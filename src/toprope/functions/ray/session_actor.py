"""Session actor on Ray: the manager, and a backend for instances that outlive the worker that created them.

The driver starts one for each session (`ray.cluster.startup`); workers reach it by `ray.worker_backend`. Each public
method is a remote call. The driver owns it, so that Ray ends it with the driver: it must not be detached. Tests:
tests/functions/test_functions_ray.py (slow).
"""

from __future__ import annotations

import pickle
from typing import Any

from toprope.functions import context
from toprope.functions.backend import Code
from toprope.functions.options import Config
from toprope.functions.ray.backend import RayBackend
from toprope.functions.ray.failures import RaisedError
from toprope.functions.ray.manager import Manager

__all__ = ["AT_ONCE", "SessionActor"]

AT_ONCE = 100
"""Number of concurrent requests of the actor."""


class SessionActor(Manager):
    """The manager of a session. Its driver owns it, so that it ends with the driver however that ends.

    Args:
        config: of the session.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.backend = RayBackend(config, None, is_manager=True)
        context.set_backend(self.backend)

    def perform(self, part: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Execute a worker's call in this process, which lives as long as the session; see `Backend.perform`."""
        try:
            return self.backend.perform(part, method, arguments, keywords)
        except Exception as error:
            raise RaisedError.of(error) from None

    def create(self, blob: bytes, packed: list[Any], options: bytes) -> str:
        """Create an instance for a worker: it does not end with the worker."""
        arguments, keywords = packed
        return self.backend.create(Code(pickle.loads(blob)), arguments, keywords, pickle.loads(options))

    def terminate(self, id: str, is_sync: bool) -> None:
        """End an instance for a worker."""
        self.backend.terminate(id, is_sync)

    def end_all(self) -> None:
        """End the instances that workers have created: the session ends."""
        self.backend.end_instances()
