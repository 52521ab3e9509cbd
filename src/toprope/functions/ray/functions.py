"""Calls of functions on Ray: `RayBackend.invoke` comes here, `ray.worker.task` runs them.

Ray has the queue and the workers; what it lacks are the time limits of requests, which `_Late` keeps. The tuple of a
call is agreed with `ray.worker.task`: change both. References lie in lists where Ray must not wait for them. Tests:
tests/functions/test_functions_ray.py (slow), for late calls tests/functions/test_functions_ray_parts.py.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toprope.functions.backend import Code
from toprope.functions.exceptions import YRequestError
from toprope.functions.lifecycle import too_late
from toprope.functions.objects import ObjectRef
from toprope.functions.options import InvokeOptions
from toprope.functions.ray.manager import Manager
from toprope.functions.ray.refs import Entry, FailedArgumentError, lift
from toprope.functions.ray.scheduling.scheduler import Asked, Placing
from toprope.functions.ray.tensors import know_tensors
from toprope.functions.ray.worker import task
from toprope.functions.ray.worker.process import Setup
from toprope.functions.scheduling.requests import InvalidRequestError, Request, parse

if TYPE_CHECKING:
    from toprope.functions.ray.instances import Instances
    from toprope.functions.ray.objects import RayObjects

__all__ = ["Functions"]

_KEPT = 256
_LOOK = 0.5
_SURE = 2.0
"""Time in which a worker reports that it has started a call, in seconds."""

_APART = "TOPROPE_APART"
"""A variable of the processes that functions with cards or variables of their own run in: Ray takes no others for
them, and them for no others."""


@dataclass(eq=False)
class Pool:
    """Calls with the same options.

    Attributes:
        options: these.
        name: its name in the workers' reports.
        request: resources of each call.
        run, stream: what Ray calls.
        plain, where: `run` without its placement options, and these options.
        asked: the first of these calls, as Ray was asked for it.
        setup: how a process of their own is set up; None where any worker will do.
    """

    options: InvokeOptions
    name: str
    request: Request
    run: Any
    stream: Any
    setup: Setup | None
    plain: Any
    where: dict[str, Any]
    asked: Asked


class Functions:
    """The functions that a process calls.

    Args:
        backend: of the process.
        instances: of the process.
    """

    def __init__(self, backend: RayObjects, instances: Instances) -> None:
        self._backend = backend
        self._instances = instances
        self._pools: dict[int, Pool] = {}
        self._codes: dict[str, Any] = {}
        self._lock = threading.Lock()
        ray = backend.ray
        self._remotes = {each: ray.remote(each) for each in (task.run, task.stream)}
        self._apart = {each: ray.remote(max_calls=1)(each) for each in (task.run_apart, task.stream_apart)}

    def invoke(
        self,
        code: Code,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        options: InvokeOptions,
        returns: int | None,
    ) -> Any:
        """Call a function; results as for `Backend.invoke`."""
        backend = self._backend
        if returns is None:
            backend.check_streams()
        try:
            pool = self._pool(options)
        except InvalidRequestError as error:
            return backend.failed(YRequestError(error.explained, error.code), returns)
        except YRequestError as error:
            return backend.failed(error, returns)
        know_tensors()
        try:
            lifted = lift(arguments, keywords)
        except FailedArgumentError as failed:
            return backend.failed(failed.entry.error, returns)
        key, shipped = self._shipped(code)
        made = self._call(pool, key, shipped, lifted, returns)
        if returns is None:
            return backend.items(made)
        result = backend.several(made, returns)
        limit = options.schedule_timeout_ms
        if limit >= 0 and result is not None:
            first = result if isinstance(result, ObjectRef) else result[0]
            late = _Late(backend, self._instances.placing, pool, weakref.ref(first._entry), limit)
            backend.clock.after(limit / 1000 + _SURE, late)
        return result

    def _call(
        self, pool: Pool, key: str, shipped: list[Any], lifted: tuple[Any, Any, list[Any]], returns: int | None
    ) -> Any:
        arguments, keywords, refs = lifted
        function = pool.stream if returns is None else pool.run
        if returns not in (None, 1):
            function = pool.plain.options(**pool.where, num_returns=returns)
        count = () if returns is None else (returns,)
        if pool.setup is None:
            return function.remote((key, shipped, pool.name, *count, arguments, keywords), *refs)
        packed = [self._backend.ray.put((arguments, keywords))] if arguments or keywords else []
        return function.remote((key, shipped, pool.name, *count, pool.setup, packed, refs))

    def _shipped(self, code: Code) -> tuple[str, list[Any]]:
        """A function's key, and Ray's reference to it in a list, which Ray leaves alone."""
        key = self._backend.key(code)
        found = self._codes.get(key)
        if found is None:
            found = self._codes[key] = self._backend.ray.put(self._backend.blob(code))
        return key, [found]

    def _pool(self, options: InvokeOptions) -> Pool:
        """Return the pool of these options. They do not change: `FunctionProxy.options` makes a copy."""
        found = self._pools.get(id(options))
        if found is not None and found.options is options:
            return found
        options.check()
        request = parse(options.custom_resources, options.cpu, options.memory)
        placing = self._instances.placing
        placing.check(request, options)
        where = placing.options(request, options)
        tries = options.retry_times
        where.update(max_retries=tries, retry_exceptions=bool(tries))
        setup = self._instances.setup(options)
        apart = bool(request.cards or setup.variables or setup.folder)
        if apart or setup.path:
            where["runtime_env"] = {"env_vars": {_APART: "1", **setup.variables}}
            run, stream = self._apart[task.run_apart], self._apart[task.stream_apart]
        else:
            run, stream = self._remotes[task.run], self._remotes[task.stream]
        pool = Pool(
            options, uuid.uuid4().hex[:12], request, run.options(**where),
            stream.options(num_returns="streaming", **where), setup if apart or setup.path else None,
            run, where, placing.asked(request, options),
        )  # fmt: skip
        with self._lock:
            if len(self._pools) >= _KEPT:
                self._pools.clear()
            self._pools[id(options)] = pool
        return pool


class _Late:
    """Fails a call that no worker has started in time, if no worker has run similar calls either.

    Args:
        backend: of the process.
        placing: of the process.
        pool: its options.
        entry: its result, while it is referenced.
        limit: ms.
    """

    def __init__(
        self, backend: RayObjects, placing: Placing, pool: Pool, entry: weakref.ref[Entry], limit: int
    ) -> None:
        self._backend = backend
        self._placing = placing
        self._pool = pool
        self._entry = entry
        self._limit = limit

    def __call__(self) -> None:
        entry = self._entry()
        backend, pool = self._backend, self._pool
        if entry is None or entry.error is not None or entry.cancelled or backend.is_done(entry):
            return
        idle = backend.ask(Manager.idle_for, pool.name)
        wait = self._limit / 1000 + _SURE
        if idle is not None and idle < wait:
            backend.clock.after(wait - idle, self)
            return
        if idle is None and pool.asked.may_begin:  # the first worker for such calls is on its way
            backend.clock.after(_LOOK, self)
            return
        why, code = self._placing.shortage(pool.request, pool.options)
        if "[" not in why:  # there is room: it waits for its arguments, or is about to begin
            backend.clock.after(1.0, self)
            return
        entry.error = too_late(self._limit, why, code)
        backend.ray.cancel(entry.ref, force=True)
