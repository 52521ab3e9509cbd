"""Interface through which the training step reads and writes a model's weights.

`engine.offloaded_params` implements it; all of `tiers.training` relies on it: a change is one of both. Tests:
tests/tiers/test_tiers_training_optimizer.py, tests/tiers/test_tiers_faults.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from toprope.tiers.store.base import Pending

__all__ = ["Weights"]


class Weights(Protocol):
    """Access to a model's weights, which stay on the device or are offloaded; `OffloadedWeights` implements it."""

    @property
    def device(self) -> torch.device:
        """The device that computes."""

    def resident(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The values of a parameter that stays on the device and may be updated in place; None if it is offloaded."""

    def read(self, parameter: torch.Tensor, start: int, stop: int, out: torch.Tensor) -> Pending:
        """Begin to read elements, in the order of memory, from the weight's place into `out` on the device."""

    def write(self, parameter: torch.Tensor, start: int, values: torch.Tensor) -> None:
        """Write new elements to the weight's place; `values` may be changed once this returns."""

    def updated(self) -> None:
        """Complete the writes of a step; copies on the device are out of date then."""

    def room(self) -> int | None:
        """Largest number of bytes for `borrow`; None if it allocates them."""

    def borrow(self, nbytes: int) -> AbstractContextManager[torch.Tensor]:
        """Context manager that lends this many bytes of the device's budget, as a uint8 tensor, for a step."""
