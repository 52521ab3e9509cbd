"""Offloaded weights for the optimizer step: read and written in place, tile by tile.

`Handle` makes it when training begins. It implements the interface `tiers.training.weights.Weights`, through which
`tiers.training` reaches the weights of an attached model without knowing homes or slots. Copies in slots are out of
date after a write: `updated` ends them. Tests: tests/tiers/test_tiers_faults.py, tests/tiers/test_tiers_training.py,
tests/tiers/test_tiers_codes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from toprope.errors import TierCapacityError
from toprope.sizes import gibibytes
from toprope.tiers.engine.model.model_groups import Weight
from toprope.tiers.engine.runtime import Engine
from toprope.tiers.store.backing import DiskHome, MemoryHome
from toprope.tiers.store.base import Done, Pending
from toprope.tiers.store.chunks import PatchChunk
from toprope.tiers.store.disk_file import BLOCK
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.spill import Fetched
from toprope.tiers.store.transfer import Load, queued

__all__ = ["OffloadedWeights"]

_STAGED = 64 * 2**20


class _New:
    """A weight whose new values are being written to our own file; its old values are elsewhere until all are."""

    def __init__(self, home: DiskHome) -> None:
        self.home = home
        self.written: list[tuple[int, int]] = []


class OffloadedWeights:
    """The offloaded weights of an attached model, as `toprope.tiers.training.weights.Weights` wants them.

    Args:
        engine: the attached model's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.staged = _STAGED
        """Largest number of bytes in memory that wait to be written to a file."""
        self._new: dict[Weight, _New] = {}
        self._writing: list[tuple[Load, int]] = []
        self._changed = False

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return self.engine.device.torch_device

    def weight(self, parameter: torch.Tensor) -> Weight | None:
        """The offloaded weight of a parameter; None if it stays on the device."""
        for weight in self.engine.unit_of:
            if any(parameter is each for each in weight.parameters):
                return weight
        return None

    def resident(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The values of a parameter that stays on the device; None if it is offloaded."""
        return parameter.data if self.weight(parameter) is None else None

    def read(self, parameter: torch.Tensor, start: int, stop: int, out: torch.Tensor) -> Pending:
        """Begin to read elements from the weight's place."""
        weight = self.weight(parameter)
        assert weight is not None
        assert weight.home is not None
        if start == stop:
            return Done()
        itemsize = weight.like.dtype.itemsize
        first, last = start * itemsize, stop * itemsize
        home, new = weight.home, self._new.get(weight)
        if new is not None and any(begin < last and first < end for begin, end in new.written):
            self._finish(weight)
            home = weight.home
            assert home is not None
        self._wait_for_writes(home)
        device = self.engine.device if self.engine.device.capabilities.separate_memory else None
        home.check()
        load = Load(weight.name, home.chunks(Memory.of(out), first), queued(device))
        self.engine.transfers.begin(load)
        return Fetched(load, device)

    def write(self, parameter: torch.Tensor, start: int, values: torch.Tensor) -> None:
        """Write new elements to the weight's place."""
        weight = self.weight(parameter)
        assert weight is not None
        assert weight.home is not None
        if not self._changed:
            self._changed = True
            if not self.engine.lent:  # else it is empty
                self.engine.ring_clear()
        weight.changed = True
        first = start * weight.like.dtype.itemsize
        source = Memory.of(values.detach().contiguous())
        home = weight.home
        if isinstance(home, MemoryHome):
            home.memory.tensor[first : first + source.nbytes].copy_(source.tensor)
            self._count("device_to_host", source.nbytes)
            return
        if not isinstance(home, DiskHome) or home.spill is None or home.casts:
            new = self._new.get(weight)
            if new is None:
                spill = self.engine.migration.spill
                offset = spill.take(weight.nbytes)
                made = DiskHome(spill.file, offset, weight.like.dtype, weight.like.numel(), spill=spill)
                new = self._new[weight] = _New(made)
            new.written.append((first, first + source.nbytes))
            home = new.home
        self._write(weight, home, first, source)

    def _write(self, weight: Weight, home: DiskHome, first: int, source: Memory) -> None:
        assert home.spill is not None
        while self._writing and sum(each for _, each in self._writing) + source.nbytes > self.staged:
            load, _ = self._writing.pop(0)
            load.wait()
        staged = Memory.host(-(-source.nbytes // BLOCK) * BLOCK, self.engine.device)
        staged.tensor[: source.nbytes].copy_(source.tensor)
        if self.engine.device.capabilities.separate_memory:
            self._count("device_to_host", source.nbytes)
        last = first + source.nbytes == weight.nbytes
        chunk = PatchChunk(home.spill, home.offset + first, staged.part(0, source.nbytes), last=last)
        self._writing.append((self.engine.transfers.begin(Load(weight.name, [chunk])), source.nbytes))

    def _count(self, link: str, nbytes: int) -> None:
        self.engine.moved[link] += nbytes

    def _wait_for_writes(self, home: object) -> None:
        if isinstance(home, DiskHome) and home.spill is not None:
            writing, self._writing = self._writing, []
            for load, _ in writing:
                load.wait()

    def _finish(self, weight: Weight) -> None:
        """Complete the new copy of a weight in our own file, and make that its home."""
        new = self._new.pop(weight)
        at = 0
        for first, last in [*sorted(new.written), (weight.nbytes, weight.nbytes)]:
            while at < first:
                piece = Memory.host(min(first - at, 2**22))
                self.engine.migration.run(weight, piece, at)
                self._write(weight, new.home, at, piece)
                at += piece.nbytes
            at = max(at, last)
        self._wait_for_writes(new.home)
        old, weight.home = weight.home, new.home
        self.engine.migration.forget_codes(weight)
        if old is not None:
            if old.tier == "host":
                self.engine.migration.host.release(old.host_bytes)
            old.release()

    def updated(self) -> None:
        """Wait until all weights of a step are written; copies in the slots are out of date then."""
        for weight in list(self._new):
            self._finish(weight)
        writing, self._writing = self._writing, []
        for load, _ in writing:
            load.wait()
        if self._changed and not self.engine.lent:
            self.engine.ring_clear()
        self._changed = False

    def room(self) -> int | None:
        """Bytes of the ring; None without a ring."""
        return sum(each.memory.nbytes for each in self.engine.ring.slots) or None

    @contextmanager
    def borrow(self, nbytes: int) -> Iterator[torch.Tensor]:
        """Lend the memory of the ring, which is empty meanwhile."""
        engine = self.engine
        slots = engine.ring.slots
        if not slots:
            yield Memory.on(engine.device, nbytes).tensor
            return
        engine.ring_clear()
        total = sum(each.memory.nbytes for each in slots)
        if nbytes > total:
            raise TierCapacityError(
                f"a step of the optimizer asks for {gibibytes(nbytes)}, the slots have {gibibytes(total)}.",
                do="give the device a larger budget",
            )
        engine.lent = True
        try:
            if nbytes <= slots[0].memory.nbytes:
                yield slots[0].memory.tensor[:nbytes]
            else:
                del slots
                engine.lend()
                memory = Memory.on(engine.device, nbytes)
                try:
                    yield memory.tensor
                finally:
                    del memory
                    engine.make_ring()
        finally:
            engine.lent = False
