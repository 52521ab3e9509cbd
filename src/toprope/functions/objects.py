"""References to objects, and what a session knows of each object."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from toprope.functions.serial import BlockKey, Packed, local

if TYPE_CHECKING:
    import asyncio

    from toprope.functions.backend import Backend

__all__ = ["Entry", "ObjectRef", "SharedValue", "Value", "given", "parted"]


class Value:
    """A pickled value.

    Attributes:
        data, spec, parts: as `serial.Packed` has them.
        refs: the objects that references in it mean.
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
    """A value that lies in shared memory, which is given back when nobody knows the value any more.

    Args:
        packed: the value.
        refs: the objects that references in it mean.
        owner: number of the process whose shared memory it lies in; 0 is the driver.
        gone: told of the memory at the end.
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
    """What the driver knows of an object: whether it is there, its value or error, and who waits for it.

    Attributes:
        done: whether the value or the error is there.
        value: the value; None before, and where there is an error.
        error: what getting it raises.
        source: who makes it, for whoever waits to read from; None while nobody does.
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
        """The value or the error is there; later ones are ignored."""
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
            _follow(callbacks or [])

    def event(self) -> threading.Event:
        """An event that is set when it is done."""
        event = self._event
        if event is None:
            with _callbacks_lock:
                event = self._event = self._event or threading.Event()
        if self.done:
            event.set()
        return event

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back when it is done, at once where it is; in whichever thread brings the news, so it must be quick."""
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
        """Do not call back any more."""
        with _callbacks_lock:
            if self._callbacks is not None:
                self._callbacks = [each for each in self._callbacks if each is not callback] or None


_callbacks_lock = threading.Lock()


class _Following(threading.local):
    queue: deque[Callable[[], None]] | None = None  # callbacks that this thread has still to call


_following = _Following()


def _follow(callbacks: Sequence[Callable[[], None]]) -> None:
    """Call back. What finishes meanwhile joins the queue and is not called within: chains may be of any length."""
    queue = _following.queue
    if queue is not None:
        queue.extend(callbacks)
        return
    queue = _following.queue = deque(callbacks)
    try:
        while queue:
            try:
                queue.popleft()()
            except Exception:  # the others are not to be lost with it
                logging.getLogger("toprope").exception("a callback of an object has failed")
    finally:
        _following.queue = None


class ObjectRef:
    """A reference to an object that a call will make, or that was put. Equal to others of the same object.

    As an argument of a call the callee gets the object itself; inside of a list, a dictionary or an object it stays a
    reference.
    """

    __slots__ = ("__weakref__", "_backend", "_entry")

    def __init__(self, backend: Backend, entry: Any) -> None:
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
        """Wait until the object is there; whether it is."""
        return bool(self._backend.wait([self], 1, timeout)[0])

    def done(self) -> bool:
        """Whether the object, or an error in its place, is there."""
        return self._backend.is_done(self._entry)

    def is_exception(self) -> bool:
        """Whether it is done and an error."""
        return self.done() and self.exception() is not None

    def exception(self, timeout: float = 300) -> BaseException | None:
        """What getting the object raises; None for nothing."""
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
        self._backend.when_done(self._entry, lambda: _apart(lambda: callback(self)))

    def get_future(self) -> Future[Any]:
        """The object as a future of concurrent.futures."""
        future: Future[Any] = Future()

        def settle() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self.get(-1))
            except Exception as error:
                future.set_exception(error)

        self._backend.when_done(self._entry, lambda: _apart(settle))
        return future

    def as_future(self) -> asyncio.Future[Any]:
        """The object as a future of the running event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle() -> None:
            if future.done():
                return
            try:
                future.set_result(self.get(-1))
            except Exception as error:
                future.set_exception(error)

        self._backend.when_done(self._entry, lambda: _soon(loop, settle))
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
        return _meant, (len(local.refs) - 1,)


def _apart(action: Callable[[], None]) -> None:
    """Do something in a thread of its own: whoever brings the news must go on reading."""
    threading.Thread(target=action, name="toprope callback", daemon=True).start()


def _soon(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:
        pass  # the loop has ended


def given(refs: list[ObjectRef], returns: int | None) -> Any:
    """What the caller of a call with so many values is given: None for none, its reference for one, else the list."""
    return None if not refs else refs[0] if returns == 1 else refs


def parted(refs: Sequence[ObjectRef], ready: Sequence[int]) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """The references at these places, and the others; both in their order."""
    chosen = set(ready)
    return [refs[place] for place in ready], [ref for place, ref in enumerate(refs) if place not in chosen]


def _meant(index: int) -> Any:
    """What a reference stands for where it arrives."""
    assert local.values is not None
    return local.values[index]
