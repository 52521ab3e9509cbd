"""The training side of a handle: gradients, activations, optimizers, clipping and checkpoints of one model.

`Handle.training` makes it at its first use, with the stores that `engine.training_tiers` chooses. It knows weights
only through `training.weights`, so that it needs nothing of `tiers.engine`. The sizes in `Sizes` are free choices.
Tests: tests/tiers/test_tiers_training.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from toprope.tiers.store.base import Store
from toprope.tiers.training import checkpoint
from toprope.tiers.training.activations import Activations
from toprope.tiers.training.gradients import Gradients, Place, clip_grad_norm_
from toprope.tiers.training.optimizer import Optimizers
from toprope.tiers.training.weights import Weights

__all__ = ["Sizes", "Training"]


@dataclass(frozen=True)
class Sizes:
    """Limits of training on the device, in bytes.

    Attributes:
        tile: bytes of a weight in one tile.
        room: bytes for tiles of weights, gradients and states together.
        smallest: gradients and states with fewer bytes stay on the device.
        smallest_activation: saved tensors with fewer bytes stay on the device.
        keep: bytes of the newest saved tensors, which stay on the device.
        ahead: bytes of saved tensors that are fetched before backward asks for them.
    """

    tile: int = 2**22
    room: int = 2**26
    smallest: int = 2**20
    smallest_activation: int = 2**16
    keep: int = 0
    ahead: int = 2**26

    @classmethod
    def of(cls, room: int, smallest: int) -> Sizes:
        """Limits for this many bytes of the device: two tiles at a time, each with a weight and up to four states."""
        room = min(room, cls.room)
        return cls(
            tile=max(2**12, min(cls.tile, room // 10)),
            room=room,
            smallest=smallest,
            smallest_activation=min(cls.smallest_activation, smallest),
        )


class Training:
    """Gradients, activations and optimizer states of a model, in stores.

    Args:
        model: the model.
        weights: access to its weights.
        place: chooses the store for a parameter's gradient and states; None if they stay on the device.
        store: store for states of offloaded weights for which `place` gives none.
        activations: store for tensors that forward saves for backward; None leaves them on the device.
        sizes: limits on the device.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        weights: Weights,
        place: Place,
        store: Store,
        activations: Store | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        sizes = sizes or Sizes()
        self.model, self.weights = model, weights
        self.optimizers = Optimizers(weights, place, store, room=sizes.room, tile=sizes.tile, smallest=sizes.smallest)
        self.gradients = Gradients(list(model.named_parameters()), place, self.optimizers.cut, smallest=sizes.smallest)
        self.activations: Activations | None = None
        if activations is not None:
            self.activations = Activations(
                activations, keep=sizes.keep, ahead=sizes.ahead, smallest=sizes.smallest_activation
            )

    def optimizer(self, optimizer: torch.optim.Optimizer, *, elementwise: bool | None = None) -> torch.optim.Optimizer:
        """Take over an optimizer: its states go to the store, its steps are tile by tile. See `Optimizers.take`."""
        return self.optimizers.take(optimizer, elementwise=elementwise)

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        parameters: Iterable[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Clip the gradients of the model, or of some parameters, as `torch.nn.utils.clip_grad_norm_` does."""
        some = self.model.parameters() if parameters is None else parameters
        return clip_grad_norm_(some, max_norm, norm_type, error_if_nonfinite)

    def save(self, path: str | os.PathLike[str], extra: Any = None) -> None:
        """Write a checkpoint. See `toprope.tiers.training.checkpoint.save`."""
        checkpoint.save(path, self.model, self.weights, self.optimizers, extra)

    def restore(self, path: str | os.PathLike[str]) -> Any:
        """Go on from a checkpoint. See `toprope.tiers.training.checkpoint.restore`."""
        return checkpoint.restore(path, self.model, self.weights, self.optimizers)

    def stats(self) -> dict[str, int]:
        """Byte and event counts so far."""
        activations = self.activations
        return {
            "tiles_peak_bytes": self.optimizers.stepper.peak,
            "largest_gradient_bytes": self.gradients.peak,
            "activations_moved": activations.moved if activations else 0,
            "activations_moved_bytes": activations.moved_bytes if activations else 0,
            "activations_waited": activations.waited if activations else 0,
            "activations_peak_bytes": activations.peak if activations else 0,
        }

    def close(self) -> None:
        """Bring gradients and states back to the device, and restore the optimizers."""
        self.gradients.close()
        self.optimizers.close()
