"""Numbers of a function's inputs and outputs, from its parameters, `num_returns` and its annotation.

`decorators` and `python_points` count by it. With `strict` it counts as CANN's dataflow API does, quirks included;
without, as the table in docs/flow.md says. Tests: tests/flow/test_flow_decorators.py.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from toprope.flow.exceptions import DfAssertionError

__all__ = ["input_count", "output_count"]

_MANY = ("Generator", "Iterator", "Iterable")


def input_count(function: Callable[..., Any]) -> int:
    """The number of parameters but self and cls; one with a default, and *args, count too."""
    return sum(name not in ("self", "cls") for name in inspect.signature(function).parameters)


def output_count(function: Callable[..., Any], num_returns: Any, *, strict: bool = False) -> int:
    """Return the number of outputs: `num_returns`, else the size of the tuple in the annotation, else 1.

    Args:
        function: the function.
        num_returns: the user's number; None for none.
        strict: count as the reference does: the arguments of any annotation, so that `Optional[int]` has two.

    Raises:
        DfAssertionError: num_returns is no int above 0, or the annotation says another number.
    """
    annotated = _annotated(function, strict)
    if num_returns is None:
        return 1 if annotated is None else annotated
    if type(num_returns) is not int:
        raise DfAssertionError(f"num_returns must be an int, got {num_returns!r}")
    if num_returns <= 0:
        raise DfAssertionError(f"num_returns must be greater than 0, got {num_returns}")
    if annotated is not None and annotated != num_returns:
        raise DfAssertionError(f"num_returns is {num_returns}, the annotation of {_name(function)} says {annotated}")
    return num_returns


def _annotated(function: Callable[..., Any], strict: bool) -> int | None:
    """Return the number in the annotation; None if it has none."""
    found = getattr(function, "__annotations__", {}).get("return")
    if strict:
        return len(getattr(found, "__args__", None) or ()) or None
    if isinstance(found, str):
        try:
            found = typing.get_type_hints(function).get("return")
        except Exception:
            return None  # it refers to an unknown name, and gives no number
    if inspect.isgeneratorfunction(function) and getattr(typing.get_origin(found), "__name__", "") in _MANY:
        found = typing.get_args(found)[0]
    if typing.get_origin(found) is not tuple:
        return None
    args = typing.get_args(found)
    return None if not args or args[-1] is Ellipsis else len(args)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
