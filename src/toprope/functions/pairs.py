"""Key-value pairs of a session, some of which live for a limited time. Without threads and clocks of its own."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

__all__ = ["Pairs"]


class Pairs:
    """Bytes by key. Every call is given the time in seconds, of any clock that only goes forward."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, float | None]] = {}
        self._ends: list[tuple[float, str]] = []

    def set_all(self, pairs: Mapping[str, bytes], now: float, *, only_new: bool = False, ttl: float = 0) -> str:
        """Keep pairs, all or none.

        Args:
            pairs: the pairs.
            now: the time.
            only_new: whether a key that is there already is refused.
            ttl: seconds that the pairs live; 0 for no limit.

        Returns:
            The first key that was refused; "" where the pairs are kept.
        """
        self._expire(now)
        there = next((key for key in pairs if only_new and key in self._values), "")
        if there:
            return there
        end = now + ttl if ttl else None
        for key, value in pairs.items():
            self._values[key] = value, end
            if end is not None:
                heapq.heappush(self._ends, (end, key))
        return ""

    def get(self, keys: Sequence[str], now: float) -> list[bytes | None]:
        """The bytes of keys, None for one that is not there."""
        self._expire(now)
        found = [self._values.get(key) for key in keys]
        return [None if each is None else each[0] for each in found]

    def delete(self, keys: Sequence[str], now: float) -> list[str]:
        """Forget keys; those that were not there are returned."""
        self._expire(now)
        return [key for key in keys if self._values.pop(key, None) is None]

    def __len__(self) -> int:
        return len(self._values)

    def _expire(self, now: float) -> None:
        """Forget pairs whose time is over. A key that was written again has another end, or none."""
        while self._ends and self._ends[0][0] <= now:
            end, key = heapq.heappop(self._ends)
            if key in self._values and self._values[key][1] == end:
                del self._values[key]
