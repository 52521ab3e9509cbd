"""Groups of instances on Ray: a placement group has the resources of all members, or of none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import CODES, YRequestError, YRError, YRRuntimeError, said
from toprope.functions.groups import check_strategy
from toprope.functions.objects import ObjectRef
from toprope.functions.options import GroupOptions
from toprope.functions.ray.failures import RaisedError
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.mapping import amounts
from toprope.functions.ray.record import Record
from toprope.functions.ray.refs import Entry
from toprope.functions.ray.resource_groups import placement_group
from toprope.functions.ray.view import smallest_hbm

if TYPE_CHECKING:
    from toprope.functions.ray.backend import RayBackend

__all__ = ["Groups"]

_LOOK = 0.25


@dataclass(eq=False)
class _Group:
    name: str
    options: GroupOptions = field(default_factory=GroupOptions)
    members: list[Record] = field(default_factory=list)
    started: bool = False
    placement: Any = None
    ready: Any = None  # Ray's reference to an object that is there when all members are made
    answers: list[Any] = field(default_factory=list)  # Ray's references to what each member answers once it is made
    error: BaseException | None = None

    @property
    def key(self) -> str:
        """By which the manager knows why it has failed."""
        return f"group {self.name}"


class Groups:
    """The groups of instances that a process has created.

    Args:
        backend: of the process.
    """

    def __init__(self, backend: RayBackend) -> None:
        self._backend = backend
        self._groups: dict[str, _Group] = {}

    def join(self, record: Record) -> BaseException | None:
        """An instance that is to start with its group; why it cannot."""
        name = record.options.group_name
        group = self._groups.setdefault(name, _Group(name))
        if group.started:
            return YRequestError(f"group {name} has started, nobody can join it", CODES["group schedule failed"])
        group.members.append(record)
        return None

    def of(self, record: Record) -> list[Record]:
        """The instances that end with this one, itself included."""
        group = self._groups.get(record.options.group_name)
        return list(group.members) if group is not None and record in group.members else [record]

    def start(self, name: str, options: GroupOptions, bundle_size: int = 1) -> ObjectRef:
        """Start all members of a group or none: an object that is there when they run.

        Args:
            name: of the group.
            options: how they live together.
            bundle_size: so many members that follow each other go to one node.

        Raises:
            ValueError: a timeout or strategy that cannot be.
            YRequestError: nobody has joined the group, or it has started before (1010).
        """
        if options.timeout != -1 and options.timeout < 0:
            raise ValueError(f"invalid timeout {options.timeout} in GroupOptions, expect: -1, or >= 0")
        strategy = check_strategy(options.strategy)
        group = self._groups.get(name)
        if group is None or group.started:
            why = "it has no members" if group is None else "it has started"
            raise YRequestError(f"group {name} cannot be started: {why}", CODES["group schedule failed"])
        group.options, group.started = options, True
        self._backend.tell(Manager.begin_anew, group.key)
        wrong = next((each.error for each in group.members if each.error is not None), None)
        if wrong is not None:
            self._fail(group, said(wrong))
        else:
            self._launch(group, strategy, bundle_size)
        return self._ready(group)

    def terminate(self, name: str) -> ObjectRef | None:
        """End all members of a group: an object that is there when they are gone; None without such a group."""
        group = self._groups.pop(name, None)
        if group is None:
            return None
        for each in group.members:
            self._backend.instances.end(each, YRRuntimeError("this instance is terminated", CODES["instance exited"]))
        self._give_back(group)
        return self._backend.put(True)

    def waited(self, name: str) -> ObjectRef:
        """The object that is there when all members of a group run.

        Raises:
            YRRuntimeError: there is no such group.
        """
        group = self._groups.get(name)
        if group is None:
            raise YRRuntimeError(f"there is no group {name}", CODES["instance not found"])
        return self._ready(group)

    def _launch(self, group: _Group, strategy: str, bundle_size: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        backend, members = self._backend, group.members
        bundles = [
            [each.request for each in members[place : place + bundle_size]]
            for place in range(0, len(members), bundle_size)
        ]
        group.placement = placement_group(backend, bundles, strategy, "")
        backend.tell(Manager.group, group.name, [each.id for each in members])
        smallest = smallest_hbm(backend.ask(Manager.view))
        for place, each in enumerate(members):
            asked = amounts(each.request, smallest).options()
            where = PlacementGroupSchedulingStrategy(group.placement, place // bundle_size)
            backend.instances.launch(each, {**asked, "scheduling_strategy": where})
        wrong = next((each.error for each in members if each.error is not None), None)
        if wrong is not None:
            self._fail(group, said(wrong))
            return
        group.answers = [each.handle.ready.remote() for each in members]
        group.ready = _all_there(backend).remote(*group.answers)
        if group.options.timeout != -1:
            backend.clock.after(group.options.timeout, lambda: self._late(group))
        backend.clock.after(_LOOK, lambda: self._look(group))

    def _ready(self, group: _Group) -> ObjectRef:
        return ObjectRef(self._backend, Entry(group.ready, group.key, group.error))

    def _late(self, group: _Group) -> None:
        if group.error is not None or group.placement is None:
            return
        if not group.placement.wait(0):
            short = self._backend.instances.placing.shortage
            found = dict.fromkeys(short(each.request, each.options)[0] for each in group.members)
            why = "\n".join(found)
            self._fail(group, f"it cannot be scheduled within {group.options.timeout} s. {why}")

    def _look(self, group: _Group) -> None:
        """See whether a member has ended, and the others with it."""
        if group.error is not None or self._groups.get(group.name) is not group:
            return
        gone = next((each for each in group.members if self._is_gone(each)), None)
        if gone is None:
            self._backend.clock.after(_LOOK, lambda: self._look(group))
            return
        why = self._backend.instances.why_ended(gone.id)
        there, _ = self._backend.ray.wait(group.answers, num_returns=len(group.answers), timeout=0)
        if len(there) < len(group.answers) or why is not None:
            self._fail(group, f"instance {gone.id}: {said(why) if why is not None else 'its process is gone'}")
        elif group.options.same_lifecycle:
            text = f"instance {gone.id} of group {group.name} has exited, and the members of the group end together"
            self._end(group, YRequestError(text, CODES["group exit together"], 22))

    def _is_gone(self, record: Record) -> bool:
        return record.error is not None or self._backend.instances.has_ended(record)

    def _fail(self, group: _Group, why: str) -> None:
        group.error = YRequestError(f"group {group.name} failed to start: {why}", CODES["group schedule failed"])
        try:  # known to the manager before the members die: whoever waits for them asks it why, at once
            self._backend.ask(Manager.fail, group.key, RaisedError.of(group.error).data)
        except YRError:
            pass  # the session has ended
        self._end(group, group.error)

    def _end(self, group: _Group, error: BaseException) -> None:
        for each in group.members:
            self._backend.instances.fail(each, error)
        self._give_back(group)

    def _give_back(self, group: _Group) -> None:
        placement, group.placement = group.placement, None
        if placement is not None:
            self._backend.ray.util.remove_placement_group(placement)


def _all_there(backend: RayBackend) -> Any:
    return backend.ray.remote(_nothing).options(num_cpus=0, max_retries=0)


def _nothing(*answers: bool) -> bool:
    return True
