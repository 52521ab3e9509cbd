"""Instances on Ray, in a process that created them or holds references to them.

`RayBackend` calls it; `ray.worker.actor` is the instance itself. What happens on an event is decided by
`functions.lifecycle`; here its commands are carried out, as `local.instance_manager` does on one machine. Names,
lifetimes and states of actors are Ray's; two ways to ask for states are private to it, and change with it. Tests:
tests/functions/test_functions_ray_manager.py without Ray, tests/functions/test_functions_ray.py (slow) for the rest.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toprope.functions.backend import Code
from toprope.functions.exceptions import (
    CODES,
    MissingInstanceError,
    YRequestError,
    YRError,
    YRRuntimeError,
    YRTimeoutError,
    fresh,
)
from toprope.functions.handles import handles
from toprope.functions.lifecycle import GRACE, Command, Do, Gone, admitted, freed, grace_of, is_detached, terminated
from toprope.functions.options import InvokeOptions
from toprope.functions.ray.attach import NAMESPACE
from toprope.functions.ray.failures import RaisedError
from toprope.functions.ray.instance_record import Record
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.refs import FailedArgumentError, lift
from toprope.functions.ray.scheduling.instance_groups import Groups
from toprope.functions.ray.scheduling.scheduler import Placing
from toprope.functions.ray.tensors import know_tensors
from toprope.functions.ray.worker.process import Setup
from toprope.functions.scheduling.requests import Request

if TYPE_CHECKING:
    from toprope.functions.ray.objects import RayObjects

__all__ = ["Instances"]

_DEAD = 4
"""Ray's state of an actor that has ended."""

_GONE = 10.0
"""Time for Ray to end a process, in seconds."""


