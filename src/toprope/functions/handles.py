"""Count of the handles to each instance in this process.

The proxies of `functions.api` count; both backends ask, and end an instance that nobody can call any more. Proxies
count in `__del__`, which may run in the middle of any other method: only `count` may take a lock. Tests:
tests/functions/test_functions_ray_manager.py, tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

import threading
from collections import Counter, deque

__all__ = ["Handles", "handles"]


class Handles:
    """Counts handles. All methods but `count` may be called at any moment, also by the garbage collector: none of them
    takes a lock."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sent: set[str] = set()
        self._news: deque[tuple[str, int]] = deque()
        self._counting = threading.Lock()

    def add(self, id: str, number: int) -> None:
        """Count a handle: 1 for a new one, -1 for a deleted one."""
        self._news.append((id, number))

    def sent(self, id: str) -> None:
        """Note that a handle was pickled: from now on another process may hold one for an unknown time."""
        self._sent.add(id)

    def forget(self, id: str) -> None:
        """Forget an instance that has ended."""
        self._sent.discard(id)

    def count(self, id: str) -> int | None:
        """Return the number of handles to an instance; None if other processes may hold some."""
        with self._counting:
            while self._news:
                changed, number = self._news.popleft()
                self._counts[changed] += number
                if self._counts[changed] <= 0:
                    del self._counts[changed]
        return None if id in self._sent else self._counts[id]


handles = Handles()
"""Handles of this process."""
