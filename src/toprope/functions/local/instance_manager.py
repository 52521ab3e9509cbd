"""Instances of a local session: resource requests, start, calls, restarts and end.

The session, its workers' requests and the instance groups call it. What happens on an event is decided by
`functions.lifecycle`; here its commands are carried out, under the session's lock and without waiting, and the texts of
errors are made. `ray.instances` does the same on Ray: a rule that users see belongs to neither. Tests:
tests/functions/test_functions_instances.py, tests/functions/test_functions_objects.py, and for groups
tests/functions/test_functions_fcc.py.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toprope.functions import interrupts
from toprope.functions.backend import Code
from toprope.functions.exceptions import (
    CODES,
    MissingInstanceError,
    YRequestError,
    YRError,
    YRRuntimeError,
    YRTimeoutError,
    said,
)
from toprope.functions.handles import handles
from toprope.functions.lifecycle import (
    Command,
    Do,
    Fail,
    Gone,
    State,
    admitted,
    grace_of,
    is_detached,
    terminated,
    too_late,
)
from toprope.functions.local.instance import Instance
from toprope.functions.local.listing import Listing
from toprope.functions.local.masks import mask
from toprope.functions.local.object_store import NOTHING
from toprope.functions.local.process import Call, Process
from toprope.functions.local.scheduling.instance_groups import Groups
from toprope.functions.objects import Entry, Value
from toprope.functions.options import InvokeOptions
from toprope.functions.scheduling.holders import Holder
from toprope.functions.scheduling.ledger import Grant
from toprope.functions.scheduling.requests import Request
from toprope.functions.transport.wire import Kind

if TYPE_CHECKING:
    from toprope.functions.local.pools import Pools
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.scheduling.scheduler import Scheduler
    from toprope.functions.local.session_state import SessionState

__all__ = ["Instances"]

_log = logging.getLogger("toprope")
_NONE = InvokeOptions()
REMEMBERED = 500
"""Number of ended instances whose reason is kept for later calls; older ones are unknown."""


class Instances:
    """The instances of a session. All methods but `create`, `submit`, `terminate` and `find` hold its lock."""

    def __init__(self, session: SessionState, reactor: Reactor, scheduler: Scheduler, pools: Pools) -> None:
        self._session = session
        self._reactor = reactor
        self._scheduler = scheduler
        self.make_room = pools.make_room
        self.groups = Groups(session, reactor, scheduler, self)
        self._by_id: dict[str, Instance] = {}
        self._dead: deque[Instance] = deque()
        self._numbers = itertools.count(1)
        self.appeared = threading.Condition(session.lock)
        self.dropped: deque[str] = deque()  # instances of which a handle is gone
        self.listing = Listing(session, reactor, self.holders)

    # Creating

    def create(self, code: Code, value: Value, refs: list[Entry], options: InvokeOptions) -> str:
        """Request an instance. Return its id at once; errors are raised where a result of it is fetched."""
        with self._session.lock:
            id = self._id(options)
            living = self._by_id.get(id)
            if living is not None and not living.is_over:
                return id  # the vendor answers with the instance of that name
            lives = max(0, options.recover_retry_times)
            instance = Instance(id=id, code=code, value=value, refs=refs, options=options, lives=lives)
            self._by_id[id] = instance
            if is_detached(options):
                text = "instance %s is detached, and runs in a process of this machine: it ends with this program"
                _log.warning(text, id)
            self.listing.changed()
            self.appeared.notify_all()
            error = self._check(instance)
            if error is not None:
                self.do(instance, instance.fail(error))
            elif instance.group is None:
                self.ask(instance)
        return id

    def ask(self, instance: Instance) -> None:
        """Ask for the resources of an instance, and have it start when it gets them."""
        self._scheduler.place(instance, instance.request, instance.options, self.granted)
        limit = instance.options.schedule_timeout_ms
        if limit >= 0:
            instance.timeout = self._reactor.after(limit / 1000, lambda: self._too_late(instance, limit))
        self._scheduler.serve()
        if instance.state is State.WAITING:
            self._scheduler.warn_if_never(f"instance {instance.id}", instance, instance.request)
            self.make_room()

    def granted(self, instance: Instance, grant: Grant) -> None:
        """Start an instance whose resources were granted."""
        if instance.state is State.WAITING:
            instance.grant = grant
            if instance.timeout is not None:
                instance.timeout.cancel()
        commands = instance.granted()
        if Do.GIVE_BACK in commands:
            self._scheduler.ledger_of(instance).release(grant.number)
        self.do(instance, commands)

    def do(self, instance: Instance, commands: Sequence[Command]) -> None:
        """Carry out commands of the life of an instance."""
        for command in commands:
            match command:
                case Do.START:
                    self._start(instance)
                case Do.SEND:
                    self.advance(instance)
                case Fail(calls, error):
                    for call in calls:
                        call.fail(error)
                case Do.STOP:
                    self._stop(instance)
                case Do.WITHDRAW:
                    self._scheduler.withdraw(instance)
                case Gone():
                    self._clean_up_ended(instance, command)
                case Do.FREE:
                    self._freed(instance)

    def _start(self, instance: Instance) -> None:
        session, options = self._session, instance.options
        assert instance.grant is not None
        try:
            nodes = self._scheduler.ledger_of(instance).nodes
            variables = {**session.variables_for(instance.id), **options.environment()}
            environment, unset = mask(instance.grant, nodes, {**os.environ, **variables})
            process = self._reactor.take()
        except YRRuntimeError as error:
            self.do(instance, instance.not_started(error))
            return
        instance.process = process
        process.owner, process.on_lost = instance, self.lost
        folder = options.runtime_env.get("working_dir", "") or session.config.working_dir
        is_async = instance.code.is_async
        at_once = options.calls_at_once(is_async=is_async)
        process.works_on(at_once)
        setup = (
            instance.code.key, {**variables, **environment}, unset, folder, session.python_path(),
            at_once, is_async, instance.lives > 0, instance.saved,
        )  # fmt: skip
        call = Call(Kind.CREATE, setup, instance.value, instance.refs, 1, instance.code)
        call.owner = _Creation(self, instance)
        pending = [entry for entry in call.needed if not entry.done]
        if pending:
            pending[0].when_done(lambda: self._construct_when_ready(instance, call))
        else:
            self._construct_when_ready(instance, call)

    def _construct_when_ready(self, instance: Instance, call: Call) -> None:
        """Send the constructor's call once its argument objects are available."""
        with self._session.lock:
            for entry in call.needed:
                if not entry.done:
                    entry.when_done(lambda: self._construct_when_ready(instance, call))
                    return
                if entry.error is not None:
                    self.do(instance, instance.fail(entry.error))
                    return
            if instance.process is not None and instance.state is State.STARTING:
                self._session.send(instance.process, call)

    def created(self, instance: Instance, call: Call, error: BaseException | None) -> None:
        """Handle the end of the constructor; an instance that can be restarted has sent its first checkpoint."""
        if error is not None:
            self.do(instance, instance.fail(error))
            return
        if instance.state is State.STARTING:
            commands = instance.constructed(self._session.result(call.entries[0]))
            instance.value, instance.refs = NOTHING, []
            self.appeared.notify_all()
            self.listing.changed()
            if instance.group is not None:
                self.groups.do(instance.group, instance.group.up(instance))
            self.do(instance, commands)
            self.free_if_unused(instance)

    # Calling

    def submit(self, id: str, call: Call) -> None:
        """Queue a method call; it is sent at once if possible, else in order."""
        with self._session.lock:
            instance = self._by_id.get(id)
            if instance is None:
                call.fail(YRequestError(f"instance {id} not found", CODES["instance not found"]))
                return
            call.owner = instance.calls or instance_calls(self, instance)
            if instance.is_up and not instance.queue and not call.needed:
                assert instance.process is not None
                self._session.send(instance.process, call)
            else:
                self.do(instance, instance.submit(call))

    def advance(self, instance: Instance) -> None:
        """Send the calls at the head of the queue whose argument objects are available; the order is kept."""
        with self._session.lock:
            queue = instance.queue
            while queue and instance.is_up:
                call = queue[0]
                missing = next((entry for entry in call.needed if not entry.done), None)
                if missing is not None:
                    if not instance.blocked:
                        instance.blocked = True
                        missing.when_done(lambda: self._unblocked(instance))
                    return
                queue.popleft()
                failed = next((entry.error for entry in call.needed if entry.error is not None), None)
                if failed is not None:
                    call.fail(failed)
                elif instance.process is not None:
                    self._session.send(instance.process, call)

    def withdraw(self, instance: Instance, call: Call) -> None:
        """Drop a queued call that was cancelled; calls behind it need not wait for its arguments."""
        if call in instance.queue:
            instance.queue.remove(call)
            call.fail(call.cancel_error())
            instance.blocked = False
            self.advance(instance)

    def _unblocked(self, instance: Instance) -> None:
        instance.blocked = False
        self.advance(instance)

    # Ending

    def terminate(self, id: str, is_sync: bool) -> None:
        """End an instance with its group; a second call does nothing."""
        with self._session.lock:
            instance = self._by_id.get(id)
            if instance is None:
                return
            members = self.end_group(instance)
        for each in members:
            interrupts.wait(each.gone, None if is_sync else grace_of(each.options))

    def end_group(self, instance: Instance) -> list[Instance]:
        """End an instance and those that end with it: all of them."""
        members = [instance] if instance.group is None else list(instance.group.members)
        for each in members:
            self.end(each, terminated())
        return members

    def end(self, instance: Instance, error: BaseException) -> None:
        """End an instance; its calls raise the error from now on."""
        self.do(instance, instance.end(error))

    def lost(self, process: Process) -> None:
        """Handle the loss of an instance's process."""
        instance: Instance = process.owner
        sent = [call for call in (*process.pending.values(), *process.backlog) if call.kind == Kind.CALL]
        process.pending.clear()
        process.backlog.clear()
        instance.process = None
        # one that ended with status 0 may have ended by its own decision
        may_return = process.exit != 0 and not self._session.ended
        error = _exited(instance, process)
        self.do(instance, instance.lost(sent, error, may_return=may_return))

    def _stop(self, instance: Instance) -> None:
        process = instance.process
        if process is None or process.closed:  # its end is on its way, or dealt with
            return
        self._reactor.stop(process, grace_of(instance.options))

    def _clean_up_ended(self, instance: Instance, end: Gone) -> None:
        """Clean up after a dead instance; its group may have to end too."""
        instance.value, instance.refs = NOTHING, []
        if instance.timeout is not None:
            instance.timeout.cancel()
        if instance.group is not None:
            group = instance.group
            self.groups.do(group, group.gone(instance, instance.id, end))

    def _freed(self, instance: Instance) -> None:
        if instance.grant is not None:
            self._scheduler.ledger_of(instance).release(instance.grant.number)
            instance.grant = None
        instance.gone.set()
        handles.forget(instance.id)
        self.listing.changed()
        if instance.group is not None:
            self.groups.freed(instance.group)
        instance.options, instance.calls = _NONE, None  # what is remembered is small
        self._dead.append(instance)
        if len(self._dead) > REMEMBERED:
            oldest = self._dead.popleft()
            if self._by_id.get(oldest.id) is oldest:
                del self._by_id[oldest.id]
        self._scheduler.serve()

    def end_all(self, error: BaseException) -> None:
        """End all instances with the session: pending calls fail, and shutdown hooks run."""
        with self._session.lock:
            for instance in self._by_id.values():
                self.end(instance, error)
                if instance.process is not None:
                    for call in (*instance.process.pending.values(), *instance.process.backlog):
                        call.fail(error)

    def free_dropped(self) -> None:
        """End the instances whose last handle is gone and that have no calls left, or mark them as unreferenced."""
        with self._session.lock:
            self.listing.changed()
            while self.dropped:
                instance = self._by_id.get(self.dropped.popleft())
                if instance is not None:
                    self.free_if_unused(instance)

    def free_if_unused(self, instance: Instance) -> None:
        """End an instance that nobody can call any more, once its calls have ended."""
        if not self._session.config.free_unreferenced or handles.count(instance.id) != 0:
            return
        options, process = instance.options, instance.process
        if not (options.name or options.group_name or is_detached(options)):
            is_busy = process is not None and bool(process.pending or process.backlog)
            self.do(instance, instance.unused(is_busy=is_busy))

    def holders(self) -> list[Holder]:
        """The instances that hold resources, or wait for them."""
        return [self._holder(each) for each in self._by_id.values() if each.state is not State.DEAD]

    def _holder(self, instance: Instance) -> Holder:
        options, grant, process = instance.options, instance.grant, instance.process
        named = (
            {"name": options.name, "namespace": options.namespace or self._session.namespace} if options.name else {}
        )
        held = None if grant is None else grant.request
        return Holder(
            instance.id, instance.code.name, str(instance.state), "" if grant is None else grant.node,
            0 if process is None else process.pid, 0 if held is None else held.cpu, 0 if held is None else held.memory,
            {} if grant is None else grant.cards, {} if held is None else held.scalars,
            handles=handles.count(instance.id), **named,
        )  # fmt: skip

    def leave(self, ledger: str, error: BaseException) -> None:
        """End the instances of a resource group that is removed."""
        for instance in [each for each in self._by_id.values() if each.ledger == ledger]:
            self.end(instance, error)

    # Asking

    def living(self) -> list[Instance]:
        """The instances that hold resources."""
        return [each for each in self._by_id.values() if each.grant is not None]

    def get(self, id: str) -> Instance | None:
        """The instance of an id."""
        return self._by_id.get(id)

    def is_alive(self, id: str) -> bool:
        """True if an instance exists or is being started."""
        instance = self._by_id.get(id)
        return instance is not None and not instance.is_over

    def is_made(self, id: str) -> bool:
        """True if an instance exists and its constructor has run."""
        instance = self._by_id.get(id)
        return instance is not None and instance.state is State.READY

    @interrupts.interruptible
    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """Return the id and class of a named instance; wait until it exists and its constructor has run.

        Raises:
            RuntimeError: there is none.
            YRTimeoutError: its constructor has not run in time.
        """
        id = f"{namespace or self._session.namespace}-{name}"
        with self._session.lock:
            if not self.appeared.wait_for(lambda: self.is_made(id), timeout):
                if not self.is_alive(id):
                    raise MissingInstanceError(id)
                why = self.why_waiting(self._by_id[id])
                raise YRTimeoutError(f"{why}, within {timeout} s", CODES["get failed"])
            self.listing.changed()  # there will be a handle
            return id, self._by_id[id].code

    def named(self) -> list[tuple[str, str]]:
        """Namespace and name of the living instances that have one."""
        return [
            (each.options.namespace or self._session.namespace, each.options.name)
            for each in self._by_id.values()
            if each.options.name and self.is_alive(each.id)
        ]

    def why_waiting(self, instance: Instance) -> str:
        """Return what a call of an instance waits for."""
        if instance.state is State.WAITING:
            group = "" if instance.group is None else f"its group {instance.group.name} {instance.group.stage}: "
            why = self._scheduler.shortage_of(instance, instance.request)
            return f"instance {instance.id} still {instance.state}: {group}{why}"
        return f"instance {instance.id} ({instance.state}) had not answered"

    def _id(self, options: InvokeOptions) -> str:
        if options.name:
            return f"{options.namespace or self._session.namespace}-{options.name}"
        return f"instance-{next(self._numbers)}"

    def _check(self, instance: Instance) -> BaseException | None:
        if instance.options.group_name:
            try:
                self.groups.join(instance)
            except YRequestError as error:
                return error

        def check(request: Request) -> None:
            self._scheduler.check(instance, request)

        instance.request, refused = admitted(instance.options, check, id=instance.id, is_async=instance.code.is_async)
        return refused

    def _too_late(self, instance: Instance, limit: int) -> None:
        with self._session.lock:
            if instance.state is State.WAITING:
                scheduler = self._scheduler
                why = scheduler.shortage_of(instance, instance.request)
                self.do(instance, instance.late(too_late(limit, why, scheduler.code_of_shortage(instance))))


