"""Groups of instances: they start all or none, and where that was asked for they end together."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from toprope.functions.exceptions import CODES, YRequestError, YRRuntimeError, said
from toprope.functions.groups import check_strategy
from toprope.functions.ledger import Grant
from toprope.functions.local.process import locked
from toprope.functions.objects import Entry, ObjectRef
from toprope.functions.options import GroupOptions

if TYPE_CHECKING:
    from toprope.functions.local.instance import Instance
    from toprope.functions.local.session import Session

__all__ = ["Group", "Groups"]


class Stage(StrEnum):
    """Where a group is in its life."""

    GATHERING = "waits until Group.invoke starts it"
    WAITING = "waits for the resources of all its members"
    STARTING = "starts"
    RUNNING = "runs"
    ENDED = "has ended"


@dataclass(eq=False)
class Group:
    """A group of instances.

    Attributes:
        name: what users call it.
        groups: the groups of the session.
        options: how the members live together; set when the group starts.
        members: in the order in which they were created; their ranks.
        grants: what each member was given, in this order; empty until all have something.
        stage: where the group is in its life.
        ready: done when all members run, or when the group has failed.
        over: done when all members are gone.
        error: why it failed.
    """

    name: str
    groups: Groups
    options: GroupOptions = field(default_factory=GroupOptions)
    members: list[Instance] = field(default_factory=list)
    grants: dict[int, Grant] = field(default_factory=dict)
    stage: Stage = Stage.GATHERING
    ready: Entry = field(default_factory=Entry)
    over: Entry = field(default_factory=Entry)
    error: BaseException | None = None
    running: set[str] = field(default_factory=set)

    def started(self, instance: Instance) -> None:
        """A member is up."""
        self.running.add(instance.id)
        if self.stage is Stage.STARTING and len(self.running) == len(self.members):
            self.stage = Stage.RUNNING
            self.groups.finish(self.ready)

    def gone(self, instance: Instance, error: BaseException, *, crashed: bool) -> None:
        """A member has ended, by itself or because it was told to."""
        self.running.discard(instance.id)
        if crashed and self.stage in (Stage.WAITING, Stage.STARTING):
            self.groups.fail(self, f"instance {instance.id}: {said(error)}")
        elif crashed and self.stage is Stage.GATHERING:
            self.error = self.error or error
        elif crashed and self.stage is Stage.RUNNING and self.options.same_lifecycle:
            self.stage = Stage.ENDED
            text = f"instance {instance.id} of group {self.name} has exited, and the members of the group end together"
            self.groups.end(self, YRequestError(text, CODES["group exit together"], 22))

    def freed(self) -> None:
        """What a member held is free."""
        waits = self.stage is Stage.GATHERING and self.error is not None  # to say why where it is started
        if not waits and all(each.gone.is_set() for each in self.members):
            self.groups.dissolve(self)


class Groups:
    """The groups of instances of a session. Held: its lock."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._groups: dict[str, Group] = {}

    def join(self, instance: Instance) -> None:
        """An instance that is to start with its group.

        Raises:
            YRequestError: the group has started (1010).
        """
        name = instance.options.group_name
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name, self)
        if group.stage is not Stage.GATHERING:
            raise YRequestError(f"group {name} {group.stage}, nobody can join it", CODES["group schedule failed"])
        instance.group = group
        group.members.append(instance)

    @locked
    def start(self, name: str, options: GroupOptions, bundle_size: int = 1) -> ObjectRef:
        """Start all members of a group or none: an object that is there when they run.

        Args:
            name: of the group.
            options: how its members live together.
            bundle_size: number of members, one after the other, that go to one node.

        Raises:
            ValueError: a timeout or strategy that cannot be.
            YRequestError: nobody has joined the group, it has started before, or a member cannot be (1010).
        """
        if options.timeout != -1 and options.timeout < 0:
            raise ValueError(f"invalid timeout {options.timeout} in GroupOptions, expect: -1, or >= 0")
        strategy = check_strategy(options.strategy)
        group = self._groups.get(name)
        if group is None or group.stage is not Stage.GATHERING:
            why = "it has no members" if group is None else f"it {group.stage}"
            raise YRequestError(f"group {name} cannot be started: {why}", CODES["group schedule failed"])
        group.options, group.stage = options, Stage.WAITING
        if group.error is not None:
            self.fail(group, said(group.error))
            return ObjectRef(self._session, group.ready)
        session, services = self._session, self._session.scheduler
        try:
            ledgers = {services.ledger_name(each.options) for each in group.members}
            if len(ledgers) > 1:
                raise YRRuntimeError("its members take their resources from different resource groups")
        except YRRuntimeError as error:
            self.fail(group, said(error))
            return ObjectRef(session, group.ready)
        (ledger,) = ledgers
        numbers = services.ledgers[ledger].ask_together(
            [each.request for each in group.members],
            strategy,
            [services.filter(each.options) for each in group.members],
            each=bundle_size,
        )
        for member, number in zip(group.members, numbers, strict=True):
            member.ledger, member.asked = ledger, number
            services.expect(ledger, number, member, self._granted)
        if options.timeout != -1:
            session.reactor.after(options.timeout, lambda: self._too_late(group))
        session.pools.make_room()
        services.serve()
        return ObjectRef(session, group.ready)

    @locked
    def terminate(self, name: str) -> ObjectRef | None:
        """End all members of a group: an object that is there when they are gone; None without such a group."""
        group = self._groups.get(name)
        if group is None:
            return None
        over = ObjectRef(self._session, group.over)
        group.stage = Stage.ENDED
        self.end(group, YRRuntimeError("this instance is terminated", CODES["instance exited"]))
        return over

    @locked
    def waited(self, name: str) -> ObjectRef:
        """The object that is there when all members of a group run.

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
            (node,) = (each for each in self._session.scheduler.ledgers[member.ledger].nodes if each.id == grant.node)
            model = next((card.model for card in node.cards if card.vendor == vendor and card.id in ids), "")
            told.append((node.labels.get("NODE_ID", node.id), f"{vendor}/{model}" if vendor else "", ids))
        return group.members.index(instance), len(group.members), told

    def end(self, group: Group, error: BaseException) -> None:
        """End the members of a group that live."""
        for member in group.members:
            self._session.instances.end(member, error)

    def fail(self, group: Group, why: str) -> None:
        """A group cannot start: none of its members lives, and who waits for them is told why."""
        group.stage = Stage.ENDED
        group.error = YRequestError(f"group {group.name} failed to start: {why}", CODES["group schedule failed"])
        group.ready.finish(None, group.error)
        self.end(group, group.error)
        group.freed()

    def finish(self, entry: Entry) -> None:
        """An object is there whose value says nothing."""
        entry.finish(self._session.store.pack(True))

    def dissolve(self, group: Group) -> None:
        """A group has no members any more: its name is free."""
        group.stage = Stage.ENDED
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
        if not group.ready.done:
            gone = YRRuntimeError(f"group {group.name} has ended", CODES["instance exited"])
            group.ready.finish(None, group.error or gone)
        if not group.over.done:
            self.finish(group.over)

    def _granted(self, instance: Instance, grant: Grant) -> None:
        group: Group = instance.group
        instance.grant = grant
        group.grants[grant.number] = grant
        if len(group.grants) == len(group.members):
            group.stage = Stage.STARTING
            for member in list(group.members):
                self._session.instances.granted(member, group.grants[member.asked])

    def _too_late(self, group: Group) -> None:
        with self._session.lock:
            if group.stage is not Stage.WAITING:
                return
            services = self._session.scheduler
            found = [
                services.ledgers[each.ledger].shortage(each.request, services.filter(each.options))
                for each in group.members
            ]
            short = dict.fromkeys(each.text for each in found if each.reasons)
            why = "\n".join(short) or f"its {len(group.members)} members do not fit together"
            self.fail(group, f"it cannot be scheduled within {group.options.timeout} s. {why}")
