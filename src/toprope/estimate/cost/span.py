"""`Span`: a time that is not known exactly, as its least, likely and most seconds; pure.

Every estimate is one; reports show it by `seconds_text`. Timelines and JSON rely on the order of the three; units and
digits of the text are free. Tests: tests/estimate/test_span.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from toprope.messages import Message

__all__ = ["NOTHING", "Span", "seconds_text", "total_of"]


class Span(NamedTuple):
    """A range of seconds."""

    low: float
    likely: float
    high: float

    @classmethod
    def of(cls, likely: float, width: float) -> Span:
        """A range of this ratio of its ends, the likely value in the middle by ratio."""
        half = width**0.5
        return cls(likely / half, likely, likely * half)

    def plus(self, other: Span) -> Span:
        """The sum, as if both erred in the same direction."""
        return Span(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, factor: float) -> Span:
        """The same several times."""
        return Span(self.low * factor, self.likely * factor, self.high * factor)

    def longer(self, other: Span) -> Span:
        """The longer one, at each end."""
        return Span(max(self.low, other.low), max(self.likely, other.likely), max(self.high, other.high))

    @property
    def ratio(self) -> float:
        """Upper end by lower end; 1 for no time at all."""
        return self.high / self.low if self.low else 1.0

    @property
    def text(self) -> str:
        """The range for a reader: "1.2 to 1.6 ms"."""
        unit, size = _unit(self.high)
        low, high = _digits(self.low / size), _digits(self.high / size)
        if low == high:
            return f"{high} {unit}"
        return Message("{low} to {high} {unit}", low=low, high=high, unit=unit)


NOTHING = Span(0.0, 0.0, 0.0)


def total_of(spans: Iterable[Span]) -> Span:
    """The sum of times, as if all erred in the same direction."""
    return reduce(Span.plus, spans, NOTHING)


_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def _unit(seconds: float) -> tuple[str, float]:
    for unit, size in _UNITS:
        if seconds >= size * (2 if size >= 60 else 1):
            return unit, size
    return _UNITS[-1]


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2g}"


def seconds_text(seconds: float) -> str:
    """A time for a reader: "1.4 ms"."""
    unit, size = _unit(seconds)
    return f"{_digits(seconds / size)} {unit}"
