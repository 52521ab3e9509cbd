"""Record of the level of each key, and plans of the moves that make room for another key. Pure: no tensors.

The caching policy of `stack.stack`, which carries out the moves by `stack.contents`. Level 0 is the fastest. Making a
plan changes nothing; the caller reports each move that it has made (`apply`, `place`), so that the record is right even
if a copy fails in the middle. No plan ever drops a key: a key that is pushed out goes to a lower level, and if none has
room there is no plan.

Keys with the lowest priority are pushed out first. Among these it is the key with the latest expected use if the order
of uses is known (`Future`: Belady's choice), else the least recently used one. docs/tiers.md states these rules for
users. Tests: tests/tiers/test_tiers_levels.py, against a plain model of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Future", "Levels", "Move", "Placement"]

Key = Hashable

KEPT = 8192
"""Fewest uses that are remembered; a longer cycle of uses is not recognised."""

ENOUGH = 2
"""Number of right predictions in a row after which the order is trusted."""


class Future:
    """Record of the uses so far, and prediction of the next uses from their repetition.

    Example:
        >>> future = Future()
        >>> for key in "abcdabcda":
        ...     future.use(key)
        >>> [future.distance(key) for key in "abcd"]
        [4, 1, 2, 3]
    """

    def __init__(self) -> None:
        self._uses: list[Key] = []
        self._start = 0  # number of the first remembered use
        self._at: dict[Key, list[int]] = {}  # numbers of a key's uses, ascending
        self._after: dict[tuple[Key, Key], int] = {}  # for two uses in a row, the number of the second
        self._then: int | None = None  # number of the earlier use that corresponds to the last one
        self._held = 0

    @property
    def count(self) -> int:
        """Number of all uses so far."""
        return self._start + len(self._uses)

    @property
    def trusted(self) -> bool:
        """True if the predictions are reliable."""
        return self._then is not None and self._held >= ENOUGH

    def use(self, key: Key) -> None:
        """Record a use of a key."""
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
        """Predicted number of uses until the next use of a key; infinite if none is predicted."""
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


@dataclass(frozen=True)
class Move:
    """A move of a key from one level to another.

    Attributes:
        key: the key.
        nbytes: its bytes.
        source: its level before.
        target: its level after.
    """

    key: Key
    nbytes: int
    source: int
    target: int

    @property
    def back(self) -> Move:
        """The move that undoes this one."""
        return Move(self.key, self.nbytes, self.target, self.source)


@dataclass(frozen=True)
class Placement:
    """The level for a new key, and the moves that make room for it.

    Attributes:
        level: the level.
        moves: moves of other keys that have to be made before, in this order.
    """

    level: int
    moves: tuple[Move, ...]


@dataclass
class _Entry:
    nbytes: int
    level: int
    priority: int
    movable: bool


class _Draft:
    """A plan that is being made: free bytes on each level, and the moves so far."""

    def __init__(self, levels: Levels, free: list[int], held: Collection[Key]) -> None:
        self.levels, self.free = levels, free
        self.held = set(held)  # not to be moved (again)
        self.moves: list[Move] = []

    def add(self, move: Move) -> None:
        self.moves.append(move)
        self.held.add(move.key)
        self.free[move.source] += self.levels.taken_by(move.source, move.nbytes)
        self.free[move.target] -= self.levels.taken_by(move.target, move.nbytes)

    def shorten(self, length: int) -> None:
        """Undo the moves after the first `length`."""
        while len(self.moves) > length:
            move = self.moves.pop()
            self.held.discard(move.key)
            self.free[move.source] -= self.levels.taken_by(move.source, move.nbytes)
            self.free[move.target] += self.levels.taken_by(move.target, move.nbytes)


class Levels:
    """The record of keys on levels of limited bytes.

    Args:
        capacities: bytes of each level, the fastest first.
        blocks: for each level, the size of its allocation unit in bytes, such as a file's blocks; by default 1.
    """

    def __init__(self, capacities: Sequence[int], blocks: Sequence[int] | None = None) -> None:
        self.capacities = tuple(capacities)
        self.blocks = (1,) * len(self.capacities) if blocks is None else tuple(blocks)
        self.future = Future()
        self._ahead: dict[Key, int] = {}  # for keys that were prefetched, the number of uses before that
        self._used = [0] * len(self.capacities)
        self._taken = [0] * len(self.capacities)
        self._entries: dict[Key, _Entry] = {}
        # for each level, by priority: its keys, least recently used first
        self._orders: list[dict[int, OrderedDict[Key, None]]] = [{} for _ in self.capacities]

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    @property
    def used(self) -> tuple[int, ...]:
        """Bytes of the keys on each level."""
        return tuple(self._used)

    @property
    def taken(self) -> tuple[int, ...]:
        """Bytes that the keys take on each level, in whole blocks; never more than its capacity."""
        return tuple(self._taken)

    def taken_by(self, level: int, nbytes: int) -> int:
        """Bytes that a key of this size takes on a level, in whole blocks."""
        block = self.blocks[level]
        return nbytes if block == 1 else max(1, -(-nbytes // block)) * block

    def level_of(self, key: Key) -> int | None:
        """The level of a key; None if it is unknown."""
        entry = self._entries.get(key)
        return None if entry is None else entry.level

    def bytes_of(self, key: Key) -> int:
        """The bytes of a known key."""
        return self._entries[key].nbytes

    def order(self, level: int) -> list[Key]:
        """The movable keys of a level in the order in which they would be pushed out."""
        return list(self._victims(level))

    # Plans, which change nothing

    def plan_put(self, key: Key, nbytes: int, levels: Iterable[int] | None = None) -> Placement | None:
        """Plan to put a key on the first level that can make room for it.

        A known key is replaced: its old bytes count as free.

        Args:
            key: the key.
            nbytes: its bytes.
            levels: the levels to try, in this order; None for all, the fastest first.

        Returns:
            None if no level has room without dropping another key.
        """
        for level in range(len(self.capacities)) if levels is None else levels:
            draft = self._draft(key)
            if self._make_room(draft, level, nbytes):
                return Placement(level, tuple(draft.moves))
        return None

    def plan_access(self, key: Key, keep: Collection[Key] = ()) -> tuple[Move, ...]:
        """Plan the moves that bring a key as near to level 0 as possible; the last move is its own.

        Args:
            key: a known key.
            keep: keys that must not be pushed out for it.
        """
        entry = self._entries[key]
        if not entry.movable:
            return ()
        for level in range(entry.level):
            draft = self._draft(key, keep)
            if self._make_room(draft, level, entry.nbytes):
                return (*draft.moves, Move(key, entry.nbytes, entry.level, level))
        return ()

    # Changes of the record

    def apply(self, move: Move) -> None:
        """Record a move; the key becomes the last of its new level to be pushed out."""
        entry = self._entries[move.key]
        assert entry.level == move.source, (entry, move)
        self._leave(move.key, entry)
        entry.level = move.target
        self._arrive(move.key, entry)

    def place(self, key: Key, nbytes: int, level: int, priority: int = 5, *, movable: bool = True) -> None:
        """Record that a key was put on a level; replaces its old entry.

        Args:
            key: the key.
            nbytes: its bytes.
            level: the level that `plan_put` has chosen.
            priority: keys with a lower priority are pushed out first.
            movable: False for bytes that stay on this level until they are removed.
        """
        self.remove(key)
        entry = self._entries[key] = _Entry(nbytes, level, priority, movable)
        self._arrive(key, entry)
        if movable:
            self.future.use(key)

    def use(self, key: Key, *, ahead: bool = False) -> None:
        """Record a use of a key; it becomes the last of its priority to be pushed out.

        Args:
            key: a known key.
            ahead: it was prefetched and will be used soon: it is not pushed out before, and the order of uses does not
                include this call.
        """
        entry = self._entries[key]
        if entry.movable:
            self._orders[entry.level][entry.priority].move_to_end(key)
        if ahead:
            self._ahead[key] = self.future.count
        else:
            self._ahead.pop(key, None)
            self.future.use(key)

    def remove(self, key: Key) -> int | None:
        """Forget a key.

        Returns:
            The level that it was on; None if it is unknown.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._ahead.pop(key, None)
        self._leave(key, entry)
        return entry.level

    def _leave(self, key: Key, entry: _Entry) -> None:
        self._used[entry.level] -= entry.nbytes
        self._taken[entry.level] -= self.taken_by(entry.level, entry.nbytes)
        if entry.movable:
            order = self._orders[entry.level][entry.priority]
            del order[key]
            if not order:
                del self._orders[entry.level][entry.priority]

    def _arrive(self, key: Key, entry: _Entry) -> None:
        self._used[entry.level] += entry.nbytes
        self._taken[entry.level] += self.taken_by(entry.level, entry.nbytes)
        if entry.movable:
            self._orders[entry.level].setdefault(entry.priority, OrderedDict())[key] = None

    def _victims(self, level: int) -> Iterator[Key]:
        for priority in sorted(self._orders[level]):
            keys = self._orders[level][priority]
            if self.future.trusted:  # a stable sort: keys without a predicted use first, the least recently used before
                yield from sorted(keys, key=self._latest_first)
            else:
                yield from keys

    def _latest_first(self, key: Key) -> float:
        brought = self._ahead.get(key)
        if brought is not None and self.future.count - brought <= len(self._entries):
            return 0.0  # it was prefetched, and will be used soon
        return -self.future.distance(key)

    def _draft(self, key: Key, keep: Collection[Key] = ()) -> _Draft:
        """Begin a draft in which the bytes of `key`, if it is known, are free."""
        free = [capacity - taken for capacity, taken in zip(self.capacities, self._taken, strict=True)]
        entry = self._entries.get(key)
        if entry is not None:
            free[entry.level] += self.taken_by(entry.level, entry.nbytes)
        return _Draft(self, free, (key, *keep))

    def _make_room(self, draft: _Draft, level: int, nbytes: int) -> bool:
        """Add moves to the draft until a level has this many free bytes; False, and no moves, if it is not possible."""
        needed = self.taken_by(level, nbytes)
        if draft.free[level] >= needed:
            return True
        if needed > self.capacities[level] or level == len(self.capacities) - 1:
            return False
        before = len(draft.moves)
        for key in self._victims(level):
            if key not in draft.held and self._push_down(draft, key, level) and draft.free[level] >= needed:
                return True
        draft.shorten(before)
        return False

    def _push_down(self, draft: _Draft, key: Key, level: int) -> bool:
        """Add moves to the draft that push a key to a lower level; False if none has room."""
        nbytes = self._entries[key].nbytes
        for lower in range(level + 1, len(self.capacities)):
            if self._make_room(draft, lower, nbytes):
                draft.add(Move(key, nbytes, level, lower))
                return True
        return False
