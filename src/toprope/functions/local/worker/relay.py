"""Relay of a worker to its driver: the `Backend` of code that runs in functions and instances of a local session.

A call of the API in a worker becomes a message; `local.worker_requests` answers it in the driver. Its public methods
are those of `functions.backend`; a method that is added here names its counterpart there. Whichever thread waits reads
the socket, and `__del__` only queues releases. Tests: tests/functions/test_functions_objects.py,
tests/functions/test_functions_generators.py, tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from toprope.functions.arguments import lift
from toprope.functions.backend import Backend, Code, Forwarded, InstanceGroups, KeyValuePairs, ResourceGroups, restore
from toprope.functions.exceptions import CODES, YRRuntimeError, YRTimeoutError, unreadable
from toprope.functions.generators import Items, ObjectRefGenerator, signalled
from toprope.functions.local.worker.concurrency import AnswerSignal
from toprope.functions.local.worker_requests import Requests
from toprope.functions.objects import ObjectRef, given, parted
from toprope.functions.options import InvokeOptions
from toprope.functions.transport.arena import Arena, Reader
from toprope.functions.transport.serialization import BlockKey, Packed, pack, unpack
from toprope.functions.transport.wire import Channel, Closed, Kind, Message, Outgoing

if TYPE_CHECKING:
    from toprope.functions.local.process import Process

__all__ = ["Relay"]

P = ParamSpec("P")
R = TypeVar("R")


class Worker(Protocol):
    """The part of `worker_process.Worker` that requests go through.

    Attributes:
        number: names it in the session.
        channel: the socket to the driver.
        arena, reader: the shared memory that it writes and reads.
        codes: pickles of functions and classes, by key.
        instance: the user's object; None in a worker for functions.
        released: blocks that it has read, for their owner.
        always_reads: whether its main thread runs no calls.
        answer_signal: wakes the threads that wait for an answer.
    """

    number: int
    channel: Channel
    arena: Arena
    reader: Reader
    codes: dict[str, bytes]
    instance: Any
    released: deque[BlockKey]
    always_reads: bool
    answer_signal: AnswerSignal

    def wait_for(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, in any thread of this process, until something is done. Return True if it is."""

    def send_releases(self) -> None:
        """Send the releases to the driver."""

    def checkpoint(self) -> bytes:
        """Pickle the instance for another process."""


class RemoteEntry:
    """An object that the driver stores; the driver is notified when it is no longer used here."""

    __slots__ = ("__weakref__", "_relay", "number", "times")

    def __init__(self, relay: Relay, number: int) -> None:
        self._relay = relay
        self.number = number
        self.times = 1  # how often the driver has counted this worker as a holder

    def __del__(self) -> None:
        self._relay.dropped.append((self.number, self.times))


