"""The API inside of functions and instances on Ray."""

from __future__ import annotations

import pickle
from typing import Any

from toprope.functions.backend import Code
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.options import Config, InvokeOptions
from toprope.functions.ray.backend import RayBackend

__all__ = ["WorkerBackend"]


class WorkerBackend(RayBackend):
    """The backend of a worker. Calls go their way directly; what has to outlive the worker is done by the manager.

    Args:
        host: the instance of this process; None in a worker for functions.
    """

    def __init__(self, host: Any = None) -> None:
        super().__init__(Config(), None)
        self._host = host

    @property
    def instance_id(self) -> str:
        """The id of the instance of this process.

        Raises:
            YRRuntimeError: this process runs functions.
        """
        if self._host is None:
            raise YRRuntimeError("save_state is only supported on cloud with posix api", CODES["incorrect usage"])
        return str(self._host.making.id)

    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance."""
        return str(self.ask("create", self.blob(code), [arguments, keywords], pickle.dumps(options)))

    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""
        self.ask("terminate", instance, is_sync)

    def request(self, operation: str, *arguments: Any) -> Any:
        """What is asked seldom."""
        if operation == "save_state":
            return self.ask("save", self.instance_id, *arguments)
        if operation == "load_state":
            return self.ask("saved", self.instance_id)
        if operation == "function_group_context":
            group = "" if self._host is None else self._host.making.group
            return self.ask("context", self._host.making.id, group, 60.0) if group else None
        if operation in ("resources", "instances", "node", "list_named_instances") or operation.startswith("kv_"):
            return super().request(operation, *arguments)
        return self.ask("request", operation, arguments)

    def state(self) -> bytes:
        """The instance of this process, pickled."""
        self.instance_id  # noqa: B018  raises where there is none
        return bytes(self._host.checkpoint())

    def restore(self, state: bytes) -> None:
        """Give the instance of this process the attributes that it had."""
        instance = self._host.instance
        vars(instance).clear()
        vars(instance).update(vars(pickle.loads(state)))

    def finalize(self) -> None:
        """Only the driver ends the session.

        Raises:
            YRRuntimeError: always.
        """
        raise YRRuntimeError("yr.finalize is for the program that called yr.init", CODES["incorrect usage"])
