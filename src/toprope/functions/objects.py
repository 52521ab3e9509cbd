"""References to objects (`yr.ObjectRef`), and the session's entry for each object.

Users hold references, whose methods are openYuanrong's; an `Entry` has the value or error, or those who wait for it.
`ObjectBackend` is the part of `Backend` that references need. On Ray, `ray.refs` has entries of its own. Entries and
values are free to change. A callback runs in the thread that sets the result, often under the session's lock: it must
be quick and must not wait. Tests: tests/functions/test_functions_objects.py,
tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from toprope.functions.transport.serialization import BlockKey, Packed, local

if TYPE_CHECKING:
    import asyncio


__all__ = ["Entry", "ObjectBackend", "ObjectRef", "SharedValue", "Value", "given", "parted"]


class Value:
    """A pickled value, as the driver keeps it for readers.

    Attributes:
        data, spec, parts: as in `serialization.Packed`.
        refs: the objects that its references refer to.
    """

    __slots__ = ("data", "parts", "refs", "spec")

    def __init__(
        self,
        data: bytes | None,
        spec: tuple[BlockKey | None, ...] = (),
        parts: Sequence[bytes] = (),
        refs: Sequence[Any] = (),
    ) -> None:
        self.data = data
        self.spec = spec
        self.parts = parts
        self.refs = refs


class SharedValue(Value):
    """A value in shared memory, which is released when the last reference to the value is gone.

    Args:
        packed: the value.
        refs: the objects that its references refer to.
        owner: number of the process whose shared memory it lies in; 0 is the driver.
        gone: called with the blocks to release at the end.
    """

    __slots__ = ("_gone", "_owner")

    def __init__(
        self,
        packed: Packed,
        refs: Sequence[Any],
        owner: int,
        gone: Callable[[int, tuple[BlockKey | None, ...]], None],
    ) -> None:
        super().__init__(packed.data, packed.spec, packed.parts, refs)
        self._owner = owner
        self._gone = gone

    def __del__(self) -> None:
        self._gone(self._owner, self.spec)


class Entry:
    """The driver's entry for an object: its value or error once available, and its callbacks.

    Attributes:
        done: whether the value or the error is available.
        value: the value; None until it is available, and for an error.
        error: what getting it raises.
        source: the worker that computes it, to read from while waiting; None if none does.
        call: the call that makes it, None for an object that was put.
    """

    __slots__ = ("__weakref__", "_callbacks", "_event", "call", "done", "error", "number", "source", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Value | None = None
        self.error: BaseException | None = None
        self.source: Any = None
        self.call: Any = None
        self.number = 0  # by which workers know it; 0 while none does
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def finish(self, value: Value | None, error: BaseException | None = None) -> None:
        """Set the value or the error; later ones are ignored."""
        if self.done:
            return
        self.value = value
        self.error = error
        self.done = True
        self.source = self.call = None
        if self._event is not None:
            self._event.set()
        if self._callbacks is not None:
            with _callbacks_lock:
                callbacks, self._callbacks = self._callbacks, None
            _run_callbacks(callbacks or [])

    def event(self) -> threading.Event:
        """Return an event that is set when it is done."""
        event = self._event
        if event is None:
            with _callbacks_lock:
                event = self._event = self._event or threading.Event()
        if self.done:
            event.set()
        return event

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back when it is done, at once if it is. Runs in the thread that sets the result, so it must be quick."""
        with _callbacks_lock:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
            late = self.done
            if late:
                self._callbacks = [each for each in self._callbacks if each is not callback] or None
        if late:
            callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Remove a callback."""
        with _callbacks_lock:
            if self._callbacks is not None:
                self._callbacks = [each for each in self._callbacks if each is not callback] or None


_callbacks_lock = threading.Lock()


class _DueCallbacks(threading.local):
    queue: deque[Callable[[], None]] | None = None  # callbacks that this thread has still to call


_due = _DueCallbacks()


def _run_callbacks(callbacks: Sequence[Callable[[], None]]) -> None:
    """Run callbacks. Those that become due meanwhile are queued, not nested: chains may be of any length."""
    queue = _due.queue
    if queue is not None:
        queue.extend(callbacks)
        return
    queue = _due.queue = deque(callbacks)
    try:
        while queue:
            try:
                queue.popleft()()
            except Exception:  # the other callbacks must still run
                logging.getLogger("toprope").exception("a callback of an object has failed")
    finally:
        _due.queue = None


class ObjectBackend(ABC):
    """The part of a backend that keeps objects, on which references rely."""

    @abstractmethod
    def put(self, value: Any) -> ObjectRef:
        """Store a value and return a reference to it."""

    @abstractmethod
    def get(self, refs: Sequence[ObjectRef], timeout: float, allow_partial: bool) -> list[Any]:
        """Return the objects, in order; with `allow_partial` None for one that is late or failed.

        Args:
            timeout: seconds; -1 for no limit.

        Raises:
            YRTimeoutError: the time limit was reached.
            The error of a call that makes one of them.
        """

    @abstractmethod
    def wait(
        self, refs: Sequence[ObjectRef], count: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Return the references whose objects are available, at most `count`, and the others; both in order."""

    @abstractmethod
    def cancel(self, refs: Sequence[ObjectRef], allow_force: bool, allow_recursive: bool) -> None:
        """Cancel the function calls that make these objects."""

    @abstractmethod
    def is_done(self, entry: Any) -> bool:
        """True once the object is available."""

    @abstractmethod
    def when_done(self, entry: Any, callback: Callable[[], None]) -> None:
        """Call back once the object is available."""

    @abstractmethod
    def object_id(self, entry: Any) -> str:
        """Return a name for an object."""

    def reduce_ref(self, ref: ObjectRef) -> tuple[Any, ...]:
        """Reduce a reference for a pickle that this backend does not send itself.

        Raises:
            TypeError: it cannot be.
        """
        raise TypeError("an ObjectRef can be sent in arguments, results and objects that are put, and not otherwise")


