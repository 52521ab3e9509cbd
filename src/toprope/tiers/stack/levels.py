"""Which keys lie on which level, and what has to move so that another one fits. Pure: bytes and keys, no tensors.

Level 0 is the fastest. A plan changes nothing; whoever carries it out says so move by move (`apply`, `place`), so that
the record is right even where a copy fails in the middle. No plan ever drops a key: what is pushed out goes to a lower
level, and where none has room there is no plan.

Among keys of the lowest priority, that goes first which is expected to be used the latest, where the order of uses is
known (`levels_future`: Belady's choice), and else the least recently used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Future", "Levels", "Move", "Placement"]

Key = Hashable

KEPT = 8192
"""Uses that are remembered, at least; an order of more uses than that is not seen."""

ENOUGH = 2
"""Expectations in a row that must have held."""


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


@dataclass(frozen=True)
class Move:
    """A key that goes from one level to another.

    Attributes:
        key: the key.
        nbytes: its bytes.
        source: the level that it lies on.
        target: the level that it goes to.
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
    """Where a new key can lie.

    Attributes:
        level: the level.
        moves: what has to move before, in this order.
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
    """A plan in the making: bytes free on each level, and the moves so far."""

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
        """Take back the moves after the first `length`."""
        while len(self.moves) > length:
            move = self.moves.pop()
            self.held.discard(move.key)
            self.free[move.source] -= self.levels.taken_by(move.source, move.nbytes)
            self.free[move.target] += self.levels.taken_by(move.target, move.nbytes)


class Levels:
    """The record of keys on levels of limited bytes.

    Args:
        capacities: bytes of each level, the fastest first.
        blocks: for each level, of how many bytes the pieces are that it gives out, such as a file's blocks; 1 for all.
    """

    def __init__(self, capacities: Sequence[int], blocks: Sequence[int] | None = None) -> None:
        self.capacities = tuple(capacities)
        self.blocks = (1,) * len(self.capacities) if blocks is None else tuple(blocks)
        self.future = Future()
        self._ahead: dict[Key, int] = {}  # after how many uses each was brought ahead of its own
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
        """Bytes that they take there, in whole blocks; never more than the level's capacity."""
        return tuple(self._taken)

    def taken_by(self, level: int, nbytes: int) -> int:
        """What so many bytes take on a level."""
        block = self.blocks[level]
        return nbytes if block == 1 else max(1, -(-nbytes // block)) * block

    def level_of(self, key: Key) -> int | None:
        """The level that a key lies on; None where it is unknown."""
        entry = self._entries.get(key)
        return None if entry is None else entry.level

    def bytes_of(self, key: Key) -> int:
        """The bytes of a key that is there."""
        return self._entries[key].nbytes

    def order(self, level: int) -> list[Key]:
        """The movable keys of a level in the order in which they would be pushed out."""
        return list(self._victims(level))

    # Plans, which change nothing

    def plan_put(self, key: Key, nbytes: int, levels: Iterable[int] | None = None) -> Placement | None:
        """How a key of so many bytes finds room on the first level that can give it.

        A key that is there already is replaced: its old bytes count as free.

        Args:
            key: the key.
            nbytes: its bytes.
            levels: the levels to try, in this order; None for all, the fastest first.

        Returns:
            None where no level has room without dropping another key.
        """
        for level in range(len(self.capacities)) if levels is None else levels:
            draft = self._draft(key)
            if self._make_room(draft, level, nbytes):
                return Placement(level, tuple(draft.moves))
        return None

    def plan_access(self, key: Key, keep: Collection[Key] = ()) -> tuple[Move, ...]:
        """What has to move to bring a key as near to level 0 as it can come; the last move is its own.

        Args:
            key: a key that is there.
            keep: keys that are not to be pushed out for it.
        """
        entry = self._entries[key]
        if not entry.movable:
            return ()
        for level in range(entry.level):
            draft = self._draft(key, keep)
            if self._make_room(draft, level, entry.nbytes):
                return (*draft.moves, Move(key, entry.nbytes, entry.level, level))
        return ()

    # What was done

    def apply(self, move: Move) -> None:
        """Note that a move was made: the key is the last of its new level to be pushed out."""
        entry = self._entries[move.key]
        assert entry.level == move.source, (entry, move)
        self._leave(move.key, entry)
        entry.level = move.target
        self._arrive(move.key, entry)

    def place(self, key: Key, nbytes: int, level: int, priority: int = 5, *, movable: bool = True) -> None:
        """Note that a key lies on a level, in place of what had this key before.

        Args:
            key: the key.
            nbytes: its bytes.
            level: the level that `plan_put` gave.
            priority: keys of a lower one are pushed out first.
            movable: False for bytes that stay on this level until they are removed.
        """
        self.remove(key)
        entry = self._entries[key] = _Entry(nbytes, level, priority, movable)
        self._arrive(key, entry)
        if movable:
            self.future.use(key)

    def use(self, key: Key, *, ahead: bool = False) -> None:
        """Note that a key was used: among equals, it is the last to be pushed out.

        Args:
            key: a key that is there.
            ahead: it is not used yet, but will be soon: not pushed out before, and no part of the order.
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
            The level that it lay on; None where it was not there.
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
            if self.future.trusted:  # a stable sort: what nobody expects goes first, the least recently used before
                yield from sorted(keys, key=self._latest_first)
            else:
                yield from keys

    def _latest_first(self, key: Key) -> float:
        brought = self._ahead.get(key)
        if brought is not None and self.future.count - brought <= len(self._entries):
            return 0.0  # whoever had it brought will use it soon, or has forgotten it
        return -self.future.distance(key)

    def _draft(self, key: Key, keep: Collection[Key] = ()) -> _Draft:
        """A draft in which the bytes of `key`, where it is there already, are free."""
        free = [capacity - taken for capacity, taken in zip(self.capacities, self._taken, strict=True)]
        entry = self._entries.get(key)
        if entry is not None:
            free[entry.level] += self.taken_by(entry.level, entry.nbytes)
        return _Draft(self, free, (key, *keep))

    def _make_room(self, draft: _Draft, level: int, nbytes: int) -> bool:
        """Whether so many bytes are free on a level, after moves that are added to the draft; else it is as before."""
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
        """Whether a key finds room on a lower level; the moves for it are added to the draft."""
        nbytes = self._entries[key].nbytes
        for lower in range(level + 1, len(self.capacities)):
            if self._make_room(draft, lower, nbytes):
                draft.add(Move(key, nbytes, level, lower))
                return True
        return False
