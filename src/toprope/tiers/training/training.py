"""The training side of a handle: gradients, activations, optimizers, clipping and checkpoints of one model."""

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
    """How much of the device training may take, in bytes.

    Attributes:
        tile: of a weight, updated at once.
        room: for tiles, of weights, gradients and states together.
        smallest: gradients and states of fewer bytes stay on the device.
        smallest_activation: saved tensors of fewer bytes stay on the device.
        keep: of the newest saved tensors, which stay on the device.
        ahead: of saved tensors fetched before backward asks for them.
    """

    tile: int = 2**22
    room: int = 2**26
    smallest: int = 2**20
    smallest_activation: int = 2**16
    keep: int = 0
    ahead: int = 2**26

    @classmethod
    def of(cls, room: int, smallest: int) -> Sizes:
        """For so many bytes of the device: two tiles at a time, each of a weight and up to four others like it."""
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
        weights: where its weights lie.
        place: where a parameter's gradient and states go; None for what stays on the device.
        store: for states of weights that come and go, where `place` says that they stay.
        activations: the store of what forward saves for backward; None leaves it where it is.
        sizes: how much of the device it takes.
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
        """Take an optimizer over: its states go to the store, its step goes tile by tile. See `Optimizers.take`."""
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
        """Bytes and counts of this run so far."""
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
        """Bring gradients and states back, and leave optimizers as they were made."""
        self.gradients.close()
        self.optimizers.close()
