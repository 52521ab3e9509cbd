"""Instance groups of a local session: members start all or none, and end together if requested.

A part of the scheduler; implements the backend's `InstanceGroups`, whose methods workers call by name. Decisions are
`lifecycle.GroupLife`'s; here its commands are carried out. `ray.scheduling.instance_groups` does the same on Ray.
Tests: tests/functions/test_functions_fcc.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from toprope.functions.exceptions import CODES, YRRuntimeError, said
from toprope.functions.lifecycle import Command, Do, End, GroupLife, Stage
from toprope.functions.local.instance import Instance
from toprope.functions.local.object_store import DONE
from toprope.functions.local.process import locked
from toprope.functions.objects import Entry, ObjectRef
from toprope.functions.options import GroupOptions
from toprope.functions.scheduling.ledger import Grant

if TYPE_CHECKING:
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.scheduling.scheduler import Scheduler
    from toprope.functions.local.session_state import SessionState

__all__ = ["Group", "Groups"]


@dataclass(eq=False)
class Group(GroupLife[Instance]):
    """An instance group of this session, with its life cycle as the base class.

    Attributes:
        bundle_size: number of members, one after the other, that go to one node.
        grants: the resources of each member, in this order; empty until all have some.
        ready: done when all members run, or when the group has failed.
        over: done when all members are gone.
    """

    bundle_size: int = 1
    grants: dict[int, Grant] = field(default_factory=dict)
    ready: Entry = field(default_factory=Entry)
    over: Entry = field(default_factory=Entry)


class Members(Protocol):
    """The part of the instance manager that groups use; see `Instances`."""

    def granted(self, instance: Instance, grant: Grant) -> None:
        """Start an instance whose resources were granted."""

    def end(self, instance: Instance, error: BaseException) -> None:
        """End an instance; its calls raise the error from now on."""

    def make_room(self) -> None:
        """Stop idle workers for functions: others wait for resources."""


class Groups:
    """The instance groups of a session. The caller holds its lock.

    Args:
        session: the session.
        reactor: has the timers.
        scheduler: places the members.
        members: starts and ends them.
    """

    def __init__(self, session: SessionState, reactor: Reactor, scheduler: Scheduler, members: Members) -> None:
        self._session = session
        self._reactor = reactor
        self._scheduler = scheduler
        self._members = members
        self._groups: dict[str, Group] = {}

    def join(self, instance: Instance) -> None:
        """Add an instance that starts with its group.

        Raises:
            YRequestError: the group has started (1010).
        """
        name = instance.options.group_name
        group = self._groups.setdefault(name, Group(name))
        group.join(instance)
        instance.group = group

    @locked
    def start(self, name: str, options: GroupOptions, bundle_size: int = 1) -> ObjectRef:
        """Start all members of a group or none; see `InstanceGroups.start`."""
        group = self._groups.get(name) or Group(name)
        group.bundle_size = bundle_size
        self.do(group, group.start(options))
        return ObjectRef(self._session, group.ready)

    @locked
    def terminate(self, name: str) -> ObjectRef | None:
        """End all members. Return an object that is available once they are gone; None if there is no such group."""
        group = self._groups.get(name)
        if group is None:
            return None
        over = ObjectRef(self._session, group.over)
        self.do(group, group.terminate())
        return over

    @locked
    def waited(self, name: str) -> ObjectRef:
        """Return the object that is available once all members of a group run.

        Raises:
            YRRuntimeError: there is no such group.
        """
        group = self._groups.get(name)
        if group is None:
            raise YRRuntimeError(f"there is no group {name}", CODES["instance not found"])
        return ObjectRef(self._session, group.ready)

    def context(self, group: Group, instance: Instance) -> tuple[int, int, list[tuple[str, str, tuple[int, ...]]]]:
        """The rank of a member, the number of members, and of each by rank: host, card type, numbers of its cards."""
        told = []
        for member in group.members:
            grant = group.grants[member.asked]
            vendor, ids = next(iter(grant.cards.items()), ("", ()))
            (node,) = (each for each in self._scheduler.ledgers[member.ledger].nodes if each.id == grant.node)
            model = next((card.model for card in node.cards if card.vendor == vendor and card.id in ids), "")
            told.append((node.labels.get("NODE_ID", node.id), f"{vendor}/{model}" if vendor else "", ids))
        return group.members.index(instance), len(group.members), told

    def do(self, group: Group, commands: Sequence[Command]) -> None:
        """Carry out commands of the life of a group."""
        for command in commands:
            match command:
                case Do.PLACE:
                    self._place(group)
                case Do.LAUNCH:
                    for member in list(group.members):
                        self._members.granted(member, group.grants[member.asked])
                case Do.READY:
                    group.ready.finish(DONE)
                case End(error, failed):
                    if failed:
                        group.ready.finish(None, error)
                    for member in group.members:
                        self._members.end(member, error)
                    self.freed(group)
                case Do.DISSOLVE:
                    self._dissolve(group)

    def freed(self, group: Group) -> None:
        """Handle the release of a member's resources."""
        if all(each.gone.is_set() for each in group.members):
            self.do(group, group.freed())

    def _place(self, group: Group) -> None:
        scheduler = self._scheduler
        try:
            ledgers = {scheduler.ledger_name(each.options) for each in group.members}
            if len(ledgers) > 1:
                raise YRRuntimeError("its members take their resources from different resource groups")
        except YRRuntimeError as error:
            self.do(group, group.fail(said(error)))
            return
        (ledger,) = ledgers
        numbers = scheduler.ledgers[ledger].ask_together(
            [each.request for each in group.members],
            group.options.strategy or "",
            [scheduler.filter(each.options) for each in group.members],
            each=group.bundle_size,
        )
        for member, number in zip(group.members, numbers, strict=True):
            member.ledger, member.asked = ledger, number
            scheduler.expect(ledger, number, member, self._granted)
        if group.options.timeout != -1:
            self._reactor.after(group.options.timeout, lambda: self._too_late(group))
        self._members.make_room()
        scheduler.serve()

    def _granted(self, instance: Instance, grant: Grant) -> None:
        group: Group = instance.group
        instance.grant = grant
        group.grants[grant.number] = grant
        if len(group.grants) == len(group.members):
            self.do(group, group.granted())

    def _too_late(self, group: Group) -> None:
        with self._session.lock:
            if group.stage is not Stage.WAITING:
                return
            scheduler = self._scheduler
            found = [
                scheduler.ledgers[each.ledger].shortage(each.request, scheduler.filter(each.options))
                for each in group.members
            ]
            short = dict.fromkeys(each.explained for each in found if each.reasons)
            why = "\n".join(short) or f"its {len(group.members)} members do not fit together"
            self.do(group, group.late(why))

    def _dissolve(self, group: Group) -> None:
        """Remove a group without members: its name is free."""
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
        if not group.ready.done:
            gone = YRRuntimeError(f"group {group.name} has ended", CODES["instance exited"])
            group.ready.finish(None, group.error or gone)
        if not group.over.done:
            group.over.finish(DONE)
