"""Requests of workers to the driver: each is a method of `Requests`, which `local.worker.relay` calls by its name.

A part of the local session. A worker waits for the answer, but no method here may wait: it registers a callback. Every
public method can be called by a worker: the name of one that is not for workers begins with `_`, or is in another
class. Tests: tests/functions/test_functions_objects.py, tests/functions/test_functions_instances.py,
tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toprope.functions.backend import Code
from toprope.functions.exceptions import CODES, YRError, YRRuntimeError, YRTimeoutError, describe
from toprope.functions.local.instance import Instance
from toprope.functions.local.process import Call, Process
from toprope.functions.objects import Entry, Value
from toprope.functions.transport.wire import Closed, Kind, Message

if TYPE_CHECKING:
    from toprope.functions.local.instance_manager import Instances
    from toprope.functions.local.object_store import ObjectStore
    from toprope.functions.local.pools import Pools
    from toprope.functions.local.reactor import Reactor
    from toprope.functions.local.scheduling.scheduler import Scheduler
    from toprope.functions.local.session_state import SessionState

__all__ = ["Requests"]


class Requests:
    """Answers the requests of a session's workers. The caller holds the session's lock; no method blocks."""

    def __init__(
        self,
        session: SessionState,
        reactor: Reactor,
        store: ObjectStore,
        scheduler: Scheduler,
        pools: Pools,
        instances: Instances,
    ) -> None:
        self._session = session
        self._reactor = reactor
        self._store = store
        self._scheduler = scheduler
        self._pools = pools
        self._instances = instances

    def receive(self, process: Process, message: Message) -> None:
        """Handle a message that is no result."""
        session = self._session
        if message.kind == Kind.READY:
            (process.pid,) = message.meta
        elif message.kind == Kind.CODE:
            key, name, is_async = message.meta
            process.codes.add(key)
            if key not in session.codes:
                session.codes[key] = _Received(key, name, is_async, message.parts[0])
        elif message.kind == Kind.REQUEST:
            what, has_data, spec, ids, extra = message.meta
            value = self._store.received(has_data, spec, ids, iter(message.parts), process)
            try:
                self._request(process, message.number, what, value, extra)
            except Exception as error:
                self._answer_error(process, message.number, error)

    def _request(self, process: Process, number: int, what: str, value: Value, extra: Any) -> None:
        session = self._session
        if what == "request":
            operation, arguments = self._store.unpack(value)
            if operation.startswith("_") or operation not in vars(Requests):
                raise YRRuntimeError(f"{operation} is no request of a worker", CODES["internal error"])
            getattr(self, operation)(process, number, *arguments)
        elif what == "put":
            entry = Entry()
            session.adopt(entry, extra, process)
            entry.finish(value)
        elif what == "create":
            key, options, ids = extra
            refs = [session.object(each, process) for each in ids]
            code = session.codes[key]
            self._answer(process, number, self._instances.create(code, value, refs, pickle.loads(options)))
        else:
            target, returns, numbers, ids = extra
            refs = [session.object(each, process) for each in ids]
            if what == "invoke":
                key, given = target
                options = pickle.loads(given)
                call = Call(Kind.FUNCTION, key, value, refs, returns, session.codes[key], options)
            else:
                call = Call(Kind.CALL, target[1], value, refs, returns)
            for entry, name in zip(call.entries, numbers, strict=False):
                session.adopt(entry, name, process)
            if call.stream is not None:
                process.streams[numbers[0]] = call.stream
            try:
                if what == "invoke":
                    self._pools.add(call)
                else:
                    self._instances.submit(target[0], call)
            except Exception as error:  # no answer is expected: the error is reported with the result
                call.fail(error)

    # Operations

    def get(self, process: Process, number: int, name: int, timeout: float) -> None:
        """Answer with the value of an object once it is available."""
        entry = self._session.object(name, process)
        if entry.done:
            self._answer_object(process, number, entry)
            return

        def done() -> None:
            with self._session.lock:
                if waiting.end():
                    self._answer_object(process, number, entry)

        def late() -> None:
            with self._session.lock:
                if waiting.end():
                    entry.forget(done)
                    text = f"it was not there within {timeout} s"
                    self._answer_error(process, number, YRTimeoutError(text, CODES["get failed"]))

        waiting = _Waiting(self, process, None if timeout == -1 else timeout, late)
        entry.when_done(done)

    def wait(self, process: Process, number: int, names: list[int], count: int, timeout: float | None) -> None:
        """Answer with the indices of available objects once there are enough of them."""
        entries = [self._session.object(name, process) for name in names]

        def ready() -> list[int]:
            return [place for place, entry in enumerate(entries) if entry.done][:count]

        def end() -> None:
            if waiting.end():
                for entry in entries:
                    entry.forget(look)
                self._answer(process, number, ready())

        def look() -> None:
            with self._session.lock:
                if len(ready()) >= count:
                    end()

        def late() -> None:
            with self._session.lock:
                end()

        waiting = _Waiting(self, process, timeout, late)
        for entry in entries:
            entry.when_done(look)
        look()

    def when_done(self, process: Process, number: int, name: int) -> None:
        """Answer once an object is available."""
        self._session.object(name, process).when_done(lambda: self._answer(process, number, None))

    def is_done(self, process: Process, number: int, name: int) -> None:
        """Answer with True once the object is available, else False."""
        self._answer(process, number, self._session.object(name, process).done)

    def cancel(self, process: Process, number: int, names: list[int], force: bool, recursive: bool) -> None:
        """Cancel the calls of functions that make these objects."""
        for name in names:
            self._pools.cancel(self._session.object(name, process), force)
        self._answer(process, number, None)

    def next_item(self, process: Process, number: int, name: int) -> None:
        """Answer with the number of a generator's next item, None after the last."""
        session = self._session
        stream = process.streams[name]
        if stream.taken < len(stream.entries):
            stream.taken += 1
            self._answer(process, number, session.expose(stream.entries[stream.taken - 1], process))
        elif stream.ended:
            del process.streams[name]
            self._answer(process, number, None)
        else:
            waiting = _Waiting(self, process, None, lambda: None)

            def changed() -> None:
                with session.lock:
                    if waiting.end() and name in process.streams:
                        self.next_item(process, number, name)

            stream.changed.when_done(changed)

    def forget_stream(self, process: Process, number: int, name: int) -> None:
        """Stop a generator: its consumer wants no more items."""
        stream = process.streams.pop(name, None)
        if stream is not None:
            self._session.close_stream(stream)
        self._answer(process, number, None)

    def terminate(self, process: Process, number: int, instance: str, is_sync: bool) -> None:
        """End an instance."""
        # waiting here would keep everybody waiting: the end is asked for, and the answer follows it
        found = self._instances.get(instance)
        if found is not None:
            self._instances.end_group(found)
        self._answer(process, number, None)

    def find(self, process: Process, number: int, name: str, namespace: str, timeout: float) -> None:
        """Answer with the id and class of a named instance once its constructor has run."""
        session = self._session
        until = time.monotonic() + timeout

        def look() -> None:
            with session.lock:
                try:
                    instance, code = self._instances.find(name, namespace, 0)
                except YRError as error:
                    if time.monotonic() < until:
                        self._reactor.after(0.05, look)
                    else:
                        self._answer_error(process, number, error)
                    return
                self._answer(process, number, (instance, code.blob()))

        look()

    def perform(
        self, process: Process, number: int, part: str, method: str, arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:  # fmt: skip
        """Call a method of the session, or of a part of it, that does not wait."""
        self._answer(process, number, self._session.perform(part, method, arguments, keywords))

    def save_state(self, process: Process, number: int, state: bytes) -> None:
        """Save the state of the worker's instance."""
        self._instance_of(process, "save_state").saved = state
        self._answer(process, number, None)

    def load_state(self, process: Process, number: int) -> None:
        """Answer with the last saved state of the worker's instance, None for none."""
        self._answer(process, number, self._instance_of(process, "load_state").saved)

    def function_group_context(self, process: Process, number: int) -> None:
        """The place of the worker's instance in its function group, None outside of one."""
        owner, context = process.owner, None
        if isinstance(owner, Instance) and owner.group is not None and owner.options.function_group_options is not None:
            context = self._instances.groups.context(owner.group, owner)
        self._answer(process, number, context)

    def _instance_of(self, process: Process, what: str) -> Instance:
        if not isinstance(process.owner, Instance):
            self._session._refuse(what)
        return process.owner

    # Answers

    def _answer_object(self, process: Process, number: int, entry: Entry) -> None:
        if entry.error is not None:
            self._answer_error(process, number, entry.error)
        elif entry.value is not None:
            self._answer_value(process, number, entry.value)

    def _answer(self, process: Process, number: int, result: Any) -> None:
        try:
            value = self._store.pack(result)
        except Exception as error:  # the store is full: the error is the requester's, not the reader's
            self._answer_error(process, number, error)
        else:
            self._answer_value(process, number, value)

    def _answer_error(self, process: Process, number: int, error: BaseException) -> None:
        if number:
            kept, _ = describe(error)
            value = self._store.pack(kept)
            self._answer_value(process, number, value, failed=True)

    def _answer_value(self, process: Process, number: int, value: Value, *, failed: bool = False) -> None:
        session = self._session
        with session.lock:
            if process.closed or not number:
                return
            ids = tuple(session.expose(entry, process) for entry in value.refs)
            self._store.lend(value.spec, process)
            parts = [*([value.data] if value.data is not None else []), *value.parts]
            try:
                process.channel.send(Kind.REPLY, number, (failed, value.data is not None, value.spec, ids), parts)
            except Closed:
                self._reactor.lost(process)


class _Waiting:
    """A waiting worker: its cores are lent to others meanwhile, unless it runs other calls too.

    Args:
        requests: has the timers and the scheduler.
        process: who waits.
        timeout: seconds; None for no limit.
        late: called when they are over.
    """

    def __init__(self, requests: Requests, process: Process, timeout: float | None, late: Callable[[], None]) -> None:
        self._scheduler = requests._scheduler
        self._process = process
        self._ended = False
        self._timer = None if timeout is None else requests._reactor.after(timeout, late)
        self._count(1)

    def end(self) -> bool:
        """End the wait. Return True if it was still waiting."""
        if self._ended:
            return False
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._count(-1)
        return True

    def _count(self, change: int) -> None:
        process = self._process
        before, process.waits = process.waits, process.waits + change
        owner = process.owner
        grant = getattr(owner, "grant", None)
        if grant is None or process.closed or bool(before) == bool(process.waits):
            return
        is_async = isinstance(owner, Instance) and owner.code.is_async
        if owner.options.calls_at_once(is_async=is_async) > 1:
            return
        ledger = self._scheduler.ledger_of(owner)
        if process.waits:
            ledger.pause(grant.number)
            self._scheduler.serve()
        else:
            ledger.resume(grant.number)


class _Received(Code):
    """A function or class that a worker has sent; it is not unpickled here."""

    __slots__ = ()

    def __init__(self, key: str, name: str, is_async: bool, blob: bytes) -> None:
        self.key = key
        self.name = name
        self.is_async = is_async
        self.target = None
        self._blob = blob
