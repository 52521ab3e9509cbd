"""Function groups of the yr API: N members that start together and know each other's ranks and cards.

For users (`yr.fcc`). The members are instances of one instance group (`api.proxies`); a backend only adds their ranks
(`function_group_context`). Names, sizes and the physical numbers of cards are openYuanrong's; the rank -1 outside
of a group is ours. The order of creation is the order of ranks and must stay; how a function becomes a member
(`_Member`) is free. Held by tests/functions/test_functions_fcc.py.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from toprope.functions import context
from toprope.functions.api.instance_groups import Group
from toprope.functions.api.proxies import FunctionProxy, InstanceCreator, InstanceProxy
from toprope.functions.backend import Code
from toprope.functions.objects import ObjectRef
from toprope.functions.options import FunctionGroupOptions, GroupOptions, InvokeOptions
from toprope.functions.scheduling.bundles import check_function_group

__all__ = [
    "DeviceInfo",
    "FunctionGroupContext",
    "FunctionGroupHandler",
    "FunctionGroupMethodProxy",
    "SchedulingAffinityType",
    "ServerInfo",
    "create_function_group",
    "get_function_group_context",
]


class SchedulingAffinityType:
    """Placement of the members of a bundle: consecutive members share a node. There is only this one."""

    REQUIRED_AFFINITY_IN_EACH_BUNDLE = 1


@dataclass
class DeviceInfo:
    """A card of a function group.

    Attributes:
        device_id: its number on its host, whatever mask the member that has it sees.
        device_ip: its address; "" where it is not known.
        rank_id: its place among all cards of the group; the member's own rank where each has one card.
    """

    device_id: int = 0
    device_ip: str = ""
    rank_id: int = 0


@dataclass
class ServerInfo:
    """A host with cards of a function group.

    Attributes:
        devices: these cards, by rank.
        server_id: the host.
    """

    devices: list[DeviceInfo] = field(default_factory=list)
    server_id: str = ""


@dataclass
class FunctionGroupContext:
    """Ranks and cards of a function group, as its members see them.

    Attributes:
        rank_id: the member's place, from 0; -1 outside a group.
        world_size: number of members; 0 outside a group.
        server_list: hosts and their cards; empty where the members have none.
        device_name: type of the cards, such as "NPU/910B4"; "" without.
    """

    rank_id: int = -1
    world_size: int = 0
    server_list: list[ServerInfo] = field(default_factory=list)
    device_name: str = ""


def create_function_group(
    wrapper: FunctionProxy | InstanceCreator, args: tuple[Any, ...], group_size: int, options: FunctionGroupOptions
) -> Any:
    """Start members of a function or a class together, all or none.

    Args:
        wrapper: what `@yr.invoke` or `@yr.instance` made.
        args: arguments of the function or the constructor, the same for each.
        group_size: how many, 1 to 256.
        options: resources of each, and how many go to one node (`scheduling_affinity_each_bundle_size`).

    Returns:
        For a function the references to what each member returns, by rank, or the reference where there is one; for a
        class a `FunctionGroupHandler`.

    Raises:
        ValueError: sizes or a timeout that cannot be.
        RuntimeError: the wrapper is neither.
    """
    bundle_size = options.scheduling_affinity_each_bundle_size
    check_function_group(group_size, bundle_size, options.timeout)
    if not isinstance(wrapper, FunctionProxy | InstanceCreator):
        raise RuntimeError("function is not wrapped by @yr.invoke or @yr.instance")
    if isinstance(wrapper, FunctionProxy) and wrapper._returns is None:
        raise NotImplementedError("a function group of a generator function is not part of toprope: use a class")
    name = f"function-group-{uuid.uuid4().hex[:12]}"
    chosen = _options(options, name)
    if isinstance(wrapper, FunctionProxy):
        creator, arguments = InstanceCreator(Code(_Member)), (wrapper._code.blob(),)
    else:
        creator, arguments = wrapper, tuple(args)
    handler = FunctionGroupHandler(name, [creator.options(chosen).invoke(*arguments) for _ in range(group_size)])
    timeout = -1 if options.timeout is None else options.timeout
    context.backend().groups.start(name, GroupOptions(timeout=timeout), bundle_size or 1)
    if isinstance(wrapper, FunctionProxy):
        return _results(handler, wrapper._returns or 0, args)
    return handler


def get_function_group_context() -> FunctionGroupContext:
    """Return the context of the calling member: its rank, and the cards of all members."""
    told = context.backend().function_group_context()
    return FunctionGroupContext() if told is None else context_of(*told)


def context_of(rank: int, size: int, members: list[tuple[str, str, tuple[int, ...]]]) -> FunctionGroupContext:
    """Build the context of a member.

    Args:
        rank: of the member.
        size: number of members.
        members: of each by rank its host, the type of its cards, and their numbers.
    """
    servers: dict[str, ServerInfo] = {}
    places = Counter[str]()
    for host, _, cards in members:
        for card in cards:
            server = servers.setdefault(host, ServerInfo(server_id=host))
            server.devices.append(DeviceInfo(card, "", places["cards"]))
            places["cards"] += 1
    return FunctionGroupContext(rank, size, list(servers.values()), next((name for _, name, _ in members if name), ""))


class FunctionGroupHandler:
    """The members of a function group. `handler.method.invoke(...)` calls each: a list of references by rank."""

    def __init__(self, name: str, instances: list[InstanceProxy]) -> None:
        self._name = name
        self._instances = instances

    @property
    def instances(self) -> list[InstanceProxy]:
        """The members by rank."""
        return list(self._instances)

    def __getattr__(self, name: str) -> FunctionGroupMethodProxy:
        if name.startswith("__"):
            raise AttributeError(name)
        return FunctionGroupMethodProxy([getattr(each, name) for each in self._instances])

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionGroupHandler, (self._name, self._instances)

    def terminate(self) -> None:
        """End all members."""
        Group(self._name).terminate()

    def accelerate(self) -> FunctionGroupHandler:
        """Return this group unchanged: its calls use sockets and shared memory of this machine already."""
        return self


class FunctionGroupMethodProxy:
    """A method of all members of a function group."""

    def __init__(self, methods: list[Any]) -> None:
        self._methods = methods

    def invoke(self, *arguments: Any, **keywords: Any) -> list[Any]:
        """Call the method of each member."""
        results: list[Any] = []
        for method in self._methods:
            made = method.invoke(*arguments, **keywords)
            results.extend(made if isinstance(made, list) else [made])
        return results


class _Member:
    """Runs a function as a member of a group."""

    def __init__(self, blob: bytes) -> None:
        self._function = pickle.loads(blob)

    def run(self, *arguments: Any) -> Any:
        """Run the group's function in this member."""
        return self._function(*arguments)


def _options(options: FunctionGroupOptions, name: str) -> InvokeOptions:
    chosen = InvokeOptions(group_name=name, function_group_options=options)
    chosen.custom_resources = dict(options.resources)
    chosen.recover_retry_times = options.recover_retry_times
    for each in ("cpu", "memory", "concurrency"):
        if getattr(options, each) is not None:
            setattr(chosen, each, getattr(options, each))
    return chosen


def _results(handler: FunctionGroupHandler, returns: int, args: tuple[Any, ...]) -> ObjectRef | list[ObjectRef]:
    """Call the function in each member, and end the members when all have returned."""
    backend = context.backend()
    refs: list[ObjectRef] = []
    for each in handler.instances:
        made = backend.call(each.real_id(), "run", tuple(args), {}, returns or 1)
        refs.extend(made if isinstance(made, list) else [made])
    left = Counter(refs=len(refs))
    lock = threading.Lock()

    def done(_: ObjectRef) -> None:
        with lock:
            left["refs"] -= 1
            last = not left["refs"]
        if last:
            try:
                handler.terminate()
            except RuntimeError:
                pass  # the session has ended, and the members with it

    for ref in refs:
        ref.on_complete(done)
    if not returns:
        return []
    return refs[0] if len(refs) == 1 else refs
