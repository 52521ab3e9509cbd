"""Count of the handles to each instance in this process."""

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
        """A handle was made (1), or is gone (-1)."""
        self._news.append((id, number))

    def sent(self, id: str) -> None:
        """A handle was pickled: another process may have one from now on, and nobody knows for how long."""
        self._sent.add(id)

    def forget(self, id: str) -> None:
        """An instance has ended."""
        self._sent.discard(id)

    def count(self, id: str) -> int | None:
        """Handles to an instance; None where other processes may have some."""
        with self._counting:
            while self._news:
                changed, number = self._news.popleft()
                self._counts[changed] += number
                if self._counts[changed] <= 0:
                    del self._counts[changed]
        return None if id in self._sent else self._counts[id]


handles = Handles()
"""Those of this process."""
