"""Groups of instances on Ray: a placement group has the resources of all members, or of none.

A part of `ray.instances`; implements the backend's `InstanceGroups`, whose methods workers call by name. Decisions are
`lifecycle.GroupLife`'s; as Ray reports nothing by itself, groups are polled. The manager learns of a failure before the
members end, since a caller asks it why. `local.scheduling.instance_groups` does the same on one machine. Tests:
tests/functions/test_functions_ray.py (mostly slow).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from toprope.functions.exceptions import CODES, YRError, YRRuntimeError
from toprope.functions.lifecycle import Command, Do, End, Gone, GroupLife, Stage, terminated
from toprope.functions.objects import ObjectRef
from toprope.functions.options import GroupOptions
from toprope.functions.ray.failures import RaisedError, exited
from toprope.functions.ray.instance_record import Record
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.nodes.cluster_view import smallest_hbm
from toprope.functions.ray.nodes.resource_mapping import amounts
from toprope.functions.ray.refs import Entry
from toprope.functions.ray.scheduling.resource_groups import placement_group

if TYPE_CHECKING:
    from toprope.functions.ray.objects import RayObjects
    from toprope.functions.ray.scheduling.scheduler import Placing

__all__ = ["Groups"]

_LOOK = 0.25


@dataclass(eq=False)
class _Group(GroupLife[Record]):
    """An instance group that this process has created, with its life cycle as the base class.

    Attributes:
        bundle_size: number of members, one after the other, that go to one node.
        placement: Ray's placement group.
        ready: Ray's reference to an object that is there when all members are made.
        answers: Ray's references to what each member answers once it is made.
    """

    bundle_size: int = 1
    placement: Any = None
    ready: Any = None
    answers: list[Any] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Key of the group's failure in the manager."""
        return f"group {self.name}"


class Members(Protocol):
    """The part of `ray.instances.Instances` that groups use."""

    def launch(self, record: Record, place: dict[str, Any]) -> None:
        """Have Ray make an instance, with these placement options."""

    def end(self, record: Record, error: BaseException) -> None:
        """End an instance, its hook first; its calls raise the error from now on."""

    def fail(self, record: Record, error: BaseException) -> None:
        """Handle a dead instance: release its resources and fail its pending calls."""

    def has_ended(self, record: Record) -> bool:
        """True if Ray has reported the end of an instance's actor."""

    def why_ended(self, id: str) -> BaseException | None:
        """Return the known reason of an instance's end."""


