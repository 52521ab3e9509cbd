"""A tensor that lies in a store, tile by tile."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Sequence

import torch

from toprope.tiers.store.base import Pending, Store
from toprope.tiers.store.memory import flat, is_dense
from toprope.tiers.training.tiles import Tile

__all__ = ["Blocks", "settle"]


_serial = itertools.count()


class Blocks:
    """A tensor in a store. Once the last reference to this object is gone, its entries are dropped at the next `settle`
    or write.

    Args:
        store: what keeps it.
        label: what its keys begin with, for those who read a store's keys; they are unique whatever it is.
        like: a tensor with the shape, strides, dtype and device of the values. Its values are not looked at.
        cut: the tiles.
        dtype: of the values, where it is another one.
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
        """Keep these values, of the same shape."""
        elements = flat(self.ordered(values))
        for number, tile in enumerate(self.cut):
            self.write_tile(number, elements[tile.start : tile.stop])

    def ordered(self, values: torch.Tensor) -> torch.Tensor:
        """Values with this dtype and order of memory."""
        if values.stride() == self.stride and values.dtype == self.dtype:
            return values
        return self.empty(values.device).copy_(values)

    def write_tile(self, number: int, values: torch.Tensor) -> None:
        """Keep one tile's values, one dimension of them."""
        settle(self.store)
        key = self._keys[number]
        self._written.add(key)
        self.store.put(key, values)

    def read_tile(self, number: int, out: torch.Tensor) -> Pending:
        """Begin to read one tile into one dimension of memory."""
        return self.store.read(self._keys[number], out)

    def read(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The values, in memory of their device."""
        out = self.empty() if out is None else out
        elements = flat(out)
        for pending in [
            self.read_tile(number, elements[tile.start : tile.stop]) for number, tile in enumerate(self.cut)
        ]:
            pending.wait()
        return out

    def empty(self, device: torch.device | None = None) -> torch.Tensor:
        """Memory for the values."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device or self.device)


_dropped: weakref.WeakKeyDictionary[Store, deque[set[str]]] = weakref.WeakKeyDictionary()
"""Keys that nobody refers to any more, by store."""


def _drop(store: weakref.ref[Store], keys: set[str]) -> None:
    """Note keys to be dropped. The garbage collector may call it in the middle of the store's own work."""
    there = store()
    if there is not None:
        _dropped.setdefault(there, deque()).append(keys)


def settle(store: Store) -> None:
    """Drop the keys of blocks that are gone."""
    gone = _dropped.get(store)
    while gone:
        for key in gone.popleft():
            if store.contains(key):
                store.drop(key)
