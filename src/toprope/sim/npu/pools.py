"""Part of `torch.npu`: private memory pools, as graphs and `MemPool` use them.

The pools are the C++ allocator's (csrc/core/memory.h), which knows them by numbers; history.py and memory_pieces.py
make names of these again. Tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toprope.sim.native import native
from toprope.sim.npu._state import device_index, lazy_init, not_here
from toprope.sim.npu.memory_pieces import memory_snapshot

__all__ = ["MemPool", "PoolId", "graph_pool_handle", "new_pool", "pool_number", "use_mem_pool"]

PoolId = tuple[int, int]
"""Name of a pool: (n, 0) if a graph made it for itself, (0, n) if the program did. (0, 0) is the ordinary pool."""

_graphs_own, _programs_own = itertools.count(1), itertools.count(1)


def pool_number(pool: PoolId) -> int:
    """Number of a pool for the core."""
    return (pool[0] << 32) | pool[1]


def new_pool(of_graph: bool) -> PoolId:
    """Name for a pool that does not exist yet."""
    return (next(_graphs_own), 0) if of_graph else (0, next(_programs_own))


def graph_pool_handle() -> PoolId:
    """Name for a pool that several graphs may share."""
    lazy_init()
    return new_pool(of_graph=False)


class MemPool:
    """Memory of a card that is set apart: what is freed in it is reused only in it.

    Args:
        allocator: not there; a pool of another allocator.
        use_on_oom: allocations outside of pools take free blocks of this one when the card is full.
        no_split: the pool's pieces of memory are not split into blocks.

    Raises:
        NotImplementedError: an allocator is given.
    """

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None:
            raise not_here("MemPool(allocator)", "its allocator cannot be replaced")
        lazy_init()
        self._id = new_pool(of_graph=False)
        self._device = device_index()
        native().use_pool(self._device, pool_number(self._id))
        native().set_pool(self._device, pool_number(self._id), use_on_oom, no_split)

    @property
    def id(self) -> PoolId:
        """Name of the pool."""
        return self._id

    @property
    def allocator(self) -> None:
        """None: the card's own allocator."""

    def use_count(self) -> int:
        """Users of the pool: this object, graphs, and contexts of `use_mem_pool` that are open."""
        return int(native().pool_users(self._device, pool_number(self._id)))

    def snapshot(self) -> list[dict[str, Any]]:
        """Pieces of memory of the pool with their blocks, in the form of `memory_snapshot`."""
        return memory_snapshot(self._id)

    def __del__(self) -> None:
        if hasattr(self, "_device"):
            native().set_pool(self._device, pool_number(self._id), False, False)
            native().release_pool(self._device, pool_number(self._id))
            native().empty_cache(self._device)


@contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Context in which the memory that this thread allocates on a card comes from a pool.

    Args:
        pool: the pool.
        device: the card, None for the current one.
    """
    index, number = device_index(device), pool_number(pool.id)
    native().open_pool(index, number, 0)
    try:
        yield
    finally:
        native().close_pool(index, number)
        native().release_pool(index, number)
