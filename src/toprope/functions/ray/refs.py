"""References to Ray's objects, and how they travel in arguments, results and objects that are put.

`RayBackend` and its parts use it where calls are made, `functions.arguments` where they run. Ray resolves a reference
only where it is an argument of its own: so slots stay in the arguments, and references go apart. Tests:
tests/functions/test_functions_ray_mapping.py, and (slow) tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprope.functions import arguments as slots
from toprope.functions import context
from toprope.functions.objects import ObjectRef

__all__ = ["Entry", "FailedArgumentError", "lift", "reduce_ref"]


class Entry:
    """A process's entry for an object on Ray.

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
    """An argument refers to a failed object, so the call fails.

    Args:
        entry: the argument.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.entry = entry


def lift(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any], list[Any]]:
    """Arguments with slots for those that are references, which Ray is given apart: it resolves them before the call.

    Returns:
        The arguments, and Ray's references in the order of the slots.

    Raises:
        FailedArgumentError: one of them is known to have failed.
    """
    lifted, named, refs = slots.lift(arguments, keywords)
    return lifted, named, [_ray_ref(ref) for ref in refs]


def _ray_ref(ref: ObjectRef) -> Any:
    entry: Entry = ref._entry
    if entry.error is not None:
        raise FailedArgumentError(entry)
    return entry.ref


def reduce_ref(entry: Entry) -> tuple[Any, ...]:
    """Reduce a reference for a pickle of Ray."""
    if entry.error is not None:
        return _failed, (entry.error, entry.instance)
    return _ref, (entry.ref, entry.instance)


def _ref(ref: Any, instance: str) -> ObjectRef:
    from toprope.functions.ray.attach import attached

    backend = attached()
    return ObjectRef(backend, backend.known(ref, instance))


def _failed(error: BaseException, instance: str) -> ObjectRef:
    return ObjectRef(context.backend(), Entry(None, instance, error))