class Groups:
    """The groups of instances that a process has created.

    Args:
        backend: of the process.
        placing: of the process.
        members: launches and ends them.
    """

    def __init__(self, backend: RayObjects, placing: Placing, members: Members) -> None:
        self._backend = backend
        self._placing = placing
        self._members = members
        self._groups: dict[str, _Group] = {}

    def join(self, record: Record) -> None:
        """Add an instance that starts with its group.

        Raises:
            YRequestError: the group has started (1010).
        """
        name = record.options.group_name
        self._groups.setdefault(name, _Group(name)).join(record)

    def gone(self, record: Record, end: Gone) -> None:
        """Handle the end of an instance; its group, if any, may have to end too."""
        group = self._groups.get(record.options.group_name)
        if group is not None and record in group.members:
            self._check_started(group)
            self._do(group, group.gone(record, record.id, end))

    def of(self, record: Record) -> list[Record]:
        """The instances that end with this one, itself included."""
        group = self._groups.get(record.options.group_name)
        return list(group.members) if group is not None and record in group.members else [record]

    def start(self, name: str, options: GroupOptions, bundle_size: int = 1) -> ObjectRef:
        """Start all members of a group or none; see `InstanceGroups.start`."""
        group = self._groups.get(name) or _Group(name)
        group.bundle_size = bundle_size
        commands = group.start(options)
        self._backend.tell(Manager.forget_end, group.key)
        self._do(group, commands)
        return self._ready(group)

    def terminate(self, name: str) -> ObjectRef | None:
        """End all members. Return an object that is available once they are gone; None if there is no such group."""
        group = self._groups.pop(name, None)
        if group is None:
            return None
        group.terminate()
        for each in group.members:
            self._members.end(each, terminated())
        self._give_back(group)
        return self._backend.put(True)

    def waited(self, name: str) -> ObjectRef:
        """Return the object that is available once all members of a group run.

        Raises:
            YRRuntimeError: there is no such group.
        """
        group = self._groups.get(name)
        if group is None:
            raise YRRuntimeError(f"there is no group {name}", CODES["instance not found"])
        return self._ready(group)

    def _do(self, group: _Group, commands: Sequence[Command]) -> None:
        """Carry out commands of the life of a group. Ray starts its members by itself, and tells when they are up."""
        for command in commands:
            match command:
                case Do.PLACE:
                    self._place(group)
                case End(error, failed):
                    self._end(group, error, failed=failed)
                case Do.DISSOLVE if self._groups.get(group.name) is group:
                    del self._groups[group.name]

    def _place(self, group: _Group) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        backend, members, size = self._backend, group.members, group.bundle_size
        bundles = [[each.request for each in members[place : place + size]] for place in range(0, len(members), size)]
        group.placement = placement_group(backend, bundles, group.options.strategy or "", "")
        backend.tell(Manager.group, group.name, [each.id for each in members])
        smallest = smallest_hbm(backend.ask(Manager.view))
        for place, each in enumerate(members):
            asked = amounts(each.request, smallest).options()
            where = PlacementGroupSchedulingStrategy(group.placement, place // size)
            self._members.launch(each, {**asked, "scheduling_strategy": where})
        if group.error is not None:
            return  # a member could not be launched
        group.answers = [each.handle.ready.remote() for each in members]
        group.ready = _remote_barrier(backend).remote(*group.answers)
        if group.options.timeout != -1:
            backend.clock.after(group.options.timeout, lambda: self._late(group))
        backend.clock.after(_LOOK, lambda: self._poll(group))

    def _ready(self, group: _Group) -> ObjectRef:
        return ObjectRef(self._backend, Entry(group.ready, group.key, group.error))

    def _late(self, group: _Group) -> None:
        if group.stage is not Stage.WAITING or self._is_placed(group):
            return
        short = self._placing.shortage
        found = dict.fromkeys(short(each.request, each.options)[0] for each in group.members)
        self._do(group, group.late("\n".join(found)))

    def _is_placed(self, group: _Group) -> bool:
        """True once Ray has granted the resources of all members."""
        if group.stage is Stage.WAITING and group.placement.wait(0):
            self._do(group, group.granted())
        return group.stage is not Stage.WAITING

    def why_failed(self, key: str) -> BaseException | None:
        """The error of a group of this process by its key, as of now; None where there is none."""
        group = next((each for each in self._groups.values() if each.key == key), None)
        if group is None:
            return None
        self._check(group)
        return group.error

    def _poll(self, group: _Group) -> None:
        """Poll a group until it or one of its members has ended."""
        if self._groups.get(group.name) is group and self._check(group):
            self._backend.clock.after(_LOOK, lambda: self._poll(group))

    def _check(self, group: _Group) -> bool:
        """See whether a group is placed, whether its members are up, and whether one has ended; true while none has."""
        if group.stage in (Stage.GATHERING, Stage.ENDED):
            return False
        instances = self._members
        lost = next((each for each in group.members if not each.is_over and instances.has_ended(each)), None)
        if lost is None:
            self._check_started(group)
            return True
        why = instances.why_ended(lost.id) or exited(f"instance {lost.id}", "")
        self.gone(lost, Gone(why, crashed=True))
        return False

    def _check_started(self, group: _Group) -> None:
        """See whether the constructors of all members have run: a group whose member ends after that had started."""
        if not group.answers or not self._is_placed(group) or group.stage is not Stage.STARTING:
            return
        ray = self._backend.ray
        there, _ = ray.wait(group.answers, num_returns=len(group.answers), timeout=0)
        if len(there) < len(group.answers):
            return
        try:
            ray.get(there)
        except ray.exceptions.RayError:
            return  # a constructor has failed
        for each in group.members:
            self._do(group, group.up(each))

    def _end(self, group: _Group, error: BaseException, *, failed: bool) -> None:
        if failed:
            try:  # known to the manager before the members die: a caller that waits for them asks it why, at once
                self._backend.ask(Manager.fail, group.key, RaisedError.of(error).data)
            except YRError:
                pass  # the session has ended
        for each in group.members:
            self._members.fail(each, error)
        self._give_back(group)
        self._do(group, group.freed())

    def _give_back(self, group: _Group) -> None:
        placement, group.placement = group.placement, None
        if placement is not None:
            self._backend.ray.util.remove_placement_group(placement)


def _remote_barrier(backend: RayObjects) -> Any:
    return backend.ray.remote(_barrier).options(num_cpus=0, max_retries=0)


def _barrier(*answers: bool) -> bool:
    return True
