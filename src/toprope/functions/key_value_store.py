"""Key-value store of a session; pairs may have a limited lifetime.

The local session has one in the driver, a session on Ray one in its manager. Knows nothing of either, nor of the yr
API: names and errors for users are those of `api.kv`. Its methods are the protocol `backend.KeyValuePairs`, which
workers call by name. Tests: tests/functions/test_functions_pairs.py.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Pairs"]


class Pairs:
    """Thread-safe store of bytes by key.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, tuple[bytes, float | None]] = {}
        self._ends: list[tuple[float, str]] = []

    def set_all(self, pairs: Mapping[str, bytes], *, only_new: bool = False, ttl: float = 0) -> str:
        """Store pairs, all or none.

        Args:
            pairs: the pairs.
            only_new: whether a key that is there already is refused.
            ttl: lifetime of the pairs in seconds; 0 for no limit.

        Returns:
            The first key that was refused; "" where the pairs are kept.
        """
        with self._lock:
            now = self._expire()
            there = next((key for key in pairs if only_new and key in self._values), "")
            if there:
                return there
            end = now + ttl if ttl else None
            for key, value in pairs.items():
                self._values[key] = value, end
                if end is not None:
                    heapq.heappush(self._ends, (end, key))
            return ""

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of keys, None for one that is not there."""
        with self._lock:
            self._expire()
            found = [self._values.get(key) for key in keys]
            return [None if each is None else each[0] for each in found]

    def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete keys. Return those that did not exist."""
        with self._lock:
            self._expire()
            return [key for key in keys if self._values.pop(key, None) is None]

    def __len__(self) -> int:
        return len(self._values)

    def _expire(self) -> float:
        """Delete expired pairs; return the time. A key that was written again has its new expiry time, or none."""
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            end, key = heapq.heappop(self._ends)
            if key in self._values and self._values[key][1] == end:
                del self._values[key]
        return now
