"""Placement of instances on Ray's nodes, and the time limits of their requests, which Ray does not have.

`ray.instances` and `ray.functions` ask it for Ray's options of a request, and have it watch the request. Ray itself
grants the resources. A request fails late only if it had no room: one that Ray has granted may still wait for its
process. Intervals are free. Tests: tests/functions/test_functions_ray_parts.py, and (slow)
tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import CODES
from toprope.functions.lifecycle import too_late
from toprope.functions.options import InvokeOptions
from toprope.functions.ray.instance_record import Record
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.nodes.cluster_view import (
    Seen,
    allowed_nodes,
    fits,
    has_bundle_room,
    node_of,
    selector,
    shortage,
    smallest_hbm,
)
from toprope.functions.ray.nodes.resource_mapping import amounts
from toprope.functions.ray.scheduling.resource_groups import ResourceGroups
from toprope.functions.scheduling.affinity import Wishes, instance_labels
from toprope.functions.scheduling.holders import held_by
from toprope.functions.scheduling.nodes import Node
from toprope.functions.scheduling.requests import Request, check_keys

if TYPE_CHECKING:
    from toprope.functions.ray.objects import RayObjects

__all__ = ["Asked", "Placing"]

_log = logging.getLogger("toprope")

_LOOK = 0.25
_HINT = 1.0


class Placing:
    """Chooses nodes for requests, and fails requests at their time limit.

    Args:
        backend: of the process.
        leave: ends the instances of a resource group that is removed.
    """

    def __init__(self, backend: RayObjects, leave: Callable[[str, BaseException], None]) -> None:
        self._backend = backend
        self.resource_groups = ResourceGroups(backend, leave)
        self._waiting: dict[int, Request] = {}  # requests without resources so far

    def check(self, request: Request, options: InvokeOptions) -> None:
        """Refuse resources, a resource group or affinities that cannot be.

        Raises:
            ValueError, YRequestError: the message names what cannot be.
        """
        if any("/" in key for key in request.scalars):
            check_keys(request, (key for seen in self._view() for key in node_of(seen).scalars))
        Wishes(options)
        self.resource_groups.check(options)

    def options(self, request: Request, options: InvokeOptions) -> dict[str, Any]:
        """Return Ray's options for the resources and the placement of a request."""
        group = self.resource_groups.strategy_for(options)
        wishes = Wishes(options)
        needs_view = bool(wishes) or any(each.model != ".+" or each.hbm for each in request.cards)
        if not needs_view:
            return {**amounts(request, {}).options(), **group}
        nodes = self._view()
        on, rank = self._wishes(wishes)
        allowed = allowed_nodes(nodes, request, on)
        asked = amounts(request, smallest_hbm(nodes if allowed is None else allowed)).options()
        if group or allowed is None:
            return {**asked, **group}
        best = self._best(allowed, request, rank) if rank is not None else allowed
        return {**asked, "label_selector": selector(best)}

    def shortage(self, request: Request, options: InvokeOptions) -> tuple[str, int]:
        """Return why a request has not been met, and its error code."""
        on, _ = self._wishes(Wishes(options))
        found = shortage(self._view(), request, on)
        group = options.resource_group_options.resource_group_name
        if group and not found.reasons:  # the nodes have room, which says nothing of the group's
            text = f"resource group {group} has no room for it, or its process has not begun in time. "
            return f"{text}do: end what uses the group, or a longer schedule_timeout_ms", CODES["resource not enough"]
        held = (
            held_by(each for each in self._backend.ask(Manager.holders) if each.pid)
            if found.reasons and found.ever and not found.is_affinity
            else ""
        )
        return found.explained + held, CODES["resource config" if found.is_affinity else "resource not enough"]

    def watch(self, record: Record, fail: Callable[[Record, BaseException], None]) -> None:
        """Fail an instance that does not get its resources in time.

        Args:
            record: the instance.
            fail: called with the error then.
        """
        watched = _Watched(self, record, fail)
        self._waiting[id(record)] = record.request
        self._backend.clock.after(_HINT, watched.hint)
        if watched.limit >= 0:
            self._backend.clock.after(watched.limit / 1000, watched.late)

    def asked(self, request: Request, options: InvokeOptions) -> Asked:
        """Return the record of a request that Ray is given now, behind those that wait already."""
        on, _ = self._wishes(Wishes(options))
        bundles = self.resource_groups.bundle_for(options)
        return Asked(self._backend, request, on, bundles, list(self._waiting.values()))

    def stop_watching(self, record: Record) -> None:
        """Stop watching an instance: it has its resources, or waits no longer."""
        self._waiting.pop(id(record), None)

    def _view(self) -> list[Seen]:
        nodes: list[Seen] = self._backend.ask(Manager.view)
        return nodes

    def _wishes(self, wishes: Wishes) -> tuple[Callable[[Node], bool] | None, Callable[[Node], tuple[int, ...]] | None]:
        if not wishes:
            return None, None
        told = self._backend.ask(Manager.neighbours)
        there = {node: [instance_labels(labels) for labels in each] for node, each in told.items()}

        def allowed(node: Node) -> bool:
            return wishes.allow(node.labels, there.get(node.id, []))

        def rank(node: Node) -> tuple[int, ...]:
            return wishes.rank(node.labels, there.get(node.id, []))

        return allowed, rank

    @staticmethod
    def _best(nodes: list[Seen], request: Request, rank: Callable[[Node], tuple[int, ...]]) -> list[Seen]:
        """Return the preferred nodes among those with room now; all nodes if none has room."""
        free = [seen for seen in nodes if fits([seen], request)]
        if not free:
            return nodes
        best = min(rank(node_of(seen)) for seen in free)
        return [seen for seen in free if rank(node_of(seen)) == best]


