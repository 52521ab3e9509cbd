"""Resource groups on Ray: its placement groups, with the rules of the yr API.

A part of the scheduler on Ray; implements the backend's `ResourceGroups`, whose methods workers call by name. Rules and
messages are `scheduling.bundles`'s; states, tables and the names of resources in a bundle (`_group_0_...`) are Ray's.
`local.scheduling.resource_groups` does the same on one machine. Tests: tests/functions/test_functions_ray.py (slow).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import CODES, YRequestError, YRRuntimeError
from toprope.functions.objects import ObjectRef
from toprope.functions.options import InvokeOptions
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.nodes.cluster_view import allowed_nodes, selector, shortage, smallest_hbm
from toprope.functions.ray.nodes.resource_mapping import amounts
from toprope.functions.ray.refs import Entry
from toprope.functions.scheduling.bundles import (
    check_name,
    check_strategy,
    chosen_groups,
    parse_bundles,
    why_not_together,
)
from toprope.functions.scheduling.requests import Request

if TYPE_CHECKING:
    from toprope.functions.ray.objects import RayObjects

__all__ = ["ResourceGroups", "placement_group"]


@dataclass(eq=False)
class _Group:
    name: str
    requests: tuple[Request, ...]
    strategy: str
    placement: Any
    ready: Any


def placement_group(backend: RayObjects, requests: list[list[Request]], strategy: str, name: str) -> Any:
    """A placement group of Ray, one bundle for each of the lists of requests."""
    nodes = backend.ask(Manager.view)
    bundles, selectors = [], []
    for together in requests:
        bundle: dict[str, float] = {}
        wanted: dict[str, str] = {}
        for request in together:
            allowed = allowed_nodes(nodes, request)
            asked = amounts(request, smallest_hbm(nodes if allowed is None else allowed)).bundle()
            bundle = {key: bundle.get(key, 0) + asked.get(key, 0) for key in {*bundle, *asked}}
            if allowed is not None:
                wanted = selector(allowed)
        bundles.append(bundle)
        selectors.append(wanted)
    return backend.ray.util.placement_group(
        bundles, strategy=strategy or "PACK", name=name, bundle_label_selector=selectors if any(selectors) else None
    )


class ResourceGroups:
    """The resource groups that a process knows.

    Args:
        backend: of the process.
        leave: ends the instances of a group that is removed.
    """

    def __init__(self, backend: RayObjects, leave: Callable[[str, BaseException], None]) -> None:
        self._backend = backend
        self._leave = leave
        self._groups: dict[str, _Group] = {}

    def create(self, name: str, bundles: list[dict[str, float]], strategy: str) -> ObjectRef:
        """Request the bundles of a group. Return an object that is available once all are granted.

        Raises:
            TypeError, ValueError, YRequestError: the group cannot be, or there is one of this name (1001).
        """
        check_name(name)
        requests, strategy = parse_bundles(bundles), check_strategy(strategy)
        if self._find(name) is not None:
            raise YRequestError(f"resource group name exists, name: {name}", CODES["invalid parameter"], 10)
        made = placement_group(self._backend, [[each] for each in requests], strategy, name)
        group = self._groups[name] = _Group(name, requests, strategy, made, made.ready())
        return ObjectRef(self._backend, Entry(group.ready, f"resource group {name}"))

    def check(self, options: InvokeOptions) -> None:
        """Refuse a group that is not there, and a bundle that it does not have.

        Raises:
            YRequestError: with the code 1001.
        """
        wanted = options.resource_group_options
        if not wanted.resource_group_name:
            return
        found = self._find(wanted.resource_group_name)
        if found is None:
            raise YRequestError(
                f"there is no resource group {wanted.resource_group_name}", CODES["invalid parameter"], 10
            )
        if not -1 <= wanted.bundle_index < found.bundle_count:
            raise YRequestError(
                f"invalid resource group options, bundle index: {wanted.bundle_index}, please set the bundle index "
                f"range between -1 and {found.bundle_count - 1}",
                CODES["invalid parameter"],
                10,
            )

    def strategy_for(self, options: InvokeOptions) -> dict[str, Any]:
        """Ray's option for the group that options point to; nothing for none."""
        wanted = options.resource_group_options
        if not wanted.resource_group_name:
            return {}
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        found = self._find(wanted.resource_group_name)
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(found, wanted.bundle_index)}

    def bundle_for(self, options: InvokeOptions) -> list[str] | None:
        """Suffixes of the names of resources in the bundles that options point to; None for no group."""
        wanted = options.resource_group_options
        if not wanted.resource_group_name:
            return None
        found = self._find(wanted.resource_group_name)
        if found is None:
            return []
        some = range(found.bundle_count) if wanted.bundle_index == -1 else [wanted.bundle_index]
        return [f"_group_{index}_{found.id.hex()}" for index in some]

    def remove(self, name: str) -> None:
        """Remove a group; Ray ends the processes that use it.

        Raises:
            YRRuntimeError: there is no such group.
        """
        found = self._find(name)
        if found is None:
            raise YRRuntimeError(f"there is no resource group {name}", CODES["invalid parameter"])
        error = YRRuntimeError(f"resource group {name} was removed", CODES["instance exited"])
        self._leave(name, error)
        self._backend.ray.util.remove_placement_group(found)
        self._groups.pop(name, None)

    def is_there(self, name: str) -> bool:
        """True if there is a group of this name that has all its bundles."""
        found = self._find(name)
        if found is None:
            return False
        return self._backend.ray.util.placement_group_table(found)["state"] not in ("PENDING", "REMOVED")

    def table(self, name: str | None = None) -> dict[str, Any]:
        """Return the state of each group, or of one.

        Raises:
            YRRuntimeError: there is no such group.
        """
        return {group.name: self._state_of(group) for group in chosen_groups(self._groups, name)}

    def end(self) -> None:
        """Remove all groups: the session ends."""
        for group in self._groups.values():
            self._backend.ray.util.remove_placement_group(group.placement)
        self._groups.clear()

    def _find(self, name: str) -> Any:
        group = self._groups.get(name)
        if group is not None:
            return group.placement
        try:
            return self._backend.ray.util.get_placement_group(name)
        except ValueError:
            return None

    def _state_of(self, group: _Group) -> dict[str, Any]:
        told = self._backend.ray.util.placement_group_table(group.placement)
        created = told["state"] == "CREATED"
        where = told.get("bundles_to_node_id", {})
        bundles = [
            {"index": index, "cpu": each.cpu, "memory": each.memory, "node": where.get(index, "")}
            for index, each in enumerate(group.requests)
        ]
        said: dict[str, Any] = {
            "name": group.name, "state": "CREATED" if created else "PENDING", "strategy": group.strategy,
            "bundles": bundles,
        }  # fmt: skip
        if not created:
            said["reason"] = self._shortage(group)
        return said

    def _shortage(self, group: _Group) -> str:
        nodes = self._backend.ask(Manager.view)
        return why_not_together([shortage(nodes, each) for each in group.requests], group.strategy, len(nodes))
