"""What a session offers beside calls: resources and where they come from, key-value pairs, saved state, groups."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from toprope.functions.affinity import Wishes, instance_labels
from toprope.functions.claims import Claims
from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.groups import BUNDLE
from toprope.functions.holders import held_by
from toprope.functions.ledger import Grant, Ledger, Node, Shortage
from toprope.functions.local.groups import Groups
from toprope.functions.local.process import Process
from toprope.functions.local.resource_groups import ResourceGroups
from toprope.functions.options import InvokeOptions
from toprope.functions.pairs import Pairs
from toprope.functions.resources import Request, check_keys
from toprope.functions.timers import Timer

if TYPE_CHECKING:
    from toprope.functions.local.instance import Instance
    from toprope.functions.local.session import Session

__all__ = ["Services"]

_log = logging.getLogger("toprope")


class Asker(Protocol):
    """Who asks for resources.

    Attributes:
        ledger: where from; "" for the machine's own.
        asked: the number of the request there.
    """

    ledger: str
    asked: int


LOOK = 0.1
"""Seconds between looks whether another program has given back what is waited for."""


class Services:
    """The services of a session. `serve` is the only method that does not hold its lock."""

    def __init__(self, session: Session, claims: Claims | None) -> None:
        self._session = session
        self._claims = claims
        self._look: Timer | None = None
        self._ledgers: dict[str, Ledger] = {"": session.ledger}
        self._waiting: dict[tuple[str, int], tuple[Any, Callable[[Any, Grant], None]]] = {}
        self._serving = False
        self._pairs = Pairs()
        self._resource_groups = ResourceGroups(session, self._ledgers)
        self._groups = Groups(session)
        self._operations: Mapping[str, Callable[..., Any]] = {
            "kv_set_all": self._kv_set_all,
            "kv_get": self._kv_get,
            "kv_del": self._kv_del,
            "resources": self._resources,
            "instances": self._instances,
            "list_named_instances": self._list_named,
            "save_state": self._save_state,
            "load_state": self._load_state,
            "instance_options": self._instance_options,
            "node": self._node,
            "create_resource_group": self._resource_groups.create,
            "remove_resource_group": self._resource_groups.remove,
            "resource_group_table": self._resource_groups.table,
            "start_group": self._groups.start,
            "terminate_group": self._groups.terminate,
            "wait_group": self._groups.waited,
            "function_group_context": self._function_group_context,
        }

    # Resources

    def place(
        self, asker: Any, request: Request, options: InvokeOptions, granted: Callable[[Any, Grant], None]
    ) -> None:
        """Ask for resources; `granted` is called with them when they are there."""
        asker.ledger = self.ledger_name(options)
        on, rank = self._choice(options)
        asker.asked = self.ledger_of(asker).ask(request, on, rank)
        self.expect(asker.ledger, asker.asked, asker, granted)

    def expect(self, ledger: str, number: int, asker: Any, granted: Callable[[Any, Grant], None]) -> None:
        """`granted` is called with the grant of this number when it is there."""
        self._waiting[ledger, number] = asker, granted

    def forget(self, ledger: str, number: int) -> None:
        """Nobody waits for the grant of this number any more."""
        self._waiting.pop((ledger, number), None)

    def ledger_name(self, options: InvokeOptions) -> str:
        """The name of the ledger that options point to.

        Raises:
            YRequestError: there is no such resource group, or no such bundle in it (1001).
        """
        return self._resource_groups.ledger_for(options)

    def ledger(self, name: str) -> Ledger:
        """A ledger by its name, "" for the machine's."""
        return self._ledgers[name]

    def check(self, instance: Instance) -> None:
        """Refuse a resource group or affinities that cannot be.

        Raises:
            ValueError, YRequestError: the message names what cannot be.
        """
        Wishes(instance.options)
        self.check_keys(instance.request)
        instance.ledger = self.ledger_name(instance.options)

    def check_keys(self, request: Request) -> None:
        """Refuse keys that are spelled as those of another scheduler.

        Raises:
            InvalidRequestError: this machine does not have them.
        """
        check_keys(request, (key for node in self._session.ledger.nodes for key in node.scalars))

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
                self._resource_groups.settle()
                for name, ledger in list(self._ledgers.items()):
                    for grant in self._granted(ledger):
                        again = True
                        asker, granted = self._waiting.pop((name, grant.number))
                        granted(asker, grant)
        finally:
            self._serving = False
        if self._claims is not None and self._session.ledger.is_waited_for and self._look is None:
            self._look = self._session.reactor.after(LOOK, self._look_again)

    def _granted(self, ledger: Ledger) -> tuple[Grant, ...]:
        if self._claims is None or ledger is not self._session.ledger:
            return ledger.serve()
        with self._claims.known(ledger, self._session.node):
            return ledger.serve()

    def _look_again(self) -> None:
        """Another program may have given cards back."""
        with self._session.lock:
            self._look = None
            self.serve_ledger()

    def end(self) -> None:
        """The session has ended: other programs may have its cards."""
        if self._claims is not None:
            self._claims.forget()

    def withdraw(self, asker: Asker) -> None:
        """Somebody does not wait for resources any more."""
        if self._waiting.pop((asker.ledger, asker.asked), None) is not None:
            self.ledger_of(asker).withdraw(asker.asked)

    def shortage_of(self, asker: Asker, request: Request) -> str:
        """Reason of a shortage, with the holders of what there is."""
        found = self.shortage_for(asker, request)
        return found.text + (self._held(asker.ledger) if found.ever and not found.is_affinity else "")

    def _held(self, ledger: str) -> str:
        """Holders of the resources of a ledger, in words."""
        instances = self._session.instances
        of_ledger = {each.id for each in instances.living() if each.ledger == ledger}
        holders = [each for each in instances.holders() if each.id in of_ledger]
        return held_by([*holders, *self._session.pools.holders(ledger)])

    def _instances(self, process: Process | None) -> list[dict[str, Any]]:
        return [each.as_dict() for each in self._session.instances.holders()]

    def shortage_for(self, asker: Asker, request: Request) -> Shortage:
        """What somebody is short of."""
        options: InvokeOptions = asker.options  # type: ignore[attr-defined]
        return self.ledger_of(asker).shortage(request, self.filter(options))

    def warn_if_never(self, what: str, asker: Asker, request: Request) -> None:
        """Warn that a request can never be met by what is here. It waits all the same: more may come."""
        shortage = self.shortage_for(asker, request)
        if not shortage.ever:
            _log.warning("%s asks for what is not here: %s", what, shortage.text)

    def code_of_shortage(self, asker: Any, request: Request | None = None) -> int:
        """The code for not having got resources: 1006 where affinities exclude every node, else 1002."""
        request = asker.request if request is None else request
        shortage = self.shortage_for(asker, request)
        return CODES["resource config" if shortage.is_affinity else "resource not enough"]

    def shortage(self, instance: Instance) -> str:
        """Why an instance has not got its resources."""
        return self.shortage_of(instance, instance.request)

    def filter(self, options: InvokeOptions) -> Callable[[Node], bool] | None:
        """Which nodes the options allow; None for all."""
        return self._choice(options)[0]

    def _choice(
        self, options: InvokeOptions
    ) -> tuple[Callable[[Node], bool] | None, Callable[[Node], tuple[int, ...]] | None]:
        """Which nodes the options allow, and which they would rather have."""
        bundle = options.resource_group_options.bundle_index
        wishes = Wishes(options)
        if bundle < 0 and not wishes:
            return None, None

        def allowed(node: Node) -> bool:
            if bundle >= 0 and node.labels.get(BUNDLE) != str(bundle):
                return False
            return not wishes or wishes.allow(node.labels, self._labels_on(node))

        def rank(node: Node) -> tuple[int, ...]:
            return wishes.rank(node.labels, self._labels_on(node))

        return allowed, rank if wishes else None

    def _labels_on(self, node: Node) -> list[Mapping[str, str]]:
        """The labels of each instance on the host of a node."""
        host = _host(node.id)
        return [
            instance_labels(each.options.labels)
            for each in self._session.instances.living()
            if each.grant is not None and _host(each.grant.node) == host
        ]

    # Instances

    def join_group(self, instance: Instance) -> None:
        """An instance that is to start with its group, where it has one.

        Raises:
            YRequestError: the group has started (1010).
        """
        if instance.options.group_name:
            self._groups.join(instance)

    def started(self, instance: Instance) -> None:
        """An instance is up."""
        if instance.group is not None:
            instance.group.started(instance)

    def of_group(self, instance: Instance) -> list[Instance]:
        """The instances that end with this one, itself included."""
        return [instance] if instance.group is None else list(instance.group.members)

    def member_gone(self, instance: Instance, error: BaseException, *, crashed: bool) -> None:
        """An instance has ended; its group may have to follow."""
        if instance.group is not None:
            instance.group.gone(instance, error, crashed=crashed)

    def member_freed(self, instance: Instance) -> None:
        """What an instance held is free."""
        if instance.group is not None:
            instance.group.freed()

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

    def _kv_set_all(self, process: Process | None, pairs: dict[str, bytes], only_new: bool, ttl: float) -> str:
        return self._pairs.set_all(pairs, time.monotonic(), only_new=only_new, ttl=ttl)

    def _kv_get(self, process: Process | None, keys: list[str]) -> list[bytes | None]:
        return self._pairs.get(keys, time.monotonic())

    def _kv_del(self, process: Process | None, keys: list[str]) -> list[str]:
        return self._pairs.delete(keys, time.monotonic())

    def _resources(self, process: Process | None) -> list[dict[str, Any]]:
        ledger = self._session.ledger
        return [
            {
                "id": node.id, "status": 0, "capacity": _amounts(node), "allocatable": _free(node, ledger),
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

    def _function_group_context(self, process: Process | None) -> Any:
        from toprope.functions.local.instance import Instance

        owner = None if process is None else process.owner
        if not isinstance(owner, Instance) or owner.group is None or owner.options.function_group_options is None:
            return None
        return self._groups.context(owner.group, owner)

    def _node(self, process: Process | None) -> dict[str, str]:
        (node,) = self._session.ledger.nodes
        namespace = self._session.config.ns or "yr_defalut_namespace"
        return {"id": node.id, "ip": node.labels.get("HOST_IP", ""), "namespace": namespace}

    def _owner_of(self, process: Process | None) -> Instance:
        from toprope.functions.local.instance import Instance

        owner = None if process is None else process.owner
        if not isinstance(owner, Instance):
            raise YRRuntimeError("save_state is only supported on cloud with posix api", CODES["incorrect usage"])
        return owner


def _host(node: str) -> str:
    """The host of a node: bundles are called host/number."""
    return node.partition("/")[0]


def _free(node: Node, ledger: Ledger) -> dict[str, float]:
    """What is free of each thing that the node has, 0 too."""
    return dict.fromkeys(_amounts(node), 0) | _amounts(ledger.free(node.id))


def _amounts(node: Node) -> dict[str, float]:
    amounts: dict[str, float] = {"CPU": node.cpu, "Memory": node.memory, **node.scalars}
    for card in node.cards:
        key = f"{card.vendor}/{card.model}"
        amounts[key] = amounts.get(key, 0) + 1
    return amounts
