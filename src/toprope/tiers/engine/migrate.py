"""Moves weights between their homes for good: to the device, to the host or to the disk.

A load into a slot for one use is no such move: that is `engine.prefetch`. Called by `engine.runtime` when a plan
comes into effect, by `engine.state` when a program reads or replaces weights, and by `Handle.detach`. Every move ends
in `_set_home`: a weight has one home at any time, also after an error. Tests: tests/tiers/test_tiers_faults.py,
tests/tiers/test_tiers_attach.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from toprope.device import Device
from toprope.errors import TierCapacityError
from toprope.tiers.engine.model.model_groups import Weight
from toprope.tiers.plan.model import Tier
from toprope.tiers.store.absent import set_data
from toprope.tiers.store.backing import DiskHome, Home, MemoryHome
from toprope.tiers.store.chunks import StageChunk, cut
from toprope.tiers.store.host import HostStore
from toprope.tiers.store.memory import Memory, placeholder, without_values
from toprope.tiers.store.spill import SpillFile
from toprope.tiers.store.transfer import LIMIT, Chunk, Load, Transfers

__all__ = ["Migration"]


class Migration:
    """Moves weights between tiers, and reads and writes their values wherever they are.

    Args:
        device: the device that computes.
        transfers: the threads that copy.
        host: the host's memory and its budget.
        folder: folder for our own file of weights; None for no such file.
        disk: limit of that file in bytes.
        in_place: homes of the weights that are stored in the model's files, by name.
        on_moved: called with the bytes of each weight that has moved; None for no callback.
    """

    def __init__(
        self,
        device: Device,
        transfers: Transfers,
        host: HostStore,
        folder: Path | None,
        disk: int,
        in_place: Mapping[str, Home],
        on_moved: Callable[[int], None] | None,
    ) -> None:
        self.device, self.transfers, self.host, self.folder, self.disk = device, transfers, host, folder, disk
        self.in_place, self.on_moved = dict(in_place), on_moved
        self.coded: dict[str, Home] = {}
        """Weights that stay encoded in the host's memory, as in their files."""
        self.decoded: Callable[[], None] | None = None
        """Called when one of them gets new values: it is no longer encoded, and takes more room."""
        self.limit = LIMIT
        """Seconds that a transfer may take."""
        self._spill: SpillFile | None = None
        self.written = 0

    @property
    def spill(self) -> SpillFile:
        """Our own file, for weights that no file of the model has; made at the first access."""
        if self._spill is None:
            if self.folder is None:
                raise TierCapacityError(
                    "weights have to lie on a disk, and no folder was given.",
                    do="give one: attach(..., disk=folder); or a larger budget for the host",
                )
            self._spill = SpillFile(self.folder, self.disk)
        return self._spill

    @property
    def spilled_peak(self) -> int:
        """Peak of the bytes in use in our own file."""
        return 0 if self._spill is None else self._spill.peak

    # Moves

    def place(self, weight: Weight, tier: Tier) -> None:
        """Move a weight to a tier, if it is not there."""
        if tier == "device":
            self._to_device(weight)
        elif tier == "host":
            self._to_host(weight)
        else:
            self._to_disk(weight)
        if self.on_moved is not None:
            self.on_moved(weight.nbytes)

    def _device_values(self, weight: Weight) -> torch.Tensor:
        return weight.parameters[0].data

    def _to_device(self, weight: Weight) -> None:
        there = self.device.torch_device
        if weight.home is None:
            data = self._device_values(weight)
            if data.device == there:
                return
            made = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype, device=there)
            made.copy_(data)
        else:
            made = self.values(weight, there)
        self._set_home(weight, None)
        for each in weight.parameters:
            set_data(each, made)
        weight.version = weight.parameters[0]._version

    def _to_host(self, weight: Weight) -> None:
        home = weight.home
        if home is not None and home.tier == "host":
            return
        if home is None and weight.name in self.coded:
            home = self._home_in_model_files(weight)
        coded = home is not None and weight.name in self.coded
        size = home.host_bytes if home is not None and coded else weight.nbytes
        self.host.reserve(size)
        made: Home
        try:
            data = self._device_values(weight)
            if home is None and data.device.type == "cpu" and not self.device.capabilities.pinned_memory:
                made = MemoryHome(Memory.of(data), data)
            else:
                memory = Memory.host(size, self.device, lasting=True)
                if home is None:
                    memory.tensor.copy_(Memory.of(data).tensor)
                else:
                    self._run_and_wait(weight, home.host_chunks(memory) if coded else home.chunks(memory))
                made = home.on_host(memory) if home is not None and coded else MemoryHome(memory)
        except BaseException:
            self.host.release(size)
            raise
        self._set_home(weight, made)

    def _to_disk(self, weight: Weight) -> None:
        if weight.home is not None and weight.home.tier == "disk":
            return
        found = self._home_in_model_files(weight)
        if found is not None:
            self._set_home(weight, found)
        elif isinstance(weight.home, MemoryHome):
            self._set_home(weight, self.write(weight, weight.home.memory))
        else:
            self._set_home(weight, self.write(weight, Memory.of(self.values(weight))))

    def _home_in_model_files(self, weight: Weight) -> Home | None:
        """Return a weight's place in the model's files if its values there are still the same."""
        found = next((self.in_place[name] for name in weight.names if name in self.in_place), None)
        if found is None or found.nbytes != weight.nbytes:
            return None
        if weight.home is None:
            source = Memory.of(self._device_values(weight))
        elif isinstance(weight.home, MemoryHome):
            source = weight.home.memory
        else:  # codes in the host's memory, which are never changed
            return found
        return found if self._has_values_of(weight, found, source) else None

    def write(self, weight: Weight, source: Memory) -> DiskHome:
        """Write a weight's bytes to our own file."""
        offset = self.spill.take(weight.nbytes)
        chunks = [
            StageChunk(self.spill, offset + start, source.part(start, stop)) for start, stop in cut(source.nbytes)
        ]
        try:
            self.transfers.begin(Load(weight.name, chunks)).wait(self.limit)
        except BaseException:
            self.spill.give_back(offset, weight.nbytes)
            raise
        self.written += weight.nbytes
        return DiskHome(self.spill.file, offset, weight.like.dtype, weight.like.numel(), spill=self.spill)

    def _has_values_of(self, weight: Weight, home: Home, source: Memory) -> bool:
        """True if the file's values are those in memory."""
        memory = Memory.host(weight.nbytes)
        home.check()
        self.transfers.begin(Load(weight.name, home.chunks(memory))).wait(self.limit)
        return torch.equal(memory.tensor, source.tensor.cpu())

    def _set_home(self, weight: Weight, home: Home | None) -> None:
        """Give a weight its new home, release the old one, and leave its parameters without memory."""
        if weight.home is None and weight.parameters[0]._version != weight.version:
            weight.changed = True
        old, weight.home = weight.home, home
        if old is not None and old.tier == "host":
            self.host.release(old.host_bytes)
        if old is not None and old is not home:
            old.release()
        if home is not None:
            if weight.placeholder is None or weight.placeholder.dtype != weight.like.dtype:
                weight.placeholder = placeholder(weight.like, self.device)
            self._withdraw(weight)

    # Values

    def run(self, weight: Weight, target: Memory, start: int = 0) -> None:
        """Copy bytes of a weight into memory of the host or the device, and wait for the copy."""
        assert weight.home is not None
        weight.home.check()
        self._run_and_wait(weight, weight.home.chunks(target, start))

    def _run_and_wait(self, weight: Weight, chunks: list[Chunk]) -> None:
        load = Load(weight.name, chunks)
        self.transfers.begin(load, urgent=True).wait(self.limit)
        for event in load.events:
            event.synchronize()

    def values(self, weight: Weight, device: torch.device | None = None) -> torch.Tensor:
        """Copy a weight's values into a new tensor, on the host if no device is given."""
        where = torch.device("cpu") if device is None else device
        with torch.inference_mode(False), torch.no_grad():
            made = torch.empty_strided(weight.like.shape, weight.like.stride(), dtype=weight.like.dtype, device=where)
            if weight.home is None:
                made.copy_(self._device_values(weight))
            elif isinstance(weight.home, MemoryHome) or where.type == "cpu" or self.device.torch_device == where:
                if where.type == "cpu" and isinstance(weight.home, MemoryHome):
                    Memory.of(made).tensor.copy_(weight.home.memory.tensor)
                else:
                    self.run(weight, Memory.of(made))
            return made

    def replace(self, weight: Weight, values: torch.Tensor) -> None:
        """Write new values of any dtype to a weight's place; they have the weight's shape."""
        with torch.inference_mode(False), torch.no_grad():
            ordered = without_values(weight.like, values.dtype)
            if values.stride() != ordered.stride() or values.device.type != "cpu":
                values = torch.empty_strided(ordered.shape, ordered.stride(), dtype=values.dtype).copy_(values)
            if values.dtype != weight.like.dtype:
                self._change_dtype(weight, values.dtype)
        self.rewrite(weight, values)

    def rewrite(self, weight: Weight, values: torch.Tensor) -> None:
        """Write new values to a weight's place; they are on the host and have its shape, strides and dtype."""
        weight.changed = True
        home = weight.home
        assert home is not None
        with torch.inference_mode(False), torch.no_grad():
            if isinstance(home, MemoryHome) and home.nbytes == values.nbytes:
                home.memory.tensor.copy_(Memory.of(values).tensor)
                return
            if home.tier == "host":
                more = values.nbytes - home.host_bytes
                if more > 0:
                    self.host.reserve(more)
                else:
                    self.host.release(-more)
                memory = Memory.host(values.nbytes, self.device, lasting=True)
                memory.tensor.copy_(Memory.of(values).tensor)
                weight.home = MemoryHome(memory)
            else:
                weight.home = self.write(weight, Memory.of(values))
                home.release()
        self.forget_codes(weight)

    def forget_codes(self, weight: Weight) -> None:
        """Forget a weight's codes, as its values have changed."""
        if self.coded.pop(weight.name, None) is not None and self.decoded is not None:
            self.decoded()

    def cast(self, weight: Weight, dtype: torch.dtype) -> None:
        """Convert a weight to another dtype; a weight in a file is converted whenever it is read."""
        home = weight.home
        assert home is not None
        converted = home.cast(dtype)
        if converted is not None:
            self._change_dtype(weight, dtype)
            weight.home = converted
            return
        changed = weight.changed
        self.replace(weight, self.values(weight).to(dtype))
        weight.changed = changed
        self._withdraw(weight)

    def _change_dtype(self, weight: Weight, dtype: torch.dtype) -> None:
        weight.like = without_values(weight.like, dtype)
        weight.placeholder = placeholder(weight.like, self.device)
        self._withdraw(weight)

    @staticmethod
    def _withdraw(weight: Weight) -> None:
        """Leave a weight's parameters on the device without values."""
        assert weight.placeholder is not None
        for each in weight.parameters:
            set_data(each, weight.placeholder)
        weight.withdraw()

    def close(self) -> None:
        """Delete our own file."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None
