"""Enable and disable modes: torch's global hooks for modules and optimizers, and a wrapper of Module._apply.

The implementation of `toprope.tiers.modes`. It notices models that are built, moved, called or stepped, and has
`modes.models.Managed` act on each; it decides nothing about a single model itself. Relies on private names of torch
(`Module._apply`, the dictionaries of a module's hooks): look at them for each new release. One mode at a time, under
one lock. Tests: tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as torchs
from torch.optim.optimizer import register_optimizer_step_pre_hook

from toprope import device as devices
from toprope.device import Device
from toprope.errors import UsageError
from toprope.settings import Settings
from toprope.tiers.modes import outputs, recompute
from toprope.tiers.modes.budgets import Room, read_room
from toprope.tiers.modes.checks import folder_of, refuse, why_not_mixed
from toprope.tiers.modes.models import Managed, Mode, overlapping, target_of
from toprope.tiers.modes.names import Effects, effects_of
from toprope.tiers.modes.quantised import Origins
from toprope.tiers.quant.measure import Verdict, verdict
from toprope.tiers.store.absent import set_data
from toprope.tiers.store.disk_file import free_on_disk
from toprope.tiers.store.memory import free_memory
from toprope.tiers.training.optimizer import stepping

if TYPE_CHECKING:
    from toprope.device.select import DeviceLike

__all__ = ["Active", "active", "disable", "enable", "optimize"]

_lock = threading.RLock()


@dataclass(frozen=True)
class Active:
    """The enabled mode, as `active()` shows it to users.

    Attributes:
        mode: its name; "" if single effects were asked for.
        effects: its effects on models.
        reasons: for each effect that was asked for and is not available, the reason.
        device: the device that computes.
        room: the budgets.
        verdict: the measurement of quantised products; None if they were not asked for.
    """

    mode: str
    effects: Effects
    device: Device
    room: Room
    reasons: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None

    def models(self) -> list[dict[str, Any]]:
        """Figures about each model that the mode acts on."""
        running = _state
        return [] if running is None or running.active is not self else running.figures()


class _Local(threading.local):
    def __init__(self) -> None:
        self.root: Managed | None = None
        self.depth = 0
        self.frame: Any = None
        self.contexts = ExitStack()
        self.moving = False


_local = _Local()
_state: _Running | None = None
_apply: Callable[..., Any] = nn.Module._apply


def enable(
    mode: str | Effects = "balanced",
    *,
    config: Mapping[str, Any] | None = None,
    on: DeviceLike | None = None,
    format: str = "nvfp4",
    fallback: bool | None = None,
    measured: Verdict | None = None,
) -> Active:
    """Enable a mode for every module that is built, moved or called from now on; it replaces an enabled one.

    Args:
        mode: "balanced", "memory", "speed", "full", or single effects.
        config: the budgets, as in `read_room`; by default those of TOPROPE_DEVICE_MEMORY, else the free memory.
        on: the device that computes; None for the one that `toprope.device.get` gives.
        format: format of quantised weights.
        fallback: go on without effects that are not available, with one warning; None leaves it to TOPROPE_FALLBACK.
        measured: verdict on quantised products, instead of measuring it, for tests.

    Raises:
        ModeUnavailable: quantised products are not faster here, or the device does not multiply bf16; nothing changed.
        UsageError: there is no such mode, or the configuration cannot be read.
        SettingError: TOPROPE_DEVICE_MEMORY cannot be read.
        TopropeError: as for `toprope.device.get`.
    """
    global _state
    name = mode.strip().lower() if isinstance(mode, str) else ""
    effects = effects_of(mode) if isinstance(mode, str) else mode
    device = devices.get(on)
    room = read_room(config, os.environ)
    folder = folder_of(room)
    may_fall_back = Settings.load().fallback if fallback is None else fallback
    reasons: dict[str, str] = {}
    found = None
    if effects.quantise:
        found = measured or verdict(device, format)
        if not found.faster:
            reasons["quantise"] = found.text
    why = why_not_mixed(device) if effects.mixed else ""
    if why:
        reasons["mixed"] = why
    if effects.offload and folder is None and not device.capabilities.separate_memory:
        reasons["offload"] = "the device's memory is the host's, and there is no folder on a disk"
    if reasons:
        refuse(name, reasons, may_fall_back)
    effects = replace(effects, **dict.fromkeys(reasons, False))
    capacity = 0 if folder is None else room.disk or free_on_disk(folder)
    origins = Origins(device, folder, capacity)
    active = Active(name, effects, device, room, reasons, found)
    with _lock:
        disable()
        _state = _Running(active, Mode(effects, device, room, folder, format, origins))
        _state.install()
    return active


def disable() -> None:
    """Disable the mode and restore all models. Does nothing if no mode is enabled."""
    global _state
    with _lock:
        running, _state = _state, None
        if running is not None:
            running.remove()


def active() -> Active | None:
    """The enabled mode; None if there is none."""
    running = _state
    return None if running is None else running.active


def optimize(model: nn.Module) -> nn.Module:
    """Apply the mode to a model now, and not at its next move or call.

    Returns:
        The same model.

    Raises:
        UsageError: no mode is enabled.
        PlanError: the model cannot fit into the budgets.
    """
    running = _state
    if running is None:
        raise UsageError("no mode is on.", do='enable one first: modes.enable("balanced")')
    # weights are quantised where they may be; a call that trains restores them
    running.prepare(model, trains=_trains(model) and not running.mode.effects.quantise, gradients=False)
    return model


def _trains(model: nn.Module) -> bool:
    return model.training and torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters())


class _Running:
    """An enabled mode, with its hooks and models."""

    def __init__(self, active: Active, mode: Mode) -> None:
        self.active, self.mode = active, mode
        self.generation = 0
        self.managed: weakref.WeakKeyDictionary[nn.Module, Managed] = weakref.WeakKeyDictionary()
        self._undo: list[Callable[[], Any]] = []

    def install(self) -> None:
        """Register the hooks on torch."""
        self._undo.append(torchs.register_module_forward_pre_hook(_before).remove)
        self._undo.append(torchs.register_module_forward_hook(_after, always_call=True).remove)
        self._undo.append(torchs.register_module_module_registration_hook(_built).remove)
        self._undo.append(register_optimizer_step_pre_hook(_stepping).remove)
        nn.Module._apply = _moved  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(nn.Module, "_apply", _apply))
        if self.mode.effects.attention or self.mode.effects.quantise:
            # torch's fast path of nn.MultiheadAttention reads weights without calling their modules
            before = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            self._undo.append(lambda: torch.backends.mha.set_fastpath_enabled(before))

    def remove(self) -> None:
        """Remove the hooks, and restore all models."""
        while self._undo:
            self._undo.pop()()
        _clean_up()
        for each in list(self.managed.values()):
            each.close()
        self.managed.clear()
        self.mode.origins.close()

    def figures(self) -> list[dict[str, Any]]:
        """Figures of all models."""
        return [each.figures() for each in list(self.managed.values())]

    def prepare(
        self, model: nn.Module, *, trains: bool, gradients: bool, moving: torch.device | None = None
    ) -> Managed:
        """Apply the mode's effects to a model, unless they are applied already."""
        found = self.managed.get(model)
        prepared = (
            found is not None and found.called and found.generation == self.generation
            and (found.trains or not trains) and not self.mode.effects.quantise and moving is None
        )  # fmt: skip
        if found is None or not prepared:
            with _lock:
                found = self._managed(model)
                found.put_hooks(self.generation)
                found.make_fit(trains=trains, gradients=gradients, moving=moving)
        return found

    def _managed(self, model: nn.Module) -> Managed:
        found = self.managed.get(model)
        if found is None:
            for part in overlapping(list(self.managed.values()), model):
                part.close()
                del self.managed[part.model]
            found = self.managed[model] = Managed(model, self.mode)
        return found

    def inside(self, model: nn.Module) -> bool:
        """True if a model is a part of another managed model."""
        return any(id(model) in each.members and each.model is not model for each in list(self.managed.values()))


