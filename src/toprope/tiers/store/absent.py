"""Weights that are not on the device: tensors without memory, whose every use is an error that names the weight.

A parameter stays the object that it is. While its weight is absent it has a class of its own, derived from the one it
had: what only asks for metadata works (shape, dtype, `grad`), all else raises `TierAbsentError`. Calls from C++ do not
see that class; they find the storage of `toprope.tiers.store.memory.placeholder`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from toprope.errors import TierAbsentError, UsageError

__all__ = ["Absence", "can_move", "is_absent", "present", "refuse", "set_data", "withdraw"]


@dataclass(frozen=True, slots=True)
class Absence:
    """Facts for the error about an absent weight.

    Attributes:
        name: of the weight.
        where: when it is on the device.
        remedy: what a program can do that needs it elsewhere.
        instead: functions that are computed with it all the same, by their names in `torch.nn.functional`.
        change: added to the remedy where a call changes values.
    """

    name: str
    where: str
    remedy: str
    instead: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    change: str = ""

    @classmethod
    def of(cls, name: str) -> Absence:
        """Of a weight of an attached model, by the name of its parameter."""
        module = name.rpartition(".")[0]
        return cls(
            name,
            f"its values come to the device while the module {module!r} runs" if module else "the model has to run",
            "to read or change values: with handle.weights(module): ...; to keep it on the device at all times: "
            f"attach(model, ..., resident=[{module!r}]); to have all of them back: handle.detach()",
            change="; an optimizer's step: handle.optimizer(optimizer)",
        )

    @classmethod
    def closed(cls, name: str, files: str | None) -> Absence:
        """Of a weight of a model that is not attached any more, and did not get its values back.

        Args:
            name: of the parameter.
            files: where the values are; None for nowhere.
        """
        if files is None:
            return cls(name, "its handle was closed without giving the weights back", "use handle.detach() instead")
        return cls(
            name,
            f"the model is not attached any more, and its values are in {files}",
            'attach the model again; or, to have it in memory, call handle.detach("cpu") before the `with` block ends',
        )


_KEY = "_toprope_absence"

_METADATA = frozenset((
    "dim", "ndimension", "size", "stride", "numel", "nelement", "element_size", "storage_offset", "is_contiguous",
    "is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg", "is_inference", "is_pinned", "is_same_size",
    "is_set_to", "is_shared", "get_device", "has_names", "requires_grad_", "register_hook",
    "register_post_accumulate_grad_hook", "retain_grad", "dim_order", "__hash__", "__len__", "__dlpack_device__",
    "__dir__", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "new_tensor", "result_type",
    "promote_types", "view_as", "grad", "untyped_storage",
))  # fmt: skip
"""Functions that look at no values. `view_as` is how autograd finds the node that accumulates a gradient;
programs tell tied weights by `untyped_storage`."""

_NOT_METADATA = frozenset(("__cuda_array_interface__",))
"""Attributes that give values."""


class _Absent:
    """Mixin for the class of an absent tensor."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "__delete__"):
            attribute = getattr(getattr(func, "__self__", None), "__name__", "")
            allowed = attribute not in _NOT_METADATA and not (attribute == "data" and name != "__get__")
        elif name == "type":
            allowed, attribute = len(args) == 1 and not kwargs, ""
        else:
            allowed, attribute = name in _METADATA or name == "detach", ""
        if not allowed:
            absence = _find((args, kwargs))
            given = kwargs or {}
            mine = args[0] if name == "__getitem__" else given.get("weight", args[1] if len(args) > 1 else None)
            if name in absence.instead and isinstance(mine, _Absent):
                return absence.instead[name](*args, **given)
            into = args[0] if args else given.get("tensor")
            into = into[0] if isinstance(into, (tuple, list)) and into else into
            changes = name.endswith("_") and not name.endswith("__") and isinstance(into, _Absent)
            _refuse(absence, attribute or name, changes=changes)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if name == "detach" or (attribute == "data" and name == "__get__"):
                result = result.as_subclass(_AbsentTensor)
                vars(result)[_KEY] = vars(args[0])[_KEY]
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override, unused-ignore]
        tensor: Any = self
        return f"<absent {vars(self)[_KEY].name}: {tuple(tensor.shape)}, {tensor.dtype}>"

    def __deepcopy__(self, memo: Any) -> NoReturn:
        _refuse(vars(self)[_KEY], "deepcopy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse(vars(self)[_KEY], "pickle")


class _AbsentTensor(_Absent, torch.Tensor):  # type: ignore[misc]
    """`weight.data` and `weight.detach()` of an absent weight."""


def _find(values: Any) -> Absence:
    """The first absent tensor among the arguments of a call."""
    waiting = [values]
    while waiting:
        each = waiting.pop()
        if isinstance(each, _Absent):
            found: Absence = vars(each)[_KEY]
            return found
        if isinstance(each, dict):
            waiting.extend(reversed(each.values()))
        elif isinstance(each, (tuple, list)):
            waiting.extend(reversed(each))
    return Absence.of("a weight")  # in a structure of torch's own


def refuse(parameter: nn.Parameter, call: str) -> NoReturn:
    """Raise that an absent weight cannot be used.

    Raises:
        TierAbsentError: always.
    """
    _refuse(vars(parameter)[_KEY], call)


def _refuse(absence: Absence, call: str, *, changes: bool = False) -> NoReturn:
    raise TierAbsentError(
        f"the weight {absence.name} is not on the device: {absence.where}.",
        looked_at=f"{call} was called on it outside of that",
        do=absence.remedy + (absence.change if changes else ""),
    )


@functools.cache
def _class(plain: type[torch.Tensor]) -> type[torch.Tensor]:
    members = {"plain_class": plain, "__module__": plain.__module__, "__slots__": ()}
    metaclass: Any = type(plain)
    made: type[torch.Tensor] = metaclass(plain.__name__, (_Absent, plain), members)
    return made


def is_absent(tensor: torch.Tensor) -> bool:
    """Tell if a parameter's weight is absent."""
    return isinstance(tensor, _Absent)


def withdraw(parameter: nn.Parameter, empty: torch.Tensor, absence: Absence) -> None:
    """Let a parameter of this device have no values.

    Args:
        parameter: the parameter.
        empty: its placeholder.
        absence: what errors say.
    """
    each: Any = parameter
    if not isinstance(each, _Absent):
        each.data = empty
        vars(each)[_KEY] = absence
        plain: Any = type(each)
        each.__class__ = _class(plain)


def present(parameter: nn.Parameter) -> None:
    """Give a parameter its own class back, before it gets values."""
    absent: Any = parameter
    if isinstance(absent, _Absent):
        absent.__class__ = type(absent).plain_class  # type: ignore[attr-defined]
        vars(absent).pop(_KEY, None)


def can_move(parameter: nn.Parameter, device: torch.device) -> bool:
    """Tell if `set_data` can let a parameter hold a tensor of this device: no graph that is alive may refer to it."""
    with torch._C.DisableTorchFunctionSubclass():
        if torch._has_compatible_shallow_copy_type(parameter, torch.empty(0, device=device)):
            return True
        if weakref.getweakrefs(parameter):
            return False
        count = parameter._use_count()  # type: ignore[attr-defined]
        if count != 2 or not (parameter.is_leaf and parameter.requires_grad):
            return bool(count == 1)
        node = torch.autograd.graph.get_gradient_edge(parameter).node  # a graph that has saved no values of it
        return node is not None and bool(parameter._use_count() == 2)  # type: ignore[attr-defined]


def set_data(parameter: nn.Parameter, tensor: torch.Tensor) -> None:
    """Let a parameter hold this tensor, wherever it is; the parameter stays the object that it is."""
    absence = vars(parameter).get(_KEY) if is_absent(parameter) else None
    present(parameter)
    with torch.no_grad(), torch.inference_mode(False):
        plain = not is_traceable_wrapper_subclass(tensor)  # the parts of others do not follow `data`
        if plain and torch._has_compatible_shallow_copy_type(parameter, tensor):
            parameter.data = tensor
            return
        new = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
        new.__class__ = parameter.__class__
        new.__dict__.update({**parameter.__dict__, **new.__dict__})  # its own parts, where it has such
        gradient, parameter.grad = parameter.grad, None
        try:
            torch.utils.swap_tensors(parameter, new)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            parameter.grad = gradient
            if absence is not None:
                withdraw(parameter, parameter.data, absence)
            raise UsageError(
                "a parameter cannot move to another device and stay the object that it is.",
                looked_at=str(error).splitlines()[0],
                do="delete outputs and losses that record gradients; or attach the model before anything else refers "
                "to its parameters, or move it there before",
            ) from error
        if gradient is not None and "meta" not in (gradient.device.type, tensor.device.type):
            parameter.grad = gradient.to(tensor.device)
