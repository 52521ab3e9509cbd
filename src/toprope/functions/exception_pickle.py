"""Pickling of exceptions between processes: by their parts, without a call of their constructor.

`functions.exceptions` sends errors of workers by it, and so does `toprope.flow`. Python pickles an exception as its
class and `args`, and calls the class with them. A constructor that takes other arguments fails then, or changes the
text; notes, causes and what a group's members hold are lost. Here an exception is its class, `args`, attributes, notes,
cause, context and, for a group, its members. A class that defines its own pickling is pickled that way, if it works.
Where an exception keeps its parts is CPython's, and changes with it. The form of the pickle is ours: both ends have
the same version. tests/functions/test_functions_exception_library.py tries every exception class of Python,
tests/functions/test_functions_exceptions.py classes of users.
"""

from __future__ import annotations

import copyreg
import pickle
import types
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Portable", "allocate", "built_in_attributes", "notes_of"]

_DEEPEST = 20
"""Causes of causes, and groups in groups, that are kept."""

_WRITTEN_IN_PYTHON = 1 << 9
"""In `__flags__`: a class that was made at run time, and does not belong to the interpreter."""

_NOT_SENT = {"obj"}
"""Built-in attributes that are left out: AttributeError.obj is the object itself, of any size."""


class Portable:
    """An exception in a form that can be pickled; unpickled it is an exception again.

    Attributes:
        left_out: names of attributes that cannot be pickled, which are lost.

    Args:
        error: the exception. One whose class cannot be pickled becomes a RuntimeError with its text.
    """

    def __init__(self, error: BaseException) -> None:
        self.left_out: list[str] = []
        self._parts = self._of(error, ())
        if not _can_travel(self):  # a cause, or a group's member
            self._parts = self._core(error, ()), (), None, None, False
        if not _can_travel(self):
            self._parts = _as_text(error), (), None, None, False

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_context, self._parts

    def _of(self, error: BaseException, above: tuple[int, ...]) -> tuple[Any, ...]:
        """The core of an exception, its notes, cause and context, and whether the context is hidden."""
        above = (*above, id(error))
        linked = [
            None if each is None or id(each) in above or len(above) > _DEEPEST else _Part(self._of(each, above))
            for each in (error.__cause__, error.__context__)
        ]
        notes = tuple(map(str, notes_of(error)))
        return self._core(error, above), notes, *linked, error.__suppress_context__

    def _core(self, error: BaseException, above: tuple[int, ...]) -> Any:
        kind = type(error)
        if _has_own_way(kind) and _is_kept(error):
            return error
        members: tuple[_Part, ...] = ()
        if isinstance(error, BaseExceptionGroup):
            above = (*above, id(error))
            members = tuple(
                _Part((_as_text(each), (), None, None, False) if len(above) > _DEEPEST else self._of(each, above))
                for each in error.exceptions
            )
        attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
        for name in built_in_attributes(kind):
            if name not in _NOT_SENT and not (members and name in ("message", "exceptions")):
                try:
                    attributes[name] = object.__getattribute__(error, name)
                except AttributeError:
                    pass  # it was never set
        arguments = ("", ()) if members else error.args
        if not _can_travel(arguments):
            arguments = tuple(each if _can_travel(each) else repr(each) for each in arguments)
        if not _can_travel(attributes):
            lost = [name for name, value in attributes.items() if not _can_travel(value)]
            self.left_out += lost
            attributes = {name: value for name, value in attributes.items() if name not in lost}
            if hasattr(kind, "__getattr__"):  # it may look in an attribute of its own, as HTTPError does in `file`
                attributes |= {name: None for name in lost if name in vars(error)}
        text = error.message if isinstance(error, BaseExceptionGroup) else ""
        core = _Core((kind, arguments, attributes, members, text))
        return core if members or _can_travel(core) else _as_text(error)


class _Part:
    """Parts of an exception that belongs to another one."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_context, self._parts


class _Core(_Part):
    """Class, arguments and attributes of an exception, and the members of a group."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _construct, self._parts


def built_in_attributes(kind: type[BaseException]) -> list[str]:
    """Attributes that Python keeps in the exception itself, such as `errno`, and those of `__slots__`."""
    plain = (Exception, BaseException, object)
    described = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return [
        name
        for base in kind.__mro__ if base not in plain
        for name, value in vars(base).items() if isinstance(value, described) and not name.startswith("__")
    ]  # fmt: skip


def allocate(kind: type[BaseException], *arguments: Any) -> Any:
    """An exception of a class, without a call of the class's own `__new__` and `__init__`.

    Python takes only the `__new__` of the base from which a class has its layout: of a class of a RuntimeError and a
    MemoryError that is Exception's.

    Args:
        kind: the class.
        arguments: of the `__new__` of Python's own base.
    """
    base: Any = kind
    while base.__flags__ & _WRITTEN_IN_PYTHON:
        base = base.__base__
    return base.__new__(kind, *arguments)


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception, without a call of its class's `__getattr__`, which may fail."""
    found = vars(error).get("__notes__")
    return list(found) if isinstance(found, list | tuple) else []


def _with_context(
    error: BaseException,
    notes: Sequence[str],
    cause: BaseException | None,
    context: BaseException | None,
    suppress: bool,
) -> BaseException:
    """An exception with its notes and what it came from."""
    if notes:
        vars(error)["__notes__"] = list(notes)
    # not by `error.x = ...`: the class may refuse assignments, as a frozen dataclass does
    for name, value in (("__cause__", cause), ("__context__", context), ("__suppress_context__", suppress)):
        BaseException.__setattr__(error, name, value)
    return error


def _construct(
    kind: type[BaseException],
    arguments: tuple[Any, ...],
    attributes: Mapping[str, Any],
    members: Sequence[BaseException],
    text: str,
) -> BaseException:
    """An exception of a class, without a call of its constructor."""
    error: BaseException
    if members:
        error = allocate(kind, text, list(members))
    else:
        error = allocate(kind)
        BaseException.__setattr__(error, "args", arguments)
    built_in = built_in_attributes(kind)
    for name, value in attributes.items():
        if name not in built_in:
            vars(error)[name] = value  # as it was, whatever property or `__setattr__` the class has
            continue
        try:
            if object.__getattribute__(error, name) is value:
                continue  # an OSError whose file name is set, if only to None, has another text than one without
        except AttributeError:
            pass  # a slot that is not set
        try:
            BaseException.__setattr__(error, name, value)
        except (AttributeError, TypeError):
            pass  # it cannot be set, and follows from the arguments
    return error


def _has_own_way(kind: type[BaseException]) -> bool:
    """True if a class says itself how it is pickled."""
    ours = ("__reduce__", "__reduce_ex__")
    return kind in copyreg.dispatch_table or any(
        name in vars(base) for base in kind.__mro__ if base.__module__ != "builtins" for name in ours
    )


def _is_kept(error: BaseException) -> bool:
    """True if an exception comes back from its pickle with its class."""
    import cloudpickle

    try:
        return type(pickle.loads(cloudpickle.dumps(error))) is type(error)
    except Exception:
        return False


def _can_travel(value: Any) -> bool:
    """True if a value can be pickled, and be made from its pickle."""
    import cloudpickle

    try:
        pickle.loads(cloudpickle.dumps(value))
    except Exception:
        return False
    return True


def _as_text(error: BaseException) -> RuntimeError:
    try:
        return RuntimeError(f"{type(error).__name__}: {error}")
    except Exception:
        return RuntimeError(type(error).__name__)
