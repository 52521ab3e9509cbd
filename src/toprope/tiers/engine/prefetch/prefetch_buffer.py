"""Ring of device buffers ("slots") into which weight groups are prefetched.

`engine.runtime` calls `hold` and `release` around each use of a group; `row_pieces` does the same for parts of weights
that are too large. A group in a slot is being loaded (`load` has not ended) or is there. A slot is reused only when no
holder needs its group, there are no views of its memory (torch's private count of a storage's users), and, on a device,
after the work that was queued by then. Of the slots that can be reused, the one whose group has its next use the
furthest in the future is taken; that choice is free. Correct for any number of threads, by one lock. Tests:
tests/tiers/test_tiers_ring.py, with random schedules; threads that wait in tests/tiers/test_tiers_budget.py.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from toprope.device import Device
from toprope.errors import TierBusyError
from toprope.tiers.engine.model.model_groups import Weight
from toprope.tiers.engine.prefetch.trace import Order
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.transfer import LIMIT, Load, Transfers

__all__ = ["Holder", "Ring", "Slot", "Unit", "outside_transforms"]


def outside_transforms() -> AbstractContextManager[Any]:
    """Leave the transforms of torch.func while parameters get and lose their values, which is no part of them."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        return nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


PATIENCE = 5.0
"""Seconds to wait until views of a slot's memory are freed, if no known thread has them."""


@dataclass(eq=False)
class Unit:
    """Weights that are loaded in one piece: a group, or a part of one.

    Attributes:
        name: its name in the plan.
        weights: its weights, without those that stay on the device.
        offsets: begin of each weight in a slot, in bytes.
        nbytes: bytes that it takes in a slot.
        slot: the slot that it is in, or is being loaded into.
        held: its holders. A set, not a count, so that a second `release` after an interruption does no harm.
        stale: True if its weights have changed since it was loaded: it is loaded again for its next use.
        versions: versions of its weights' parameters when they got their values.
    """

    name: str
    weights: list[Weight]
    offsets: list[int] = field(default_factory=list)
    nbytes: int = 0
    slot: Slot | None = None
    held: set[object] = field(default_factory=set)
    stale: bool = False
    versions: dict[Weight, int] = field(default_factory=dict)

    @property
    def loaded(self) -> int:
        """Bytes that cross the links for one load of the unit."""
        return sum(each.nbytes for each in self.weights)


