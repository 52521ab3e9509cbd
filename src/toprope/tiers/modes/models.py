"""One model under a mode: applies the mode's effects to it, and restores it.

`modes.switch` keeps a `Managed` for each model that it sees, and calls `make_fit` before the model runs or is moved.
The effects are in modules of their own: offloading in `tiers.engine.attach`, and `attention`, `quantised` and
`recompute` here. A model that is restored is as it was: class, parameters, hooks. Tests:
tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toprope import device as devices
from toprope.device import Device
from toprope.errors import PlanError
from toprope.tiers.engine.attach import ATTACHED, attach
from toprope.tiers.engine.handle import Handle
from toprope.tiers.engine.saved_weights import Packing
from toprope.tiers.modes import attention, quantised, recompute
from toprope.tiers.modes.budgets import Budget, Needs, Room
from toprope.tiers.modes.names import Effects
from toprope.tiers.quant.measure import verdict
from toprope.tiers.store.absent import set_data
from toprope.tiers.store.memory import free_memory

__all__ = ["Managed", "Mode", "needs_of", "overlapping", "target_of"]

_log = logging.getLogger("toprope")

_TURNS = 3
"""Times that weights are quantised again after training; after that it would take longer than it saves."""


@dataclass(frozen=True)
class Mode:
    """Settings of the enabled mode.

    Attributes:
        effects: the mode's effects on models.
        device: the device that computes.
        room: the budgets.
        folder: folder for a file; None if there is none.
        format: format of quantised weights.
        origins: store of the plain weights while layers are quantised.
        waiting: modules that were built on the device, and wait on the host until their model is called.
    """

    effects: Effects
    device: Device
    room: Room
    folder: Path | None
    format: str
    origins: quantised.Origins
    waiting: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)

    @property
    def disk(self) -> str | None:
        """The folder with its limit, as `attach` reads it."""
        if self.folder is None:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        return str(self.folder) if self.room.disk is None else f"{self.folder}:{self.room.disk}B"


def needs_of(model: nn.Module) -> Needs:
    """Bytes that a model needs."""
    seen: dict[object, tuple[int, bool]] = {}
    for each in model.parameters():
        key = id(each) if each.device.type == "meta" else each.untyped_storage()._cdata
        size, trained = seen.get(key, (0, False))
        seen[key] = (max(size, each.nbytes), trained or each.requires_grad)
    return Needs(sum(size for size, _ in seen.values()), sum(size for size, trained in seen.values() if trained))


def target_of(fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.device | None:
    """The device that a function of `Module._apply` moves tensors to."""
    try:
        return fn(torch.empty(0)).device
    except Exception:  # a function for some tensors only
        return None


class Managed:
    """A model that a mode acts on.

    Args:
        model: the model.
        mode: the enabled mode.
    """

    def __init__(self, model: nn.Module, mode: Mode) -> None:
        self.mode = mode
        self._model = weakref.ref(model)  # does not keep the program's model alive
        self._handle: weakref.ref[Handle] | None = None  # the model's own hooks keep it
        self.trains = False
        """True if it is prepared for training."""
        self.called = False
        """True once it was called; before that, training is a guess."""
        self.generation = -1
        self.members: set[int] = set()
        self.warned: set[str] = set()
        self._undo: list[Callable[[], Any]] = []
        self._noticed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._quantised: tuple[int, int] | None = None
        self._turns = 0

    @property
    def model(self) -> nn.Module:
        """The model."""
        found = self._model()
        assert found is not None
        return found

    @property
    def handle(self) -> Handle | None:
        """Handle of the attached model; None if the model fits without."""
        return None if self._handle is None else self._handle()

    # Apply

    def put_hooks(self, generation: int) -> None:
        """Register the mode's hooks on the model's modules, also on those added since the last call."""
        if self.generation == generation:
            return
        self.generation = generation
        self.members = {id(each) for each in self.model.modules()}
        effects = self.mode.effects
        new = [each for each in self.model.modules() if each not in self._noticed]
        if effects.recompute and not len(self._noticed):
            self._undo += [recompute.put_on(each, self._packing) for each in recompute.blocks(self.model)]
        if effects.attention:
            self._undo += [attention.put_on(each) for each in new if isinstance(each, nn.MultiheadAttention)]
        self._noticed.update(new)

    def _packing(self) -> Packing | None:
        handle = self.handle
        return None if handle is None else handle.packing

    def make_fit(self, *, trains: bool, gradients: bool, moving: torch.device | None = None) -> None:
        """Make the model fit, by quantising or attaching it, before it runs or is moved.

        A model that was attached for another kind of run is detached first; one that the program has attached itself
        is left alone. If a model that is only being moved does not fit for training, it is planned for inference.

        Args:
            trains: it is in training.
            gradients: weights will get gradients, so that none may be quantised.
            moving: the device that it is being moved to; None if it is not moved.
        """
        if not gradients and self._quantised == (self.generation, quantised.restored()):
            return  # it is quantised as it should be
        device = self._device(moving)
        if device is None or (self.handle is None and self._attached_by_hand()):
            return
        if gradients:
            self.unquantise()
        handle = self.handle
        if handle is not None and self._planned_for_another(trains, gradients, moving):
            self.detach()
        if self.handle is None:
            self.trains = trains
            try:
                self._attach_if_needed(device, moving)
            except PlanError:
                if moving is None or not trains:
                    raise
                self.trains = False  # it may never train
                self._attach_if_needed(device, moving)
            if handle is not None and self.handle is None:  # it was attached, and now fits as a whole
                self._bring(handle.device)
        if self._may_quantise(gradients) and self.handle is None:
            self.quantise(device)
        self.called = self.called or moving is None

    def _attached_by_hand(self) -> bool:
        return any(ATTACHED in vars(each) for each in self.model.modules())

    def _planned_for_another(self, trains: bool, gradients: bool, moving: torch.device | None) -> bool:
        """True if its plan was made for another kind of run: inference instead of training, or the reverse."""
        if trains and not self.trains:
            return True
        if trains or not self.trains or moving is not None:
            return False
        return not self.called or (self._may_quantise(gradients) and self._fits_quantised())  # training was a guess

    def _may_quantise(self, gradients: bool) -> bool:
        return self.mode.effects.quantise and not gradients and self._turns <= _TURNS

    def _fits_quantised(self) -> bool:
        needs = needs_of(self.model).weights
        given = self.mode.room.device.bytes_for(needs)
        return given is None or needs - self._saved() <= given

    def _bring(self, device: Device) -> None:
        """Move the whole model to the device, after a detach."""
        for each in self.model.parameters():
            if each.device != device.torch_device:
                set_data(each, each.data.to(device.torch_device))

    def _device(self, moving: torch.device | None) -> Device | None:
        """The device that computes the model; None if the mode is for another kind of device."""
        if moving is not None:
            return devices.get(moving) if moving.type == self.mode.device.kind else None
        there = {each.device for each in self.model.parameters() if each.device.type != "meta"}
        kinds = {each.type for each in there}
        if self.mode.device.kind in kinds or not self.mode.device.capabilities.separate_memory:
            mine = [each for each in there if each.type == self.mode.device.kind]
            return devices.get(mine[0]) if mine else None
        waits = self.mode.waiting and any(each in self.mode.waiting for each in self.model.modules())
        return self.mode.device if waits else None

    def _attach_if_needed(self, device: Device, moving: torch.device | None) -> None:
        """Attach the model if it does not fit, or if activations are to be offloaded in training."""
        needs = needs_of(self.model)
        budget, total = self.mode.room.device, needs.total(self.trains)
        offload = self.mode.effects.offload and self.trains
        if not self.trains and self._may_quantise(False) and not self._fits(budget, total, device, moving):
            total -= self._saved()
        if self._fits(budget, total, device, moving) and not offload:
            return
        given = budget.bytes_for(needs.total(self.trains))
        away: Any = "device"
        if offload:
            away = "disk" if self.mode.folder is not None and not device.capabilities.separate_memory else "host"
        self.unquantise()
        handle = attach(
            self.model, "auto" if given is None else given, self.mode.room.host, self.mode.disk, on=device,
            training=self.trains, activations=away,
        )  # fmt: skip
        self._handle = weakref.ref(handle)
        inner = vars(self.model).get("_apply")
        if inner is not None:
            vars(self.model)["_apply"] = self._moving(inner)
        if self.trains:
            _ = handle.training  # gradients leave from the first backward on

    def _fits(self, budget: Budget, total: int, device: Device, moving: torch.device | None) -> bool:
        """True if `total` bytes are within the user's budget or, without one, within nine tenths of the free memory."""
        given = budget.bytes_for(needs_of(self.model).total(self.trains)) if budget.given else None
        if given is not None:
            return total <= given
        if not device.capabilities.separate_memory:
            return True  # it is in that memory already
        free = free_memory(device)
        there = 0 if moving is not None else sum(
            each.nbytes for each in self.model.parameters() if each.device.type == device.kind
        )  # fmt: skip
        return free is None or total - there <= free * 9 // 10

    def _saved(self) -> int:
        """Bytes that quantising the model's layers would save."""
        return sum(
            each.weight.nbytes - quantised.page_bytes(each, self.mode.format)
            for each in quantised.candidates(self.model)
        )

    def _moving(self, inner: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        """Wrap `_apply` of an attached model, so that a move to another kind of device detaches it first."""

        def apply(fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
            target = target_of(fn)
            if target is None or self.handle is None or target.type == self.handle.device.kind:
                return inner(fn, recurse)
            self.detach()
            moved: nn.Module = nn.Module._apply(self.model, fn, recurse)  # type: ignore[no-untyped-call]
            return moved

        return apply

    def quantise(self, device: Device) -> None:
        """Quantise its linear layers, if that is faster for their dtype."""
        if self._quantised == (self.generation, quantised.restored()):
            return
        for layer in quantised.candidates(self.model):
            dtype = layer.weight.dtype
            if dtype is not torch.float32:
                found = verdict(device, self.mode.format, dtype)
                if not found.faster:
                    self.warn("dtype", f"weights of {dtype} stay as they are: {found.text}")
                    continue
            quantised.quantise(layer, self.mode.format, self.mode.origins)
        self._quantised = (self.generation, quantised.restored())

    def warn(self, key: str, text: str) -> None:
        """Log a warning once for each key."""
        if key not in self.warned:
            self.warned.add(key)
            _log.warning("%s", text)

    # Training

    def optimizer(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take over an optimizer that updates offloaded weights; True if this call has done it."""
        if self.handle is None or not self.trains or hasattr(optimizer, "plain_class"):
            return False
        mine = {id(each) for each in self.model.parameters()}
        if not any(id(each) in mine for group in optimizer.param_groups for each in group["params"]):
            return False
        self.handle.optimizer(optimizer)
        return True

    # Restore

    def unquantise(self) -> None:
        """Restore the plain weights of its layers."""
        if self._quantised is not None:
            self._quantised = None
            self._turns += 1
            if self._turns > _TURNS:
                self.warn("turns", "weights are not quantised any more: the model is trained and used in turns")
            for each in list(self.model.modules()):
                if isinstance(each, quantised.QuantisedInPlace):
                    quantised.restore(each)

    def detach(self, *, keep_place: bool = False) -> None:
        """Detach the model.

        Args:
            keep_place: leave the weights on the device that computes if they have room there; else, and by default,
                move them back to the device they came from.
        """
        handle, self._handle = self.handle, None
        if handle is None:
            return
        if keep_place and handle.device.capabilities.separate_memory:
            free = free_memory(handle.device)
            if free is None or needs_of(self.model).weights <= free * 9 // 10:
                handle.detach(handle.device.torch_device)
                return
            _log.warning("the model has no room on %s without the mode: its weights are on the host", handle.device)
        handle.detach()

    def close(self) -> None:
        """Restore the model and remove all hooks."""
        if self._model() is None:
            return
        self.detach(keep_place=True)
        self.unquantise()
        while self._undo:
            self._undo.pop()()

    # Figures

    def figures(self) -> dict[str, Any]:
        """Figures about the mode's effects on it."""
        count, small, plain, kept, error = quantised.figures(self.model.modules())
        needs = needs_of(self.model)
        return {
            "model": type(self.model).__name__,
            "needs_bytes": needs.total(self.trains),
            "training": self.trains,
            "attached": self.handle is not None,
            "quantised_layers": count,
            "quantised_bytes": small,
            "plain_bytes": plain,
            "plain_bytes_in_memory": kept,
            "largest_weight_error": error,
        }


def overlapping(managed: Iterable[Managed], model: nn.Module) -> list[Managed]:
    """Managed models that are parts of another model."""
    inside = {id(each) for each in model.modules()}
    return [each for each in managed if each.model is not model and id(each.model) in inside]