class ObjectRef:
    """A reference to the result of a call, or to an object that was put. References to one object are equal.

    As an argument of a call the callee gets the object itself; inside of a list, a dictionary or an object it stays a
    reference.
    """

    __slots__ = ("__weakref__", "_backend", "_entry")

    def __init__(self, backend: ObjectBackend, entry: Any) -> None:
        self._backend = backend
        self._entry = entry

    @property
    def id(self) -> str:
        """Names the object in this session."""
        return self._backend.object_id(self._entry)

    @property
    def task_id(self) -> str:
        """Names the call that makes the object."""
        return self.id

    def get(self, timeout: float = 300) -> Any:
        """The object; see `yr.get`."""
        return self._backend.get([self], timeout, False)[0]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the object is available; return True if it is."""
        return bool(self._backend.wait([self], 1, timeout)[0])

    def done(self) -> bool:
        """True once the object, or an error in its place, is available."""
        return self._backend.is_done(self._entry)

    def is_exception(self) -> bool:
        """True if it is done and an error."""
        return self.done() and self.exception() is not None

    def exception(self, timeout: float = 300) -> BaseException | None:
        """Return the error that getting the object raises; None if it raises none."""
        try:
            self.get(timeout)
        except Exception as error:
            return error
        return None

    def cancel(self, allow_force: bool = True, allow_recursive: bool = False) -> None:
        """Cancel the call that makes it; see `yr.cancel`."""
        self._backend.cancel([self], allow_force, allow_recursive)

    def on_complete(self, callback: Callable[[ObjectRef], None]) -> None:
        """Call back, in a thread of its own, when it is done."""
        self._backend.when_done(self._entry, lambda: _run_in_thread(lambda: callback(self)))

    def get_future(self) -> Future[Any]:
        """The object as a future of concurrent.futures."""
        future: Future[Any] = Future()

        def deliver() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self.get(-1))
            except Exception as error:
                future.set_exception(error)

        self._backend.when_done(self._entry, lambda: _run_in_thread(deliver))
        return future

    def as_future(self) -> asyncio.Future[Any]:
        """The object as a future of the running event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def deliver() -> None:
            if future.done():
                return
            try:
                future.set_result(self.get(-1))
            except Exception as error:
                future.set_exception(error)

        self._backend.when_done(self._entry, lambda: _call_in_loop(loop, deliver))
        return future

    def __await__(self) -> Generator[Any, None, Any]:
        return self.as_future().__await__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._entry is other._entry

    def __hash__(self) -> int:
        return id(self._entry)

    def __repr__(self) -> str:
        return f"<ObjectRef {self.id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if local.refs is None:
            return self._backend.reduce_ref(self)
        local.refs.append(self)
        return _reference_at, (len(local.refs) - 1,)


def _run_in_thread(action: Callable[[], None]) -> None:
    """Run an action in its own thread: the thread that sets results must go on reading."""
    threading.Thread(target=action, name="toprope callback", daemon=True).start()


def _call_in_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:
        pass  # the loop has ended


def given(refs: list[ObjectRef], returns: int | None) -> Any:
    """Return the caller's result for N return values: None for 0, the reference for 1, else the list."""
    return None if not refs else refs[0] if returns == 1 else refs


def parted(refs: Sequence[ObjectRef], ready: Sequence[int]) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Split references into those at these places and the others; both keep their order."""
    chosen = set(ready)
    return [refs[place] for place in ready], [ref for place, ref in enumerate(refs) if place not in chosen]


def _reference_at(index: int) -> Any:
    """Resolve a reference where its pickle is read."""
    assert local.values is not None
    return local.values[index]
