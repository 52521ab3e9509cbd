"""`Backend`, the interface between the yr API and what runs it: local processes, Ray, or a relay to the driver.

`functions.api` calls it; `local.session.Session`, `ray.backend.RayBackend` and `local.worker.relay.Relay` implement it.
A method that is added here is added to all three. `perform` runs calls of other processes: they can name whatever is
public in `Backend` and in the protocols of its parts. The interface is free to change; the spelling of
DEFAULT_NAMESPACE is openYuanrong's. What is here is held by tests/functions/test_functions_instances.py, each backend
by tests/functions/test_functions_assertions.py.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.objects import ObjectBackend, ObjectRef

if TYPE_CHECKING:
    from toprope.functions.options import GroupOptions, InvokeOptions

__all__ = [
    "DEFAULT_NAMESPACE",
    "Backend",
    "Code",
    "Forwarded",
    "InstanceGroups",
    "KeyValuePairs",
    "ResourceGroups",
    "listed_names",
    "restore",
]


class Code:
    """A function or class in the form that is sent to workers.

    Attributes:
        target: the function or class.
        name: its qualified name, for messages.
        is_async: a class with a coroutine method: its instances have an event loop.
    """

    __slots__ = ("_blob", "is_async", "key", "name", "target")

    def __init__(self, target: Any) -> None:
        import inspect

        self.target = target
        self.name = str(getattr(target, "__qualname__", target))
        self.is_async = isinstance(target, type) and any(
            inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
            for base in target.__mro__
            for each in vars(base).values()
        )
        self.key = ""
        self._blob: bytes | None = None

    def blob(self) -> bytes:
        """Return its pickle: by value if it is defined in the program's own file."""
        if self._blob is None:
            from toprope.functions.transport.serialization import dumps

            self._blob = dumps(self.target)
        return self._blob

    def identify(self, blob: bytes | None = None) -> str:
        """Return the key by which workers know it; equal pickles have equal keys.

        Args:
            blob: its pickle; None for `blob()`.
        """
        if not self.key:
            import hashlib

            self.key = hashlib.sha256(self.blob() if blob is None else blob).hexdigest()
        return self.key


DEFAULT_NAMESPACE = "yr_defalut_namespace"
"""The vendor's own spelling."""


def listed_names(named: Iterable[tuple[str, str]], namespace: str, all_namespaces: bool) -> list[Any]:
    """Named instances as `yr.list_named_instances` returns them.

    Args:
        named: namespace and name of each.
        namespace: the one that is listed unless all are.
        all_namespaces: whether all are.
    """
    if all_namespaces:
        return [{"namespace": each, "name": name} for each, name in named]
    return [name for each, name in named if each == namespace]


def restore(instance: Any, state: bytes | None) -> None:
    """Give an instance the attributes of its saved state.

    Raises:
        YRRuntimeError: no state was saved.
    """
    if state is None:
        raise YRRuntimeError("Failed to load state", CODES["get failed"])
    vars(instance).clear()
    vars(instance).update(vars(pickle.loads(state)))


class KeyValuePairs(Protocol):
    """Key-value pairs of a session; see `toprope.functions.key_value_store.Pairs`."""

    def set_all(self, pairs: Mapping[str, bytes], *, only_new: bool = False, ttl: float = 0) -> str:
        """Store pairs, all or none. Return the first key that was refused, "" if none was."""

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of keys, None for one that is not there."""

    def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete keys. Return those that did not exist."""


class ResourceGroups(Protocol):
    """Resource groups: bundles of resources that are granted all together or not at all."""

    def create(self, name: str, bundles: list[dict[str, float]], strategy: str) -> ObjectRef:
        """Request the bundles of a group. Return an object that is available once all are granted.

        Raises:
            TypeError, ValueError, YRequestError: the group cannot be, or there is one of this name (1001).
        """

    def remove(self, name: str) -> None:
        """Release the bundles of a group; instances and functions that use it end.

        Raises:
            YRRuntimeError: there is no such group.
        """

    def is_there(self, name: str) -> bool:
        """True if there is a group of this name that has all its bundles."""

    def table(self, name: str | None = None) -> dict[str, Any]:
        """State, strategy and bundles of each group by name, or of one.

        Raises:
            YRRuntimeError: there is no such group.
        """


