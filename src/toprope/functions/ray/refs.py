"""References to Ray's objects, and how they travel in arguments, results and objects that are put."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from toprope.functions import current
from toprope.functions.objects import ObjectRef

__all__ = ["Entry", "FailedArgumentError", "as_arguments", "lift", "lower", "reduce_ref"]

_MOST = 10_000
"""Elements of a list, tuple or dictionary up to which references are looked for before it is sent. In larger ones, and
in objects of the program's own classes, they are found as it is pickled: the callee then waits for them itself."""

_DEEP = 8
_SEARCHED = (ObjectRef, list, tuple, dict)


class Entry:
    """What a process knows of an object.

    Attributes:
        ref: Ray's own reference; None where there is an error in its place.
        instance: id of the instance, or name of the group, whose end is the reason where the object is lost.
        error: what getting the object raises, where that is known here and not to Ray.
        cancelled: whether the call that makes it was cancelled here.
    """

    __slots__ = ("__weakref__", "cancelled", "error", "instance", "ref")

    def __init__(self, ref: Any, instance: str = "", error: BaseException | None = None) -> None:
        self.ref = ref
        self.instance = instance
        self.error = error
        self.cancelled = False


class FailedArgumentError(Exception):
    """An argument is a reference to what has failed: so does the call.

    Args:
        entry: the argument.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.entry = entry


class Slot:
    """Stands for a reference until its object is there.

    Args:
        index: its place among the references of the call.
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def lift(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any], list[Any]]:
    """Arguments with slots for their references, which Ray is given beside them: it resolves them before the call.

    Args:
        arguments, keywords: of a call.

    Returns:
        The arguments, and Ray's references in the order of the slots.

    Raises:
        FailedArgumentError: one of them is known to have failed.
    """
    refs: list[Any] = []
    if not any(each.__class__ in _SEARCHED for each in (*arguments, *keywords.values())):
        return arguments, keywords, refs
    lifted = tuple([_inside(each, refs, _DEEP) for each in arguments])
    return lifted, {name: _inside(each, refs, _DEEP) for name, each in keywords.items()}, refs


def lower(value: Any, values: Sequence[Any], deep: int = _DEEP + 1) -> Any:
    """The arguments with the objects in their slots."""
    kind = value.__class__
    if kind is Slot:
        return values[value.index]
    if deep and kind in (list, tuple) and len(value) <= _MOST:
        return kind([lower(each, values, deep - 1) for each in value])
    if deep and kind is dict and len(value) <= _MOST:
        return {name: lower(each, values, deep - 1) for name, each in value.items()}
    return value


def _inside(value: Any, refs: list[Any], deep: int) -> Any:
    kind = value.__class__
    if kind is ObjectRef:
        refs.append(_ray_ref(value))
        return Slot(len(refs) - 1)
    if not deep or kind not in _SEARCHED or len(value) > _MOST:
        return value
    before = len(refs)
    if kind is dict:
        made: Any = {name: _inside(each, refs, deep - 1) for name, each in value.items()}
    else:
        made = kind([_inside(each, refs, deep - 1) for each in value])
    return value if len(refs) == before else made


def _ray_ref(ref: ObjectRef) -> Any:
    entry: Entry = ref._entry
    if entry.error is not None:
        raise FailedArgumentError(entry)
    return entry.ref


class _Context(threading.local):
    arguments = False


_context = _Context()


class _AsArguments:
    """References that are pickled meanwhile arrive as their objects."""

    def __enter__(self) -> None:
        _context.arguments = True

    def __exit__(self, *error: object) -> None:
        _context.arguments = False


as_arguments = _AsArguments()
"""References that are pickled while it is entered arrive as their objects."""


def reduce_ref(entry: Entry) -> tuple[Any, ...]:
    """How a reference is pickled by Ray: as what it means in arguments, else as a reference."""
    if entry.error is not None:
        return _failed, (entry.error, entry.instance)
    return _value if _context.arguments else _ref, (entry.ref, entry.instance)


def _value(ref: Any, instance: str) -> Any:
    import ray

    return ray.get(ref)


def _ref(ref: Any, instance: str) -> ObjectRef:
    from toprope.functions.ray.attach import attached

    backend = attached()
    return ObjectRef(backend, backend.known(ref, instance))


def _failed(error: BaseException, instance: str) -> ObjectRef:
    return ObjectRef(current.backend(), Entry(None, instance, error))