class Relay(Backend):
    """Sends requests to the driver, and waits for its answers."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.dropped: deque[tuple[int, int]] = deque()
        self.unfinished: deque[int] = deque()
        self._known: weakref.WeakValueDictionary[int, RemoteEntry] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Message | None] = {}
        self._listening = False
        self._late: dict[int, Callable[[], None]] = {}
        self._sent_codes: set[str] = set()
        self.job_id = f"worker {worker.number}"
        self.pairs: KeyValuePairs = cast(Any, Forwarded("pairs", self._perform))
        self.resource_groups: ResourceGroups = cast(Any, Forwarded("resource_groups", self._perform))
        self.groups: InstanceGroups = cast(Any, Forwarded("groups", self._perform))

    # References

    def ref(self, number: int) -> ObjectRef:
        """Make a reference to an object of the driver, or to a new one."""
        with self._lock:
            entry = self._known.get(number)
            if entry is None:
                entry = self._known[number] = RemoteEntry(self, number)
            else:
                entry.times += 1
        return ObjectRef(self, entry)

    def id(self, ref: ObjectRef) -> int:
        """The number by which the driver knows an object."""
        number: int = ref._entry.number
        return number

    def unused(self) -> list[Outgoing]:
        """Return the messages that release streams and objects."""
        messages: list[Outgoing] = []
        while self.unfinished:
            packed = pack((Requests.forget_stream.__name__, (self.unfinished.popleft(),)), None)
            messages.append(self._request("request", 0, packed, 0))
        gone = []
        while self.dropped:
            gone.append(self.dropped.popleft())
        if gone:
            messages.append((Kind.REFS, 0, tuple(gone), ()))
        return messages

    def send_releases(self) -> None:
        """Send the releases to the driver now."""
        self._worker.send_releases()

    def answered(self, message: Message) -> None:
        """Handle an answer; one that is no longer waited for is released."""
        if message.number in self._answers:
            self._answers[message.number] = message
            late = self._late.pop(message.number, None)
            if late is not None:
                late()
            else:
                self._worker.answer_signal.notify()
        else:
            self._release_answer(message)

    def _release_answer(self, message: Message) -> None:
        """Release the memory and objects of an unused answer."""
        self._worker.released.extend(key for key in message.meta[2] if key is not None)
        self.dropped.extend((number, 1) for number in message.meta[3])

    def _give_up(self, number: int) -> None:
        """Stop waiting for an answer."""
        message = self._answers.pop(number, None)
        if message is not None:
            self._release_answer(message)

    # Objects

    def put(self, value: Any) -> ObjectRef:
        """Store a value and return a reference to it."""
        number = self._new_number()
        packed = pack(value, self._worker.arena)
        self._send("put", 0, packed, number)
        return self.ref(number)

    def get(self, refs: Sequence[ObjectRef], timeout: float, allow_partial: bool) -> list[Any]:
        """The objects, in order."""
        asked = deque(self._ask(Requests.get, self.id(ref), timeout) for ref in refs)
        results: list[Any] = []
        try:
            while asked:
                try:
                    results.append(self._result(asked.popleft(), None if timeout == -1 else timeout + 5))
                except Exception:
                    if not allow_partial:
                        raise
                    results.append(None)
        finally:
            for number in asked:
                self._give_up(number)
        return results

    def wait(
        self, refs: Sequence[ObjectRef], count: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """The references whose objects are there, and the others."""
        number = self._ask(Requests.wait, [self.id(ref) for ref in refs], count, timeout)
        ready: list[int] = self._result(number, None if timeout is None else timeout + 5)
        return parted(refs, ready)

    def cancel(self, refs: Sequence[ObjectRef], allow_force: bool, allow_recursive: bool) -> None:
        """Cancel the calls that make these objects."""
        self._result(self._ask(Requests.cancel, [self.id(ref) for ref in refs], allow_force, allow_recursive), 60)

    def is_done(self, entry: Any) -> bool:
        """True once the object is available."""
        return bool(self._result(self._ask(Requests.is_done, entry.number), 60))

    def when_done(self, entry: Any, callback: Callable[[], None]) -> None:
        """Call back, in the thread that reads what the driver sends, when an object is there."""
        number = next(self._numbers)
        self._answers[number] = None

        def late() -> None:
            self._give_up(number)
            callback()

        self._late[number] = late
        packed = pack((Requests.when_done.__name__, (entry.number,)), self._worker.arena)
        self._send("request", number, packed, 0)
        self._ensure_reader()

    def object_id(self, entry: Any) -> str:
        """A name for an object."""
        return f"{entry.number:016x}"

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
        return self._call("invoke", (self._code(code), pickle.dumps(options)), arguments, keywords, returns)

    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance."""
        number = next(self._numbers)
        self._answers[number] = None
        lifted, named, refs = lift(arguments, keywords)
        packed = pack((lifted, named), self._worker.arena)
        extra = self._code(code), pickle.dumps(options), tuple(self.id(ref) for ref in refs)
        self._send("create", number, packed, extra)
        instance: str = self._result(number, 60)
        return instance

    def call(
        self, instance: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int | None
    ) -> Any:
        """Call a method of an instance."""
        return self._call("call", (instance, method), arguments, keywords, returns)

    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""
        self._result(self._ask(Requests.terminate, instance, is_sync), None)

    def is_alive(self, instance: str) -> bool:
        """True if the instance exists."""
        return self._do(Backend.is_alive, instance)

    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """The id and class of a named instance."""
        instance, blob = self._result(self._ask(Requests.find, name, namespace, timeout), timeout + 5)
        return instance, Code(pickle.loads(blob))

    def resources(self) -> list[dict[str, Any]]:
        """Each node with its capacity and what is free of it."""
        return self._do(Backend.resources)

    def list_instances(self) -> list[dict[str, Any]]:
        """The living instances."""
        return self._do(Backend.list_instances)

    def list_named_instances(self, all_namespaces: bool) -> list[Any]:
        """Names of the living instances that have one."""
        return self._do(Backend.list_named_instances, all_namespaces)

    def this_node(self) -> dict[str, str]:
        """The machine."""
        return self._do(Backend.this_node)

    def function_group_context(self) -> Any:
        """The place of the instance of this process in its function group."""
        return self._result(self._ask(Requests.function_group_context), None)

    def finalize(self) -> None:
        """Only the driver ends the session.

        Raises:
            YRRuntimeError: always.
        """
        raise YRRuntimeError("yr.finalize is for the program that called yr.init", CODES["incorrect usage"])

    def save_state(self) -> None:
        """Save the state of the instance of this process."""
        self._result(self._ask(Requests.save_state, self._worker.checkpoint()), None)

    def load_state(self) -> None:
        """Restore the instance of this process to the state that was saved last."""
        restore(self._worker.instance, self._result(self._ask(Requests.load_state), None))

    # Inside

    def _ensure_reader(self) -> None:
        """Make sure that a thread reads the driver's messages."""
        if not self._worker.always_reads:
            self._listen()

    def _listen(self) -> None:
        """Start a reading thread while callbacks are pending: the main thread may be busy with the user's code."""
        with self._lock:
            if self._listening:
                return
            self._listening = True
        threading.Thread(target=self._read_while_pending, name="toprope callbacks", daemon=True).start()

    def _read_while_pending(self) -> None:
        try:
            while self._listening:
                self._worker.wait_for(lambda: not self._late, None)
                with self._lock:
                    self._listening = bool(self._late)
        except Closed:
            pass  # the main thread sees it too

    def ask_next(self, stream: int) -> int:
        """Ask for the next item of a generator."""
        return self._ask(Requests.next_item, stream)

    def next_of(self, number: int) -> ObjectRef | None:
        """Wait for the requested item; None after the last."""
        found = self._result(number, None)
        return None if found is None else self.ref(found)

    def when_answered(self, number: int, callback: Callable[[], None]) -> None:
        """Call back once an answer has arrived."""
        self._late[number] = callback
        if self._answers.get(number) is not None and self._late.pop(number, None) is not None:
            callback()
        else:
            self._ensure_reader()

    def _new_number(self) -> int:
        return (self._worker.number << 40) | next(self._numbers)

    def _call(
        self, what: str, target: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int | None
    ) -> Any:
        lifted, named, refs = lift(arguments, keywords)
        packed = pack((lifted, named), self._worker.arena)
        numbers = tuple(self._new_number() for _ in range(1 if returns is None else returns))
        self._send(what, 0, packed, (target, returns, numbers, tuple(self.id(ref) for ref in refs)))
        if returns is None:
            return ObjectRefGenerator(_RemoteItems(self, numbers[0]))
        return given([self.ref(number) for number in numbers], returns)

    def _code(self, code: Code) -> str:
        """Return the key of a function or class, which is sent to the driver once."""
        key = code.identify()
        if key not in self._sent_codes:
            blob = code.blob()
            self._worker.codes[key] = blob  # its calls may come back to this worker, and the code does not come again
            self._worker.channel.send(Kind.CODE, 0, (key, code.name, code.is_async), [blob])
            self._sent_codes.add(key)
        return key

    def _ask(
        self,
        operation: Callable[Concatenate[Requests, Process, int, P], None],
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> int:
        """Have the driver run a method of its `Requests`. Return the number of its answer."""
        assert not keywords, "the message has no place for them"
        number = next(self._numbers)
        self._answers[number] = None
        self._send("request", number, pack((operation.__name__, arguments), self._worker.arena), 0)
        return number

    def _do(self, method: Callable[Concatenate[Backend, P], R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """Call a method of the driver's backend and return its result."""
        result: R = self._perform("", method.__name__, arguments, keywords)
        return result

    def _perform(self, part: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self._result(self._ask(Requests.perform, part, method, arguments, keywords), None)

    def _send(self, what: str, number: int, packed: Packed, extra: Any) -> None:
        self._worker.channel.send(*self._request(what, number, packed, extra))

    def _request(self, what: str, number: int, packed: Packed, extra: Any) -> Outgoing:
        refs = tuple(self.id(ref) for ref in packed.refs)
        parts = [*([packed.data] if packed.data is not None else []), *packed.parts]
        meta = (what, packed.data is not None, packed.spec, refs, extra)
        return Kind.REQUEST, number, meta, parts

    def _result(self, number: int, timeout: float | None) -> Any:
        if not self._worker.wait_for(lambda: self._answers[number] is not None, timeout):
            self._give_up(number)
            raise YRTimeoutError(f"the driver did not answer within {timeout} s", CODES["get failed"])
        message = self._answers.pop(number)
        assert message is not None
        failed, has_data, spec, ids = message.meta
        data, parts = (message.parts[0], message.parts[1:]) if has_data else (None, message.parts)
        worker = self._worker
        values = [self.ref(id) for id in ids]
        try:
            value = unpack(data, spec, parts, worker.reader, worker.released.append, values)
        except YRRuntimeError:
            raise
        except Exception as error:
            raise unreadable(error) from error
        if failed:
            try:
                raise value
            finally:
                del value  # or the error, by its traceback, would keep this frame and its callers' objects alive
        return value


class _RemoteItems(Items):
    """Items of a generator that this worker called; the driver forwards them one by one.

    Args:
        relay: the way to the driver.
        stream: the call's number.
    """

    def __init__(self, relay: Relay, stream: int) -> None:
        self._relay = relay
        self._stream = stream
        self._ended = False
        self._asked: int | None = None  # an item that a cancelled coroutine has asked for

    def take(self) -> ObjectRef | None:
        """The next item; waits for it."""
        number = self._relay.ask_next(self._stream) if self._asked is None else self._asked
        self._asked = None
        return self._taken(self._relay.next_of(number))

    async def take_async(self) -> ObjectRef | None:
        """The next item, without blocking the event loop."""
        if self._asked is None:
            self._asked = self._relay.ask_next(self._stream)
        number = self._asked
        await signalled(lambda callback: self._relay.when_answered(number, callback))
        self._asked = None
        return self._taken(self._relay.next_of(number))

    def _taken(self, ref: ObjectRef | None) -> ObjectRef | None:
        self._ended = ref is None
        return ref

    def close(self) -> None:
        """Stop the generator."""
        self.__del__()
        self._relay.send_releases()

    def __del__(self) -> None:
        if not self._ended:
            self._ended = True
            self._relay.unfinished.append(self._stream)  # sent later: this may be in the middle of a message
