"""A store in the host's memory, with a budget."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import torch

from toprope.device import Device
from toprope.errors import TierCapacityError
from toprope.sizes import gibibytes
from toprope.tiers.store.base import Done, Pending
from toprope.tiers.store.chunks import CopyChunk, cut
from toprope.tiers.store.disk_file import BLOCK
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.spill import Fetched
from toprope.tiers.store.transfer import Load, Transfers, queued

__all__ = ["HostStore"]

_AT_ONCE = 2**20
"""Bytes up to which a copy within the host's memory is made by the caller."""


class HostStore:
    """Copies in the host's memory; pinned where the device has use for that.

    Memory that was given back is kept for the next tensor of its size, within the budget: new pages cost more than
    copies.

    Args:
        capacity: bytes that it may hold.
        transfers: whose threads copy large tensors.
        device: with memory of its own, if the tensors are there.
    """

    name = "host"

    def __init__(self, capacity: int, transfers: Transfers, device: Device | None = None) -> None:
        self.capacity, self.transfers, self.device = capacity, transfers, device
        self.used = 0
        """Bytes of what is kept, rounded up to pages."""
        self.peak = 0
        """The most that was ever held, with what was kept for the next tensor."""
        self._entries: dict[str, tuple[Memory, int]] = {}
        self._reading: dict[str, Load] = {}
        self._free: defaultdict[int, list[Memory]] = defaultdict(list)
        self._held = 0
        self._lock = threading.Lock()

    def spare(self) -> int:
        """Bytes of the budget that nothing is held in."""
        return self.capacity - self._held

    def reserve(self, nbytes: int) -> None:
        """Count bytes that lie in the host's memory elsewhere, such as weights.

        Raises:
            TierCapacityError: there is no room.
        """
        with self._lock:
            self._make_room(nbytes)
            self.used += nbytes
            self._held += nbytes
            self.peak = max(self.peak, self._held)

    def release(self, nbytes: int) -> None:
        """Count them no more."""
        with self._lock:
            self.used -= nbytes
            self._held -= nbytes

    def _make_room(self, nbytes: int) -> None:
        if self.used + nbytes > self.capacity:
            raise TierCapacityError(
                f"the host's budget has no room for {gibibytes(nbytes)}.",
                looked_at=f"{gibibytes(self.used)} of {gibibytes(self.capacity)} are used",
                do="give a larger one, or a folder on a disk",
            )
        while self._held + nbytes > self.capacity:
            size, some = next((size, some) for size, some in self._free.items() if some)
            some.pop()
            self._held -= size

    def put(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy."""
        source = Memory.of(tensor.detach().contiguous())
        size = max(1, -(-source.nbytes // BLOCK)) * BLOCK
        with self._lock:
            old = self._entries.get(key)
            if old is not None and old[0].nbytes == size and key not in self._reading:
                memory = old[0]
            else:
                memory = self._take(size)
        begin = time.perf_counter()
        memory.tensor[: source.nbytes].copy_(source.tensor)
        self.transfers.clock.copied("device_to_host", source.nbytes, time.perf_counter() - begin)
        with self._lock:
            self._entries[key] = (memory, source.nbytes)
            if old is not None and old[0] is not memory:
                self._give_back(key, old[0])

    def _take(self, size: int) -> Memory:
        if self._free[size]:
            self.used += size
            if self.used <= self.capacity:
                return self._free[size].pop()
            self.used -= size
        self._make_room(size)
        memory = Memory.host(size, self.device, lasting=True)
        self.used += size
        self._held += size
        self.peak = max(self.peak, self._held)
        return memory

    def _give_back(self, key: str, memory: Memory) -> None:
        self.used -= memory.nbytes
        load = self._reading.pop(key, None)
        if load is None or load.done:
            for event in () if load is None else load.events:
                event.synchronize()
            self._free[memory.nbytes].append(memory)
        else:  # freed when the last who reads it is done
            self._held -= memory.nbytes

    def read(self, key: str, out: torch.Tensor) -> Pending:
        """Begin to read."""
        with self._lock:
            memory, nbytes = self._entries[key]
        target = Memory.of(out)
        if self.device is None and nbytes <= _AT_ONCE:
            begin = time.perf_counter()
            target.tensor.copy_(memory.tensor[:nbytes])
            self.transfers.clock.copied("host_to_device", nbytes, time.perf_counter() - begin)
            return Done()
        chunks = [CopyChunk(memory.part(start, stop), target.part(start, stop)) for start, stop in cut(nbytes)]
        load = Load(key, chunks, queued(self.device))
        if self.device is not None or not load.done:
            with self._lock:
                self._reading[key] = load
            load.then(lambda ended: self._ended(key, ended))
            self.transfers.begin(load)
        return Fetched(load, self.device)

    def _ended(self, key: str, load: Load) -> None:
        if load.events and self.device is not None:
            return  # the copies may still be under way on the device: the memory is not used again
        with self._lock:
            if self._reading.get(key) is load:
                del self._reading[key]

    def contains(self, key: str) -> bool:
        """Whether something is kept under this key."""
        return key in self._entries

    def drop(self, key: str) -> None:
        """Forget a key."""
        with self._lock:
            memory, _ = self._entries.pop(key)
            self._give_back(key, memory)

    def flush(self) -> None:
        """Nothing: everything is where it shall be."""

    def close(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._entries.clear()
            self._free.clear()
            self.used = self._held = 0