# Calls


def _before(module: nn.Module, args: tuple[Any, ...]) -> Any:
    if torch.compiler.is_compiling():
        return None
    local = _local
    if local.root is not None:
        if id(module) in local.root.members and module is not local.root.model:
            return None
        if _is_running(local.frame):
            local.depth += module is local.root.model
            return None
        _clean_up()  # an earlier call was interrupted
    running = _state
    if running is None or torch._C._current_graph_task_id() != -1 or getattr(module, "_is_replica", False):
        return None
    if outputs.transforming():
        return None
    if next(module.parameters(), None) is None or running.inside(module):
        return None
    had = set(module._forward_pre_hooks)
    gradients = torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters())
    found = running.prepare(module, trains=gradients and module.training, gradients=gradients)
    if running.mode.effects.quantise and gradients:
        found.warn("gradients", "weights are not quantised while they get gradients: use torch.no_grad() in inference")
    local.root, local.depth, local.frame = found, 1, sys._getframe(1)
    if running.mode.effects.mixed:
        device = running.mode.device.torch_device
        # a cache would keep every weight a second time
        local.contexts.enter_context(torch.autocast(device.type, torch.bfloat16, cache_enabled=False))
    return _call_new_hooks(module, had, args)


def _call_new_hooks(module: nn.Module, had: set[int], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Call hooks that were registered on a module during this call, as torch calls only those registered before."""
    new = [number for number in module._forward_pre_hooks if number not in had]
    kwargs: dict[str, Any] = sys._getframe(2).f_locals.get("kwargs", {}) if new else {}  # this call's own
    for number in new:
        hook: Any = module._forward_pre_hooks[number]
        if number in module._forward_pre_hooks_with_kwargs:
            changed = hook(module, args, kwargs)
            if changed is not None:
                args = changed[0]
                kwargs.update(changed[1])
        else:
            changed = hook(module, args)
            args = args if changed is None else changed if isinstance(changed, tuple) else (changed,)
    return args


def _after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    local = _local
    if torch.compiler.is_compiling() or local.root is None or module is not local.root.model:
        return None
    if torch._C._current_graph_task_id() != -1:
        return None
    local.depth -= 1
    if local.depth > 0:
        return None
    mixed = local.root.mode.effects.mixed
    local.root = local.frame = None
    local.contexts.close()
    return outputs.as_dtype_of(module, output) if mixed else None


def _is_running(called_from: Any) -> bool:
    """True if the call with this frame is still running."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame is called_from:
            return True
        frame = frame.f_back
    return False


def _clean_up() -> None:
    """Clean up after a call that was interrupted, such as by Ctrl-C."""
    recompute.end_interrupted()
    _local.root, _local.depth, _local.frame = None, 0, None
    _local.contexts.close()


# Modules that are built


def _built(parent: nn.Module, name: str, module: Any) -> None:
    running = _state
    if running is None or torch.compiler.is_compiling():
        return
    running.generation += 1
    device, budget = running.mode.device, running.mode.room.device
    if not isinstance(module, nn.Module) or not device.capabilities.separate_memory or running.inside(module):
        return
    mine = [each for each in module.parameters(recurse=True) if each.device.type == device.kind]
    if not mine:
        return
    if budget.size is not None:
        full = device.memory_allocated() > budget.size
    else:
        free = free_memory(device)
        full = free is not None and free < sum(each.nbytes for each in mine)
    if full:  # it was initialised with the device's own random numbers; now it waits on the host
        running.mode.waiting.add(module)
        for each in mine:
            set_data(each, each.data.cpu())


# Moves


def _moved(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    running, local = _state, _local
    if running is None or local.moving or torch.compiler.is_compiling() or not recurse:
        return _apply(self, fn, recurse)  # type: ignore[no-any-return]
    local.moving = True
    try:
        target = target_of(fn)
        if (
            target is not None
            and target.type == running.mode.device.kind
            and next(self.parameters(), None) is not None
            and not running.inside(self)
            and all(each.device.type != "meta" for each in self.parameters())
        ):
            running.prepare(self, trains=_trains(self), gradients=True, moving=target)
        apply: Callable[..., nn.Module] = self._apply  # its own, where it was attached just now
        return apply(fn, recurse)
    finally:
        local.moving = False


# Optimizers


def _stepping(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take over an optimizer whose states would not fit, from this step on; called before each step."""
    running = _state
    if running is None:
        return None

    def take(each: torch.optim.Optimizer) -> bool:  # by then a closure has run, which may have attached a model
        return any([one.optimizer(each) for one in list(running.managed.values())])  # noqa: C419 - all of them

    return stepping(optimizer, args, kwargs, take)
