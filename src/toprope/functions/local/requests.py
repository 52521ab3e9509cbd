"""What workers ask of the driver."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toprope.functions.backend import Code
from toprope.functions.exceptions import CODES, YRError, YRRuntimeError, YRTimeoutError, describe, invoke_error
from toprope.functions.local.process import Call, Process
from toprope.functions.objects import Entry, Value
from toprope.functions.wire import Closed, Kind, Message

if TYPE_CHECKING:
    from toprope.functions.local.session import Session

__all__ = ["Requests"]


class Requests:
    """Answers the requests of a session's workers. Held: the session's lock; nothing here waits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._operations: dict[str, Callable[..., None]] = {
            "get": self._get,
            "wait": self._wait,
            "when done": self._when_done,
            "is done": self._is_done,
            "cancel": self._cancel,
            "next": self._next,
            "terminate": self._terminate,
            "is alive": self._is_alive,
            "find": self._find,
            "service": self._service,
        }

    def handle(self, process: Process, message: Message) -> None:
        """Act on a message that is no result."""
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
            value = session.values.received(has_data, spec, ids, iter(message.parts), process)
            try:
                self._request(process, message.number, what, value, extra)
            except Exception as error:
                self._answer_error(process, message.number, error)

    def error(self, data: bytes, *, is_ours: bool) -> BaseException:
        """What a caller gets for what a worker says went wrong."""
        try:
            origin, text = pickle.loads(data)
        except Exception as error:
            return YRRuntimeError(f"the error of a worker cannot be read: {error}", CODES["deserialize"])
        return origin if is_ours else invoke_error(origin, text)

    def _request(self, process: Process, number: int, what: str, value: Value, extra: Any) -> None:
        session = self._session
        if what == "request":
            operation, arguments = session.values.unpack(value)
            self._operations[operation](process, number, *arguments)
        elif what == "put":
            entry = Entry()
            session.adopt(entry, extra, process)
            entry.finish(value)
        elif what == "create":
            key, options = extra
            code = session.codes[key]
            self._answer(process, number, session.instances.create(code, value, value.refs, pickle.loads(options)))
        else:
            target, returns, numbers = extra
            if what == "invoke":
                key, options = target
                call = Call(Kind.FUNCTION, key, value, value.refs, returns, session.codes[key], pickle.loads(options))
            else:
                call = Call(Kind.CALL, target[1], value, value.refs, returns)
            for entry, name in zip(call.entries, numbers, strict=False):
                session.adopt(entry, name, process)
            if call.stream is not None:
                session.streams[numbers[0]] = call.stream
            if what == "invoke":
                session.pools.add(call)
            else:
                session.instances.submit(target[0], call)

    # Operations

    def _get(self, process: Process, number: int, name: int, timeout: float) -> None:
        entry = self._session.object(name, process)
        answered = False

        def done() -> None:
            nonlocal answered
            with self._session.lock:
                if answered:
                    return
                answered = True
                if entry.error is not None:
                    self._answer_error(process, number, entry.error)
                elif entry.value is not None:
                    self._answer_value(process, number, entry.value)

        def late() -> None:
            nonlocal answered
            with self._session.lock:
                if answered:
                    return
                answered = True
                text = f"failed to get object, code: 4005, module code: 30, msg: it was not there within {timeout} s"
                self._answer_error(process, number, YRTimeoutError(text))

        if timeout != -1 and not entry.done:
            self._session.processes.after(timeout, late)
        entry.when_done(done)

    def _wait(self, process: Process, number: int, names: list[int], count: int, timeout: float | None) -> None:
        entries = [self._session.object(name, process) for name in names]
        answered = False
        until = None if timeout is None else time.monotonic() + timeout

        def look(*, late: bool = False) -> None:
            nonlocal answered
            with self._session.lock:
                ready = [place for place, entry in enumerate(entries) if entry.done][:count]
                late = late or (until is not None and time.monotonic() >= until)
                if not answered and (len(ready) >= count or late):
                    answered = True
                    self._answer(process, number, ready)

        if timeout is not None:
            self._session.processes.after(timeout, lambda: look(late=True))
        for entry in entries:
            entry.when_done(look)
        look()

    def _when_done(self, process: Process, number: int, name: int) -> None:
        self._session.object(name, process).when_done(lambda: self._answer(process, number, None))

    def _is_done(self, process: Process, number: int, name: int) -> None:
        self._answer(process, number, self._session.object(name, process).done)

    def _cancel(self, process: Process, number: int, names: list[int], force: bool, recursive: bool) -> None:
        for name in names:
            self._session.pools.cancel(self._session.object(name, process), force)
        self._answer(process, number, None)

    def _next(self, process: Process, number: int, name: int) -> None:
        session = self._session
        stream = session.streams[name]
        if stream.taken < len(stream.entries):
            stream.taken += 1
            self._answer(process, number, session.expose(stream.entries[stream.taken - 1], process))
        elif stream.ended:
            del session.streams[name]
            self._answer(process, number, None)
        else:
            stream.changed.when_done(lambda: self._next(process, number, name))

    def _terminate(self, process: Process, number: int, instance: str, is_sync: bool) -> None:
        # waiting here would keep everybody waiting: the end is asked for, and the answer follows it
        session = self._session
        found = session.instances.get(instance)
        if found is not None:
            for each in session.services.of_group(found):
                session.instances.end(each, YRRuntimeError("this instance is terminated", CODES["instance exited"]))
        self._answer(process, number, None)

    def _is_alive(self, process: Process, number: int, instance: str) -> None:
        self._answer(process, number, self._session.instances.is_alive(instance))

    def _find(self, process: Process, number: int, name: str, namespace: str, timeout: float) -> None:
        session = self._session
        until = time.monotonic() + timeout

        def look() -> None:
            with session.lock:
                try:
                    instance, code = session.instances.find(name, namespace, 0)
                except YRError as error:
                    if time.monotonic() < until:
                        session.processes.after(0.05, look)
                    else:
                        self._answer_error(process, number, error)
                    return
                self._answer(process, number, (instance, code.blob()))

        look()

    def _service(self, process: Process, number: int, operation: str, arguments: tuple[Any, ...]) -> None:
        self._answer(process, number, self._session.services.serve(operation, arguments, process))

    # Answers

    def _answer(self, process: Process, number: int, result: Any) -> None:
        value, _ = self._session.values.pack(result)
        self._answer_value(process, number, value)

    def _answer_error(self, process: Process, number: int, error: BaseException) -> None:
        if number:
            kept, _ = describe(error)
            value, _ = self._session.values.pack(kept)
            self._answer_value(process, number, value, failed=True)

    def _answer_value(self, process: Process, number: int, value: Value, *, failed: bool = False) -> None:
        session = self._session
        with session.lock:
            if process.closed:
                return
            ids = tuple(session.expose(entry, process) for entry in value.refs)
            session.values.lend(value.spec, process)
            parts = [*([value.data] if value.data is not None else []), *value.parts]
            try:
                process.channel.send(Kind.REPLY, number, (failed, value.data is not None, value.spec, ids), parts)
            except Closed:
                session.processes.lost(process)


class _Received(Code):
    """A function or class that a worker has sent; it is not unpickled here."""

    __slots__ = ()

    def __init__(self, key: str, name: str, is_async: bool, blob: bytes) -> None:
        self.key = key
        self.name = name
        self.is_async = is_async
        self.target = None
        self._blob = blob
