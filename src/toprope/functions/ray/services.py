"""What a session on Ray offers beside calls: key-value pairs, resources, state, groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.handles import handles
from toprope.functions.local.instance import DEFAULT_NAMESPACE
from toprope.functions.ray.groups import Groups
from toprope.functions.ray.resource_groups import ResourceGroups
from toprope.functions.ray.view import resources_of

if TYPE_CHECKING:
    from toprope.functions.ray.backend import RayBackend

__all__ = ["Services"]


class Services:
    """The services of a process's backend.

    Args:
        backend: of the process.
    """

    def __init__(self, backend: RayBackend) -> None:
        self._backend = backend
        self.resource_groups = ResourceGroups(backend)
        self.groups = Groups(backend)
        self._operations: Mapping[str, Callable[..., Any]] = {
            "kv_set_all": lambda *arguments: backend.ask("kv_set_all", *arguments),
            "kv_get": lambda keys: backend.ask("kv_get", keys),
            "kv_del": lambda keys: backend.ask("kv_del", keys),
            "instances": self._instances,
            "resources": lambda: [resources_of(seen) for seen in backend.ask("view", True)],
            "list_named_instances": self._list_named,
            "node": self._node,
            "function_group_context": lambda: None,
            "create_resource_group": self.resource_groups.create,
            "remove_resource_group": self.resource_groups.remove,
            "resource_group_table": self.resource_groups.table,
            "start_group": self.groups.start,
            "terminate_group": self.groups.terminate,
            "wait_group": self.groups.waited,
        }

    def serve(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        """Do what is asked by name.

        Raises:
            YRRuntimeError: there is no such operation.
        """
        found = self._operations.get(operation)
        if found is None:
            raise YRRuntimeError(f"{operation} is not part of this backend", CODES["incorrect usage"])
        return found(*arguments)

    def end(self) -> None:
        """The session ends."""
        self.resource_groups.end()

    def _instances(self) -> list[dict[str, Any]]:
        told = [each.as_dict() for each in self._backend.ask("holders")]
        return [each | {"handles": handles.count(each["id"])} for each in told]

    def _list_named(self, all_namespaces: bool) -> list[Any]:
        from toprope.functions.ray.attach import NAMESPACE

        known = self._backend.ask("names")
        named = []
        for each in self._backend.ray.util.list_named_actors(all_namespaces=True):
            if each["namespace"] != NAMESPACE or each["name"].startswith(("session-", "instance-")):
                continue
            named.append(known.get(each["name"]) or _parted(each["name"]))
        if all_namespaces:
            return [{"namespace": namespace, "name": name} for namespace, name in named]
        default = self._backend.config.ns or DEFAULT_NAMESPACE
        return [name for namespace, name in named if namespace == default]

    def _node(self) -> dict[str, str]:
        ray = self._backend.ray
        return {
            "id": ray.get_runtime_context().get_node_id(),
            "ip": ray.util.get_node_ip_address(),
            "namespace": self._backend.config.ns or DEFAULT_NAMESPACE,
        }


def _parted(id: str) -> tuple[str, str]:
    """Namespace and name of an instance of another session, by its id."""
    if id.startswith(f"{DEFAULT_NAMESPACE}-"):
        return DEFAULT_NAMESPACE, id.removeprefix(f"{DEFAULT_NAMESPACE}-")
    namespace, _, name = id.partition("-")
    return namespace, name