class Instances:
    """The instances that a process knows.

    Args:
        backend: of the process.
    """

    def __init__(self, backend: RayObjects) -> None:
        self._backend = backend
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._numbers = itertools.count(1)
        self.placing = Placing(backend, self.leave)
        self.groups = Groups(backend, self.placing, self)

    # Creating

    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Request an instance. Return its id at once; errors are raised where a result of it is fetched."""
        with self._lock:
            id = self._id(options)
            record = self._records.get(id)
            if record is not None and self.is_alive(id):
                return id  # the vendor answers with the instance of that name
            again = record is not None
            made = Record(id=id, code=code, options=options, is_ours=True, arguments=(arguments, keywords))
            self._records[id] = made
            error = self._check(made)
            if error is not None:
                self.fail(made, error)
            elif options.name and self._attach(made, wait=again):
                pass
            else:
                if again:
                    self._backend.tell(Manager.forget_end, id)
                if not options.group_name:
                    self.launch(made)
        return id

    def launch(self, record: Record, place: dict[str, Any] | None = None) -> None:
        """Have Ray make an instance.

        Args:
            record: the instance.
            place: Ray's placement options; None to choose them.
        """
        if Do.START not in record.granted():
            return
        try:
            where = self.placing.options(record.request, record.options) if place is None else place
            self._make(record, where)
        except FailedArgumentError as failed:
            error: BaseException = failed.entry.error or YRRuntimeError("an argument has failed")
            self.do(record, record.not_started(error))
        except YRError as error:
            self.do(record, record.not_started(error))
        except ValueError as error:
            if "already" not in str(error) or not self._attach(record, wait=False):
                self.do(record, record.not_started(YRequestError(str(error), CODES["invalid parameter"])))
        if not record.is_over and record.is_ours and place is None:
            self.placing.watch(record, self.fail)

    def _make(self, record: Record, where: dict[str, Any]) -> None:
        from toprope.functions.ray.worker.actor import Making, host_of

        backend, options, code = self._backend, record.options, record.code
        assert code is not None
        ray = backend.ray
        arguments, keywords, refs = lift(*record.arguments)
        packed: list[Any] = []
        if arguments or keywords:
            know_tensors()
            packed.append(ray.put((arguments, keywords)))
        lives = max(0, options.recover_retry_times)
        making = Making(
            record.id, backend.manager, self.setup(options), backend.blob(code), lives > 0, tuple(options.labels),
            grace_of(options), options.group_name if options.function_group_options is not None else "",
            code.name, record.request,
        )  # fmt: skip
        actor = ray.remote(host_of(code.target, code.is_async)).options(
            name=record.id,
            namespace=NAMESPACE,
            lifetime="detached" if is_detached(options) else None,
            max_concurrency=options.calls_at_once(is_async=code.is_async),
            max_restarts=lives,
            max_task_retries=lives,
            **where,
        )
        record.hold(actor.remote(making, packed, refs))
        backend.tell(Manager.ask_for, record.id, code.name)
        record.arguments = ((), {})
        if options.name:
            backend.tell(
                Manager.name, record.id, options.namespace or self._backend.namespace, options.name, backend.blob(code)
            )

    def setup(self, options: InvokeOptions) -> Setup:
        """Return the setup of a process."""
        config = self._backend.config
        folder = options.runtime_env.get("working_dir", "") or config.working_dir
        return Setup({**config.environment(), **options.environment()}, folder, tuple(config.load_paths))

    def _attach(self, record: Record, *, wait: bool) -> bool:
        """Attach to the living instance of a name, if there is one.

        Args:
            record: the record to attach.
            wait: whether an instance of that name has just ended, and may not be gone yet.
        """
        until = time.monotonic() + (_GONE if wait else 0)
        while True:
            try:
                handle = self._backend.ray.get_actor(record.id, NAMESPACE)
            except ValueError:
                return False
            if time.monotonic() >= until:
                record.granted()
                record.hold(handle)
                record.is_ours = False
                return True
            time.sleep(0.02)

    # Knowing

    def record(self, id: str) -> Record:
        """Return the record of an instance; its `error` is set if it does not exist."""
        found = self._records.get(id)
        if found is not None:
            return found
        try:
            handle = self._backend.ray.get_actor(id, NAMESPACE)
        except ValueError:
            error = self.why_ended(id) or YRequestError(f"instance {id} not found", CODES["instance not found"])
            gone = Record(id=id)
            gone.not_started(error)
            return gone
        record = Record(id=id)
        record.granted()
        record.hold(handle)
        return self._records.setdefault(id, record)

    def why_ended(self, id: str) -> BaseException | None:
        """Return the known reason of an instance's end."""
        if not id:
            return None
        record = self._records.get(id)
        if record is not None and record.error is not None:
            return fresh(record.error)
        if (of_group := self.groups.why_failed(id)) is not None:
            return fresh(of_group)
        try:
            data = self._backend.ray.get(self._backend.manager.failure.remote(id), timeout=10)
        except (self._backend.ray.exceptions.RayError, ValueError):
            return None
        if data is None:
            return None
        error = RaisedError(data).error()
        if record is not None:
            self.do(record, record.not_started(error))
        return error

    def is_alive(self, id: str) -> bool:
        """True if an instance exists or is being started."""
        record = self.record(id)
        return not record.is_over and (record.handle is None or not self.has_ended(record))

    def has_ended(self, record: Record) -> bool:
        """True if Ray has reported the end of an instance's actor."""
        local = getattr(record.handle, "_get_local_state", None)
        if local is not None:
            return bool(local() == _DEAD)
        try:  # Ray's client
            self._backend.ray.get_actor(record.id, NAMESPACE)
        except ValueError:
            return True
        return False

    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """Return the id and class of a named instance; wait until it exists and its constructor has run.

        Raises:
            RuntimeError: there is none.
            YRTimeoutError: its constructor has not run in time.
        """
        id = f"{namespace or self._backend.namespace}-{name}"
        until = time.monotonic() + timeout
        while not self.is_alive(id):
            if time.monotonic() >= until:
                raise MissingInstanceError(id)
            time.sleep(0.05)
        record = self.record(id)
        self._backend.tell(Manager.handles, id, None)
        is_of_session = id in self._backend.ask(Manager.names)
        while is_of_session and not self._backend.ask(Manager.is_made, id):
            if not self.is_alive(id):
                raise self.why_ended(id) or MissingInstanceError(id)
            if time.monotonic() >= until:
                raise YRTimeoutError(f"instance {id} had not been made within {timeout} s", CODES["get failed"])
            time.sleep(0.05)
        if record.code is None:
            blob = self._backend.ask(Manager.class_of, id)
            if blob is None:  # of another session
                blob = self._backend.ray.get(record.handle.about.remote(), timeout=max(10.0, timeout))
            import pickle

            record.code = Code(pickle.loads(blob))
        return id, record.code

    # Ending

    def do(self, record: Record, commands: Sequence[Command]) -> None:
        """Carry out commands of the life of an instance. Ray queues its calls, and has its resources."""
        for command in commands:
            match command:
                case Gone(error):
                    record.arguments = ((), {})
                    handles.forget(record.id)
                    try:
                        self._backend.tell(Manager.fail, record.id, RaisedError.of(error).data)
                    except ValueError:
                        pass  # the session has ended
                    self.groups.gone(record, command)
                case Do.STOP if record.handle is not None:
                    self._backend.ray.kill(record.handle, no_restart=True)

    def fail(self, record: Record, error: BaseException) -> None:
        """Handle a dead instance: release its resources and fail its pending calls."""
        if not record.is_over:
            self.do(record, record.fail(error))

    def terminate(self, id: str, is_sync: bool) -> None:
        """End an instance; a second call does nothing."""
        record = self.record(id)
        if not record.is_over:
            for each in self.groups.of(record):
                self.end(each, terminated(), is_sync=is_sync)

    def end(self, record: Record, error: BaseException, *, is_sync: bool = False) -> None:
        """End an instance, its hook first; its calls raise the error from now on."""
        commands = record.end(error)
        if Do.STOP not in commands:
            self.do(record, commands)
            return
        ray, handle = self._backend.ray, record.handle
        placed = self._backend.ask(Manager.placed, record.id)
        if placed is not None or self._is_of_another_session(record):
            grace = GRACE if placed is None else placed.grace
            done = handle.shutdown.remote(grace)
            ray.wait([done], timeout=None if is_sync else grace)
        self.do(record, record.fail(error))
        until = time.monotonic() + _GONE
        while not self.has_ended(record) and time.monotonic() < until:
            time.sleep(0.01)

    def unreferenced(self, id: str) -> None:
        """Note that a handle of this program to an instance was deleted."""
        if handles.count(id) != 0:
            return
        record = self._records.get(id)
        if record is None or record.is_over:
            return
        options = record.options
        is_kept = bool(options.name or options.group_name) or is_detached(options) or not record.is_ours
        if is_kept or not self._backend.config.free_unreferenced:
            self._backend.tell(Manager.handles, id, 0)
            return
        with self._lock:
            record.fail(freed())  # nothing is to be done: Ray ends it, once its calls have ended
            record.release()
            self._records.pop(id, None)
        self.placing.stop_watching(record)

    def _is_of_another_session(self, record: Record) -> bool:
        """True if an instance runs that this session knows nothing of; one that waits for resources runs no hook."""
        from ray._private import state

        if record.is_ours or self._backend.ray.util.client.ray.is_connected():
            return False
        return bool(state.actors(record.handle._actor_id.hex()).get("State") == "ALIVE")

    def end_all(self, error: BaseException) -> None:
        """End all instances that this process has created with the session; their hooks run side by side."""
        ray = self._backend.ray
        records = [
            each
            for each in self._records.values()
            if each.is_ours and not each.is_over and not is_detached(each.options)
        ]
        asked = [self._backend.manager.placed.remote(each.id) for each in records]
        dones, longest = [], 0.0
        for record, placed in zip(records, ray.get(asked, timeout=30), strict=True):
            if placed is not None and record.handle is not None and not self.has_ended(record):
                dones.append(record.handle.shutdown.remote(placed.grace))
                longest = max(longest, placed.grace)
        if dones:
            ray.wait(dones, num_returns=len(dones), timeout=longest)
        for record in records:
            self.fail(record, error)

    def leave(self, resource_group: str, error: BaseException) -> None:
        """End the instances of a resource group that is removed."""
        for record in list(self._records.values()):
            if record.options.resource_group_options.resource_group_name == resource_group:
                self.fail(record, error)

    # Checks

    def _id(self, options: InvokeOptions) -> str:
        if options.name:
            return f"{options.namespace or self._backend.namespace}-{options.name}"
        return f"instance-{self._backend.job_id}-{'m' if self._backend.is_manager else ''}{next(self._numbers)}"

    def _check(self, record: Record) -> BaseException | None:
        options, code = record.options, record.code
        assert code is not None
        if options.group_name:
            try:
                self.groups.join(record)
            except YRequestError as error:
                return error

        def check(request: Request) -> None:
            self.placing.check(request, options)

        record.request, refused = admitted(options, check, id=record.id, is_async=code.is_async)
        return refused
