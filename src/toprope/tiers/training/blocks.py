"""A tensor in a store, tile by tile: what stored tensors, optimizer steps and checkpoints read and write.

Each tile is an entry of the store, so that a step reads and writes one tile without the rest of the tensor. The garbage
collector may free a `Blocks` in the middle of the store's own work: its keys are then only noted. Tests:
tests/tiers/test_tiers_threads.py, tests/tiers/test_tiers_training_optimizer.py.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Sequence

import torch

from toprope.tiers.store.base import Pending, Store
from toprope.tiers.store.memory import flat, is_dense
from toprope.tiers.training.tiles import Tile

__all__ = ["Blocks", "drop_freed"]


_serial = itertools.count()


class Blocks:
    """A tensor in a store. After this object is freed, its entries are dropped at the next `drop_freed` or write.

    Args:
        store: the store.
        label: prefix of its keys, for readers; the keys are unique with any label.
        like: a tensor with the shape, strides, dtype and device of the values; its values are not used.
        cut: the tiles.
        dtype: dtype of the values, if it is not the dtype of `like`.
    """

    def __init__(
        self, store: Store, label: str, like: torch.Tensor, cut: Sequence[Tile], dtype: torch.dtype | None = None
    ) -> None:
        self.store = store
        self.label = label
        self.shape, self.dtype, self.device = like.shape, dtype or like.dtype, like.device
        self.stride = like.stride() if is_dense(like) else torch.empty_like(like, device="meta").stride()
        self.cut = tuple(cut)
        serial = next(_serial)
        self._keys = [f"{label}/{serial}/{number}" for number in range(len(self.cut))]
        self._written: set[str] = set()
        self._finalizer = weakref.finalize(self, _drop, weakref.ref(store), self._written)
        self._finalizer.atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.shape.numel() * self.dtype.itemsize

    def write(self, values: torch.Tensor) -> None:
        """Write values of the same shape to the store."""
        elements = flat(self.ordered(values))
        for number, tile in enumerate(self.cut):
            self.write_tile(number, elements[tile.start : tile.stop])

    def ordered(self, values: torch.Tensor) -> torch.Tensor:
        """Convert values to this dtype and order of memory."""
        if values.stride() == self.stride and values.dtype == self.dtype:
            return values
        return self.empty(values.device).copy_(values)

    def write_tile(self, number: int, values: torch.Tensor) -> None:
        """Write one tile's values, a tensor with one dimension."""
        drop_freed(self.store)
        key = self._keys[number]
        self._written.add(key)
        self.store.put(key, values)

    def read_tile(self, number: int, out: torch.Tensor) -> Pending:
        """Begin to read one tile into a tensor with one dimension."""
        return self.store.read(self._keys[number], out)

    def read(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Read all values, to their device by default."""
        out = self.empty() if out is None else out
        elements = flat(out)
        for pending in [
            self.read_tile(number, elements[tile.start : tile.stop]) for number, tile in enumerate(self.cut)
        ]:
            pending.wait()
        return out

    def empty(self, device: torch.device | None = None) -> torch.Tensor:
        """Allocate memory for the values."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device or self.device)


_dropped: weakref.WeakKeyDictionary[Store, deque[set[str]]] = weakref.WeakKeyDictionary()
"""By store, the keys of freed `Blocks`."""


def _drop(store: weakref.ref[Store], keys: set[str]) -> None:
    """Record keys to drop later. The garbage collector may call it in the middle of the store's own work."""
    there = store()
    if there is not None:
        _dropped.setdefault(there, deque()).append(keys)


def drop_freed(store: Store) -> None:
    """Drop the keys of freed `Blocks`."""
    gone = _dropped.get(store)
    while gone:
        for key in gone.popleft():
            if store.contains(key):
                store.drop(key)
