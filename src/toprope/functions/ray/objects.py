"""Objects of one process on Ray, and its calls of the session's manager: the base class of `ray.backend.RayBackend`.

Functions, instances and the scheduler import this module, never `ray.backend`, which joins them. Methods of objects are
those of `functions.objects.ObjectBackend`; what Ray raises becomes an error of the yr API here. What may run in
`__del__` only queues. Tests: tests/functions/test_functions_ray.py (slow), tests/functions/test_functions_ray_parts.py.
"""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from toprope.functions.backend import DEFAULT_NAMESPACE, Backend, Code
from toprope.functions.exceptions import CODES, YRRuntimeError, fresh
from toprope.functions.generators import Items, ListedItems, ObjectRefGenerator
from toprope.functions.objects import ObjectRef, given, parted
from toprope.functions.options import Config
from toprope.functions.ray import refs as references
from toprope.functions.ray.attach import NAMESPACE, manager_name
from toprope.functions.ray.failures import translated
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.nodes.local_node import registration_limit
from toprope.functions.ray.refs import Entry
from toprope.functions.ray.tensors import know_tensors
from toprope.functions.timers import Clock

__all__ = ["RayObjects"]

A = TypeVar("A", bound=Manager)
P = ParamSpec("P")
R = TypeVar("R")


