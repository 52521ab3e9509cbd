"""Function call on Ray: runs it in a worker, and reports the worker to the session.

`ray.functions` has Ray call `run`, `stream` and their variants, which are sent by name; it makes the tuple that they
get: change both. A worker that runs calls reports it more often than `ray.functions` asks, or a call that runs passes
for one that waits. Tests: tests/functions/test_functions_ray_parts.py, and (slow)
tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

from toprope.functions.arguments import lower
from toprope.functions.ray.attach import attached
from toprope.functions.ray.failures import RaisedError
from toprope.functions.ray.tensors import know_tensors
from toprope.functions.ray.worker.process import prepare, result_of

__all__ = ["run", "run_apart", "stream", "stream_apart"]

_TELL = 0.5
"""Interval of a worker's reports that it is running calls, in seconds."""

_loaded: dict[str, Any] = {}


def run(call: tuple[Any, ...], /, *values: Any) -> Any:
    """Call a function.

    Args:
        call: its key, Ray's reference to its pickle in a list, the name of the options, the values that are wanted,
            and the arguments.
        values: the objects that the arguments refer to.
    """
    key, code, pool, returns, arguments, keywords = call
    with _reported(pool):
        try:
            function, arguments, keywords = _prepared(key, code, arguments, keywords, values)
            return result_of(function(*arguments, **keywords), returns)
        except (Exception, SystemExit) as error:
            raise RaisedError.of(error) from None


def stream(call: tuple[Any, ...], /, *values: Any) -> Iterator[Any]:
    """Call a generator function; arguments as for `run`, but for the number of values."""
    key, code, pool, arguments, keywords = call
    with _reported(pool):
        try:
            function, arguments, keywords = _prepared(key, code, arguments, keywords, values)
            yield from _items(function(*arguments, **keywords))
        except (Exception, SystemExit) as error:
            raise RaisedError.of(error) from None


def run_apart(call: tuple[Any, ...], /) -> Any:
    """Call a function in a process of its own, which is set up before anything of the user's is unpickled.

    Args:
        call: as for `run`, but in place of the arguments how the process is set up, and Ray's references to the
            arguments and to the objects that they refer to, in lists.
    """
    key, code, pool, returns, setup, packed, refs = call
    with _reported(pool):
        try:
            prepare(setup)
            function, arguments, keywords = _unpacked(key, code, packed, refs)
            return result_of(function(*arguments, **keywords), returns)
        except (Exception, SystemExit) as error:
            raise RaisedError.of(error) from None


def stream_apart(call: tuple[Any, ...], /) -> Iterator[Any]:
    """Call a generator function in a process of its own; arguments as for `run_apart`."""
    key, code, pool, setup, packed, refs = call
    with _reported(pool):
        try:
            prepare(setup)
            function, arguments, keywords = _unpacked(key, code, packed, refs)
            yield from _items(function(*arguments, **keywords))
        except (Exception, SystemExit) as error:
            raise RaisedError.of(error) from None


def _prepared(key: str, code: list[Any], arguments: Any, keywords: Any, values: Any) -> tuple[Any, Any, Any]:
    attached()
    if values:
        arguments, keywords = lower(arguments, keywords, values)
    return _code(key, code), arguments, keywords


def _unpacked(key: str, code: list[Any], packed: list[Any], refs: list[Any]) -> tuple[Any, Any, Any]:
    import ray

    attached()
    arguments, keywords = ray.get(packed[0]) if packed else ((), {})
    if refs:
        values = ray.get(refs)
        arguments, keywords = lower(arguments, keywords, values)
    return _code(key, code), arguments, keywords


def _code(key: str, code: list[Any]) -> Any:
    import ray

    found = _loaded.get(key)
    if found is None:
        found = _loaded[key] = pickle.loads(ray.get(code[0]))
    return found


def _items(result: Any) -> Iterator[Any]:
    import inspect

    for each in result_of(result, 1) if inspect.isasyncgen(result) else result:
        know_tensors()
        yield each


class _ActivityReporter:
    """Reports to the manager, while calls run, that they have a worker. One thread for all calls of a process."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._running: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._manager: Any = None

    def begin(self, pool: str) -> None:
        """Count a call that starts."""
        with self._lock:
            self._running[pool] = self._running.get(pool, 0) + 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toprope pulse", daemon=True)
                self._thread.start()
            self._lock.notify()

    def end(self, pool: str) -> None:
        """Count a call that has ended."""
        with self._lock:
            self._running[pool] -= 1
            if not self._running[pool]:
                del self._running[pool]

    def _run(self) -> None:
        import ray

        while True:
            with self._lock:
                while not self._running:
                    self._lock.wait()
                pools = list(self._running)
            try:
                self._manager = self._manager or attached().manager
                for pool in pools:
                    self._manager.active.remote(pool)
            except (ray.exceptions.RayError, ValueError):
                self._manager = None  # the session ends
            time.sleep(_TELL)


_reporter = _ActivityReporter()


class _reported:  # noqa: N801 - used as a function
    def __init__(self, pool: str) -> None:
        self._pool = pool

    def __enter__(self) -> None:
        _reporter.begin(self._pool)

    def __exit__(self, *error: object) -> None:
        _reporter.end(self._pool)
