"""Which loads the ring makes in a step that repeats, and when each may begin. Pure.

A load takes the slot whose last reader is the longest ago. What stays on the device is chosen before, so that this is
right in both orders that there are: in a cycle it leaves the most time for loads, and where backward turns round it
finds the last groups of forward still in their slots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Entry", "schedule"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One load.

    Attributes:
        use: the place in the order of the use that it is for.
        group: what is loaded.
        replaces: whose slot it takes; empty for an empty one.
        after: the place of the last use of what it replaces; negative for one of the step before.
    """

    use: int
    group: str
    replaces: str
    after: int


def schedule(
    order: Sequence[str], streamed: Collection[str], slots: int, *, emptied: bool = False
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The loads of a step in their order, and the groups that it finds in the ring since the step before.

    Args:
        order: the groups in the order of their uses.
        streamed: those of them that do not stay on the device.
        slots: how many slots the ring has; at least 1 where anything is streamed.
        emptied: a step finds nothing in the ring, as the optimizer has changed the weights and used the slots.
    """
    ring: dict[str, int] = {}  # group -> its last use, the longest ago first
    entries: list[Entry] = []
    carried: list[str] = []
    count = len(order)
    # The ring after a step depends on the last groups of that step alone: after the second it repeats.
    for place in range(count if emptied else 2 * count):
        group = order[place % count]
        if group not in streamed:
            continue
        told = emptied or place >= count
        if group in ring:
            if not emptied and place >= count > ring[group]:
                carried.append(group)
            del ring[group]
        elif len(ring) >= slots:
            victim = next(iter(ring))
            last = ring.pop(victim)
            if told:
                entries.append(Entry(place % count, group, victim, last if emptied else last - count))
        elif emptied:
            entries.append(Entry(place, group, "", -1))
        ring[group] = place
    return tuple(entries), tuple(carried)
