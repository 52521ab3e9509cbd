"""The exceptions of the yr API, with its codes.

For users, who catch them; all of `toprope.functions` raises them. Classes, codes and the forms of texts are
openYuanrong's (api/python/yr/exception.py and err_type.py, master of 2026-08); what a message says beyond them is free,
and so is how an error travels (`describe` in the worker, `read_error` in the driver: both change together).

YRError
├── YRRuntimeError (RuntimeError)
│   ├── YRTimeoutError (TimeoutError)     a wait is over
│   │   └── GetTimeoutError
│   ├── MissingInstanceError (TimeoutError)  no instance has this name, or none got it in time
│   ├── YRInvokeError                     the user's code raised; also an instance of the class that it raised
│   └── YRequestError                     an instance could not be created, or a call could not reach it
├── YRValueError (ValueError)
├── YRTypeError (TypeError)
└── CancelError                           the call was cancelled

Tests: tests/functions/test_functions_exceptions.py, tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import copy
import os
import pickle
import traceback
from typing import Any

from toprope.functions.exception_pickle import Portable, allocate, built_in_attributes, notes_of

__all__ = [
    "CODES",
    "CancelError",
    "GetTimeoutError",
    "MissingInstanceError",
    "YRError",
    "YRInvokeError",
    "YRRuntimeError",
    "YRTimeoutError",
    "YRTypeError",
    "YRValueError",
    "YRequestError",
    "describe",
    "fresh",
    "invoke_error",
    "read_error",
    "said",
    "unreadable",
]

CODES = {
    "invalid parameter": 1001,
    "resource not enough": 1002,
    "instance not found": 1003,
    "instance duplicated": 1004,
    "resource config": 1006,
    "instance exited": 1007,
    "group schedule failed": 1010,
    "group exit together": 1011,
    "schedule canceled": 1017,
    "user code load failed": 2001,
    "user function exception": 2002,
    "cancelled": 3003,
    "internal error": 3003,
    "deserialize": 4003,
    "get failed": 4005,
    "incorrect usage": 4006,
    "shared memory limit": 4202,
    "disk full": 4204,
    "dependency failed": 4306,
    "finalized": 9000,
    "generator finished": 9005,
}
"""The vendor's codes that we raise, by their meaning."""

_CORE, _CREATE, _INVOKE, _DATA = 10, 21, 22, 30


class YRError(Exception):
    """Base of the exceptions of the yr API.

    Attributes:
        code: the vendor's code; 0 without one.
        module_code: which part of it: 10 core, 20 runtime, 21 creation, 22 call, 30 data.
        message: what happened.
    """

    # in the class too: a class of the user's that is a base of an error next to this one may have others of these names
    message: str = ""
    code: int = 0
    module_code: int = _CORE

    def __init__(self, message: str = "", code: int = 0, module_code: int | None = None) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code
        if module_code is not None:
            self.module_code = module_code

    @property
    def error_info(self) -> str:
        """The message, under the vendor's other name."""
        return self.message

    @property
    def cause(self) -> BaseException | None:
        """The exception that it was raised from."""
        return self.__cause__

    def __str__(self) -> str:
        if not self.code:
            return self.message
        return f"code: {self.code}, module code: {self.module_code}, msg: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.code, self.module_code)


class YRRuntimeError(YRError, RuntimeError):
    """An operation of the session failed; `code` says which failure it is."""


class YRValueError(YRError, ValueError):
    """A value cannot be used."""


class YRTypeError(YRError, TypeError):
    """A value is of a type that cannot be used."""


class YRTimeoutError(YRRuntimeError, TimeoutError):
    """A time limit was reached."""

    module_code = _DATA

    def __str__(self) -> str:
        return f"failed to get object, code: {self.code}, module code: {self.module_code}, msg: {self.message}"


class GetTimeoutError(YRTimeoutError):
    """A call to a worker took too long: openYuanrong's name. toprope raises YRTimeoutError, its base, instead."""


class MissingInstanceError(YRRuntimeError, TimeoutError):
    """No instance has this name, and none appeared in time.

    Args:
        id: namespace and name.
    """

    def __init__(self, id: str) -> None:
        what = f"failed to get instance: {id} by name, there is none of that name"
        super().__init__(what, CODES["instance not found"])
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id,)


class YRequestError(YRRuntimeError):
    """An instance could not be created, or a call could not reach it."""

    module_code = _CREATE

    @property
    def request_id(self) -> str:
        """Name of the request; empty, for there is one process to ask."""
        return ""

    def __str__(self) -> str:
        return f"failed to request, code: {self.code}, module code: {self.module_code}, message: {self.message}"


class CancelError(YRError, RuntimeError):
    """The call was cancelled before it had a result."""

    def __init__(self, message: str = "", code: int = 0, module_code: int | None = None) -> None:
        super().__init__(message, code or CODES["cancelled"], module_code)