class InstanceGroups(Protocol):
    """Groups of instances that start all or none."""

    def start(self, name: str, options: GroupOptions, bundle_size: int = 1) -> ObjectRef:
        """Start all members of a group or none. Return an object that is available once they run.

        Args:
            name: of the group.
            options: time limit, life cycle and strategy of its members.
            bundle_size: number of members, one after the other, that go to one node.

        Raises:
            ValueError: a timeout or strategy that cannot be.
            YRequestError: nobody has joined the group, or it has started before (1010).
        """

    def terminate(self, name: str) -> ObjectRef | None:
        """End all members. Return an object that is available once they are gone; None if there is no such group."""

    def waited(self, name: str) -> ObjectRef:
        """Return the object that is available once all members of a group run.

        Raises:
            YRRuntimeError: there is no such group.
        """


class Forwarded:
    """Proxy of a part of a backend in another process: every call is sent to `Backend.perform` there.

    Args:
        part: the attribute of the other process's backend.
        send: is given the arguments of `Backend.perform`, and returns the result.
    """

    def __init__(self, part: str, send: Callable[[str, str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._part = part
        self._send = send

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments, **keywords: self._send(self._part, method, arguments, keywords)


class Backend(ObjectBackend):
    """Runs functions and instances. Every wait has a limit; its error says what was waited for.

    Attributes:
        job_id: names the session.
        pairs: its key-value pairs.
        resource_groups: its resource groups.
        groups: its groups of instances.
    """

    job_id: str
    pairs: KeyValuePairs
    resource_groups: ResourceGroups
    groups: InstanceGroups

    # Functions and instances

    @abstractmethod
    def invoke(
        self,
        code: Code,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        options: InvokeOptions,
        returns: int | None,
    ) -> Any:
        """Call a function: a reference, a list of them for several `returns`, None for none, or for a generator
        (`returns` None) an iterator of references."""

    @abstractmethod
    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance: its id, at once. What goes wrong with it is raised where a result of it is fetched."""

    @abstractmethod
    def call(
        self, instance: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int | None
    ) -> Any:
        """Call a method of an instance; the result as for `invoke`."""

    @abstractmethod
    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""

    def unreferenced(self, instance: str) -> None:
        """Note that a handle to an instance was deleted. Called at any time, in any thread: the work is deferred."""

    @abstractmethod
    def is_alive(self, instance: str) -> bool:
        """True if the instance exists."""

    @abstractmethod
    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """The id and class of a named instance."""

    # The session

    @abstractmethod
    def resources(self) -> list[dict[str, Any]]:
        """Each node with its capacity and what is free of it; see `yr.resources`."""

    @abstractmethod
    def list_instances(self) -> list[dict[str, Any]]:
        """The living instances; see `yr.list_instances`."""

    @abstractmethod
    def list_named_instances(self, all_namespaces: bool) -> list[Any]:
        """Names of the living instances that have one; see `yr.list_named_instances`."""

    @abstractmethod
    def this_node(self) -> dict[str, str]:
        """The "id" and "ip" of this node, and the "namespace" of named instances that name none."""

    def perform(self, part: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Execute a call that another process requested.

        Args:
            part: attribute whose method it is; "" for the backend's own.
            method: its name.
            arguments, keywords: as of the method.
        """
        found = _PARTS.get(part)
        if found is None or method.startswith("_") or method not in vars(found):
            raise YRRuntimeError(f"{part}.{method} is not part of a backend", CODES["incorrect usage"])
        return getattr(getattr(self, part) if part else self, method)(*arguments, **keywords)

    # For the instance of this process

    def save_state(self) -> None:
        """Save the state of the instance of this process.

        Raises:
            YRRuntimeError: there is none.
        """
        self._refuse("save_state")

    def load_state(self) -> None:
        """Restore the instance of this process to the state that was saved last.

        Raises:
            YRRuntimeError: there is no instance, or no state was saved.
        """
        self._refuse("load_state")

    @staticmethod
    def _refuse(what: str) -> NoReturn:
        raise YRRuntimeError(f"{what} is only supported on cloud with posix api", CODES["incorrect usage"])

    def function_group_context(self) -> tuple[int, int, list[tuple[str, str, tuple[int, ...]]]] | None:
        """Rank of the instance of this process in its function group, its size, and of each member host, card type
        and numbers of its cards; None outside of one."""
        return None

    @abstractmethod
    def finalize(self) -> None:
        """End every instance and free every object of the session."""


_PARTS: dict[str, type] = {
    "": Backend, "pairs": KeyValuePairs, "resource_groups": ResourceGroups, "groups": InstanceGroups,
}  # fmt: skip
