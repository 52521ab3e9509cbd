"""Translation of Ray's errors into errors of the yr API.

Drivers and workers on Ray call it wherever Ray may raise. A user's error travels as a `RaisedError`. The classes, and
the words in `exited` by which a kill is known, are Ray's (2.60); codes are openYuanrong's; texts are free. A new error
class of Ray goes into `translated`. Tests: tests/functions/test_functions_ray_parts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toprope.functions.exceptions import (
    CODES,
    CancelError,
    YRequestError,
    YRRuntimeError,
    YRTimeoutError,
    describe,
    invoke_error,
    read_error,
)

__all__ = ["RaisedError", "exited", "translated"]


class RaisedError(Exception):
    """Carrier of a user's error through Ray.

    Args:
        data: the pickle of the error and of its traceback as text.
    """

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(data)
        self.data = data

    @classmethod
    def of(cls, error: BaseException) -> RaisedError:
        """Wrap an error so that it can be sent to another process."""
        from ray import cloudpickle

        return cls(cloudpickle.dumps(describe(error)))

    def error(self) -> BaseException:
        """Return the caller's error."""
        return read_error(self.data)


def translated(
    error: BaseException, reason: Callable[[], BaseException | None], *, instance: str, cancelled: bool, timeout: float
) -> BaseException:
    """The error of the yr API for one of Ray's.

    Args:
        error: what Ray raised.
        reason: returns the recorded reason of the end of the object's instance; None if unknown.
        instance: its id; "" for a function.
        cancelled: whether the call was cancelled.
        timeout: seconds that were waited.
    """
    from ray import exceptions

    who = f"instance {instance}" if instance else "the worker of a function"
    if isinstance(error, exceptions.GetTimeoutError):
        return YRTimeoutError(f"{who} had not answered within {timeout} s", CODES["get failed"])
    if cancelled or isinstance(error, exceptions.TaskCancelledError):
        return CancelError("invalid get obj, the obj has been cancelled. stateless request has been cancelled")
    if isinstance(error, exceptions.RayTaskError):
        return _raised(error, reason, who)
    if isinstance(error, exceptions.RayActorError):
        return reason() or exited(who, str(error))
    if isinstance(
        error,
        exceptions.WorkerCrashedError
        | exceptions.LocalRayletDiedError
        | exceptions.NodeDiedError
        | exceptions.OutOfMemoryError,
    ):
        return exited(who, str(error))
    if isinstance(error, exceptions.TaskUnschedulableError | exceptions.ActorUnschedulableError):
        return YRequestError(f"the instance cannot be scheduled: {error}", CODES["resource not enough"])
    if isinstance(error, exceptions.ObjectStoreFullError | exceptions.OutOfDiskError):
        return YRRuntimeError(f"the object store is full: {error}", CODES["shared memory limit"], 30)
    if isinstance(error, exceptions.RuntimeEnvSetupError):
        return YRRuntimeError(f"the process cannot be set up: {error}", CODES["user code load failed"])
    if isinstance(error, exceptions.RayError):
        return reason() or YRRuntimeError(f"failed to get object: {error}", CODES["get failed"], 30)
    return error


def _raised(error: Any, reason: Callable[[], BaseException | None], who: str) -> BaseException:
    """Return the error that a task raised, through all tasks that had its object as an argument."""
    from ray import exceptions

    cause: Any = error
    while isinstance(cause, exceptions.RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if isinstance(cause, RaisedError):
        return cause.error()
    if isinstance(cause, exceptions.RayActorError | exceptions.WorkerCrashedError):
        return reason() or exited(who, str(cause))
    if isinstance(cause, exceptions.TaskCancelledError):
        return CancelError("invalid get obj, the obj has been cancelled: it was an argument of this call")
    if isinstance(cause, exceptions.RayError):
        return YRRuntimeError(str(error), CODES["get failed"], 30)
    return invoke_error(cause, str(error))


def exited(who: str, text: str) -> YRequestError:
    """Return the error of calls whose process is gone; Ray does not report the signal."""
    lines = text.strip().splitlines() or ["its process is gone"]
    if "connection error code" in text:
        how = "its process was killed (by SIGKILL or another signal, Ray does not tell which)"
    else:
        how = next((line.strip() for line in lines if "Worker exit type" in line), lines[0])
    return YRequestError(f"{who} exited: {how}", CODES["instance exited"], 22)
