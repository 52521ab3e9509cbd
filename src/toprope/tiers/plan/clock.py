"""The loads of a step, and a virtual clock that runs them: jobs on links, the disk and the device. Pure.

`placement` gives it the jobs and reads the predicted time; `report` draws its spans. A resource does one job at a
time: of those that are ready, the job for the earliest use. The transfer threads (`tiers.store.transfer`) take loads
in the same order: one that changes needs the other to change, or predictions become wrong. Tests:
tests/tiers/test_tiers_placement.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

__all__ = ["COMPUTE", "DISK", "IN", "OUT", "Clock", "Entry", "Span", "schedule"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One load of a group in a step: what the ring must have done before it begins.

    Attributes:
        use: index of the use that it is for.
        group: the group that is loaded.
        replaces: the group whose slot it takes; "" for an empty slot.
        after: index of the last use of the group that it replaces; negative for a use of the step before.
    """

    use: int
    group: str
    replaces: str
    after: int


def schedule(
    order: Sequence[str], streamed: Collection[str], slots: int, *, emptied: bool = False
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The loads of a step in their order, and the groups that are in the ring when it begins.

    Args:
        order: the groups in the order of their uses.
        streamed: the groups among them that do not stay on the device.
        slots: number of slots of the ring; at least 1 if anything is streamed.
        emptied: the ring is empty when a step begins, as the optimizer has changed the weights and used the slots.
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
        counted = emptied or place >= count
        if group in ring:
            if not emptied and place >= count > ring[group]:
                carried.append(group)
            del ring[group]
        elif len(ring) >= slots:
            victim = next(iter(ring))
            last = ring.pop(victim)
            if counted:
                entries.append(Entry(place % count, group, victim, last if emptied else last - count))
        elif emptied:
            entries.append(Entry(place, group, "", -1))
        ring[group] = place
    return tuple(entries), tuple(carried)


COMPUTE, IN, OUT, DISK = range(4)
"""The resources: the device, the links host -> device and device -> host, and the disk for reads and writes."""


@dataclass(frozen=True, slots=True)
class Span:
    """Begin and end of a job on the clock, in seconds.

    Attributes:
        resource: the resource that did it.
        label: the group that it was for.
        begin, end: in seconds since the first step began.
    """

    resource: int
    label: str
    begin: float
    end: float


@dataclass
class Clock:
    """Jobs and their dependencies; `run` computes when each begins and ends."""

    resources: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    urgency: list[int] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    then: list[list[int]] = field(default_factory=list)

    def add(self, resource: int, seconds: float, urgency: int, after: Iterable[int], label: str = "") -> int:
        """Add a job that begins after other jobs have ended; return its number."""
        number = len(self.resources)
        before = set(after)
        self.resources.append(resource)
        self.seconds.append(seconds)
        self.urgency.append(urgency)
        self.needs.append(len(before))
        self.labels.append(label)
        self.then.append([])
        for each in before:
            self.then[each].append(number)
        return number

    def run(self) -> list[Span]:
        """Compute begin and end of each job.

        Raises:
            ValueError: jobs depend on each other in a cycle.
        """
        needs = list(self.needs)
        ready: list[list[tuple[int, int]]] = [[], [], [], []]
        busy = [False] * len(ready)
        ending: list[tuple[float, int]] = []
        begin = [0.0] * len(needs)
        end = [0.0] * len(needs)
        done, now = 0, 0.0
        for number, count in enumerate(needs):
            if not count:
                heappush(ready[self.resources[number]], (self.urgency[number], number))
        while True:
            for resource, waiting in enumerate(ready):
                if waiting and not busy[resource]:
                    _, number = heappop(waiting)
                    busy[resource] = True
                    begin[number], end[number] = now, now + self.seconds[number]
                    heappush(ending, (end[number], number))
            if not ending:
                break
            now = ending[0][0]
            while ending and ending[0][0] == now:
                _, number = heappop(ending)
                done += 1
                busy[self.resources[number]] = False
                for each in self.then[number]:
                    needs[each] -= 1
                    if not needs[each]:
                        heappush(ready[self.resources[each]], (self.urgency[each], each))
        if done < len(needs):
            raise ValueError("jobs need each other in a circle")
        return [Span(*each) for each in zip(self.resources, self.labels, begin, end, strict=True)]
