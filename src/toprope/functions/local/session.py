"""Session of the driver: functions and instances in processes of this machine.

`yr.init` without an address makes it; it is the `Backend` of the program, so its public methods are those of
`functions.backend`. It joins the parts: dispatcher, instances, pools, scheduler, object store, reactor and the requests
of workers. One lock guards them all, and no code waits while it holds the lock: a part that is added keeps to that.
Tests: tests/functions/test_functions_semantics.py, tests/functions/test_functions_assertions.py.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toprope.functions import interrupts
from toprope.functions.arguments import lift
from toprope.functions.backend import DEFAULT_NAMESPACE, Backend, Code, listed_names
from toprope.functions.deployment.reservations import Reservations
from toprope.functions.exceptions import CODES, YRRuntimeError, YRTimeoutError, fresh, unreadable
from toprope.functions.generators import Items, ObjectRefGenerator, signalled
from toprope.functions.key_value_store import Pairs
from toprope.functions.local.dispatcher import Dispatcher
from toprope.functions.local.folder import hold
from toprope.functions.local.instance_manager import Instances
from toprope.functions.local.object_store import NOTHING, ObjectStore
from toprope.functions.local.pools import Pools
from toprope.functions.local.process import Call, Process, Stream
from toprope.functions.local.reactor import Reactor
from toprope.functions.local.scheduling.scheduler import Scheduler
from toprope.functions.local.worker_requests import Requests
from toprope.functions.objects import Entry, ObjectRef, Value, given, parted
from toprope.functions.options import Config, InvokeOptions
from toprope.functions.scheduling.ledger import Ledger, Node
from toprope.functions.transport.wire import Kind

__all__ = ["Session"]


class Session(Backend):
    """A session. One lock guards its state; no code blocks while it is held.

    Args:
        config: see `yr.init`.
        node: the resources of this machine.
        folder: for shared memory; it is removed at the end.
        variables: workers' environment variables in addition to those of this process.
        reservations: other programs' reservations of the node's cards; None without `toprope start`.
    """

    def __init__(
        self,
        config: Config,
        node: Node,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        reservations: Reservations | None = None,
    ) -> None:
        self.config = config
        self._variables = variables or {}
        self.folder = folder
        self.job_id = config.job_id or f"job-{uuid.uuid4().hex[:8]}"
        self.hold = hold(folder)
        self.lock = threading.RLock()
        self.store = ObjectStore(self, folder)
        self.ledger = Ledger([node])
        self.codes: dict[str, Code] = {}
        self.objects: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        self.unwanted: deque[Stream] = deque()  # streams that this process has closed
        self._object_numbers = itertools.count(1)
        self.ended = False
        self.reactor = Reactor(self)
        self.instances = Instances(self)
        self.pools = Pools(self)
        self.node = node.id
        self.scheduler = Scheduler(self, reservations)
        self.resource_groups, self.groups = self.scheduler.resource_groups, self.scheduler.groups
        self.pairs = Pairs()
        self.requests = Requests(self)
        self.dispatcher = Dispatcher(self)
        self.send, self.handle = self.dispatcher.send, self.dispatcher.handle
        self.close_stream = self.dispatcher.close_stream
        self._process = os.getpid()
        self.reactor.start()
        self._guard = interrupts.Guard()
        _sessions.add(self)

    def variables_for(self, id: str) -> dict[str, str]:
        """Variables of a worker in addition to those of this process.

        Args:
            id: of the instance, or of the worker for functions.
        """
        kept = {name: value for name, value in self._variables.items() if name not in os.environ}
        return {**kept, **self.config.environment(), "INSTANCE_ID": id, "YR_JOB_ID": self.job_id}

    # Objects

    def object(self, number: int, owner: Process) -> Entry:
        """Return the object that a worker knows by this number."""
        held = owner.held.get(number)
        if held is not None:
            found: Entry = held[0]
            return found
        entry = self.objects.get(number)
        if entry is None:
            raise YRRuntimeError(f"there is no object {number:016x} any more", CODES["get failed"])
        return entry

    def expose(self, entry: Entry, to: Process) -> int:
        """Return the number of an object for a worker, which holds the object from now on."""
        number = self._number(entry)
        held = to.held.setdefault(number, [entry, 0])
        held[1] += 1
        return number

    def adopt(self, entry: Entry, number: int, owner: Process) -> None:
        """Register the number that a worker has chosen for an object that it requests, and holds."""
        entry.number = number
        self.objects[number] = entry
        owner.held[number] = [entry, 1]

    def put(self, value: Any) -> ObjectRef:
        """Store a value and return a reference to it."""
        self.check()
        entry = Entry()
        entry.finish(self.store.pack(value))
        return ObjectRef(self, entry)

    def get(self, refs: Sequence[ObjectRef], timeout: float, allow_partial: bool) -> list[Any]:
        """The objects, in order."""
        until = None if timeout == -1 else time.monotonic() + timeout
        results: list[Any] = []
        result = self.result
        for ref in refs:
            entry = ref._entry
            if not entry.done and not self.wait_for(entry, until):
                if not allow_partial:
                    raise YRTimeoutError(f"{self._why(entry)} within {timeout} s", CODES["get failed"])
                results.append(None)
            elif allow_partial and entry.error is not None:
                results.append(None)
            else:
                results.append(result(entry))
        self.store.free_released()
        return results

    def result(self, entry: Entry) -> Any:
        """The value of an object that is there.

        Raises:
            The error in its place.
        """
        if entry.error is not None:
            raise fresh(entry.error)
        assert entry.value is not None
        if self.ended:
            self.check()
        try:
            return self.store.unpack(entry.value)
        except YRRuntimeError:
            raise
        except Exception as error:
            raise unreadable(error) from error

    def wait_for(self, entry: Entry, until: float | None) -> bool:
        """Wait for an object; True once it is available. Reads from its worker, unless another thread does."""
        while not entry.done:
            if self.ended:
                self.check()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            source: Process | None = entry.source
            if source is not None and not source.closed and source.channel.reading.acquire(blocking=False):
                try:
                    self.reactor.read_here(source, entry, left)
                finally:
                    source.channel.reading.release()
                    self.reactor.listen(source)
            else:
                interrupts.wait(entry.event(), left if source is None else min(0.2, left or 0.2))
        return True

    @interrupts.interruptible
    def wait(
        self, refs: Sequence[ObjectRef], count: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """The references whose objects are there, and the others."""
        news = threading.Semaphore(0)
        release = news.release
        for ref in refs:
            ref._entry.when_done(release)
        until = None if timeout is None else time.monotonic() + timeout
        try:
            for _ in range(count):
                if not news.acquire(timeout=None if until is None else max(0, until - time.monotonic())):
                    break
        finally:
            for ref in refs:
                ref._entry.forget(release)
        return parted(refs, [place for place, ref in enumerate(refs) if ref._entry.done][:count])

    def cancel(self, refs: Sequence[ObjectRef], allow_force: bool, allow_recursive: bool) -> None:
        """Cancel the function calls that make these objects; calls of instances are ignored."""
        for ref in refs:
            self.pools.cancel(ref._entry, allow_force)

    def is_done(self, entry: Entry) -> bool:
        """True once the object is available."""
        return entry.done

    def when_done(self, entry: Entry, callback: Callable[[], None]) -> None:
        """Call back once the object is available."""
        entry.when_done(callback)

    def object_id(self, entry: Entry) -> str:
        """A name for an object."""
        with self.lock:
            return f"{self._number(entry):016x}"

    def _number(self, entry: Entry) -> int:
        """Return the number of an object; it gets one at the first use."""
        if not entry.number:
            entry.number = next(self._object_numbers)
            self.objects[entry.number] = entry
        return entry.number

    # Functions and instances

    def invoke(
        self,
        code: Code,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        options: InvokeOptions,
        returns: int | None,
    ) -> Any:
        """Call a function."""
        self.check()
        value, refs = self._packed(arguments, keywords)
        call = Call(Kind.FUNCTION, self.know(code), value, refs, returns, code, options)
        self.pools.add(call)
        return self.handles(call)

    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance."""
        self.check()
        self.know(code)
        value, refs = self._packed(arguments, keywords)
        return self.instances.create(code, value, refs, options)

    def call(
        self, instance: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int | None
    ) -> Any:
        """Call a method of an instance."""
        if self.ended:
            self.check()
        value, refs = self._packed(arguments, keywords) if arguments or keywords else (NOTHING, [])
        call = Call(Kind.CALL, method, value, refs, returns)
        self.instances.submit(instance, call)
        if returns == 1:
            return ObjectRef(self, call.entries[0])
        return self.handles(call)

    def _packed(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Value, list[Entry]]:
        """Pack the arguments of a call. Return them with the objects that must be available before it starts."""
        lifted, named, refs = lift(arguments, keywords)
        if any(ref._backend is not self for ref in refs):
            raise YRRuntimeError("an object of a session that has ended cannot be used", CODES["finalized"])
        return self.store.pack((lifted, named)), [ref._entry for ref in refs]

    def handles(self, call: Call) -> Any:
        """Return the caller's references to the results of a call."""
        if call.stream is not None:
            return ObjectRefGenerator(_StreamItems(self, call.stream))
        return given([ObjectRef(self, entry) for entry in call.entries], call.returns)

    def close_unwanted(self) -> None:
        """Stop the generators that this process has closed."""
        with self.lock:
            while self.unwanted:
                self.close_stream(self.unwanted.popleft())

    def know(self, code: Code) -> str:
        """The key of a function or class, by which workers know it."""
        key = code.identify()
        self.codes.setdefault(key, code)
        return key

    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""
        self.instances.terminate(instance, is_sync)

    def unreferenced(self, instance: str) -> None:
        """Note that a handle to an instance was deleted."""
        if not self.ended:
            self.instances.dropped.append(instance)
            self.reactor.wake()

    def is_alive(self, instance: str) -> bool:
        """True if the instance exists."""
        return self.instances.is_alive(instance)

    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """The id and class of a named instance."""
        return self.instances.find(name, namespace, timeout)

    def python_path(self) -> list[str]:
        """Return the folders to put in front of the workers' sys.path: this process's own."""
        return [*self.config.load_paths, *(each for each in sys.path if each)]

    # What there is

    def resources(self) -> list[dict[str, Any]]:
        """Each node with its capacity and what is free of it, 0 too."""
        with self.lock:
            return [
                {
                    "id": node.id, "status": 0, "capacity": node.amounts,
                    "allocatable": dict.fromkeys(node.amounts, 0) | self.ledger.free(node.id).amounts,
                    "labels": dict(node.labels),
                }
                for node in self.ledger.nodes
            ]  # fmt: skip

    def list_instances(self) -> list[dict[str, Any]]:
        """The living instances."""
        with self.lock:
            return [each.as_dict() for each in self.instances.holders()]

    def list_named_instances(self, all_namespaces: bool) -> list[Any]:
        """Names of the living instances that have one."""
        with self.lock:
            return listed_names(self.instances.named(), self.namespace, all_namespaces)

    def this_node(self) -> dict[str, str]:
        """This machine."""
        (node,) = self.ledger.nodes
        return {"id": node.id, "ip": node.labels.get("HOST_IP", ""), "namespace": self.namespace}

    @property
    def namespace(self) -> str:
        """The namespace of named instances that name none."""
        return self.config.ns or DEFAULT_NAMESPACE

    # Its end

    def check(self) -> None:
        """Refuse work once the session has ended.

        Raises:
            YRRuntimeError: it has.
        """
        if self.ended:
            what = "already finalized"
            if os.getpid() != self._process:
                what = "this process is a fork of the one that called yr.init: call yr.init in it too"
            raise YRRuntimeError(what, CODES["finalized"])

    def _why(self, entry: Entry) -> str:
        call = entry.call
        owner = None if call is None else call.owner
        return "it was not there" if owner is None else str(owner.why_waiting(call))

    def finalize(self) -> None:
        """End every instance and free every object of the session."""
        with self.lock:
            if self.ended:
                return
            self.ended = True
            error = YRRuntimeError("already finalized", CODES["finalized"])
        self.instances.end_all(error)
        self.pools.end_all(error)
        try:
            self.reactor.close()
        finally:
            self.scheduler.end()
            self.store.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # the forkserver does it, unless it was killed
            os.close(self.hold)
            self._guard.remove()

    def abandon(self) -> None:
        """Close the session in a fork of the program, which does not own the workers: their sockets are closed."""
        self.ended = True
        self.lock = threading.RLock()  # another thread, which is not here, may have held it
        self._guard.remove()
        self.reactor.abandon()
        os.close(self.hold)


