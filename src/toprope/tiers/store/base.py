"""What a place for moved tensors can do, whatever it is made of: the host's memory (`host`) or a file (`spill`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from toprope.errors import TierCapacityError
from toprope.sizes import gibibytes

__all__ = ["Done", "Pending", "Stacked", "Store"]


class Pending(Protocol):
    """A read that is under way."""

    def wait(self) -> None:
        """Return once the bytes are there, for whatever the caller's stream does next.

        Raises:
            TierError: what went wrong.
        """


class Done:
    """A read that has ended."""

    def wait(self) -> None:
        """Return."""


@runtime_checkable
class Store(Protocol):
    """Keeps copies of tensors under keys: their bytes, of any dtype, without dimensions and empty ones too."""

    @property
    def name(self) -> str:
        """ "host" or "disk"."""

    @property
    def capacity(self) -> int:
        """Bytes that it may hold."""

    @property
    def used(self) -> int:
        """Bytes that it holds."""

    def put(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy under this key, in place of what was there; the tensor may be changed once this returns.

        Raises:
            TierCapacityError: there is no room; what was there under this key still is.
            TierError: a put before this one has failed.
        """

    def read(self, key: str, out: torch.Tensor) -> Pending:
        """Begin to read into `out`, which has the dtype and shape that were put.

        Raises:
            KeyError: nothing is kept under this key.
        """

    def contains(self, key: str) -> bool:
        """Whether something is kept under this key."""

    def drop(self, key: str) -> None:
        """Forget a key.

        Raises:
            KeyError: nothing is kept under this key.
        """

    def flush(self) -> None:
        """Return once everything that was put is where it shall be."""

    def close(self) -> None:
        """Give everything back: memory, threads and files. Calling it again does nothing."""


class Stacked:
    """Stores in a row: a tensor goes to the first that has room.

    Args:
        stores: the fastest first.
    """

    name = "stacked"

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = tuple(stores)
        self._where: dict[str, Store] = {}

    @property
    def capacity(self) -> int:
        """Of all."""
        return sum(each.capacity for each in self.stores)

    @property
    def used(self) -> int:
        """Of all."""
        return sum(each.used for each in self.stores)

    def put(self, key: str, tensor: torch.Tensor) -> None:
        """Keep a copy; where a key was, it stays if there is room for it."""
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
        told = ", ".join(f"{each.name} {gibibytes(each.used)} of {gibibytes(each.capacity)}" for each in self.stores)
        raise TierCapacityError(
            f"no tier has room for {gibibytes(tensor.nbytes)}.",
            looked_at=told or "there are none",
            do="give a larger budget for the host, or a folder on a disk: attach(..., host=, disk=)",
        )

    def read(self, key: str, out: torch.Tensor) -> Pending:
        """Begin to read from where it is."""
        return self._where[key].read(key, out)

    def contains(self, key: str) -> bool:
        """Whether one of them has it."""
        return key in self._where

    def drop(self, key: str) -> None:
        """Forget a key."""
        self._where.pop(key).drop(key)

    def flush(self) -> None:
        """All of them."""
        for each in self.stores:
            each.flush()

    def close(self) -> None:
        """All of them."""
        for each in self.stores:
            each.close()
        self._where.clear()
