"""`toprope.tiers.TierStack`: tensors by key, moved between a device's memory, the host's memory and a file on a disk.

For users, and for the facade `apt_model.optimization.vgpu_stack`. One lock guards it, which every public call takes.
The policy is in `stack.levels`, the copies are in `stack.contents`; here are the public calls, reservations and
statistics, which docs/tiers.md describes. Tests: tests/tiers/test_tiers_stack.py,
tests/tiers/test_tiers_stack_disk.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import torch

from toprope.device import Device
from toprope.errors import TierCapacityError, TierError, UsageError
from toprope.sizes import gibibytes
from toprope.tiers.stack.contents import Contents
from toprope.tiers.stack.levels import Levels, Move
from toprope.tiers.stack.tier import LevelStats, StackStats, Tier, check_memory, check_tensor
from toprope.tiers.store.disk_file import BLOCK

__all__ = ["Reservation", "TierStack"]

Result = TypeVar("Result")


@dataclass
class _Counts:
    """Counters of one level, for its `LevelStats`."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0


class Reservation:
    """Room on one level for bytes outside the stack, such as a layer's weights."""

    def __init__(self, stack: TierStack, device: Device) -> None:
        self._stack = stack
        self.device = device
        """The device of its level, which is never on a disk."""

    def change(self, nbytes: int, prefer: torch.device | None = None) -> None:
        """Reserve another number of bytes, on the level of `prefer` if it has room, else on the first that has.

        Raises:
            TierCapacityError: no level has room; the reservation is as before.
        """
        self.device = self._stack._reserve(self, nbytes, prefer)

    def touch(self) -> None:
        """Count one request for the reserved bytes."""
        self._stack._touch(self)

    def release(self) -> None:
        """Release the room. May be called by the garbage collector, in any thread, and twice."""
        self._stack._released.append(self)


