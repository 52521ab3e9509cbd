"""A store in the host's memory, with a budget that weights and training share.

`attach` makes one for each model: weights on the host are counted by `reserve`, and `tiers.training` keeps tensors in
it through the interface of `store.base`. The budget is never passed, under one lock for all threads. Tests:
tests/tiers/test_tiers_stores.py, tests/tiers/test_tiers_threads.py.
"""

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
"""Largest copy within the host's memory, in bytes, that the caller makes itself."""


class HostStore:
    """A store in the host's memory, which is pinned if the device benefits from that.

    Freed memory is kept for the next tensor of its size, within the budget, as new pages cost more than copies.

    Args:
        capacity: its size in bytes.
        transfers: the threads that copy large tensors.
        device: the tensors' device, if it has its own memory.
    """

    name = "host"

    def __init__(self, capacity: int, transfers: Transfers, device: Device | None = None) -> None:
        self.capacity, self.transfers, self.device = capacity, transfers, device
        self.used = 0
        """Bytes of the tensors, rounded up to pages."""
        self.peak = 0
        """Peak of all bytes, including memory that is kept for the next tensor."""
        self._entries: dict[str, tuple[Memory, int]] = {}
        self._reading: dict[str, Load] = {}
        self._free: defaultdict[int, list[Memory]] = defaultdict(list)
        self._held = 0
        self._lock = threading.Lock()

    def spare(self) -> int:
        """Unused bytes of the budget."""
        return self.capacity - self._held

    def reserve(self, nbytes: int) -> None:
        """Count bytes outside the store against its budget, such as weights.

        Raises:
            TierCapacityError: there is no room.
        """
        with self._lock:
            self._make_room(nbytes)
            self.used += nbytes
            self._held += nbytes
            self.peak = max(self.peak, self._held)

    def release(self, nbytes: int) -> None:
        """Stop counting bytes that were reserved."""
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
        else:  # freed when the last read has ended
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
            return  # the device may still be copying: the memory is not reused
        with self._lock:
            if self._reading.get(key) is load:
                del self._reading[key]

    def contains(self, key: str) -> bool:
        """True if the store has this key."""
        return key in self._entries

    def drop(self, key: str) -> None:
        """Forget a key."""
        with self._lock:
            memory, _ = self._entries.pop(key)
            self._give_back(key, memory)

    def flush(self) -> None:
        """Do nothing: copies are complete when `put` returns."""

    def close(self) -> None:
        """Release the memory."""
        with self._lock:
            self._entries.clear()
            self._free.clear()
            self.used = self._held = 0
