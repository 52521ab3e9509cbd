"""Where the values of a model's parameters are, as the training step asks for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from toprope.tiers.store.base import Pending

__all__ = ["Weights"]


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