class TierStack:
    """Tensors by key on levels of limited size; tensors without room on a level are moved down, never dropped.

    A tensor that is on the device of its level already is kept by reference; other tensors, and views of a larger
    storage, are copied. A level on a disk ("ssd") is a file: its tensors take no memory. A stack holds values: a tensor
    with gradients is refused; use `TierLinear` for weights. All methods may be called from several threads; one lock
    guards the stack, also during copies, but not during reads from a disk for `prefetch`.

    Errors of a disk are raised by the call in which they happen, or after a `prefetch` by the next call; all tensors
    are in their old places then.

    Args:
        tiers: the levels, the fastest first.

    Raises:
        UsageError: there is no level.
        TierCapacityError: the levels of a device are larger together than its free memory, or the levels of a disk
            larger than its free space.

    Example:
        >>> import torch
        >>> from toprope.tiers import Tier, TierStack
        >>> stack = TierStack([Tier.named("cpu", 2**20), Tier.named("cpu", 2**24)])
        >>> stack.put("a", torch.ones(3))
        0
        >>> stack.access("a")
        tensor([1., 1., 1.])
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        if not tiers:
            raise UsageError("a stack without levels holds nothing.", do="give at least one level")
        check_memory(tiers)
        self.tiers = tuple(tiers)
        self._levels = Levels(
            [tier.capacity for tier in tiers], [1 if tier.folder is None else BLOCK for tier in tiers]
        )
        self._contents = Contents(self.tiers, self._levels)
        self._closed = False
        self._counts = [_Counts() for _ in tiers]
        self._requests = self._promotions = self._demotions = 0
        self._lock = threading.RLock()
        self._released: deque[Reservation] = deque()  # appended to without the lock

    def __deepcopy__(self, memo: object) -> TierStack:
        """Return the same stack: a copied model uses the same memory."""
        return self

    def __len__(self) -> int:
        with self._held():
            return len(self._levels)

    def __contains__(self, key: Hashable) -> bool:
        with self._held():
            return key in self._contents.kept

    def close(self) -> None:
        """Forget all tensors, delete the files of levels on a disk, and end the threads that move tensors.

        The same happens when the stack is no longer used, and when the program ends. Calling it again does nothing.
        """
        with self._held():
            self._closed = True
            for key in self._contents.kept:
                self._levels.remove(key)
            self._contents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Tensors

    def put(self, key: Hashable, tensor: torch.Tensor, *, priority: int = 5, level: int | None = None) -> int:
        """Keep a tensor under a key; replaces the key's old tensor.

        Args:
            key: any hashable value.
            tensor: a dense tensor without gradients.
            priority: tensors with a lower priority are pushed out first; among equals the least recently used.
            level: the level for it; None for the first one that can make room.

        Returns:
            The level that it is on.

        Raises:
            TierCapacityError: there is no room for it without dropping another tensor, or the disk is full.
            TierError: a disk cannot be read or written.
            UsageError: the tensor is of a kind that cannot be kept.
        """
        check_tensor(key, tensor)
        with self._open():
            self._check_level(level)
            self._contents.wait_for(key)
            nbytes = tensor.nbytes
            found = self._levels.plan_put(key, nbytes, None if level is None else (level,))
            if found is None:
                raise self._no_room(nbytes, level)
            at = found.level
            own = self._levels.taken_by(at, nbytes) if at == self._levels.level_of(key) else 0
            kept = self._carry_out(key, found.moves, lambda: self._contents.take(tensor, at), own)
            self._contents.put(key, kept)
            self._levels.place(key, nbytes, at, priority)
            return at

    def access(self, key: Hashable) -> torch.Tensor | None:
        """Return a tensor, moved to level 0 if that can make room for it; None if the key is unknown.

        A tensor larger than level 0 is moved as far up as possible. If no level in memory has room for it, the caller
        gets a copy in the host's memory.

        Raises:
            TierError: a disk cannot be read or written.
        """
        with self._open():
            if not self._request(key, range(len(self.tiers))):
                return None
            self._contents.wait_for(key)
            self._bring_up(key)
            return self._contents.value(key)

    def access_at(self, key: Hashable, level: int) -> torch.Tensor | None:
        """Return a tensor if it is on this level, without moving it; from a disk, a copy in the host's memory.

        Raises:
            TierError: a disk cannot be read.
        """
        with self._open():
            self._check_level(level)
            self._contents.wait_for(key)
            if not self._request(key, (level,)):
                return None
            self._levels.use(key)
            return self._contents.value(key)

    def prefetch(self, keys: Iterable[Hashable]) -> None:
        """Move tensors to level 0 before they are asked for, as many as fit; unknown keys are skipped.

        Tensors on a disk are read in the background, and `access` waits for the rest; other moves are done when the
        call returns. It is not counted as a request.

        Raises:
            TierError: a disk cannot be read or written.
        """
        with self._open():
            brought: set[Hashable] = set()
            for key in keys:
                if key in self._contents.kept:
                    self._bring_up(key, brought, ahead=True)
                    brought.add(key)

    def remove(self, key: Hashable) -> torch.Tensor | None:
        """Remove a tensor and return it, without moving it up; None if the key is unknown.

        Raises:
            TierError: it is on a disk and cannot be read; it stays. `clear`, and `put` with this key, forget it.
        """
        with self._open():
            if key not in self._contents.kept:
                return None
            found = self._contents.value(key)
            self._contents.drop(key)
            self._levels.remove(key)
            return found

    def clear(self) -> None:
        """Forget all tensors. Room that layers have reserved stays reserved."""
        with self._held():
            for key in list(self._contents.kept):
                self._contents.drop(key)
                self._levels.remove(key)

    def level_of(self, key: Hashable) -> int | None:
        """The level that a tensor is on, or is being moved to; None if the key is unknown."""
        with self._held():
            return self._levels.level_of(key)

    # Room for bytes outside the stack

    def reserve(self, nbytes: int, prefer: torch.device | None = None) -> Reservation:
        """Reserve room for bytes outside the stack, on the level of `prefer`, else on the first that has room.

        The room is never on a disk, and does not move while it is reserved.

        Raises:
            TierCapacityError: no level has room.
        """
        memory = next((tier.device for tier in self.tiers if tier.device is not None), None)
        if memory is None:
            raise UsageError("a stack that is only a disk has no memory.", do="give it a level on a device, or on cpu")
        reservation = Reservation(self, memory)
        reservation.change(nbytes, prefer)
        return reservation

    # Figures

    def stats(self) -> StackStats:
        """The current statistics."""
        with self._held():
            entries = [0] * len(self.tiers)
            for key in self._levels:
                entries[self._levels.level_of(key) or 0] += 1
            return StackStats(
                tuple(self._level_stats(level, entries[level]) for level in range(len(self.tiers))),
                self._requests,
                self._promotions,
                self._demotions,
            )

    # Inside; the lock is held

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            while self._released:
                self._levels.remove(self._released.popleft())
            yield

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Like `_held`, for calls that use tensors: raises errors of reads in the background."""
        with self._held():
            if self._closed:
                raise TierError("this stack is closed.", do="make another one")
            self._contents.complete_ended()
            yield

    def _request(self, key: Hashable, levels: Iterable[int]) -> bool:
        """Count a request that asks these levels one after another; True if one of them has the tensor."""
        self._requests += 1
        lies_on = self._levels.level_of(key) if key in self._contents.kept else None
        for level in levels:
            if level == lies_on:
                self._counts[level].hits += 1
                return True
            self._counts[level].misses += 1
        return False

    def _bring_up(self, key: Hashable, keep: set[Hashable] | None = None, *, ahead: bool = False) -> None:
        moves = self._levels.plan_access(key, keep or ())
        self._carry_out(key, moves, lambda: None, ahead=ahead)
        self._levels.use(key, ahead=ahead)

    def _carry_out(
        self, key: Hashable, moves: Sequence[Move], then: Callable[[], Result], own: int = 0, *, ahead: bool = False
    ) -> Result:
        """Make the moves of a plan for `key`, then call `then`. If one fails, those before it are undone."""
        done: list[Move] = []
        try:
            self._contents.lift(key, [each for each in moves if each.key != key], own)
            for move in moves:
                self._contents.shift(move, ahead=ahead)
                done.append(move)
            result = then()
        except BaseException:
            left = []
            for move in reversed(done):
                try:
                    self._contents.shift(move.back)
                except (TierError, TierCapacityError):
                    left.append(move)  # it stays on the disk; the first error is raised
            self._contents.lower(key)
            self._count(left)
            raise
        self._count(moves)
        return result

    def _count(self, moves: Iterable[Move]) -> None:
        for move in moves:
            if move.target > move.source:
                self._demotions += 1
                self._counts[move.source].evictions += 1
            else:
                self._promotions += 1

    def _reserve(self, reservation: Reservation, nbytes: int, prefer: torch.device | None) -> Device:
        with self._held():
            memories = {level: tier.device for level, tier in enumerate(self.tiers) if tier.device is not None}
            order = sorted(memories, key=lambda level: memories[level].torch_device != prefer)
            found = self._levels.plan_put(reservation, nbytes, order)
            if found is None:
                raise self._no_room(nbytes, None)
            self._carry_out(reservation, found.moves, lambda: None)
            self._levels.place(reservation, nbytes, found.level, movable=False)
            return memories[found.level]

    def _touch(self, reservation: Reservation) -> None:
        with self._held():
            lies_on = self._levels.level_of(reservation)
            if lies_on is not None:
                self._requests += 1
                for level in range(lies_on):
                    self._counts[level].misses += 1
                self._counts[lies_on].hits += 1

    def _level_stats(self, level: int, entries: int) -> LevelStats:
        tier, counts = self.tiers[level], self._counts[level]
        measured = self._contents.brought[level].speed
        return LevelStats(
            device=tier.name,
            capacity=tier.capacity,
            used=self._levels.used[level],
            taken=self._levels.taken[level],
            entries=entries,
            hits=counts.hits,
            misses=counts.misses,
            evictions=counts.evictions,
            brought=self._contents.brought[level].nbytes,
            written=self._contents.written[level].nbytes,
            speed=tier.speed if measured is None else measured,
            speed_source="measured" if measured is not None else "unknown" if tier.speed is None else "configured",
            write_speed=self._contents.written[level].speed,
        )

    def _check_level(self, level: int | None) -> None:
        if level is not None and not 0 <= level < len(self.tiers):
            raise UsageError(f"there is no level {level}.", looked_at=f"{len(self.tiers)} levels, the first is 0")

    def _no_room(self, nbytes: int, level: int | None) -> TierCapacityError:
        holds = "; ".join(
            f"level {at} ({tier.name}) holds {gibibytes(used)} of {gibibytes(tier.capacity)}"
            for at, (tier, used) in enumerate(zip(self.tiers, self._levels.used, strict=True))
        )
        return TierCapacityError(
            f"a tensor of {gibibytes(nbytes)} has no room on {'any level' if level is None else f'level {level}'}.",
            looked_at=holds,
            do="make a level larger, remove what is no longer needed, or put the tensor in parts",
        )