class Asked:
    """A request to Ray, and whether there was room for it, so that it only waits for a process.

    Ray tells that an instance has its resources only by running it. Until then what it was given counts as taken, and
    would pass for a shortage.

    Args:
        backend: of the process.
        request: the resources.
        on: the nodes that affinities allow; None for all.
        bundles: Ray's names of the bundles that they are to come from, any of them; None for the nodes themselves.
        before: requests that wait already.
    """

    def __init__(
        self,
        backend: RayObjects,
        request: Request,
        on: Callable[[Node], bool] | None,
        bundles: Sequence[str] | None,
        before: Sequence[Request],
    ) -> None:
        self._backend = backend
        self._request = request
        self._on = on
        self._bundles = bundles
        self._before = before
        self._began = time.monotonic()
        self._seen = backend.manager.view.remote()
        self._room: bool | None = None

    @property
    def may_begin(self) -> bool:
        """True while a process for it may still be on its way.

        A process that does not register with Ray in Ray's own time is ended by Ray.
        """
        return time.monotonic() - self._began < self._backend.registration and self._had_room()

    def nodes_then(self) -> list[Seen]:
        """The nodes at the time of the request."""
        nodes: list[Seen] = self._backend.ray.get(self._seen)
        return nodes

    def _had_room(self) -> bool:
        """True if there was room for it at the time of the request, and for all earlier requests."""
        if self._room is None:
            nodes = [each for each in self.nodes_then() if self._on is None or self._on(node_of(each))]
            if self._bundles is None:
                self._room = fits(nodes, self._request, self._before)
            else:
                self._room = has_bundle_room(nodes, self._request, self._bundles)
        return self._room


class _Watched:
    """An instance that waits for its resources.

    Args:
        placing: who watches.
        record: the instance.
        fail: called where it is too late.
    """

    def __init__(self, placing: Placing, record: Record, fail: Callable[[Record, BaseException], None]) -> None:
        self._placing = placing
        self._record = record
        self._fail = fail
        self._backend = placing._backend
        self._asked = placing.asked(record.request, record.options)
        self.limit = record.options.schedule_timeout_ms

    def hint(self) -> None:
        """Log that the cluster, as it is, can never meet a request."""
        if self._no_longer_waits():
            return
        found = shortage(self._asked.nodes_then(), self._record.request)
        if not found.ever:
            _log.warning("instance %s can never be met by the existing nodes: %s", self._record.id, found.explained)

    def late(self) -> None:
        """Fail the instance: its time limit was reached."""
        if self._no_longer_waits():
            return
        if self._asked.may_begin:
            self._backend.clock.after(_LOOK, self.late)
            return
        self._placing.stop_watching(self._record)
        why, code = self._placing.shortage(self._record.request, self._record.options)
        self._fail(self._record, too_late(self.limit, why, code))

    def _no_longer_waits(self) -> bool:
        record = self._record
        ended = record.error is not None or self._backend.ask(Manager.placed, record.id) is not None
        if ended:
            self._placing.stop_watching(record)
        return ended