class RayObjects(Backend):
    """The backend of one process of a session on Ray, without functions and instances.

    Args:
        config: of the session.
        manager: the session actor; None to look it up at the first use.
        is_manager: whether this process is the session actor.
    """

    def __init__(self, config: Config, manager: Any, *, is_manager: bool) -> None:
        import ray

        self.ray = ray
        self.config = config
        self.is_manager = is_manager
        self._manager = manager
        self._known: weakref.WeakValueDictionary[bytes, Entry] = weakref.WeakValueDictionary()
        self._blobs: dict[Any, bytes] = {}
        self.ended = False
        self.job_id = config.job_id or f"job-{ray.get_runtime_context().get_job_id()}"
        self.clock = Clock()
        # instances whose handles were deleted, closed generators of Ray, None for the end
        self._unreferenced: SimpleQueue[Any] = SimpleQueue()
        self._counts_handles = manager is not None  # only the program's own handles end instances

    # The session

    @property
    def manager(self) -> Any:
        """The session actor."""
        if self._manager is None:
            if self.is_manager:
                self._manager = self.ray.get_runtime_context().current_actor
            else:
                self._manager = self.ray.get_actor(manager_name(), NAMESPACE)
        return self._manager

    @cached_property
    def registration(self) -> float:
        """Seconds in which a process that Ray starts has to register with it."""
        return registration_limit()

    @property
    def namespace(self) -> str:
        """The namespace of named instances that name none."""
        return self.config.ns or DEFAULT_NAMESPACE

    def ask(self, what: Callable[Concatenate[A, P], R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """Call a method of the manager and return its result.

        Raises:
            Any error of the method, or YRRuntimeError: the manager is gone.
        """
        try:
            answer: R = self.ray.get(getattr(self.manager, what.__name__).remote(*arguments, **keywords))
            return answer
        except (self.ray.exceptions.RayError, ValueError) as error:
            raise self.error_of(error, Entry(None), -1) from None

    def tell(self, what: Callable[Concatenate[Manager, P], None], *arguments: P.args, **keywords: P.kwargs) -> None:
        """Call a method of the manager, without waiting for it."""
        getattr(self.manager, what.__name__).remote(*arguments, **keywords)

    def blob(self, code: Code) -> bytes:
        """Pickle a function or class by Ray's own pickler, so that its classes match those of its values."""
        found = self._blobs.get(code.target)
        if found is None:
            from ray import cloudpickle

            found = self._blobs[code.target] = bytes(cloudpickle.dumps(code.target))
        return found

    def key(self, code: Code) -> str:
        """The key of a function, by which workers know it."""
        return code.key or code.identify(self.blob(code))

    def check(self) -> None:
        """Refuse work once the session has ended.

        Raises:
            YRRuntimeError: it has.
        """
        if self.ended:
            raise YRRuntimeError("already finalized", CODES["finalized"])

    # Objects

    def put(self, value: Any) -> ObjectRef:
        """Store a value and return a reference to it."""
        self.check()
        know_tensors()
        return ObjectRef(self, Entry(self.ray.put(value)))

    def get(self, refs: Sequence[ObjectRef], timeout: float, allow_partial: bool) -> list[Any]:
        """The objects, in order."""
        entries: list[Entry] = [ref._entry for ref in refs]
        until = None if timeout == -1 else time.monotonic() + timeout
        if not allow_partial and all(entry.error is None for entry in entries):
            try:
                limit = None if timeout == -1 else timeout
                return list(self.ray.get([entry.ref for entry in entries], timeout=limit))
            except self.ray.exceptions.RayError:
                pass  # find the failed one
        return [self._one(entry, until, timeout, allow_partial) for entry in entries]

    def _one(self, entry: Entry, until: float | None, timeout: float, allow_partial: bool) -> Any:
        try:
            if entry.error is not None:
                raise fresh(entry.error)
            return self.ray.get(entry.ref, timeout=None if until is None else max(0.0, until - time.monotonic()))
        except self.ray.exceptions.RayError as error:
            if allow_partial:
                return None
            found = self.error_of(error, entry, timeout)
        except Exception:
            if allow_partial:
                return None
            raise
        try:
            raise found  # outside of the handler of Ray's error: it has a cause of its own
        finally:
            del found  # or the error, by its traceback, would keep this frame and its callers' objects alive

    def error_of(self, error: BaseException, entry: Entry, timeout: float) -> BaseException:
        """Translate Ray's error for an object into one of the yr API."""
        if entry.error is not None and not isinstance(error, self.ray.exceptions.GetTimeoutError):
            return fresh(entry.error)
        if isinstance(error, ValueError) and not isinstance(error, self.ray.exceptions.RayError):
            return YRRuntimeError("already finalized: the session's manager is gone", CODES["finalized"])
        return translated(
            error, lambda: self.why_ended(entry.instance), instance=entry.instance,
            cancelled=entry.cancelled, timeout=timeout,
        )  # fmt: skip

    @abstractmethod
    def why_ended(self, instance: str) -> BaseException | None:
        """Return the known reason of an instance's end."""

    def wait(
        self, refs: Sequence[ObjectRef], count: int, timeout: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """The references whose objects are there, and the others."""
        done = {place for place, ref in enumerate(refs) if ref._entry.error is not None}
        open_ = {ref._entry.ref: place for place, ref in enumerate(refs) if place not in done}
        # Ray returns any available objects; those available now come before those that are waited for
        for wanted, limit in ((len(open_), 0), (count - len(done), timeout)):
            if open_ and len(done) < count:
                ready, _ = self.ray.wait(list(open_), num_returns=wanted, timeout=limit, fetch_local=False)
                done.update(open_[each] for each in ready)
        return parted(refs, sorted(done)[:count])

    def cancel(self, refs: Sequence[ObjectRef], allow_force: bool, allow_recursive: bool) -> None:
        """Cancel the function calls that make these objects; calls of instances are ignored."""
        for ref in refs:
            entry: Entry = ref._entry
            if not entry.instance and entry.error is None and not self.is_done(entry):
                entry.cancelled = True
                self.ray.cancel(entry.ref, force=allow_force, recursive=allow_recursive)

    def is_done(self, entry: Any) -> bool:
        """True once the object is available."""
        if entry.error is not None:
            return True
        return bool(self.ray.wait([entry.ref], timeout=0, fetch_local=False)[0])

    def when_done(self, entry: Any, callback: Callable[[], None]) -> None:
        """Call back once the object is available."""
        if entry.error is not None:
            callback()
        else:
            entry.ref.future().add_done_callback(lambda future: callback())

    def object_id(self, entry: Any) -> str:
        """A name for an object."""
        return str(entry.ref.hex()) if entry.ref is not None else f"failed-{id(entry):x}"

    def known(self, ref: Any, instance: str) -> Entry:
        """Return the entry of an object whose reference was received."""
        key = ref.binary()
        entry = self._known.get(key)
        if entry is None:
            entry = self._known[key] = Entry(ref, instance)
        return entry

    def reduce_ref(self, ref: ObjectRef) -> tuple[Any, ...]:
        """How a reference is pickled."""
        entry: Entry = ref._entry
        if entry.ref is not None:
            self._known.setdefault(entry.ref.binary(), entry)
        return references.reduce_ref(entry)

    # Results of calls

    def check_streams(self) -> None:
        """Refuse generators where Ray cannot have them.

        Raises:
            NotImplementedError: the session goes by Ray's client.
        """
        if self.ray.util.client.ray.is_connected():
            raise NotImplementedError(
                "generators are not part of Ray's client (ray://): run the program on a node of the cluster, with its "
                "address as host:port"
            )

    def several(self, made: Any, returns: int, instance: str = "") -> Any:
        """The references of a call that returns several values, or none."""
        if not returns:
            return None
        made = made if isinstance(made, list) else [made]
        return given([ObjectRef(self, Entry(each, instance)) for each in made], returns)

    def items(self, stream: Any, instance: str = "") -> ObjectRefGenerator:
        """The references of a generator's items."""
        return ObjectRefGenerator(_RayItems(self, stream, instance))

    def failed(self, error: BaseException | None, returns: int | None, instance: str = "") -> Any:
        """Return the caller's references for a call that fails at once."""
        refs = [ObjectRef(self, Entry(None, instance, error)) for _ in range(1 if returns is None else returns)]
        if returns is None:
            return ObjectRefGenerator(ListedItems(refs))
        return given(refs, returns)

    def unwanted(self, stream: Any) -> None:
        """Stop a generator. May be called at any moment, so the work is deferred."""
        if self._counts_handles and not self.ended:
            self._unreferenced.put(stream)

    def close_stream(self, stream: Any) -> None:
        """Cancel the call of a generator."""
        self.ray.cancel(stream, force=False, recursive=False)


class _RayItems(Items):
    """The items of Ray's generator.

    Args:
        backend: of the process.
        stream: Ray's generator.
        instance: id of the instance that makes them.
    """

    def __init__(self, backend: RayObjects, stream: Any, instance: str) -> None:
        self._backend = backend
        self._stream = stream
        self._instance = instance
        self._ended = False

    def close(self) -> None:
        """Stop the generator."""
        if not self._ended:
            self._ended = True
            self._backend.close_stream(self._stream)

    def __del__(self) -> None:
        if not self._ended:
            self._ended = True
            self._backend.unwanted(self._stream)

    def take(self) -> ObjectRef | None:
        """The next item; waits for it."""
        return self._known(next(self._stream, None))

    async def take_async(self) -> ObjectRef | None:
        """The next item, without blocking the event loop."""
        return self._known(await anext(self._stream, None))

    def _known(self, ref: Any) -> ObjectRef | None:
        if ref is None:
            self._ended = True
            return None
        return ObjectRef(self._backend, Entry(ref, self._instance))
