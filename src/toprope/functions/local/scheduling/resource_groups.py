"""Resource groups of a local session: the machine's ledger grants their bundles; each group has its own ledger.

A part of the scheduler; implements the backend's `ResourceGroups`, whose methods take the session's lock (`locked`).
Rules and messages are `scheduling.bundles`'s; the keys of `table` are ours, and users' programs read them.
`ray.scheduling.resource_groups` does the same on Ray. Tests: tests/functions/test_functions_resource_groups.py.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from toprope.functions.exceptions import CODES, YRequestError, YRRuntimeError
from toprope.functions.local.object_store import DONE
from toprope.functions.local.process import locked
from toprope.functions.objects import Entry, ObjectRef
from toprope.functions.options import InvokeOptions
from toprope.functions.scheduling.bundles import (
    bundle_node,
    check_name,
    check_strategy,
    chosen_groups,
    parse_bundles,
    rest_of_cards,
    why_not_together,
)
from toprope.functions.scheduling.ledger import Grant, Ledger
from toprope.functions.scheduling.requests import Request

if TYPE_CHECKING:
    from toprope.functions.local.session_state import SessionState

__all__ = ["ResourceGroups"]

_log = logging.getLogger("toprope")


@dataclass(eq=False)
class _Group:
    """A resource group of this session: its bundles, its request and its own ledger.

    Attributes:
        name: what users call it.
        ledger: unique name of its ledger; the group's own name may be used again.
        requests: its bundles.
        strategy: how they lie on nodes.
        numbers: of the requests for them.
        grants: the bundles that it has, by these numbers.
        ready: done when it has all bundles.
    """

    name: str
    ledger: str
    requests: tuple[Request, ...]
    strategy: str
    numbers: tuple[int, ...] = ()
    grants: dict[int, Grant] = field(default_factory=dict)
    ready: Entry = field(default_factory=Entry)


class Queue(Protocol):
    """The part of the scheduler that groups use; see `Scheduler`."""

    def expect(self, ledger: str, number: int, asker: _Group, granted: Callable[[_Group, Grant], None]) -> None:
        """Register `granted`, which is called with the grant of this number."""

    def forget(self, ledger: str, number: int) -> None:
        """Remove the callback for the grant of this number."""

    def serve(self) -> None:
        """Grant free resources to the queued requests, in order."""


class ResourceGroups:
    """The resource groups of a session. The caller holds its lock.

    Args:
        session: the session.
        ledgers: the ledgers by name, "" for the machine's; those of the groups are added.
        queue: the scheduler.
    """

    def __init__(self, session: SessionState, ledgers: dict[str, Ledger], queue: Queue) -> None:
        self._session = session
        self._ledgers = ledgers
        self._queue = queue
        self._groups: dict[str, _Group] = {}
        self._leaving: list[_Group] = []
        self._numbers = itertools.count(1)

    @locked
    def create(self, name: str, bundles: list[dict[str, float]], strategy: str) -> ObjectRef:
        """Request the bundles of a group. Return an object that is available once all are granted.

        Raises:
            TypeError, ValueError, YRequestError: the group cannot be, or there is one of this name (1001).
        """
        check_name(name)
        requests, strategy = parse_bundles(bundles), check_strategy(strategy)
        if name in self._groups:
            raise YRequestError(f"resource group name exists, name: {name}", CODES["invalid parameter"], 10)
        group = self._groups[name] = _Group(name, f"{name} #{next(self._numbers)}", requests, strategy)
        self._ledgers[group.ledger] = Ledger()
        machine = self._session.ledger
        group.numbers = machine.ask_together(requests, strategy)
        for number in group.numbers:
            self._queue.expect("", number, group, self._granted)
        self._queue.serve()
        if not group.ready.done and not machine.could_ever(group.numbers[0]):
            _log.warning("resource group %s can never be met here: %s", name, self.shortage(group))
        return ObjectRef(self._session, group.ready)

    def ledger_for(self, options: InvokeOptions) -> str:
        """The name of the ledger that options point to, "" for the machine's.

        Raises:
            YRequestError: there is no such group, or it has no such bundle (1001).
        """
        wanted = options.resource_group_options
        if not wanted.resource_group_name:
            return ""
        group = self._groups.get(wanted.resource_group_name)
        if group is None:
            raise YRequestError(
                f"there is no resource group {wanted.resource_group_name}", CODES["invalid parameter"], 10
            )
        if not -1 <= wanted.bundle_index < len(group.requests):
            raise YRequestError(
                f"invalid resource group options, bundle index: {wanted.bundle_index}, please set the bundle index "
                f"range between -1 and {len(group.requests) - 1}",
                CODES["invalid parameter"],
                10,
            )
        return group.ledger

    @locked
    def remove(self, name: str) -> None:
        """Release the bundles of a group, after the end of the instances and functions that use it.

        Raises:
            YRRuntimeError: there is no such group.
        """
        group = self._groups.pop(name, None)
        if group is None:
            raise YRRuntimeError(f"there is no resource group {name}", CODES["invalid parameter"])
        session = self._session
        error = YRRuntimeError(f"resource group {name} was removed", CODES["instance exited"])
        if not group.ready.done:
            for number in group.numbers:
                self._queue.forget("", number)
            session.ledger.withdraw(group.numbers[0])
            group.ready.finish(None, error)
        self._leaving.append(group)
        session.leave(group.ledger, error)
        self._queue.serve()

    def release_removed(self) -> None:
        """Release the bundles of removed groups that are no longer in use."""
        for group in list(self._leaving):
            if not self._ledgers[group.ledger].grants:
                self._leaving.remove(group)
                del self._ledgers[group.ledger]
                for number in group.grants:
                    self._session.ledger.release(number)

    @locked
    def is_there(self, name: str) -> bool:
        """True if there is a group of this name that has all its bundles."""
        return name in self._groups and self._groups[name].ready.done

    @locked
    def table(self, name: str | None = None) -> dict[str, Any]:
        """Return the state of each group, or of one.

        Raises:
            YRRuntimeError: there is no such group.
        """
        return {group.name: self._state_of(group) for group in chosen_groups(self._groups, name)}

    def shortage(self, group: _Group) -> str:
        """Return the reason why a group does not have its bundles."""
        ledger = self._session.ledger
        return why_not_together([ledger.shortage(each) for each in group.requests], group.strategy, len(ledger.nodes))

    def _granted(self, group: _Group, grant: Grant) -> None:
        group.grants[grant.number] = grant
        if len(group.grants) < len(group.numbers):
            return
        ledger = self._ledgers[group.ledger]
        hosts = {node.id: node for node in self._session.ledger.nodes}
        for index, number in enumerate(group.numbers):
            held = group.grants[number]
            node = bundle_node(index, hosts[held.node], held)
            ledger.add(node)
            rest = rest_of_cards(node, held)
            if rest is not None:
                ledger.hold(node.id, rest)
        group.ready.finish(DONE)

    def _state_of(self, group: _Group) -> dict[str, Any]:
        state = "CREATED" if group.ready.done else "PENDING"
        bundles = [
            {"index": index, "cpu": request.cpu, "memory": request.memory, **_place(group.grants.get(number))}
            for index, (number, request) in enumerate(zip(group.numbers, group.requests, strict=True))
        ]
        told: dict[str, Any] = {"name": group.name, "state": state, "strategy": group.strategy, "bundles": bundles}
        if not group.ready.done:
            told["reason"] = self.shortage(group)
        return told


def _place(grant: Grant | None) -> dict[str, Any]:
    if grant is None:
        return {"node": "", "cards": {}}
    return {"node": grant.node, "cards": {vendor: list(ids) for vendor, ids in grant.cards.items()}}