class YRInvokeError(YRRuntimeError):
    """The user's code raised. It is also an instance of the class that was raised, so `except ValueError` works.

    Attributes:
        origin: what was raised.
        traceback_str: its traceback on the other side.
    """

    module_code = _INVOKE

    def __init__(self, origin: BaseException, traceback_str: str = "") -> None:
        super().__init__(_text_of(origin), CODES["user function exception"])
        self.origin = origin
        self.traceback_str = traceback_str

    def origin_error(self) -> BaseException:
        """The exception that the user's code raised."""
        return self.origin

    @property
    def cause(self) -> BaseException:
        """The exception that the user's code raised."""
        return self.origin

    def __getattr__(self, name: str) -> Any:
        if name == "origin":  # not made yet
            raise AttributeError(name)
        try:
            return getattr(self.origin, name)
        except AttributeError:
            raise
        except Exception as error:  # Python asks for `__notes__` when it prints a traceback
            raise AttributeError(f"{name}: {type(error).__name__}: {_text_of(error)}") from None

    __setattr__ = BaseException.__setattr__
    """Not the user's: a frozen dataclass refuses."""

    def __str__(self) -> str:
        return self.traceback_str or _text_of(self.origin)

    def __copy__(self) -> BaseException:
        return invoke_error(self.origin, self.traceback_str)

    def __reduce__(self) -> tuple[Any, ...]:
        return invoke_error, (Portable(self.origin), self.traceback_str)


def invoke_error(origin: BaseException, traceback_str: str = "") -> BaseException:
    """Return the caller's error for one that the user's code raised: of our class and of the user's class.

    An error that is one of ours already is handed on as it is.
    """
    if isinstance(origin, YRError):
        return origin
    kind = _both(type(origin))
    # not by the way of the user's class, which may want arguments
    parts: tuple[Any, ...] = (origin.message, origin.exceptions) if isinstance(origin, BaseExceptionGroup) else ()
    error: YRInvokeError = allocate(kind, *parts)
    YRInvokeError.__init__(error, origin, traceback_str)
    error.args = origin.args
    for name in built_in_attributes(type(origin)):
        if not hasattr(YRInvokeError, name):  # `code` is ours, whatever SystemExit has under that name
            try:
                setattr(error, name, getattr(origin, name))
            except (AttributeError, TypeError):
                pass
    if parts:
        error.message = parts[0]
    if notes := notes_of(origin):
        error.__notes__ = notes
    error.__cause__, error.__context__ = origin.__cause__, origin.__context__
    error.__suppress_context__ = origin.__suppress_context__
    return error


_made: dict[type, type[YRInvokeError]] = {}


def _both(kind: type[BaseException]) -> type[YRInvokeError]:
    found = _made.get(kind)
    if found is None:
        found = _made[kind] = _make_both(kind)
    return found


def _make_both(kind: type[BaseException]) -> type[YRInvokeError]:
    if not issubclass(kind, Exception) or issubclass(YRInvokeError, kind):
        return YRInvokeError  # SystemExit and its kind must not end the caller
    try:
        return type(f"YRInvokeError({kind.__name__})", (YRInvokeError, kind), {})
    except Exception:  # a class that cannot be a base next to another, or does not want to be one
        return YRInvokeError


def unreadable(error: BaseException) -> YRRuntimeError:
    """The error of an object whose pickle cannot be read here."""
    return YRRuntimeError(
        f"the object cannot be read here: {type(error).__name__}: {_text_of(error)}", CODES["deserialize"], _DATA
    )


def said(error: BaseException) -> str:
    """Format an error as one line, without its traceback and its code; the caller adds a code."""
    if isinstance(error, YRInvokeError):
        return f"{type(error.origin).__name__}: {_text_of(error.origin)}"
    return error.message if isinstance(error, YRError) else str(error)


def fresh(error: BaseException) -> BaseException:
    """Copy a stored error for one of its callers: a raised error holds the caller's frames."""
    try:
        found = copy.copy(error)
    except Exception:
        return error.with_traceback(None)
    if type(found) is not type(error):
        return error.with_traceback(None)
    if notes := notes_of(error):
        found.__notes__ = notes
    found.__cause__, found.__context__ = error.__cause__, error.__context__
    found.__suppress_context__ = error.__suppress_context__
    return found


def _text_of(error: BaseException) -> str:
    """Text of an exception, whose class may fail to make one."""
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__}, whose text cannot be made>"


_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def describe(error: BaseException) -> tuple[Portable, str]:
    """Return an error in a form that can be sent to another process, and its traceback as text."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next  # how we called it is of no interest
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    found = Portable(error)
    if found.left_out:
        text += f"(attributes that cannot be pickled were left out: {', '.join(found.left_out)})\n"
    return found, text


def read_error(data: bytes, *, is_ours: bool = False) -> BaseException:
    """Error that a caller gets, from the pickle of the result of `describe`.

    Args:
        data: the pickle.
        is_ours: whether the error is to be raised as it is.
    """
    try:
        origin, text = pickle.loads(data)
        return origin if is_ours else invoke_error(origin, text)
    except Exception as error:
        return YRRuntimeError(
            f"the error of a worker cannot be read: {type(error).__name__}: {_text_of(error)}", CODES["deserialize"]
        )
