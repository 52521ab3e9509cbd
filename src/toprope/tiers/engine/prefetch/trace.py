"""Order of the groups in a step, recorded from the first step, and the next uses that follow from it.

`engine.runtime` records each use (`Trace`) and makes the `Order` of a step from its units; `prefetch_buffer` asks that
for the next uses, to prefetch them and to choose the slot to reuse. `row_pieces` uses `Order`, `handle` shows what a
`Trace` recorded. After an unexpected use, prediction continues after that name's next place in the step. A wrong
prediction costs time, never a result, so how it is made is free. Tests: tests/tiers/test_tiers_ring.py,
tests/tiers/test_tiers_attach.py.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable

__all__ = ["Order", "Trace"]


class Order:
    """The uses of a step, which repeats.

    Args:
        uses: names in their order; the same name N times in a row is one use in N parts.
    """

    def __init__(self, uses: Iterable[str]) -> None:
        self.uses: list[str] = []
        self.parts: list[int] = []
        for each in uses:
            if not self.uses or self.uses[-1] != each:
                self.uses.append(each)
                self.parts.append(0)
            self.parts[-1] += 1
        self.places: defaultdict[str, list[int]] = defaultdict(list)
        for place, each in enumerate(self.uses):
            self.places[each].append(place)
        self.at = 0
        """Index of the next use."""
        self.part = 0
        """Number of parts of the last use so far."""
        self.missed = 0
        """Number of uses that were not expected."""

    def __len__(self) -> int:
        return len(self.uses)

    def restart(self) -> None:
        """Go back to the begin of the step."""
        self.at = self.part = 0

    def advance(self, use: str) -> None:
        """Move to the place after the next use of this name; called when it is used."""
        places = self.places.get(use)
        if places is None:
            self.missed += 1
            return
        count = len(self.uses)
        expected = self.uses[self.at % count] == use
        if self.part and self.uses[self.at - 1] == use and (self.part < self.parts[self.at - 1] or not expected):
            self.part += 1
            return
        self.part = 1
        if expected:
            self.at = (self.at + 1) % count
            return
        self.missed += 1
        found = bisect_left(places, self.at)
        self.at = (places[found] + 1 if found < len(places) else places[0] + 1) % count

    def distance(self, use: str) -> int:
        """Number of uses until the next use of this name.

        0 while parts of its last use are missing; more than a step for an unknown name.
        """
        places = self.places.get(use)
        count = len(self.uses)
        if not places:
            return 2 * count + 1
        if self.uses[self.at - 1] == use and 0 < self.part < self.parts[self.at - 1]:
            return 0
        found = bisect_left(places, self.at)
        return places[found] - self.at if found < len(places) else places[0] + count - self.at

    def upcoming(self, wanted: Collection[str], most: int) -> list[str]:
        """The next names among `wanted`, each once and at most `most`, in the order of their use."""
        found: dict[str, None] = {}
        count = len(self.uses)
        for step in range(count):
            each = self.uses[(self.at + step) % count]
            if each in wanted and each not in found:
                found[each] = None
                if len(found) == most:
                    break
        return list(found)


class Trace:
    """Record of one step: its uses, forward or backward, and the computing time of each."""

    def __init__(self) -> None:
        self.uses: list[tuple[str, bool]] = []
        self.seconds: list[float] = []
        self._since = 0.0

    def enter(self, name: str, backward: bool) -> None:
        """Record that the computation of a group begins."""
        now = time.perf_counter()
        if self.uses and self.uses[-1] == (name, backward):
            self._since = now
            return
        self.uses.append((name, backward))
        self.seconds.append(0.0)
        self._since = now

    def leave(self) -> None:
        """Record that the computation of the group ends, or waits for something else."""
        if self.uses and self._since:
            self.seconds[-1] += time.perf_counter() - self._since
        self._since = 0.0
