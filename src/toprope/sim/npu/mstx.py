"""Module `torch.npu.mstx`: marks and ranges for the vendor's tools.

No tool is attached here, so the functions return the values that torch_npu's return without one. Tests:
tests/sim/simulated/test_npu_settings.py.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import toprope.sim.npu._mstx_calls as calls
from toprope.sim.npu.streams import Stream

__all__ = ["annotate", "mstx"]

_NO_RANGE = 0
_NO_DEPTH = -1


def _fits(function: str, message: Any, stream: Any, domain: Any) -> bool:
    """Return True if the arguments are what they must be; else a warning says which is not. None of them raises."""
    wrong = ""
    if message is not None and not (isinstance(message, str) and message):
        wrong = "message"
    elif not (isinstance(domain, str) and domain):
        wrong = "domain"
    elif stream and not isinstance(stream, Stream):
        wrong = "stream"
    if wrong:
        warnings.warn(f"mstx.{function} does nothing: its {wrong} is not valid.", stacklevel=3)
    return not wrong


def _call(function: str, message: str, stream: Any, domain: str) -> int:
    if stream:
        of_stream = getattr(calls, f"_{function}")
        return int(of_stream(message, stream.stream_id, stream.device_index, stream.device_type, domain) or 0)
    return int(getattr(calls, f"_{function}_on_host")(message, domain) or 0)


class mstx:  # noqa: N801 - torch_npu's own name
    """Marks and ranges; each may be on a stream and in a domain of names."""

    @staticmethod
    def mark(message: str, stream: Any = None, domain: str = "default") -> None:
        """Mark a moment."""
        if _fits("mark", message or "", stream, domain):
            _call("mark", message, stream, domain)

    @staticmethod
    def range_push(message: str, stream: Any = None, domain: str = "default") -> int:
        """Begin a range inside those begun before; how many those are, -1 where no tool is attached."""
        return (
            _call("range_push", message, stream, domain)
            if _fits("range_push", message or "", stream, domain)
            else _NO_DEPTH
        )

    @staticmethod
    def range_pop(domain: str = "default") -> int:
        """End the range begun last; how many are left, -1 where no tool is attached."""
        return int(calls._range_pop(domain)) if _fits("range_pop", None, None, domain) else _NO_DEPTH

    @staticmethod
    def range_start(message: str, stream: Any = None, domain: str = "default") -> int:
        """Begin a range; its number for `range_end`, 0 where no tool is attached."""
        return (
            _call("range_start", message, stream, domain)
            if _fits("range_start", message or "", stream, domain)
            else _NO_RANGE
        )

    @staticmethod
    def range_end(range_id: Any, domain: str = "default") -> None:
        """End a range."""
        if not isinstance(range_id, int):
            warnings.warn("mstx.range_end does nothing: its range_id is not from range_start.", stacklevel=2)
            return
        if _fits("range_end", None, None, domain):
            calls._range_end(range_id, domain)

    @staticmethod
    def mstx_range(message: str, stream: Any = None, domain: str = "default") -> Callable[..., Any]:
        """A decorator that makes each call of a function a range."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def inner(*args: Any, **kwargs: Any) -> Any:
                range_id = mstx.range_start(message, stream, domain)
                result = function(*args, **kwargs)
                mstx.range_end(range_id, domain)
                return result

            return inner

        return decorate


class annotate:  # noqa: N801 - torch_npu's own name
    """A range as a context or a decorator; as a decorator its message is by default the function's name."""

    def __init__(self, message: str = "", stream: Any = None, domain: str = "default") -> None:
        self.message = message
        self.stream = stream
        self.domain = domain
        self.range_id: int | None = None

    def __enter__(self) -> annotate:
        self.range_id = mstx.range_start(self.message, self.stream, self.domain)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.range_id is not None:
            mstx.range_end(self.range_id, self.domain)
            self.range_id = None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with each call as a range."""
        self.message = self.message or function.__name__

        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            range_id = mstx.range_start(self.message, self.stream, self.domain)
            try:
                return function(*args, **kwargs)
            finally:
                mstx.range_end(range_id, self.domain)

        return inner


mstx.annotate = annotate  # type: ignore[attr-defined]