class _StreamItems(Items):
    """Items of a generator that this process called.

    Args:
        session: the session.
        stream: of the call.
    """

    def __init__(self, session: Session, stream: Stream) -> None:
        self._session = session
        self._stream = stream

    def take(self) -> ObjectRef | None:
        """The next item; waits for it."""
        while True:
            changed = self._stream.changed
            if self._is_there():
                return self._next()
            self._session.wait_for(changed, None)

    async def take_async(self) -> ObjectRef | None:
        """The next item, without blocking the event loop."""
        while True:
            changed = self._stream.changed
            if self._is_there():
                return self._next()
            self._session.check()
            await signalled(changed.when_done)

    def _is_there(self) -> bool:
        return self._stream.taken < len(self._stream.entries) or self._stream.ended

    def close(self) -> None:
        """Stop the generator. May be called at any moment, in any thread, so the work is deferred."""
        if not (self._stream.closed or self._session.ended):
            self._session.unwanted.append(self._stream)
            self._session.reactor.wake()

    __del__ = close

    def _next(self) -> ObjectRef | None:
        stream = self._stream
        if stream.taken == len(stream.entries):
            return None
        stream.taken += 1
        return ObjectRef(self._session, stream.entries[stream.taken - 1])


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _forked() -> None:
    for session in list(_sessions):
        if not session.ended:
            session.abandon()


os.register_at_fork(after_in_child=_forked)
