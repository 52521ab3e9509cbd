"""`RayBackend`: the backend of the yr API on Ray, for drivers and workers; calls go directly from process to process.

`ray.cluster.startup` makes the driver's, `ray.worker_backend` is a worker's. Its public methods are those of
`functions.backend`. Functions, instances, groups and objects are in modules of their own; state that processes share is
in the manager (`ray.manager`). What Ray raises becomes an error of the yr API (`ray.failures`) before a user sees it.
Tests: tests/functions/test_functions_ray.py (slow), and with `make soak` tests/functions/test_functions_assertions.py
and tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toprope.functions.backend import DEFAULT_NAMESPACE, Code, InstanceGroups, ResourceGroups, listed_names
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.handles import handles
from toprope.functions.lifecycle import Stage
from toprope.functions.objects import ObjectRef
from toprope.functions.options import Config, InvokeOptions
from toprope.functions.ray.attach import NAMESPACE, SESSION
from toprope.functions.ray.functions import Functions
from toprope.functions.ray.instances import Instances
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.nodes.cluster_view import resources_of
from toprope.functions.ray.objects import RayObjects
from toprope.functions.ray.refs import Entry, FailedArgumentError, lift
from toprope.functions.ray.tensors import forget_tensors, know_tensors

__all__ = ["RayBackend"]

_log = logging.getLogger("toprope")


class RayBackend(RayObjects):
    """The backend of one process of a session on Ray.

    Args:
        config: of the session.
        manager: the session actor; None to look it up at the first use.
        is_manager: whether this process is the session actor.
        end: shuts Ray down, if the session has started it.
    """

    def __init__(
        self, config: Config, manager: Any = None, *, is_manager: bool = False, end: Callable[[], None] | None = None
    ) -> None:
        super().__init__(config, manager, is_manager=is_manager)
        self._end = end
        self._process = os.getpid()
        self.instances = Instances(self)
        self.functions = Functions(self, self.instances)
        self.groups: InstanceGroups = self.instances.groups
        self.resource_groups: ResourceGroups = self.instances.placing.resource_groups
        self.pairs = _Pairs(self)
        if self._counts_handles:
            threading.Thread(target=self._process_unreferenced, name="toprope handles", daemon=True).start()

    # Functions and instances

    def why_ended(self, instance: str) -> BaseException | None:
        """Return the known reason of an instance's end."""
        return self.instances.why_ended(instance)

    def invoke(
        self,
        code: Code,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        options: InvokeOptions,
        returns: int | None,
    ) -> Any:
        """Call a function."""
        self.check()
        return self.functions.invoke(code, arguments, keywords, options, returns)

    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance."""
        self.check()
        return self.instances.create(code, arguments, keywords, options)

    def call(
        self, instance: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int | None
    ) -> Any:
        """Call a method of an instance."""
        record = self.instances.record(instance)
        if record.error is not None:
            return self.failed(record.error, returns, instance)
        if record.handle is None:
            raise YRRuntimeError(
                f"instance {instance} cannot be called yet: its group {record.options.group_name} "
                f"{Stage.GATHERING}. do: Group.invoke first, on Ray", CODES["incorrect usage"],
            )  # fmt: skip
        know_tensors()
        if returns == 1 and not arguments and not keywords:
            bare = record.without_arguments(method)
            if bare is not None:
                return ObjectRef(self, Entry(bare.remote(), instance))
        try:
            lifted, named, refs = lift(arguments, keywords)
        except FailedArgumentError as failed:
            return self.failed(failed.entry.error, returns, instance)
        if returns == 1:
            return ObjectRef(self, Entry(record.run.remote((method, 1, lifted, named), *refs), instance))
        if returns is None:
            self.check_streams()
            return self.items(record.stream.remote((method, lifted, named), *refs), instance)
        several = record.handle.run.options(num_returns=returns)
        made = several.remote((method, returns, lifted, named), *refs)
        return self.several(made, returns, instance)

    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""
        self.instances.terminate(instance, is_sync)

    def unreferenced(self, instance: str) -> None:
        """Note that a handle to an instance was deleted."""
        if self._counts_handles:
            self._unreferenced.put(instance)

    def _process_unreferenced(self) -> None:
        while (item := self._unreferenced.get()) is not None:
            try:
                if isinstance(item, str):
                    self.instances.unreferenced(item)
                else:
                    self.close_stream(item)
            except Exception:
                _log.debug("the handles of %s", item, exc_info=True)  # such as Ray's end
            del item

    def is_alive(self, instance: str) -> bool:
        """True if the instance exists."""
        return self.instances.is_alive(instance)

    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """The id and class of a named instance."""
        return self.instances.find(name, namespace, timeout)

    # What there is

    def resources(self) -> list[dict[str, Any]]:
        """Each node with its capacity and what is free of it."""
        return [resources_of(seen) for seen in self.ask(Manager.view, True)]

    def list_instances(self) -> list[dict[str, Any]]:
        """The living instances."""
        told = [each.as_dict() for each in self.ask(Manager.holders)]
        return [each | {"handles": handles.count(each["id"])} for each in told]  # as of now

    def list_named_instances(self, all_namespaces: bool) -> list[Any]:
        """Names of the living instances that have one, of other sessions too."""
        known = self.ask(Manager.names)
        ids = [
            each["name"]
            for each in self.ray.util.list_named_actors(all_namespaces=True)
            if each["namespace"] == NAMESPACE and not each["name"].startswith((SESSION, "instance-"))
        ]
        return listed_names([known.get(id) or _namespace_and_name(id) for id in ids], self.namespace, all_namespaces)

    def this_node(self) -> dict[str, str]:
        """This node."""
        id = self.ray.get_runtime_context().get_node_id()
        return {"id": id, "ip": self.ray.util.get_node_ip_address(), "namespace": self.namespace}

    # The end

    def end_instances(self) -> None:
        """End the instances that this process has created."""
        self.instances.end_all(YRRuntimeError("already finalized", CODES["finalized"]))

    def finalize(self) -> None:
        """End every instance and free every object of the session."""
        if os.getpid() != self._process or self.ended:
            return  # a fork of the program is not the program
        self.ended = True
        ray = self.ray
        try:
            if ray.is_initialized():
                self.end_instances()
                self.instances.placing.resource_groups.end()
                ray.get(self.manager.end_all.remote(), timeout=40)
                ray.kill(self.manager)
        except (ray.exceptions.RayError, ValueError):
            pass  # Ray has ended before
        finally:
            self._unreferenced.put(None)
            self.clock.close()
            if self._end is not None:
                self._end()
                forget_tensors()


class _Pairs:
    """The session's key-value pairs, which its manager has.

    Args:
        backend: of the process.
    """

    def __init__(self, backend: RayBackend) -> None:
        self._backend = backend

    def set_all(self, pairs: Mapping[str, bytes], *, only_new: bool = False, ttl: float = 0) -> str:
        """Store pairs, all or none."""
        return self._backend.ask(Manager.set_pairs, pairs, only_new, ttl)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of keys."""
        return self._backend.ask(Manager.get_pairs, keys)

    def delete(self, keys: Sequence[str]) -> list[str]:
        """Forget keys."""
        return self._backend.ask(Manager.delete_pairs, keys)


def _namespace_and_name(id: str) -> tuple[str, str]:
    """Namespace and name of an instance of another session, by its id."""
    if id.startswith(f"{DEFAULT_NAMESPACE}-"):
        return DEFAULT_NAMESPACE, id.removeprefix(f"{DEFAULT_NAMESPACE}-")
    namespace, _, name = id.partition("-")
    return namespace, name
