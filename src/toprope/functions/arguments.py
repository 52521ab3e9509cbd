"""References among the arguments of a call: one that is itself an argument arrives as its object.

Both backends take references out where a call is made (`lift`), and put the objects in where it runs (`lower`).
References inside of lists, tuples, dictionaries and objects stay references: the callee gets them when it needs them,
with `yr.get`. This is openYuanrong's rule, and Ray's. (openYuanrong's dependency_resolver.cpp waits for them too
before a call.) Slots are ours; caller and worker have the same version. Tests:
tests/functions/test_functions_ray_mapping.py, tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toprope.functions.objects import ObjectRef
from toprope.functions.transport.serialization import SIMPLE

__all__ = ["Slot", "lift", "lower"]


class Slot:
    """Placeholder for an argument that is a reference, until its object is available.

    Args:
        index: its place among those arguments of the call.
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, (self.index,)


SIMPLE.update((Slot, ObjectRef))


def lift(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any], list[ObjectRef]]:
    """Take the references out of arguments, and leave slots in their places.

    Returns:
        Positional and keyword arguments with slots, and the references in the order of the slots.
    """
    refs: list[ObjectRef] = []

    def taken(value: Any) -> Any:
        if not isinstance(value, ObjectRef):
            return value
        refs.append(value)
        return Slot(len(refs) - 1)

    if not any(isinstance(each, ObjectRef) for each in (*arguments, *keywords.values())):
        return arguments, keywords, refs
    return tuple([taken(each) for each in arguments]), {name: taken(each) for name, each in keywords.items()}, refs


def lower(
    arguments: tuple[Any, ...], keywords: Mapping[str, Any], values: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put objects into the slots of arguments.

    Args:
        arguments, keywords: as `lift` returns them.
        values: the objects, in the order of the slots.
    """

    def found(value: Any) -> Any:
        return values[value.index] if value.__class__ is Slot else value

    return tuple([found(each) for each in arguments]), {name: found(each) for name, each in keywords.items()}
