"""Where the values of a model's parameters are, as the training step asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from toprope.tiers.store.base import Pending

__all__ = ["ResidentWeights", "Weights"]


class Weights(Protocol):
    """What the training step asks of whoever moves the weights."""

    @property
    def device(self) -> torch.device:
        """The device that computes."""

    def resident(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The values where they stay on the device and may be updated in place; None where they come and go."""

    def read(self, parameter: torch.Tensor, start: int, stop: int, out: torch.Tensor) -> Pending:
        """Begin to read elements, in the order of memory, from where the weight lies into `out` on the device."""

    def write(self, parameter: torch.Tensor, start: int, values: torch.Tensor) -> None:
        """Take new elements back to where the weight lies; `values` may be changed once it returns."""

    def updated(self) -> None:
        """All weights of a step are written; copies of them on the device are no longer good."""

    def room(self) -> int | None:
        """Bytes that `borrow` has to give; None where it allocates them."""

    def borrow(self, nbytes: int) -> AbstractContextManager[torch.Tensor]:
        """A context manager that gives so many bytes of the device's budget (a uint8 tensor) for a step."""


class ResidentWeights:
    """All weights stay on the device; room for a step is allocated."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def device(self) -> torch.device:
        """The device that everything is on."""
        return self._device

    def resident(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The parameter's own values."""
        return parameter.data

    def read(self, parameter: torch.Tensor, start: int, stop: int, out: torch.Tensor) -> Pending:
        """Never asked for: everything is resident."""
        raise NotImplementedError

    def write(self, parameter: torch.Tensor, start: int, values: torch.Tensor) -> None:
        """Never asked for: everything is resident."""
        raise NotImplementedError

    def updated(self) -> None:
        """Nothing: there are no copies."""

    def room(self) -> int | None:
        """It allocates them."""
        return None

    @contextmanager
    def borrow(self, nbytes: int) -> Iterator[torch.Tensor]:
        """Memory of the device's allocator."""
        yield torch.empty(nbytes, dtype=torch.uint8, device=self.device)
