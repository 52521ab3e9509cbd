"""The search for limits under which the slowest stream is as fast as can be; pure.

Called by `planning.limits`. A stream's time never grows with its cores once the best up to each number is taken. For a
wanted time each stream then has a few cheapest pairs of cube and vector cores, and whether they fit the card side by
side is a small sum; the shortest time for which they do is found by bisection over the times that can occur. The result
is fixed: it is exact, but where `_TRIES` ends the search; the way is free. Tests: tests/cores/test_cores_plan.py, which
compares with trying everything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from toprope.cores.model import Cores
from toprope.cores.planning.times import Demand, Work, weakest
from toprope.errors import PlanError

__all__ = ["Choices", "Room", "by_block", "search"]

KINDS = ("cube", "vector")
_TRIES = 50_000  # combinations of cheapest pairs that are tried where streams share cores; more are left out


@dataclass(frozen=True, slots=True)
class Room:
    """Streams that can run at the same time, and the cores that they have together.

    Attributes:
        card: name of the card.
        cores: its cores.
        streams: numbers of the streams.
    """

    card: str
    cores: Cores
    streams: tuple[int, ...]

    def left(self, limits: Sequence[Cores]) -> Cores:
        """Cores that these limits of all streams leave; below 0 where they do not fit."""
        cube, vector = (self.cores[kind] - sum(limits[each][kind] for each in self.streams) for kind in (0, 1))
        return cube, vector

    def fits(self, limits: Sequence[Cores]) -> bool:
        """True if these limits of all streams fit."""
        return min(self.left(limits)) >= 0


class Choices:
    """The limits that a stream can be given, each with its time.

    Attributes:
        demand: what the stream asks for.
        least: the fewest cores that it can do with.
        uneven: whether its times as given grow with more cores somewhere.
    """

    def __init__(self, demand: Demand, cores: Cores) -> None:
        """Work out the times for all numbers of cores.

        Raises:
            PlanError: the demand contradicts itself or the card.
        """
        self.demand, self.least = demand, demand.least
        most = cores if demand.maximum is None else demand.maximum
        cube, vector = (min(most[kind], cores[kind]) if self.least[kind] else 0 for kind in (0, 1))
        self.most: Cores = cube, vector
        names = f" ({', '.join(demand.cards)})" if demand.cards else ""
        for kind in (0, 1):
            if self.least[kind] > self.most[kind]:
                raise PlanError(
                    f"stream {demand.stream} needs {self.least[kind]} {KINDS[kind]} cores and is allowed "
                    f"{self.most[kind]}.",
                    looked_at=f"its minimum, the cores of one block of what it runs, its maximum and the {cores[kind]} "
                    f"{KINDS[kind]} cores of the smallest of its cards{names}",
                    do="raise its maximum, or lower its minimum",
                )
        self.uneven = False
        self._sums = [by_block(works, self.most) for works in demand.everything]
        self._times, self._found = self._table()

    def time(self, limits: Cores) -> float:
        """Microseconds with these limits, or with fewer cores where that is faster."""
        return self._times[limits[0] - self.least[0]][limits[1] - self.least[1]]

    def given(self, limits: Cores) -> float:
        """Microseconds with exactly these limits."""
        return _total(self._sums, limits)

    def trim(self, limits: Cores) -> Cores:
        """The limits with the cores taken off that do not make it faster."""
        return self._found[limits[0] - self.least[0]][limits[1] - self.least[1]]

    def timing(self, limits: Cores) -> str:
        """Source of the time with these limits."""
        works = (work for works in self.demand.everything for work in works)
        return weakest(work.times.timing_on(work.blocks(limits)) for work in works)

    def times(self) -> set[float]:
        """All times that it can take."""
        return {time for row in self._times for time in row}

    @property
    def best(self) -> float:
        """Its time with all cores that it may have."""
        return self._times[-1][-1]

    def cheapest(self, time: float) -> list[Cores]:
        """The pairs of limits that reach this time and of which no core can be spared; fewest cube cores first."""
        found: list[Cores] = []
        for cube, row in enumerate(self._times, self.least[0]):
            vector = self.least[1] + bisect_left(row, -time, key=lambda value: -value)
            if vector <= self.most[1] and (not found or vector < found[-1][1]):
                found.append((cube, vector))
        return found

    def faster(self, limits: Cores, room: Cores) -> Cores | None:
        """The fewest cores more, within the room, that make it faster than with these limits; None without any."""
        now = self.time(limits)
        best: Cores | None = None
        for cube in range(limits[0], min(self.most[0], limits[0] + room[0]) + 1):
            row = self._times[cube - self.least[0]]
            start = limits[1] - self.least[1]
            vector = next((each for each in range(start, len(row)) if row[each] < now), len(row)) + self.least[1]
            if vector <= min(self.most[1], limits[1] + room[1]) and (best is None or cube + vector < sum(best)):
                best = cube, vector
        return best

    def _table(self) -> tuple[list[list[float]], list[list[Cores]]]:
        """Times by cube and vector cores, made to never grow, and the cores at which each was first reached."""
        raw = [
            [_total(self._sums, (cube, vector)) for vector in range(self.least[1], self.most[1] + 1)]
            for cube in range(self.least[0], self.most[0] + 1)
        ]
        found = [[(self.least[0] + x, self.least[1] + y) for y in range(len(row))] for x, row in enumerate(raw)]
        for x, row in enumerate(raw):
            for y in range(len(row)):
                for other_x, other_y in ((x - 1, y), (x, y - 1)):
                    if min(other_x, other_y) >= 0 and raw[other_x][other_y] <= row[y]:
                        self.uneven |= raw[other_x][other_y] < row[y]
                        row[y], found[x][y] = raw[other_x][other_y], found[other_x][other_y]
        return raw, found


def by_block(works: Sequence[Work], most: Cores) -> list[tuple[Cores, list[float]]]:
    """The time of all work of the same kind of block, by number of blocks: the first is that on one."""
    sums: dict[Cores, list[float]] = {}
    for work in works:
        most_blocks = min((most[kind] // work.block[kind] for kind in (0, 1) if work.block[kind]), default=1)
        total = sums.setdefault(work.block, [0.0] * most_blocks)
        for blocks in range(most_blocks):
            total[blocks] += work.count * work.times.on(blocks + 1)
    return list(sums.items())


def _total(sums: Sequence[Sequence[tuple[Cores, list[float]]]], limits: Cores) -> float:
    """The longest time of any card with these limits."""
    return max(
        sum(
            total[min((limits[kind] // block[kind] for kind in (0, 1) if block[kind]), default=1) - 1]
            for block, total in works
        )
        for works in sums
    )


def search(choices: Sequence[Choices], rooms: Sequence[Room]) -> list[Cores]:
    """Limits for all streams under which the slowest is as fast as can be; what is left makes others faster.

    Raises:
        PlanError: even the fewest cores that each stream can do with do not fit; it names the streams and the sum.
    """
    for room in rooms:
        _check_least(choices, room)
    floor = max((each.best for each in choices), default=0.0)
    slowest = max((each.time(each.least) for each in choices), default=0.0)
    times = sorted({floor, slowest} | {t for each in choices for t in each.times() if floor < t < slowest})
    low, high = 0, len(times) - 1
    limits = _fit(choices, rooms, times[high])
    assert limits is not None  # the fewest cores fit
    while low < high:
        middle = (low + high) // 2
        fitting = _fit(choices, rooms, times[middle])
        if fitting is None:
            low = middle + 1
        else:
            high, limits = middle, fitting
    return _give_the_rest(choices, rooms, [each.trim(limit) for each, limit in zip(choices, limits, strict=True)])


def _check_least(choices: Sequence[Choices], room: Room) -> None:
    for kind in (0, 1):
        least = [(choices[each].demand.stream, choices[each].least[kind]) for each in room.streams]
        total = sum(cores for _, cores in least)
        if total > room.cores[kind]:
            sums = " + ".join(f"{stream} {cores}" for stream, cores in least if cores)
            raise PlanError(
                f"the streams need more {KINDS[kind]} cores than card {room.card} has.",
                looked_at=f"at least {sums} = {total} of {room.cores[kind]}",
                do="lower a minimum, or let streams that need not overlap wait for each other",
            )


def _fit(choices: Sequence[Choices], rooms: Sequence[Room], time: float) -> list[Cores] | None:
    """Limits under which every stream takes at most this time and all rooms are kept."""
    cheapest = [each.cheapest(time) for each in choices]
    if not all(cheapest):
        return None
    if all(len(each) == 1 for each in cheapest):
        limits = [each[0] for each in cheapest]
        return limits if all(room.fits(limits) for room in rooms) else None
    if len(rooms) == 1 and len(rooms[0].streams) == len(choices):
        return _fit_one_room(cheapest, rooms[0].cores)
    return _fit_rooms(cheapest, rooms)


def _fit_one_room(cheapest: Sequence[list[Cores]], cores: Cores) -> list[Cores] | None:
    """By the cube cores used so far, the fewest vector cores: stream by stream."""
    fewest: dict[int, int] = {0: 0}
    taken: list[dict[int, Cores]] = []
    for pairs in cheapest:
        following: dict[int, int] = {}
        chosen: dict[int, Cores] = {}
        for used, vectors in fewest.items():
            for cube, vector in pairs:
                if used + cube <= cores[0] and vectors + vector <= following.get(used + cube, cores[1]):
                    following[used + cube], chosen[used + cube] = vectors + vector, (cube, vector)
        fewest = following
        taken.append(chosen)
    if not fewest:
        return None
    used = min(fewest, key=lambda cube: (cube + fewest[cube], cube))
    limits: list[Cores] = []
    for chosen in reversed(taken):
        limits.append(chosen[used])
        used -= chosen[used][0]
    return limits[::-1]


def _fit_rooms(cheapest: Sequence[list[Cores]], rooms: Sequence[Room]) -> list[Cores] | None:
    """By trying the pairs of one stream after the other, and turning back where a room is full."""
    least = [tuple(min(pair[kind] for pair in pairs) for kind in (0, 1)) for pairs in cheapest]
    limits: list[Cores] = [(each[0], each[1]) for each in least]
    budget = _TRIES

    def place(number: int) -> bool:
        nonlocal budget
        if number == len(cheapest):
            return True
        for pair in cheapest[number]:
            budget -= 1
            limits[number] = pair
            mine = (room for room in rooms if number in room.streams)
            if budget > 0 and all(room.fits(limits) for room in mine) and place(number + 1):
                return True
        limits[number] = (least[number][0], least[number][1])
        return False

    return limits if place(0) else None


def _give_the_rest(choices: Sequence[Choices], rooms: Sequence[Room], limits: list[Cores]) -> list[Cores]:
    """Give cores that are left to the slowest stream that they make faster, until they make none faster."""
    hopeful = set(range(len(choices)))
    while hopeful:
        number = max(hopeful, key=lambda each: (choices[each].time(limits[each]), -each))
        left = [room.left(limits) for room in rooms if number in room.streams]
        cube, vector = (min((cores[kind] for cores in left), default=0) for kind in (0, 1))
        more = choices[number].faster(limits[number], (cube, vector))
        if more is None:
            hopeful.discard(number)
        else:
            limits[number] = choices[number].trim(more)
    return limits
