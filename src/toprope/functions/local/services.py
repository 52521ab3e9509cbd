"""What a session offers beside calls: resources and where they come from, key-value pairs, saved state, groups."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.ledger import Grant, Ledger, Node
from toprope.functions.local.process import Process
from toprope.functions.options import AffinityKind, AffinityType, InvokeOptions
from toprope.functions.resources import Request

if TYPE_CHECKING:
    from toprope.functions.local.instance import Instance
    from toprope.functions.local.session import Session

__all__ = ["Services"]


class Asker(Protocol):
    """Who asks for resources.

    Attributes:
        ledger: where from; "" for the machine's own.
        asked: the number of the request there.
    """

    ledger: str
    asked: int


class Services:
    """The services of a session. `serve` is the only method that does not hold its lock."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ledgers: dict[str, Ledger] = {"": session.ledger}
        self._waiting: dict[tuple[str, int], tuple[Any, Callable[[Any, Grant], None]]] = {}
        self._serving = False
        self._pairs: dict[str, bytes] = {}
        self._operations: Mapping[str, Callable[..., Any]] = {
            "kv_set": self._kv_set,
            "kv_get": self._kv_get,
            "kv_del": self._kv_del,
            "resources": self._resources,
            "list_named_instances": self._list_named,
            "save_state": self._save_state,
            "load_state": self._load_state,
            "instance_options": self._instance_options,
        }

    # Resources

    def place(
        self, asker: Any, request: Request, options: InvokeOptions, granted: Callable[[Any, Grant], None]
    ) -> None:
        """Ask for resources; `granted` is called with them when they are there."""
        group = options.resource_group_options
        asker.ledger = group.resource_group_name or ""
        ledger = self.ledger_of(asker)
        asker.asked = ledger.ask(request, self._filter(options))
        self._waiting[asker.ledger, asker.asked] = asker, granted

    def ledger_of(self, asker: Asker) -> Ledger:
        """Where somebody's resources come from.

        Raises:
            YRRuntimeError: there is no such resource group.
        """
        found = self._ledgers.get(asker.ledger)
        if found is None:
            raise YRRuntimeError(f"there is no resource group {asker.ledger}", CODES["invalid parameter"])
        return found

    def serve_ledger(self) -> None:
        """Hand out what is free to those who wait, in turn."""
        if self._serving or self._session.ended:
            return  # who serves sees what has just been given back
        self._serving = True
        try:
            again = True
            while again:
                again = False
                for name, ledger in list(self._ledgers.items()):
                    for grant in ledger.serve():
                        again = True
                        asker, granted = self._waiting.pop((name, grant.number))
                        granted(asker, grant)
        finally:
            self._serving = False

    def withdraw(self, asker: Asker) -> None:
        """Somebody does not wait for resources any more."""
        if self._waiting.pop((asker.ledger, asker.asked), None) is not None:
            self.ledger_of(asker).withdraw(asker.asked)

    def shortage_of(self, asker: Asker, request: Request) -> str:
        """Why somebody has not got resources."""
        options: InvokeOptions = asker.options  # type: ignore[attr-defined]
        return self.ledger_of(asker).shortage(request, self._filter(options)).text

    def shortage(self, instance: Instance) -> str:
        """Why an instance has not got its resources."""
        return self.shortage_of(instance, instance.request)

    def _filter(self, options: InvokeOptions) -> Callable[[Node], bool] | None:
        """Which nodes the options allow; None for all."""
        bundle = options.resource_group_options.bundle_index
        wanted = [
            each for each in options.schedule_affinities
            if each.affinity_kind == AffinityKind.RESOURCE
            and each.affinity_type in (AffinityType.REQUIRED, AffinityType.REQUIRED_ANTI)
        ]  # fmt: skip
        if bundle < 0 and not wanted:
            return None

        def allowed(node: Node) -> bool:
            if bundle >= 0 and node.labels.get("bundle") != str(bundle):
                return False
            return not wanted or any(
                each.holds(node.labels) == (each.affinity_type == AffinityType.REQUIRED) for each in wanted
            )

        return allowed

    # Instances

    def started(self, instance: Instance) -> None:
        """An instance is up."""
        if instance.group is not None:
            instance.group.started(instance)

    def join_group(self, instance: Instance) -> None:
        """An instance that is to start with its group."""
        raise NotImplementedError("groups of instances")

    def of_group(self, instance: Instance) -> list[Instance]:
        """The instances that end with this one, itself included."""
        return [instance] if instance.group is None else list(instance.group.members)

    def member_gone(self, instance: Instance, *, crashed: bool) -> None:
        """An instance is gone; its group may have to follow."""
        if instance.group is not None:
            instance.group.gone(instance, crashed=crashed)

    def python_path(self) -> list[str]:
        """What goes in front of the workers' sys.path: what this process can import from."""
        return [*self._session.config.load_paths, *(each for each in sys.path if each)]

    # Operations

    def serve(self, operation: str, arguments: tuple[Any, ...], process: Process | None) -> Any:
        """Do what is asked by name.

        Args:
            operation: one of the names above.
            arguments: of the operation.
            process: the worker that asks; None for the driver.

        Raises:
            YRRuntimeError: there is no such operation.
        """
        found = self._operations.get(operation)
        if found is None:
            raise YRRuntimeError(f"{operation} is not part of this backend", CODES["incorrect usage"])
        with self._session.lock:
            return found(process, *arguments)

    def _kv_set(self, process: Process | None, key: str, value: bytes, only_new: bool) -> None:
        if only_new and key in self._pairs:
            raise YRRuntimeError(f"the key {key} exists", 4206, 30)
        self._pairs[key] = value

    def _kv_get(self, process: Process | None, keys: list[str]) -> list[bytes | None]:
        return [self._pairs.get(key) for key in keys]

    def _kv_del(self, process: Process | None, keys: list[str]) -> list[str]:
        return [key for key in keys if self._pairs.pop(key, None) is None]

    def _resources(self, process: Process | None) -> list[dict[str, Any]]:
        ledger = self._session.ledger
        return [
            {
                "id": node.id, "status": 0, "capacity": _amounts(node), "allocatable": _amounts(ledger.free(node.id)),
                "labels": dict(node.labels),
            }
            for node in ledger.nodes
        ]  # fmt: skip

    def _list_named(self, process: Process | None, all_namespaces: bool) -> list[Any]:
        named = self._session.instances.named()
        if all_namespaces:
            return [{"namespace": namespace, "name": name} for namespace, name in named]
        default = self._session.config.ns or "yr_defalut_namespace"
        return [name for namespace, name in named if namespace == default]

    def _save_state(self, process: Process | None, state: bytes) -> None:
        self._owner_of(process).saved = state

    def _load_state(self, process: Process | None) -> bytes | None:
        return self._owner_of(process).saved

    def _instance_options(self, process: Process | None) -> tuple[str, InvokeOptions]:
        instance = self._owner_of(process)
        return instance.id, instance.options

    def _owner_of(self, process: Process | None) -> Instance:
        from toprope.functions.local.instance import Instance

        owner = None if process is None else process.owner
        if not isinstance(owner, Instance):
            raise YRRuntimeError("save_state is only supported on cloud with posix api", CODES["incorrect usage"])
        return owner


def _amounts(node: Node) -> dict[str, float]:
    amounts: dict[str, float] = {"CPU": node.cpu, "Memory": node.memory, **node.scalars}
    for card in node.cards:
        key = f"{card.vendor}/{card.model}"
        amounts[key] = amounts.get(key, 0) + 1
    return amounts
