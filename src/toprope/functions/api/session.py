"""`yr.init`, `yr.get`, `yr.put`, `yr.wait` and the other calls of the yr API on sessions, objects, state and resources.

For users, and for `toprope.flow`. `init` chooses the backend by the server address: `functions.local` or
`functions.ray`; every other call checks its arguments and passes them to that backend. Names, defaults and messages
are openYuanrong's (its `apis.py`); `list_instances` is ours. docs/functions.md lists them. Tests:
tests/functions/test_functions_assertions.py, tests/functions/test_functions_options.py,
tests/functions/test_functions_generators.py.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toprope.functions import context
from toprope.functions.backend import Backend
from toprope.functions.deployment import state_file
from toprope.functions.exceptions import CODES, YRRuntimeError, YRTypeError, YRValueError
from toprope.functions.generators import ObjectRefGenerator
from toprope.functions.objects import ObjectRef
from toprope.functions.options import Config

__all__ = [
    "ClientInfo",
    "cancel",
    "exit",
    "finalize",
    "get",
    "init",
    "is_initialized",
    "list_instances",
    "list_named_instances",
    "load_state",
    "put",
    "resources",
    "save_state",
    "wait",
]

CLUSTER = "TOPROPE_CLUSTER"
"""The variable with the address of a cluster, where `Config.server_address` has none."""


_ADDRESS = re.compile(r"(ray://|ray:)?([^/:\s]+|\[[0-9a-fA-F:]+\]):\d+")


@dataclass(frozen=True)
class ClientInfo:
    """The session that `yr.init` has started, as it returns it.

    Attributes:
        job_id: names it.
    """

    job_id: str


def init(conf: Config | None = None) -> ClientInfo:
    """Start a session: functions and instances of this program can run from now on.

    Args:
        conf: where and with what; None for processes of this machine with all that it has.

    Raises:
        RuntimeError: this program has a session already.
        ValueError: the configuration cannot be.
        TopropeError: the requested cards cannot be found.
    """
    if context.is_set():
        raise YRRuntimeError("yr.init cannot be called twice", CODES["incorrect usage"])
    config = conf if conf is not None else Config()
    if not isinstance(config, Config):
        raise TypeError(f"invalid type for 'conf', actual: {type(config)}, expect: Config")
    config.check()
    address = config.server_address or os.environ.get(CLUSTER, "") or state_file.address()
    if address and address not in ("ray", "auto") and not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"invalid server_address, actual: {address}, expect: '' for this machine, 'ray', 'auto', "
            "'ray://host:port', 'ray:host:port' or 'host:port'"
        )
    if address:
        from toprope.functions import ray

        context.set_backend(ray.start(config, address))
    else:
        from toprope.functions import local

        context.set_backend(local.start(config))
    atexit.register(finalize)
    return ClientInfo(context.backend().job_id)


def finalize() -> None:
    """End the session: all instances that are not detached end, and all objects are freed. No-op without one."""
    atexit.unregister(finalize)
    if context.is_set():
        try:
            context.backend().finalize()
        finally:
            context.finalized()


def is_initialized() -> bool:
    """True if this program has a session, or runs as a function of one."""
    return context.is_set()


def exit() -> None:
    """End the instance that calls it."""
    raise SystemExit(0)


def put(obj: Any, create_param: Any = None) -> ObjectRef:
    """Store an object in the session, to be passed by reference.

    Args:
        obj: anything that can be pickled; large arrays and tensors are copied once, into shared memory.
        create_param: accepted.

    Raises:
        YRValueError: it is None, or bytes of no length.
        YRTypeError: it is a reference.
    """
    if obj is None or (isinstance(obj, bytes | bytearray | memoryview) and not len(obj)):
        raise YRValueError("value is None or has zero length", CODES["invalid parameter"])
    if isinstance(obj, ObjectRef):
        raise YRTypeError("Calling 'put' on an ObjectRef is not allowed", CODES["invalid parameter"])
    return context.backend().put(obj)


def get(obj_refs: ObjectRef | Sequence[ObjectRef], timeout: float = 300, allow_partial: bool = False) -> Any:
    """Return the object of a reference, or a list of objects for a list of references.

    Args:
        obj_refs: a reference, or a list of references.
        timeout: seconds; -1 for no limit.
        allow_partial: whether None stands in for an object that is not there in time, or has an error in its place.

    Raises:
        YRTimeoutError: the time limit was reached; the message says what was waited for.
        TypeError, ValueError: wrong arguments.
        YRInvokeError: the function raised; it is also an instance of the class that was raised.
    """
    one = isinstance(obj_refs, ObjectRef)
    if not one and (wrong := _wrong_refs(obj_refs)):
        raise TypeError(wrong)
    if not (timeout > 0 or timeout == -1):
        raise ValueError("Parameter 'timeout' should be greater than 0 or equal to -1 (no timeout)")
    if one:
        return context.backend().get([obj_refs], timeout, allow_partial)[0]  # type: ignore[list-item]
    return context.backend().get(obj_refs, timeout, allow_partial) if obj_refs else []  # type: ignore[arg-type]


def wait(
    obj_refs: ObjectRef | list[ObjectRef], wait_num: int | None = None, timeout: float | None = None
) -> tuple[list[ObjectRef], list[ObjectRef]]:
    """Wait for some of the objects.

    Args:
        obj_refs: one or a list, without doubles.
        wait_num: number of objects to wait for; None for all.
        timeout: seconds; None or -1 for no limit.

    Returns:
        Those that are there, at most `wait_num`, and the others, both in the order of the list. An object in whose
        place there is an error is there.

    Raises:
        YRTypeError, YRValueError: wrong arguments.
    """
    refs = [obj_refs] if isinstance(obj_refs, ObjectRef) else obj_refs
    if wrong := _wrong_refs(refs):
        raise YRTypeError(wrong, CODES["invalid parameter"])
    if len(set(refs)) < len(refs):
        raise YRValueError("obj_refs has duplicates", CODES["invalid parameter"])
    if wait_num is not None and (not isinstance(wait_num, int) or isinstance(wait_num, bool)):
        raise YRTypeError(f"invalid wait_num type, actual: {type(wait_num)}, expect: int", CODES["invalid parameter"])
    count = len(refs) if wait_num is None else wait_num
    if not 0 <= count <= len(refs):
        raise YRValueError(f"invalid wait_num: {count}, should be in [0, {len(refs)}]", CODES["invalid parameter"])
    if timeout is not None and timeout != -1 and timeout < 0:
        raise YRValueError(f"invalid timeout: {timeout}", CODES["invalid parameter"])
    if not count or timeout == 0:
        return [], list(refs)
    return context.backend().wait(refs, count, None if timeout == -1 else timeout)


def cancel(obj_refs: ObjectRef | list[ObjectRef], allow_force: bool = True, allow_recursive: bool = False) -> None:
    """Cancel function calls that have no result yet; getting their objects raises CancelError (3003) afterwards.

    Args:
        obj_refs: references to their results. Calls of instances are not cancelled.
        allow_force: whether a worker that runs such a call is ended.
        allow_recursive: accepted: what a cancelled function started ends with its worker.

    Raises:
        TypeError: something else than references. The call of a generator ends by the generator's `close()`.
    """
    refs = [obj_refs] if isinstance(obj_refs, ObjectRef) else obj_refs
    if wrong := _wrong_refs(refs):
        raise TypeError(wrong)
    context.backend().cancel(refs, allow_force, allow_recursive)


def resources() -> list[dict[str, Any]]:
    """Each node with its capacity and what is free of it: `{"id", "status", "capacity", "allocatable", "labels"}`."""
    return context.backend().resources()


def list_instances() -> list[dict[str, Any]]:
    """Each living instance of the session, with or without a handle or a name. Not part of openYuanrong's API.

    Returns:
        For each `id`, `class`, `state`, `node`, `pid`, `resources`, `cards`, `name`, `namespace` and `handles`: the
        handles to it in this program, None where another process may have one, too.
    """
    return context.backend().list_instances()


def list_named_instances(all_namespaces: bool = False) -> list[Any]:
    """Names of the living instances that have one; with their namespaces where all are asked for."""
    return context.backend().list_named_instances(all_namespaces)


def save_state(timeout: float = 30) -> None:
    """Save the state of the calling instance: after a crash it is restored from there.

    Raises:
        RuntimeError: this is not a function of an instance.
    """
    _check_seconds(timeout)
    _in_instance("save_state").save_state()


def load_state(timeout: float = 30) -> None:
    """Restore the calling instance to the state that was saved last.

    Raises:
        RuntimeError: this is not a function of an instance, or nothing was saved.
    """
    _check_seconds(timeout)
    _in_instance("load_state").load_state()


def _wrong_refs(refs: Any) -> str:
    """Return why an argument is no list of references; "" if it is one."""
    if isinstance(refs, list) and all(isinstance(each, ObjectRef) for each in refs):
        return ""
    wrong = next((each for each in refs if not isinstance(each, ObjectRef)), refs) if isinstance(refs, list) else refs
    actual = type(refs) if wrong is refs else f"a list with {type(wrong)}"
    do = ""
    if isinstance(wrong, ObjectRefGenerator):
        do = ". do: list(generator) for the references of its items, generator.close() to end its call"
    return f"obj_refs type error, actual: {actual}, expect: ObjectRef or list of ObjectRef{do}"


def _check_seconds(timeout: Any) -> None:
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"an integer is required, got type {type(timeout).__name__}: invalid timeout {timeout!r}")


def _in_instance(what: str) -> Backend:
    if not context.is_set():
        raise YRRuntimeError(f"{what} is only supported on cloud with posix api", CODES["incorrect usage"])
    return context.backend()
