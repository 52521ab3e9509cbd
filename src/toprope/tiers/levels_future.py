"""When a key will be used next, where keys are used in an order that comes again. Pure: keys and numbers.

What was used is noted. Where the last two uses followed each other once before, what came after them then is expected
now; after some expectations in a row that held, the order is trusted. A cycle (0 1 2 0 1 2) and a way there and back
(0 1 2 2 1 0) are both known after they were gone once. Uses in no order are never trusted, and cost nothing but memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable

__all__ = ["Future"]

KEPT = 8192
"""Uses that are remembered, at least; an order of more uses than that is not seen."""

ENOUGH = 2
"""Expectations in a row that must have held."""

Key = Hashable


class Future:
    """The uses so far, and what they let expect.

    Example:
        >>> future = Future()
        >>> for key in "abcdabcda":
        ...     future.use(key)
        >>> [future.distance(key) for key in "abcd"]
        [4, 1, 2, 3]
    """

    def __init__(self) -> None:
        self._uses: list[Key] = []
        self._start = 0  # the number of the first use that is remembered
        self._at: dict[Key, list[int]] = {}  # numbers of a key's uses, ascending
        self._after: dict[tuple[Key, Key], int] = {}  # for two uses in a row, the number of the second
        self._then: int | None = None  # the use before, to which the last one corresponds
        self._held = 0

    @property
    def count(self) -> int:
        """Of all uses so far."""
        return self._start + len(self._uses)

    @property
    def trusted(self) -> bool:
        """Whether the order is known well enough."""
        return self._then is not None and self._held >= ENOUGH

    def use(self, key: Key) -> None:
        """Note that a key is used."""
        expected = None if self._then is None else self._uses[self._then + 1 - self._start]
        pair = (self._uses[-1], key) if self._uses else None
        if self._then is not None and expected == key:
            self._then += 1
            self._held += 1
        else:
            self._then, self._held = (None if pair is None else self._after.get(pair)), 0
        number = self._start + len(self._uses)
        self._uses.append(key)
        self._at.setdefault(key, []).append(number)
        if pair is not None:
            self._after[pair] = number
        if len(self._uses) >= 2 * KEPT:
            self._shorten()

    def distance(self, key: Key) -> float:
        """After how many uses a key is expected to be used; infinite where it is not expected at all."""
        if self._then is None:
            return float("inf")
        uses = self._at.get(key, ())
        place = bisect_right(uses, self._then)
        return uses[place] - self._then if place < len(uses) else float("inf")

    def _shorten(self) -> None:
        """Forget the older half of the uses."""
        self._start += len(self._uses) - KEPT
        del self._uses[:-KEPT]
        self._at = {}
        for number, key in enumerate(self._uses, self._start):
            self._at.setdefault(key, []).append(number)
        self._after = {pair: number for pair, number in self._after.items() if number >= self._start}
        if self._then is not None and self._then < self._start:
            self._then = None
