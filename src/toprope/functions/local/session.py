"""Session of the driver: functions and instances in processes of this machine.

`yr.init` without an address makes it; it is the `Backend` of the program, so its public methods are those of
`functions.backend`. It joins the parts, which know `local.session_state` alone: dispatcher, instances, pools,
scheduler, object store, reactor and the requests of workers. One lock guards them all, and no code waits while it holds
the lock: a part that is added keeps to that. Tests: tests/functions/test_functions_semantics.py,
tests/functions/test_functions_assertions.py, tests/functions/test_functions_objects.py.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toprope.functions import interrupts
from toprope.functions.arguments import lift
from toprope.functions.backend import Code, listed_names
from toprope.functions.deployment.reservations import Reservations
from toprope.functions.exceptions import CODES, YRRuntimeError, YRTimeoutError, fresh, unreadable
from toprope.functions.generators import Items, ObjectRefGenerator, signalled
from toprope.functions.key_value_store import Pairs
from toprope.functions.local.dispatcher import Dispatcher
from toprope.functions.local.instance import Instance
from toprope.functions.local.instance_manager import Instances
from toprope.functions.local.object_store import NOTHING, ObjectStore
from toprope.functions.local.pools import Pools
from toprope.functions.local.process import Call, Process, Stream
from toprope.functions.local.reactor import Reactor
from toprope.functions.local.scheduling.scheduler import Scheduler
from toprope.functions.local.session_state import SessionState
from toprope.functions.local.worker_requests import Requests
from toprope.functions.objects import Entry, ObjectRef, Value, given, parted
from toprope.functions.options import Config, InvokeOptions
from toprope.functions.scheduling.holders import Holder
from toprope.functions.scheduling.ledger import Node
from toprope.functions.transport.wire import Kind

__all__ = ["Session"]


class Session(SessionState):
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
        super().__init__(config, node, folder, variables)
        self.unwanted: deque[Stream] = deque()  # streams that this process has closed
        self.pairs = Pairs()
        self.reactor = Reactor(self)
        self.store = ObjectStore(self, self.reactor)
        self.scheduler = Scheduler(self, self.reactor, reservations)
        self.pools = Pools(self, self.reactor, self.scheduler)
        self.instances = Instances(self, self.reactor, self.scheduler, self.pools)
        self.resource_groups, self.groups = self.scheduler.resource_groups, self.instances.groups
        requests = Requests(self, self.reactor, self.store, self.scheduler, self.pools, self.instances)
        dispatcher = Dispatcher(self, self.reactor, self.store, requests)
        self.send, self.handle = dispatcher.send, dispatcher.handle
        self.close_stream, self.release = dispatcher.close_stream, dispatcher.release
        self.reactor.start()
        self._guard = interrupts.Guard()
        _sessions.add(self)

    # Objects

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

    def tidy(self) -> None:
        """Free the values, instances and generators that this process has dropped."""
        self.store.free_released()
        if self.instances.dropped:
            self.instances.free_dropped()
        if self.unwanted:
            with self.lock:
                while self.unwanted:
                    self.close_stream(self.unwanted.popleft())

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

    def living(self) -> list[Instance]:
        """The instances that hold resources."""
        return self.instances.living()

    def holders(self, ledger: str) -> list[Holder]:
        """The instances and workers that hold resources of a ledger."""
        of_ledger = {each.id for each in self.living() if each.ledger == ledger}
        return [*(each for each in self.instances.holders() if each.id in of_ledger), *self.pools.holders(ledger)]

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

    # Its end

    def leave(self, ledger: str, error: BaseException) -> None:
        """End the instances, workers and calls of a resource group that is removed."""
        self.instances.leave(ledger, error)
        self.pools.leave(ledger, error)

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
