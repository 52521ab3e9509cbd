"""`Store`, the interface of stores for tensors that were moved out: `store.host` in memory, `store.spill` in a file.

`tiers.training` keeps gradients, optimizer states and activations in stores, by key. A store takes its copy before
`put` returns, and gives back the same bits. A new store is added to the tests. Tests:
tests/tiers/test_tiers_stores.py, which runs the same tests on every store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from toprope.errors import TierCapacityError
from toprope.sizes import gibibytes

__all__ = ["Done", "Pending", "Stacked", "Store"]


class Pending(Protocol):
    """A running read of a store."""

    def wait(self) -> None:
        """Wait until the bytes are there for later work on the caller's stream.

        Raises:
            TierError: the read has failed.
        """


class Done:
    """A read that needs no waiting: its bytes are there already."""

    def wait(self) -> None:
        """Return at once."""


@runtime_checkable
class Store(Protocol):
    """Keeps copies of tensors by key: of any dtype, including empty tensors and scalars."""

    @property
    def name(self) -> str:
        """ "host" or "disk"."""

    @property
    def capacity(self) -> int:
        """Its size in bytes."""

    @property
    def used(self) -> int:
        """Bytes in use."""

    def put(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy of a tensor, and replace the key's old one. The tensor may be changed once this returns.

        Raises:
            TierCapacityError: there is no room; the old tensor stays.
            TierError: an earlier put has failed.
        """

    def read(self, key: str, out: torch.Tensor) -> Pending:
        """Begin to read into `out`, which has the kept tensor's dtype and shape.

        Raises:
            KeyError: the key is unknown.
        """

    def contains(self, key: str) -> bool:
        """True if the store has this key."""

    def drop(self, key: str) -> None:
        """Forget a key.

        Raises:
            KeyError: the key is unknown.
        """

    def flush(self) -> None:
        """Wait until all tensors are in their place."""

    def close(self) -> None:
        """Release memory, threads and files. Calling it again does nothing."""


class Stacked:
    """Several stores: a tensor goes to the first one that has room.

    Args:
        stores: the fastest first.
    """

    name = "stacked"

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = tuple(stores)
        self._where: dict[str, Store] = {}

    @property
    def capacity(self) -> int:
        """Size of all stores in bytes."""
        return sum(each.capacity for each in self.stores)

    @property
    def used(self) -> int:
        """Bytes in use in all stores."""
        return sum(each.used for each in self.stores)

    def put(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy; a known key stays in its store if that has room."""
        before = self._where.get(key)
        for store in [each for each in self.stores if each is before] or self.stores:
            try:
                store.put(key, tensor)
            except TierCapacityError:
                continue
            self._where[key] = store
            return
        for store in self.stores:
            if store is not before:
                try:
                    store.put(key, tensor)
                except TierCapacityError:
                    continue
                if before is not None:
                    before.drop(key)
                self._where[key] = store
                return
        facts = ", ".join(f"{each.name} {gibibytes(each.used)} of {gibibytes(each.capacity)}" for each in self.stores)
        raise TierCapacityError(
            f"no tier has room for {gibibytes(tensor.nbytes)}.",
            looked_at=facts or "there are none",
            do="give a larger budget for the host, or a folder on a disk: attach(..., host=, disk=)",
        )

    def read(self, key: str, out: torch.Tensor) -> Pending:
        """Begin to read from the key's store."""
        return self._where[key].read(key, out)

    def contains(self, key: str) -> bool:
        """True if one of the stores has this key."""
        return key in self._where

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._where.pop(key).drop(key)

    def flush(self) -> None:
        """Flush all stores."""
        for each in self.stores:
            each.flush()

    def close(self) -> None:
        """Close all stores."""
        for each in self.stores:
            each.close()
        self._where.clear()