class Holder:
    """A holder of units: the modules of one thread, or its autograd hooks. Created in that thread."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Slot:
    """One buffer of the ring, with a storage of its own so that the views of its memory can be counted."""

    def __init__(self, number: int, memory: Memory, device: Device) -> None:
        self.number, self.memory = number, memory
        self.storage = memory.tensor.untyped_storage()
        self.start = memory.tensor.storage_offset()
        self.unit: Unit | None = None
        self.load: Load | None = None
        self.streams: dict[Any, None] = {}
        self.device = device
        self.views: dict[Unit, list[torch.Tensor]] = {}
        self._alone = torch._C._storage_Use_Count(self.storage._cdata)

    @property
    def kept(self) -> int:
        """Number of views of its memory outside this object."""
        return int(torch._C._storage_Use_Count(self.storage._cdata)) - self._alone

    def view(self, unit: Unit) -> list[torch.Tensor]:
        """The weights of a group as tensors in this slot."""
        found = self.views.get(unit)
        if found is None:
            with torch.inference_mode(False), torch.no_grad():
                found = [
                    self.at(offset, weight.like.dtype, weight.like.shape, weight.like.stride())
                    for weight, offset in zip(unit.weights, unit.offsets, strict=True)
                ]
            self.views[unit] = found
            self._alone += len(found)
        return found

    def at(self, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """Make a tensor in this slot's memory."""
        made = torch.empty(0, dtype=dtype, device=self.memory.tensor.device)
        return made.set_(self.storage, (self.start + offset) // dtype.itemsize, tuple(shape), tuple(stride))


class Ring:
    """The slots, and the loads into them.

    Args:
        memories: memory of each slot.
        device: the device that has the memory.
        transfers: the threads that load.
        order: expected order in which units are used.
        poison: fill a slot with 0xFF before it is loaded, so that values read too early are NaN.
        limit: seconds that a load may take.
    """

    def __init__(
        self,
        memories: Sequence[Memory],
        device: Device,
        transfers: Transfers,
        order: Order,
        *,
        poison: bool = False,
        limit: float = LIMIT,
    ) -> None:
        self.slots = [Slot(number, memory, device) for number, memory in enumerate(memories)]
        self.device, self.transfers, self.order, self.poison, self.limit = device, transfers, order, poison, limit
        self.streams = device.capabilities.separate_memory
        self.units: dict[str, Unit] = {}
        self.lock = threading.RLock()
        self._waiting: dict[int, Unit] = {}
        """By thread number, the unit that the thread waits for."""
        self.waited = 0.0
        self.loads = self.hits = self.unexpected = 0
        self.watch: Callable[[str, Slot, Unit], None] | None = None
        """Called with "load", "ready", "use", "free" for the timeline."""

    def add(self, units: Sequence[Unit]) -> None:
        """Register the units that will be loaded."""
        self.units.update({each.name: each for each in units})

    # Use

    def hold(self, unit: Unit, who: object) -> Slot:
        """Load a unit if needed, wait for it, and keep it on the device until `release`.

        Args:
            unit: the unit.
            who: its holder; a holder counts once, however often it asks.

        Raises:
            TierError: it cannot be loaded.
        """
        with self.lock:
            self.order.advance(unit.name)
            unit.held.add(who)
            slot = unit.slot
            if slot is not None:
                self.hits += 1
        try:
            if slot is None:
                slot = self._fetch(unit)
            load = slot.load
            assert load is not None
            self.prefetch()
            if not load.done:
                self.transfers.hasten(load)
                begin = time.perf_counter()
                load.join(self.limit)
                self.waited += time.perf_counter() - begin
            if load.error is not None:
                raise load.error
        except BaseException:
            with self.lock:
                unit.held.discard(who)
                if slot is not None and slot.unit is unit and slot.load is not None and slot.load.error is not None:
                    self._empty(slot)
            raise
        if self.streams:
            stream = self.device.current_stream()
            slot.streams[stream] = None
            for event in load.events:
                stream.wait_event(event)
        if self.watch is not None:
            self.watch("use", slot, unit)
        return slot

    def release(self, unit: Unit, who: object) -> None:
        """Remove a holder of a unit; does nothing if it holds none."""
        with self.lock:
            unit.held.discard(who)
            if self.watch is not None and unit.slot is not None and not unit.held:
                self.watch("free", unit.slot, unit)
            if unit.stale and not unit.held:
                self.drop(unit)

    def drop(self, unit: Unit) -> None:
        """Discard a unit's values on the device, as its weights have changed: its next use loads it again."""
        with self.lock:
            slot = unit.slot
            unit.stale = slot is not None and bool(unit.held)
            if slot is None or unit.stale:
                return
            if slot.load is not None and not slot.load.done:
                slot.load.join(self.limit)  # nothing else may be loaded into its memory before
            self._empty(slot)

    def _fetch(self, unit: Unit) -> Slot:
        """Wait for a free slot, and begin to load a unit that is needed now.

        A slot becomes free when its load ends, when another thread releases its unit, or when views of its memory are
        deleted. If every slot is held by threads that wait here themselves, nothing of this can happen.

        Raises:
            TierBusyError: no slot becomes free.
        """
        begin, collected, me = time.perf_counter(), False, threading.get_ident()
        try:
            while True:
                with self.lock:
                    if unit.slot is not None:  # another thread was faster
                        return unit.slot
                    slot = self._free_slot(None)
                    if slot is not None:
                        self.unexpected += 1
                        self._load(slot, unit, urgent=True)
                        return slot
                    loading = [each.load for each in self.slots if each.load is not None and not each.load.done]
                    held = [each.unit for each in self.slots if each.unit is not None and each.unit.held]
                    self._waiting[me] = unit
                    running = self._running(held, me)
                    if not running and len(held) == len(self.slots):
                        # All threads wait for each other: this one gives up, and releases its slots for the others.
                        self._waiting.pop(me, None)
                        raise self._busy(unit)
                waited = time.perf_counter() - begin
                if loading and len(held) < len(self.slots):
                    loading[0].join(self.limit)
                    continue
                if not running and not collected:
                    gc.collect()
                    collected = True
                if waited > (self.limit if running else PATIENCE):
                    raise self._busy(unit)
                time.sleep(0.0005)
                self.waited += 0.0005
        finally:
            with self.lock:
                self._waiting.pop(me, None)

    def _running(self, held: list[Unit], me: int) -> set[int]:
        """Threads that hold one of these units and do not wait for a slot themselves: they will release theirs.

        A thread that waits for a unit that another one has loaded in the meantime counts as running: it has its slot,
        and finds out when it looks next.
        """
        stuck = {thread for thread, wanted in self._waiting.items() if wanted.slot is None}
        return {getattr(who, "thread", me) for each in held for who in each.held} - stuck

    def _busy(self, unit: Unit) -> TierBusyError:
        facts = []
        for slot in self.slots:
            if slot.unit is not None:
                kept = f"{slot.kept} views of its weights are kept" if slot.kept else "free by now"
                why = "in use" if slot.unit.held else kept
                facts.append(f"{slot.unit.name}: {why}")
        return TierBusyError(
            f"no slot becomes free for {unit.name}.",
            looked_at=f"{len(self.slots)} slots; " + "; ".join(facts),
            do="delete views of weights (clone what you keep), or give the device a larger budget",
        )

    # Prefetch

    def prefetch(self) -> None:
        """Begin to load the units that are used next, into slots whose groups are used later than these."""
        with self.lock:
            if not len(self.order):
                return
            for name in self.order.upcoming(self.units, len(self.slots)):
                unit = self.units[name]
                if unit.slot is not None:
                    continue
                slot = self._free_slot(self.order.distance(name))
                if slot is None:
                    return
                try:
                    self._load(slot, unit)
                except Exception:  # the unit's next use loads it again, and raises the error then
                    return

    def _free_slot(self, before: int | None) -> Slot | None:
        """The free slot whose unit has its next use the furthest away.

        Args:
            before: only slots whose unit is used later than this, counted in uses from now; None for any.
        """
        best: Slot | None = None
        latest = -1 if before is None else before
        for slot in self.slots:
            if slot.unit is None:
                if not slot.kept:
                    return slot
                continue
            if slot.unit.held or slot.load is None or not slot.load.done or slot.kept:
                continue
            distance = self.order.distance(slot.unit.name)
            if distance > latest:
                best, latest = slot, distance
        return best

    def _load(self, slot: Slot, unit: Unit, *, urgent: bool = False) -> None:
        for weight in unit.weights:
            assert weight.home is not None
            weight.home.check()
        self._empty(slot)
        after = []
        if self.streams:
            for stream in slot.streams:
                event = self.device.event()
                event.record(stream)
                after.append(event)
            slot.streams.clear()
        if self.poison:
            for each in after:
                each.synchronize()
            slot.memory.fill(0xFF)
            if self.streams:
                self.device.synchronize()
        chunks = []
        for weight, offset in zip(unit.weights, unit.offsets, strict=True):
            assert weight.home is not None
            chunks += weight.home.chunks(slot.memory.part(offset, offset + weight.nbytes))
        load = Load(unit.name, chunks, after)
        slot.unit, slot.load, unit.slot = unit, load, slot
        self.loads += 1
        if self.watch is not None:
            watch = self.watch
            watch("load", slot, unit)
            load.then(lambda ended: watch("ready", slot, unit))
        self.transfers.begin(load, urgent=urgent)

    def _empty(self, slot: Slot) -> None:
        if slot.unit is not None:
            slot.unit.slot = None
        slot.unit = slot.load = None

    def clear(self) -> None:
        """Empty all slots, once no load is running and no unit is held.

        Raises:
            TierBusyError: a unit is still held, or there are views of a slot's memory.
        """
        begin = time.perf_counter()
        for slot in self.slots:
            if slot.load is not None:
                slot.load.join(self.limit)
        while True:
            with self.lock:
                busy = [each for each in self.slots if each.kept or (each.unit is not None and each.unit.held)]
                if not busy:
                    for slot in self.slots:
                        self._empty(slot)
                    return
            if time.perf_counter() - begin > PATIENCE:
                unit = busy[0].unit
                raise self._busy(unit if unit is not None else next(iter(self.units.values())))
            gc.collect()
            time.sleep(0.001)
