"""A stack of memory levels: tensors that are really moved between a device's memory and the host's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from toprope import device as devices
from toprope.device import Device
from toprope.errors import TierCapacityError, UsageError
from toprope.sizes import gibibytes
from toprope.tiers.levels import Levels, Move
from toprope.tiers.tier import LevelStats, StackStats, Tier, check_memory

__all__ = ["Reservation", "TierStack"]

Result = TypeVar("Result")

# A speed is shown as measured after so many copies with so many bytes together: fewer tell of start-up costs.
ENOUGH_COPIES = 3
ENOUGH_BYTES = 4 * 2**20


@dataclass
class _Counts:
    """What is counted for one level."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    copies: int = 0
    copied: int = 0
    seconds: float = 0.0


class Reservation:
    """Room on one level for bytes that the stack does not hold itself, such as a layer's weights."""

    def __init__(self, stack: TierStack, device: Device) -> None:
        self._stack = stack
        self.device = device
        """The device of the level that the room is on."""

    def change(self, nbytes: int, prefer: torch.device | None = None) -> None:
        """Take another number of bytes, on the level of `prefer` where it has room, else on the first that has.

        Raises:
            TierCapacityError: no level has room; the reservation is as before.
        """
        self.device = self._stack._reserve(self, nbytes, prefer)

    def touch(self) -> None:
        """Count one request for what lies there."""
        self._stack._touch(self)

    def release(self) -> None:
        """Give the room back. May be called by the garbage collector, in any thread, and twice."""
        self._stack._released.append(self)


