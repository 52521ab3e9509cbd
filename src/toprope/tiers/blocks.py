"""A tensor that lies in a store, tile by tile."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Protocol

import torch

from toprope.tiers.tiles import Tile

__all__ = ["Blocks", "Pending", "Store", "flat", "is_dense"]


class Pending(Protocol):
    """A read that is under way."""

    def wait(self) -> None:
        """Return once the bytes are there; raise what went wrong."""


class Store(Protocol):
    """What blocks ask of a store."""

    def put(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy under this key, in place of what was there; the tensor may be changed once it returns."""

    def read(self, key: str, out: torch.Tensor) -> Pending:
        """Begin to read into `out`, which has the dtype and shape that were put."""

    def drop(self, key: str) -> None:
        """Forget a key."""


_serial = itertools.count()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory without gaps and overlaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in the order of memory, as a view."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


class Blocks:
    """A tensor in a store. Its entries are dropped when the last reference to this object goes.

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
        self._finalizer = weakref.finalize(self, _drop, store, self._written)
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


def _drop(store: Store, keys: set[str]) -> None:
    for key in keys:
        store.drop(key)
