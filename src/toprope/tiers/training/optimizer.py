"""Any torch optimizer, its states in a store, its step tile by tile, its numbers as they would be.

The optimizer stays the object that it is, with its class as base class: schedulers and GradScaler work on it, whether
they were made before or after. Its states are `StoredTensor`s in `optimizer.state`.
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
from toprope.tiers.training.stepping import Stepper, Work, is_elementwise
from toprope.tiers.training.tiles import Tile, tiles
from toprope.tiers.training.weights import Weights

__all__ = ["Optimizers", "kind_of", "stepping"]

Kind = Literal["elementwise", "parameter", "all"]
"""What an update of one element looks at: that element, its parameter, or all parameters."""

_ELEMENTWISE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
_BY_PARAMETER = ("Adafactor", "Muon")


def kind_of(optimizer: torch.optim.Optimizer) -> Kind:
    """What is known of an optimizer's class; one that overrides torch's step is unknown, which is "all"."""
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
    """In a hook before an optimizer's step: take it over, and make this step as all that follow.

    torch goes on to call the step of the class that it had: it gets a copy without parameters, and a closure that only
    gives the loss.

    Args:
        optimizer, args, kwargs: of the hook.
        take: takes it over where that is needed, and says whether it was; called after the closure has run the model,
            whose weights may come and go only then.

    Returns:
        What the hook returns.
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
    """Takes optimizers over and makes their steps.

    Args:
        weights: where the parameters lie.
        place: where states go; None for a parameter whose states stay.
        store: where they go if the weight comes and goes, and `place` says that they stay.
        room: bytes of the device that a step may use for tiles.
        tile: bytes of a weight that are moved at once.
        smallest: states and gradients of fewer bytes stay on the device.
    """

    def __init__(self, weights: Weights, place: Place, store: Store, *, room: int, tile: int, smallest: int) -> None:
        self.stepper = Stepper(weights, room)
        self.weights, self.place, self.store = weights, place, store
        self.tile, self.smallest = tile, smallest
        self.taken: list[Any] = []
        self._cuts: dict[torch.Tensor, list[Tile]] = {}
        self._kinds: dict[int, Kind] = {}

    def cut(self, parameter: torch.Tensor) -> list[Tile]:
        """The tiles of a parameter, and of all that has a value for each of its elements."""
        return self._cuts.setdefault(parameter, self._cut(parameter, "elementwise", fused=False))

    def _cut(self, parameter: torch.Tensor, kind: Kind, *, fused: bool) -> list[Tile]:
        count = parameter.numel()
        if kind != "elementwise" or parameter.is_complex() or not is_dense(parameter):
            return [Tile(0, count, ((0, count),))]
        return tiles(count, self.tile // parameter.dtype.itemsize, torch.get_num_threads(), fused=fused)

    def take(self, optimizer: torch.optim.Optimizer, *, elementwise: bool | None = None) -> torch.optim.Optimizer:
        """Make an optimizer one whose states are in the store; the same object.

        Args:
            optimizer: any optimizer of torch, or a class of one's own.
            elementwise: whether its update of an element looks at nothing but this element of the parameter, its
                gradient and its states; None for what is known of its class.

        Raises:
            UsageError: it was taken already, or its step is to be differentiable.
            UnsupportedError: it updates all parameters at once, and some of them come and go; or weights of another
                attached model too.
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
        if "step" in vars(optimizer):  # a scheduler has put its own call around the step
            optimizer.step = _counted(optimizer, type(optimizer))  # type: ignore[method-assign]
        for group in optimizer.param_groups:
            self._settle(optimizer, group)
        return optimizer

    def _settle(self, optimizer: Any, group: dict[str, Any]) -> None:
        """Cut a group's parameters as its options ask for, and move what states there are."""
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
        """Put a parameter's states into the store, those that are large, or whose parameter comes and goes."""
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
        """One step of an optimizer that was taken."""
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

    def _work(self, parameter: torch.Tensor, group: dict[str, Any], state: dict[str, Any]) -> Work:
        resident = self.weights.resident(parameter)
        small = parameter.nbytes < self.smallest
        store = None if resident is not None and small else self.place("states", parameter)
        if resident is None:
            store = store or self.store
        return Work(parameter, group, state, self.cut(parameter), resident, store)

    def load(self, optimizer: Any, state_dict: dict[str, Any], load: Callable[[dict[str, Any]], None]) -> None:
        """Load a state_dict, one tensor on the device at a time."""
        tensors: list[torch.Tensor] = []

        def light(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                tensors.append(value)
                return _Ticket(len(tensors) - 1)
            return value

        states = {
            key: {name: light(each) for name, each in state.items()} if isinstance(state, dict) else state
            for key, state in state_dict["state"].items()
        }
        load({**state_dict, "state": states})
        for parameter, state in optimizer.state.items():
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, _Ticket):
                    state[name] = _cast(tensors[value.number], parameter, name)
                    self.move_out(parameter, state)
        for group in optimizer.param_groups:
            self._settle(optimizer, group)

    def close(self) -> None:
        """Leave all optimizers as torch made them, their states where their parameters are."""
        for optimizer in self.taken:
            if "step" in vars(optimizer):
                optimizer.step = _counted(optimizer, optimizer.plain_class)
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


class _Ticket:
    """Stands for a tensor while torch loads a state_dict."""

    def __init__(self, number: int) -> None:
        self.number = number


def _cast(value: torch.Tensor, parameter: torch.Tensor, name: str) -> torch.Tensor:
    """As torch casts states when it loads them."""
    if parameter.is_floating_point():
        return value.to(dtype=parameter.dtype, device=parameter.device)
    return value.to(device=parameter.device)


def _unhooked(step: Any) -> Callable[..., Any]:
    """A step without the calls of hooks around it: they are for the whole step."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def _counted(optimizer: Any, cls: Any) -> Callable[..., Any]:
    """A step that tells schedulers that it was called, as theirs does."""
    owner = weakref.ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer: Any = owner()
        optimizer._opt_called = True
        return cls.step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


@functools.cache
def _taken(plain_class: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class of an optimizer of this class that was taken."""

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
        self.tiers._settle(self, self.param_groups[-1])

    hooked = torch.optim.Optimizer.profile_hook_step(step)
    hooked.hooked = True  # type: ignore[attr-defined]
    members = {"step": hooked, "load_state_dict": load_state_dict, "add_param_group": add_param_group}
    return type(plain_class.__name__, (plain_class,), members | {"__module__": plain_class.__module__})