class TierStack:
    """Tensors by key on levels of limited bytes; what finds no room on a level is moved down, never dropped.

    A tensor that is on the device of its level already is kept by reference; one that is not, or that is a view of a
    larger storage, is copied. A stack holds values: a tensor with gradients is refused, see `TierLinear` for weights.
    All calls may come from several threads; one lock guards the stack, copies included.

    Args:
        tiers: the levels, the fastest first.

    Raises:
        UsageError: there is no level.
        TierCapacityError: the levels of a device are larger together than its free memory.

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
        self._levels = Levels([tier.capacity for tier in tiers])
        self._tensors: dict[Hashable, torch.Tensor] = {}
        self._counts = [_Counts() for _ in tiers]
        self._requests = self._promotions = self._demotions = 0
        self._lock = threading.RLock()
        self._released: deque[Reservation] = deque()  # appended to without the lock

    def __deepcopy__(self, memo: object) -> TierStack:
        """The same stack: it stands for memory, of which a copied model has no more than the first."""
        return self

    def __len__(self) -> int:
        with self._held():
            return len(self._levels)

    def __contains__(self, key: Hashable) -> bool:
        with self._held():
            return key in self._tensors

    # Tensors

    def put(self, key: Hashable, tensor: torch.Tensor, *, priority: int = 5, level: int | None = None) -> int:
        """Keep a tensor, in place of what had this key before.

        Args:
            key: any hashable value.
            tensor: a dense tensor without gradients.
            priority: tensors of a lower one are pushed out first; among equals the least recently used.
            level: the level that it must lie on; None for the first that can make room.

        Returns:
            The level that it lies on.

        Raises:
            TierCapacityError: there is no room for it without dropping another tensor.
            UsageError: no tensor that can be kept.
        """
        _check_tensor(key, tensor)
        with self._held():
            self._check_level(level)
            nbytes = tensor.nbytes
            found = self._levels.plan_put(key, nbytes, None if level is None else (level,))
            if found is None:
                raise self._no_room(nbytes, level)
            kept = self._carry_out(found.moves, lambda: self._brought(tensor, found.level))
            self._tensors[key] = kept
            self._levels.place(key, nbytes, found.level, priority)
            return found.level

    def access(self, key: Hashable) -> torch.Tensor | None:
        """A tensor, brought to level 0 where that can make room for it; None where the key is unknown.

        What is larger than level 0 is given from where it lies.
        """
        with self._held():
            if not self._request(key, range(len(self.tiers))):
                return None
            self._bring_up(key)
            return self._tensors[key]

    def access_at(self, key: Hashable, level: int) -> torch.Tensor | None:
        """A tensor if it lies on this level, without moving it."""
        with self._held():
            self._check_level(level)
            if not self._request(key, (level,)):
                return None
            self._levels.use(key)
            return self._tensors[key]

    def prefetch(self, keys: Iterable[Hashable]) -> None:
        """Bring tensors to level 0 before they are asked for, as many of them as fit; unknown keys are passed over.

        It is done when the call returns, and counts as no request.
        """
        with self._held():
            brought: set[Hashable] = set()
            for key in keys:
                if key in self._tensors:
                    self._bring_up(key, brought)
                    brought.add(key)

    def remove(self, key: Hashable) -> torch.Tensor | None:
        """Give a tensor back, from where it lies, and forget it; None where the key is unknown."""
        with self._held():
            if key not in self._tensors:
                return None
            self._levels.remove(key)
            return self._tensors.pop(key)

    def clear(self) -> None:
        """Forget all tensors. Room that layers have reserved stays theirs."""
        with self._held():
            for key in self._tensors:
                self._levels.remove(key)
            self._tensors.clear()

    def level_of(self, key: Hashable) -> int | None:
        """The level that a tensor lies on; None where the key is unknown."""
        with self._held():
            return self._levels.level_of(key)

    # Room for what others hold

    def reserve(self, nbytes: int, prefer: torch.device | None = None) -> Reservation:
        """Take room for bytes that somebody else holds, on the level of `prefer`, else on the first that has room.

        They are not moved while they are reserved.

        Raises:
            TierCapacityError: no level has room.
        """
        reservation = Reservation(self, self.tiers[0].device)
        reservation.change(nbytes, prefer)
        return reservation

    # Figures

    def stats(self) -> StackStats:
        """The figures of this moment."""
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

    def _request(self, key: Hashable, levels: Iterable[int]) -> bool:
        """Count a request that asks these levels one after another; whether one of them has the tensor."""
        self._requests += 1
        lies_on = self._levels.level_of(key) if key in self._tensors else None
        for level in levels:
            if level == lies_on:
                self._counts[level].hits += 1
                return True
            self._counts[level].misses += 1
        return False

    def _bring_up(self, key: Hashable, keep: set[Hashable] | None = None) -> None:
        self._carry_out(self._levels.plan_access(key, keep or ()), lambda: None)
        self._levels.use(key)

    def _carry_out(self, moves: Sequence[Move], then: Callable[[], Result]) -> Result:
        """Make these moves and what follows them. Where one fails, the moves before it are undone."""
        done: list[Move] = []
        try:
            for move in moves:
                self._shift(move)
                done.append(move)
            result = then()
        except BaseException:
            for move in reversed(done):
                self._shift(move.back)
            raise
        for move in moves:
            if move.target > move.source:
                self._demotions += 1
                self._counts[move.source].evictions += 1
            else:
                self._promotions += 1
        return result

    def _shift(self, move: Move) -> None:
        tensor = self._copied(self._tensors[move.key], self.tiers[move.source].device, move.target)
        self._tensors[move.key] = tensor
        self._levels.apply(move)

    def _brought(self, tensor: torch.Tensor, level: int) -> torch.Tensor:
        """The tensor as the stack keeps it on a level: the same object where that holds no more than it counts."""
        if tensor.device != self.tiers[level].device.torch_device:
            return self._copied(tensor, devices.get(tensor.device), level)
        if tensor.untyped_storage().nbytes() <= tensor.nbytes:
            return tensor
        with torch.inference_mode(False):
            return tensor.clone()

    def _copied(self, tensor: torch.Tensor, source: Device, level: int) -> torch.Tensor:
        """The tensor in the memory of a level, all work on it done, so that any stream and thread may go on with it."""
        target = self.tiers[level].device
        if target == source:
            return tensor
        source.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode(False):  # an inference tensor could not be used in training any more
            moved = tensor.to(target.torch_device)
        target.synchronize()
        counts = self._counts[level]
        counts.copies += 1
        counts.copied += moved.nbytes
        counts.seconds += time.perf_counter() - begin
        return moved

    def _reserve(self, reservation: Reservation, nbytes: int, prefer: torch.device | None) -> Device:
        with self._held():
            order = sorted(range(len(self.tiers)), key=lambda level: self.tiers[level].device.torch_device != prefer)
            found = self._levels.plan_put(reservation, nbytes, order)
            if found is None:
                raise self._no_room(nbytes, None)
            self._carry_out(found.moves, lambda: None)
            self._levels.place(reservation, nbytes, found.level, movable=False)
            return self.tiers[found.level].device

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
        measured = counts.copies >= ENOUGH_COPIES and counts.copied >= ENOUGH_BYTES and counts.seconds > 0
        return LevelStats(
            device=str(tier.device),
            capacity=tier.capacity,
            used=self._levels.used[level],
            entries=entries,
            hits=counts.hits,
            misses=counts.misses,
            evictions=counts.evictions,
            speed=counts.copied / counts.seconds if measured else tier.speed,
            speed_source="measured" if measured else "unknown" if tier.speed is None else "configured",
        )

    def _check_level(self, level: int | None) -> None:
        if level is not None and not 0 <= level < len(self.tiers):
            raise UsageError(f"there is no level {level}.", looked_at=f"{len(self.tiers)} levels, the first is 0")

    def _no_room(self, nbytes: int, level: int | None) -> TierCapacityError:
        holds = "; ".join(
            f"level {at} ({tier.device}) holds {gibibytes(used)} of {gibibytes(tier.capacity)}"
            for at, (tier, used) in enumerate(zip(self.tiers, self._levels.used, strict=True))
        )
        return TierCapacityError(
            f"a tensor of {gibibytes(nbytes)} has no room on {'any level' if level is None else f'level {level}'}.",
            looked_at=holds,
            do="make a level larger, remove what is no longer needed, or put the tensor in parts",
        )


def _check_tensor(key: Hashable, tensor: torch.Tensor) -> None:
    """Refuse what a stack cannot keep."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{key!r} is of type {type(tensor).__name__}, and no tensor.", do="give a torch.Tensor")
    if tensor.layout is not torch.strided or tensor.is_meta:
        kind = "has no values (meta)" if tensor.is_meta else f"is not dense ({tensor.layout})"
        raise UsageError(f"the tensor {key!r} {kind}.", do="give a dense tensor with values")
    if tensor.requires_grad:
        raise UsageError(
            f"the tensor {key!r} has gradients, and a copy on another level would no longer train.",
            do="give tensor.detach() to keep its values, or use a layer whose weight lives in the stack",
        )
