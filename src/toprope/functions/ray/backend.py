"""`RayBackend`: the backend of the yr API on Ray, for drivers and workers; calls go directly from process to process.

`ray.cluster.startup` makes the driver's, `ray.worker.worker_backend` is a worker's. Its public methods are those of
`functions.backend`. Functions, instances and groups are in modules of their own; state that processes share is in the
manager (`ray.manager`). What Ray raises becomes an error of the yr API (`ray.failures`) before a user sees it. Tests:
tests/functions/test_functions_ray.py (slow), and with `make soak` tests/functions/test_functions_assertions.py and
tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from toprope.functions.backend import DEFAULT_NAMESPACE, Backend, Code, InstanceGroups, ResourceGroups, listed_names
from toprope.functions.exceptions import CODES, YRRuntimeError, fresh
from toprope.functions.generators import Items, ListedItems, ObjectRefGenerator
from toprope.functions.handles import handles
from toprope.functions.lifecycle import Stage
from toprope.functions.objects import ObjectRef, given, parted
from toprope.functions.options import Config, InvokeOptions
from toprope.functions.ray import refs as references
from toprope.functions.ray.attach import NAMESPACE, SESSION, manager_name
from toprope.functions.ray.failures import translated
from toprope.functions.ray.functions import Functions
from toprope.functions.ray.instances import Instances
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.nodes.cluster_view import resources_of
from toprope.functions.ray.nodes.local_node import registration_limit
from toprope.functions.ray.refs import Entry, FailedArgumentError, lift
from toprope.functions.ray.tensors import forget_tensors, know_tensors
from toprope.functions.timers import Clock

__all__ = ["RayBackend"]

_log = logging.getLogger("toprope")

A = TypeVar("A", bound=Manager)
P = ParamSpec("P")
R = TypeVar("R")


class RayBackend(Backend):
    """The backend of one process of a session on Ray.

    Args:
        config: of the session.
        manager: the session actor; None to look it up at the first use.
        is_manager: whether this process is the session actor.
        end: shuts Ray down, if the session has started it.
    """

    def __init__(
        self, config: Config, manager: Any = None, *, is_manager: bool = False, end: Callable[[], None] | None = None
    ) -> None:
        import ray

        self.ray = ray
        self.config = config
        self.is_manager = is_manager
        self._manager = manager
        self._end = end
        self._process = os.getpid()
        self._known: weakref.WeakValueDictionary[bytes, Entry] = weakref.WeakValueDictionary()
        self._blobs: dict[Any, bytes] = {}
        self.ended = False
        self.job_id = config.job_id or f"job-{ray.get_runtime_context().get_job_id()}"
        self.clock = Clock()
        self.instances = Instances(self)
        self.functions = Functions(self)
        self.groups: InstanceGroups = self.instances.groups
        self.resource_groups: ResourceGroups = self.instances.placing.resource_groups
        self.pairs = _Pairs(self)
        # instances whose handles were deleted, closed generators of Ray, None for the end
        self._unreferenced: SimpleQueue[Any] = SimpleQueue()
        self._counts_handles = manager is not None  # only the program's own handles end instances
        if self._counts_handles:
            threading.Thread(target=self._process_unreferenced, name="toprope handles", daemon=True).start()

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
            error, lambda: self.instances.why_ended(entry.instance), instance=entry.instance,
            cancelled=entry.cancelled, timeout=timeout,
        )  # fmt: skip

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
        return self.functions.invoke(code, arguments, keywords, options, returns)

    def create(self, code: Code, arguments: tuple[Any, ...], keywords: dict[str, Any], options: InvokeOptions) -> str:
        """Create an instance."""
        self.check()
        return self.instances.create(code, arguments, keywords, options)

    def call(
        self, instance: str, method: str, arguments: tuple[Any, ...], keywords: dict[str, Any], returns: int | None
    ) -> Any:
        """Call a method of an instance."""
        record = self.instances.record(instance)
        if record.error is not None:
            return self.failed(record.error, returns, instance)
        if record.handle is None:
            raise YRRuntimeError(
                f"instance {instance} cannot be called yet: its group {record.options.group_name} "
                f"{Stage.GATHERING}. do: Group.invoke first, on Ray", CODES["incorrect usage"],
            )  # fmt: skip
        know_tensors()
        if returns == 1 and not arguments and not keywords:
            bare = record.without_arguments(method)
            if bare is not None:
                return ObjectRef(self, Entry(bare.remote(), instance))
        try:
            lifted, named, refs = lift(arguments, keywords)
        except FailedArgumentError as failed:
            return self.failed(failed.entry.error, returns, instance)
        if returns == 1:
            return ObjectRef(self, Entry(record.run.remote((method, 1, lifted, named), *refs), instance))
        if returns is None:
            self.check_streams()
            return self.items(record.stream.remote((method, lifted, named), *refs), instance)
        several = record.handle.run.options(num_returns=returns)
        made = several.remote((method, returns, lifted, named), *refs)
        return self.several(made, returns, instance)

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

    def terminate(self, instance: str, is_sync: bool) -> None:
        """End an instance."""
        self.instances.terminate(instance, is_sync)

    def unreferenced(self, instance: str) -> None:
        """Note that a handle to an instance was deleted."""
        if self._counts_handles:
            self._unreferenced.put(instance)

    def unwanted(self, stream: Any) -> None:
        """Stop a generator. May be called at any moment, so the work is deferred."""
        if self._counts_handles and not self.ended:
            self._unreferenced.put(stream)

    def close_stream(self, stream: Any) -> None:
        """Cancel the call of a generator."""
        self.ray.cancel(stream, force=False, recursive=False)

    def _process_unreferenced(self) -> None:
        while (item := self._unreferenced.get()) is not None:
            try:
                if isinstance(item, str):
                    self.instances.unreferenced(item)
                else:
                    self.close_stream(item)
            except Exception:
                _log.debug("the handles of %s", item, exc_info=True)  # such as Ray's end
            del item

    def is_alive(self, instance: str) -> bool:
        """True if the instance exists."""
        return self.instances.is_alive(instance)

    def find(self, name: str, namespace: str, timeout: float) -> tuple[str, Code]:
        """The id and class of a named instance."""
        return self.instances.find(name, namespace, timeout)

    # What there is

    @property
    def namespace(self) -> str:
        """The namespace of named instances that name none."""
        return self.config.ns or DEFAULT_NAMESPACE

    def resources(self) -> list[dict[str, Any]]:
        """Each node with its capacity and what is free of it."""
        return [resources_of(seen) for seen in self.ask(Manager.view, True)]

    def list_instances(self) -> list[dict[str, Any]]:
        """The living instances."""
        told = [each.as_dict() for each in self.ask(Manager.holders)]
        return [each | {"handles": handles.count(each["id"])} for each in told]  # as of now

    def list_named_instances(self, all_namespaces: bool) -> list[Any]:
        """Names of the living instances that have one, of other sessions too."""
        known = self.ask(Manager.names)
        ids = [
            each["name"]
            for each in self.ray.util.list_named_actors(all_namespaces=True)
            if each["namespace"] == NAMESPACE and not each["name"].startswith((SESSION, "instance-"))
        ]
        return listed_names([known.get(id) or _namespace_and_name(id) for id in ids], self.namespace, all_namespaces)

    def this_node(self) -> dict[str, str]:
        """This node."""
        id = self.ray.get_runtime_context().get_node_id()
        return {"id": id, "ip": self.ray.util.get_node_ip_address(), "namespace": self.namespace}

    # The end

    def end_instances(self) -> None:
        """End the instances that this process has created."""
        self.instances.end_all(YRRuntimeError("already finalized", CODES["finalized"]))

    def finalize(self) -> None:
        """End every instance and free every object of the session."""
        if os.getpid() != self._process or self.ended:
            return  # a fork of the program is not the program
        self.ended = True
        ray = self.ray
        try:
            if ray.is_initialized():
                self.end_instances()
                self.instances.placing.resource_groups.end()
                ray.get(self.manager.end_all.remote(), timeout=40)
                ray.kill(self.manager)
        except (ray.exceptions.RayError, ValueError):
            pass  # Ray has ended before
        finally:
            self._unreferenced.put(None)
            self.clock.close()
            if self._end is not None:
                self._end()
                forget_tensors()


class _Pairs:
    """The session's key-value pairs, which its manager has.

    Args:
        backend: of the process.
    """

    def __init__(self, backend: RayBackend) -> None:
        self._backend = backend

    def set_all(self, pairs: Mapping[str, bytes], *, only_new: bool = False, ttl: float = 0) -> str:
        """Store pairs, all or none."""
        return self._backend.ask(Manager.set_pairs, pairs, only_new, ttl)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of keys."""
        return self._backend.ask(Manager.get_pairs, keys)

    def delete(self, keys: Sequence[str]) -> list[str]:
        """Forget keys."""
        return self._backend.ask(Manager.delete_pairs, keys)


def _namespace_and_name(id: str) -> tuple[str, str]:
    """Namespace and name of an instance of another session, by its id."""
    if id.startswith(f"{DEFAULT_NAMESPACE}-"):
        return DEFAULT_NAMESPACE, id.removeprefix(f"{DEFAULT_NAMESPACE}-")
    namespace, _, name = id.partition("-")
    return namespace, name


class _RayItems(Items):
    """The items of Ray's generator.

    Args:
        backend: of the process.
        stream: Ray's generator.
        instance: id of the instance that makes them.
    """

    def __init__(self, backend: RayBackend, stream: Any, instance: str) -> None:
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
