"""The API inside of functions and instances on Ray: a `RayBackend` that leaves some calls to the session actor.

What has to outlive the worker, such as instances that it creates, is made by the actor: a method that is added to
`functions.backend` belongs here only if that holds for it. `ray.attach` makes one. Tests:
tests/functions/test_functions_ray.py (slow).
"""

from __future__ import annotations

import pickle
from typing import Any, cast

from toprope.functions.backend import Code, Forwarded, InstanceGroups, ResourceGroups, restore
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.options import Config, InvokeOptions
from toprope.functions.ray.backend import RayBackend
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.session_actor import SessionActor

__all__ = ["WorkerBackend"]


class WorkerBackend(RayBackend):
    """The backend of a worker. Calls go their way directly; what has to outlive the worker is done by the manager.

    Args:
        host: the instance of this process; None in a worker for functions.
    """

    def __init__(self, host: Any = None) -> None:
        super().__init__(Config(), None)
        self._host = host
        self.resource_groups: ResourceGroups = cast(Any, Forwarded("resource_groups", self._perform))
        self.groups: InstanceGroups = cast(Any, Forwarded("groups", self._perform))

    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance."""
        return str(self.ask(SessionActor.create, self.blob(code), [arguments, keywords], pickle.dumps(options)))

    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""
        self.ask(SessionActor.terminate, instance, is_sync)

    def _perform(self, part: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self.ask(SessionActor.perform, part, method, arguments, keywords)

    def save_state(self) -> None:
        """Save the state of the instance of this process."""
        id = self._id("save_state")
        self.ask(Manager.save, id, self._host.checkpoint())

    def load_state(self) -> None:
        """Restore the instance of this process to the state that was saved last."""
        id = self._id("load_state")
        restore(self._host.instance, self.ask(Manager.saved, id))

    def function_group_context(self) -> Any:
        """The place of the instance of this process in its function group."""
        group = "" if self._host is None else self._host.making.group
        return self.ask(Manager.context, self._host.making.id, group, 60.0) if group else None

    def _id(self, what: str) -> str:
        """The id of the instance of this process, which `what` needs."""
        if self._host is None:
            self._refuse(what)
        return str(self._host.making.id)

    def finalize(self) -> None:
        """Only the driver ends the session.

        Raises:
            YRRuntimeError: always.
        """
        raise YRRuntimeError("yr.finalize is for the program that called yr.init", CODES["incorrect usage"])
