"""Take over torch optimizers: states in a store, steps tile by tile, with the same results.

`Handle.optimizer` and the hooks of `Handle` and of the modes come here; a step itself is in `training.stepping`. The
optimizer stays the same object and gets a subclass of its class, so that schedulers and GradScaler work with it, made
before or after; that relies on torch's private attributes (`hooked`, `_wrapped_by_lr_sched`, `_opt_called`). Its states
are `StoredTensor`s in `optimizer.state`. An optimizer of a new release of torch goes into `_ELEMENTWISE` or
`_BY_PARAMETER`; until then it is stepped as a whole. Tests: tests/tiers/test_tiers_training_optimizer.py; steps of
optimizers that nobody took over in tests/tiers/test_tiers_absent.py.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from toprope.errors import UnsupportedError, UsageError
from toprope.tiers.store.absent import is_absent
from toprope.tiers.store.base import Store
from toprope.tiers.store.memory import is_dense
from toprope.tiers.training.gradients import Place
from toprope.tiers.training.offloaded_tensor import StoredTensor, store_tensor
from toprope.tiers.training.stepping import ParameterStep, Stepper, is_elementwise
from toprope.tiers.training.tiles import Tile, tiles
from toprope.tiers.training.weights import Weights

__all__ = ["Optimizers", "kind_of", "stepping"]

Kind = Literal["elementwise", "parameter", "all"]
"""Data that the update of one element depends on: that element, its parameter, or all parameters."""

_ELEMENTWISE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
_BY_PARAMETER = ("Adafactor", "Muon")


def kind_of(optimizer: torch.optim.Optimizer) -> Kind:
    """The kind of an optimizer's class; "all" for unknown classes, such as those that override torch's step."""
    for cls in type(optimizer).__mro__:
        for kind, names in (("elementwise", _ELEMENTWISE), ("parameter", _BY_PARAMETER)):
            if cls in [getattr(torch.optim, name, None) for name in names]:
                return kind  # type: ignore[return-value]
        if {"step", "_init_group"} & vars(cls).keys():
            break
    return "all"


def stepping(
    optimizer: torch.optim.Optimizer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    take: Callable[[torch.optim.Optimizer], bool],
) -> Any:
    """Take over an optimizer in the hook before its step, and make this step tile by tile too.

    torch then calls the step of the old class: it gets a copy of the optimizer without parameters, and a closure that
    only returns the loss.

    Args:
        optimizer, args, kwargs: the hook's arguments.
        take: takes the optimizer over if needed, and returns True if it has; called after the closure has run the
            model, as the model may be attached only then.

    Returns:
        The result for the hook: new arguments of the step, or None.
    """
    if hasattr(optimizer, "plain_class"):
        return None
    plain, closure = type(optimizer), args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is not None and kind_of(optimizer) != "all":
        with torch.enable_grad():
            loss = closure()
        args, kwargs = (optimizer, lambda: loss), {}
    if not take(optimizer):
        return args, kwargs
    step: Any = type(optimizer).step
    step.__wrapped__(optimizer)
    idle = copy.copy(optimizer)
    idle.__class__ = plain
    vars(idle).pop("step", None)
    idle.param_groups = []
    return (idle, *args[1:]), {}


class Optimizers:
    """Takes over optimizers and makes their steps.

    Args:
        weights: access to the parameters' values.
        place: chooses the store for states; None for a parameter whose states stay on the device.
        store: store for states of an offloaded weight for which `place` gives none.
        room: bytes of the device that a step may use for tiles.
        tile: bytes of a weight in one tile.
        smallest: states and gradients with fewer bytes stay on the device.
    """

    def __init__(self, weights: Weights, place: Place, store: Store, *, room: int, tile: int, smallest: int) -> None:
        self.stepper = Stepper(weights, room)
        self.weights, self.place, self.store = weights, place, store
        self.tile, self.smallest = tile, smallest
        self.taken: list[Any] = []
        self._cuts: dict[torch.Tensor, list[Tile]] = {}
        self._kinds: dict[int, Kind] = {}

    def cut(self, parameter: torch.Tensor) -> list[Tile]:
        """The tiles of a parameter, and of its gradient and elementwise states."""
        return self._cuts.setdefault(parameter, self._cut(parameter, "elementwise", fused=False))

    def _cut(self, parameter: torch.Tensor, kind: Kind, *, fused: bool) -> list[Tile]:
        count = parameter.numel()
        if kind != "elementwise" or parameter.is_complex() or not is_dense(parameter):
            return [Tile(0, count, ((0, count),))]
        return tiles(count, self.tile // parameter.dtype.itemsize, torch.get_num_threads(), fused=fused)

    def take(self, optimizer: torch.optim.Optimizer, *, elementwise: bool | None = None) -> torch.optim.Optimizer:
        """Take over an optimizer: its states go to the store, its steps are made tile by tile.

        Args:
            optimizer: any optimizer of torch, or of a user's own class.
            elementwise: True if the update of an element depends only on this element of the parameter, its gradient
                and its states; None to decide by its class.

        Returns:
            The same object.

        Raises:
            UsageError: it was taken over already, or its step is differentiable.
            UnsupportedError: it updates all parameters together, and some of them are offloaded; or it updates weights
                of another attached model too.
        """
        if hasattr(optimizer, "plain_class"):
            raise UsageError("this optimizer's states are in a store already.", do="take each optimizer once")
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise UsageError(
                "gradients through an optimizer's step are not possible where its states are moved out.",
                do="make the optimizer with differentiable=False",
            )
        self._check_mine(optimizer)
        kind = kind_of(optimizer) if elementwise is None else "elementwise" if elementwise else "parameter"
        if kind == "all":
            self._check_resident(optimizer)
        plain_class = type(optimizer)
        optimizer.__class__ = _taken(plain_class)  # type: ignore[arg-type]
        optimizer.plain_class, optimizer.tiers = plain_class, self  # type: ignore[attr-defined]
        self._kinds[id(optimizer)] = kind
        self.taken.append(optimizer)
        if "step" in vars(optimizer):  # a scheduler has wrapped the step
            optimizer.step = _step_seen_by_schedulers(optimizer, type(optimizer))  # type: ignore[method-assign]
        for group in optimizer.param_groups:
            self._prepare_group(optimizer, group)
        return optimizer

    def _prepare_group(self, optimizer: Any, group: dict[str, Any]) -> None:
        """Choose the tiles of a group's parameters by its options, and move existing states to the store."""
        kind = self._kinds[id(optimizer)]
        for parameter in group["params"]:
            wanted = self._cut(parameter, kind, fused=bool(group.get("fused")))
            if self._cuts.get(parameter) != wanted:
                self._cuts[parameter] = wanted
                if isinstance(parameter.grad, StoredTensor):
                    blocks = parameter.grad.blocks
                    parameter.grad = store_tensor(blocks.store, blocks.label, parameter.grad.values(), wanted)
            if optimizer.state.get(parameter):
                self.move_out(parameter, optimizer.state[parameter])

    def move_out(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        """Move a parameter's states to the store: large ones, and all states of offloaded parameters."""
        stays = self.weights.resident(parameter) is not None
        store = self.place("states", parameter)
        if stays and store is None:
            return
        store = store or self.store
        for name, value in state.items():
            if not isinstance(value, torch.Tensor) or isinstance(value, StoredTensor):
                continue
            if value.nbytes < self.smallest and (stays or not is_elementwise(value, parameter)):
                continue
            count = value.numel()
            cut = self.cut(parameter) if is_elementwise(value, parameter) else [Tile(0, count, ((0, count),))]
            if count > 1:
                state[name] = store_tensor(store, f"state/{name}", value, cut)

    def step(self, optimizer: Any) -> None:
        """Make one step of an optimizer that was taken over."""
        self._check_mine(optimizer)
        plain = _unhooked(optimizer.plain_class.step)
        kind = self._kinds[id(optimizer)]
        if kind == "all":
            self._check_resident(optimizer)
        works = [
            self._work(each, group, optimizer.state[each])
            for group in optimizer.param_groups
            for each in group["params"]
            if each.grad is not None
        ]
        for group in optimizer.param_groups:
            mine = [each for each in works if each.group is group and each.store is None]
            if mine:
                self.stepper.whole(optimizer, plain, group, mine)
        moved = [each for each in works if each.store is not None]
        if moved:
            for each in moved:
                self.move_out(each.parameter, each.state)
            self.stepper.tiles(optimizer, plain, moved)
            for each in moved:
                self.move_out(each.parameter, each.state)
                torch.autograd.graph.increment_version(each.parameter)
        self.weights.updated()

    def _work(self, parameter: torch.Tensor, group: dict[str, Any], state: dict[str, Any]) -> ParameterStep:
        resident = self.weights.resident(parameter)
        small = parameter.nbytes < self.smallest
        store = None if resident is not None and small else self.place("states", parameter)
        if resident is None:
            store = store or self.store
        return ParameterStep(parameter, group, state, self.cut(parameter), resident, store)

    def load(self, optimizer: Any, state_dict: dict[str, Any], load: Callable[[dict[str, Any]], None]) -> None:
        """Load a state_dict, one tensor on the device at a time."""
        tensors: list[torch.Tensor] = []

        def light(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                tensors.append(value)
                return _Placeholder(len(tensors) - 1)
            return value

        states = {
            key: {name: light(each) for name, each in state.items()} if isinstance(state, dict) else state
            for key, state in state_dict["state"].items()
        }
        load({**state_dict, "state": states})
        for parameter, state in optimizer.state.items():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, _Placeholder):
                    state[name] = _cast(tensors[value.number], parameter, name)
                    self.move_out(parameter, state)
        for group in optimizer.param_groups:
            self._prepare_group(optimizer, group)

    def close(self) -> None:
        """Restore all optimizers, with their states on the devices of their parameters."""
        for optimizer in self.taken:
            if "step" in vars(optimizer):
                optimizer.step = _step_seen_by_schedulers(optimizer, optimizer.plain_class)
            optimizer.__class__ = optimizer.plain_class
            del optimizer.plain_class, optimizer.tiers
            for parameter, state in optimizer.state.items():
                for name, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, StoredTensor):
                        state[name] = value.on(parameter.device)
                    elif isinstance(value, torch.Tensor) and value.device.type not in ("cpu", parameter.device.type):
                        state[name] = value.to("cpu" if parameter.is_meta else parameter.device)
        self.taken.clear()

    def _check_mine(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if is_absent(parameter) and self.weights.resident(parameter) is not None:
                    raise UnsupportedError(
                        f"{type(optimizer).__name__} updates weights of two attached models, which no step can do.",
                        looked_at=f"{parameter!r} is of another model",
                        do="make one optimizer for each model",
                    )

    def _check_resident(self, optimizer: torch.optim.Optimizer) -> None:
        away = [
            tuple(each.shape)
            for group in optimizer.param_groups
            for each in group["params"]
            if self.weights.resident(each) is None
        ]
        if away:
            raise UnsupportedError(
                f"{type(optimizer).__name__} is not known to update each parameter for itself, and not all of them are "
                "on the device at once.",
                looked_at=f"{len(away)} parameters come and go, the first has the shape {away[0]}",
                do="give a budget that holds all weights; or, where its update of an element looks at nothing but this "
                "element, say handle.optimizer(..., elementwise=True)",
            )


class _Placeholder:
    """Replacement for a tensor while torch loads a state_dict."""

    def __init__(self, number: int) -> None:
        self.number = number


def _cast(value: torch.Tensor, parameter: torch.Tensor, name: str) -> torch.Tensor:
    """Cast a state like torch does when it loads one."""
    if parameter.is_floating_point():
        return value.to(dtype=parameter.dtype, device=parameter.device)
    return value.to(device=parameter.device)


def _unhooked(step: Any) -> Callable[..., Any]:
    """The step function without the wrapper that calls hooks, which are called once for the whole step."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def _step_seen_by_schedulers(optimizer: Any, cls: Any) -> Callable[..., Any]:
    """A step function that tells schedulers that it was called, like the one that a scheduler installs."""
    owner = weakref.ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer: Any = owner()
        optimizer._opt_called = True
        return cls.step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


@functools.cache
def _taken(plain_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Make the subclass for optimizers of a class that were taken over."""

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        if self.tiers._kinds[id(self)] == "all":
            self.tiers._check_resident(self)
            return _unhooked(plain_class.step)(self, *([] if closure is None else [closure]))
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self.tiers.step(self)
        return loss

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        self.tiers.load(self, state_dict, functools.partial(plain_class.load_state_dict, self))

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        plain_class.add_param_group(self, param_group)
        self.tiers._prepare_group(self, self.param_groups[-1])

    hooked = torch.optim.Optimizer.profile_hook_step(step)
    hooked.hooked = True  # type: ignore[attr-defined]
    members = {"step": hooked, "load_state_dict": load_state_dict, "add_param_group": add_param_group}
    return type(plain_class.__name__, (plain_class,), members | {"__module__": plain_class.__module__})