class _Creation:
    """Owner of the constructor's call: receives its result."""

    def __init__(self, instances: Instances, instance: Instance) -> None:
        self._instances = instances
        self._instance = instance

    def ended(self, process: Process, call: Call, error: BaseException | None) -> bool:
        """Handle the result of the constructor. Return False: it is never retried."""
        self._instances.created(self._instance, call, error)
        return False

    def why_waiting(self, call: Call) -> str:
        """Return what it waits for."""
        return self._instances.why_waiting(self._instance)


class _Calls(_Creation):
    """Owner of an instance's calls: receives their results."""

    def ended(self, process: Process, call: Call, error: BaseException | None) -> bool:
        """Handle the result of a call. Return False: it is never retried."""
        if error is not None:
            call.fail(error)
        self._instances.free_if_unused(self._instance)
        return False

    def withdraw(self, call: Call) -> None:
        """Drop a queued call that was cancelled."""
        self._instances.withdraw(self._instance, call)
        self._instances.free_if_unused(self._instance)


def instance_calls(instances: Instances, instance: Instance) -> _Calls:
    """Return the owner of an instance's calls; one object for all of them."""
    if instance.calls is None:
        instance.calls = _Calls(instances, instance)
    calls: _Calls = instance.calls
    return calls


def _exited(instance: Instance, process: Process) -> YRequestError:
    """Return the error of calls whose instance is gone, with the code of the reason for which it was ended."""
    text = f"instance {instance.id} exited: {process.how_it_ended}"
    reason = instance.error
    if reason is None:
        return YRequestError(text, CODES["instance exited"], 22)
    code = reason.code if isinstance(reason, YRError) else 0
    return YRequestError(f"{text} ({said(reason)})", code or CODES["instance exited"], 22)
