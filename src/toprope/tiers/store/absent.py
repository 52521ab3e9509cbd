"""Weights that are not on the device: tensors without memory; using their values is an error with the weight's name.

All of `tiers.engine` takes parameters' values away (`withdraw`) and gives them back (`set_data`) by these functions,
and so do the modes. A parameter stays the same object. While its weight is absent it has a class derived from its own:
metadata works (shape, dtype, `grad`), everything else raises `TierAbsentError`. C++ code does not see that class; it
finds the storage of `toprope.tiers.store.memory.placeholder`. Relies on private names of torch (`torch._C`). Tests:
tests/tiers/test_tiers_absent.py (what must work and what must raise), tests/tiers/test_tiers_detach.py.
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
        name: the weight's name.
        where: explanation of when it is on the device.
        remedy: advice for a program that needs it at another time.
        instead: replacements for functions that work without its values, by their names in `torch.nn.functional`.
        change: text added to the remedy if a call changes values.
    """

    name: str
    where: str
    remedy: str
    instead: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    change: str = ""

    @classmethod
    def of(cls, name: str) -> Absence:
        """Facts about a weight of an attached model, by the name of its parameter."""
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
        """Facts about a weight of a model that was detached without its values.

        Args:
            name: the parameter's name.
            files: folder of the files with the values; None if there are none.
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
"""Functions that use no values. With `view_as` autograd finds the node that accumulates a gradient; with
`untyped_storage` programs recognise tied weights."""

_NOT_METADATA = frozenset(("__cuda_array_interface__",))
"""Attributes that use values."""


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
    """Class of `weight.data` and `weight.detach()` of an absent weight."""


def _find(values: Any) -> Absence:
    """Facts about the first absent tensor among the arguments of a call."""
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
    return Absence.of("a weight")  # inside a structure of torch


def refuse(parameter: nn.Parameter, call: str) -> NoReturn:
    """Raise the error that an absent weight cannot be used.

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
    """True if a parameter's weight is absent."""
    return isinstance(tensor, _Absent)


def withdraw(parameter: nn.Parameter, empty: torch.Tensor, absence: Absence) -> None:
    """Replace the values of a parameter on this device by a placeholder.

    Args:
        parameter: the parameter.
        empty: the placeholder.
        absence: facts for errors.
    """
    each: Any = parameter
    if not isinstance(each, _Absent):
        each.data = empty
        vars(each)[_KEY] = absence
        plain: Any = type(each)
        each.__class__ = _class(plain)


def present(parameter: nn.Parameter) -> None:
    """Restore the class of a parameter before it gets values."""
    absent: Any = parameter
    if isinstance(absent, _Absent):
        absent.__class__ = type(absent).plain_class  # type: ignore[attr-defined]
        vars(absent).pop(_KEY, None)


def can_move(parameter: nn.Parameter, device: torch.device) -> bool:
    """True if `set_data` can give a parameter a tensor on this device, which no living graph may refer to."""
    with torch._C.DisableTorchFunctionSubclass():
        if torch._has_compatible_shallow_copy_type(parameter, torch.empty(0, device=device)):
            return True
        if weakref.getweakrefs(parameter):
            return False
        count = parameter._use_count()  # type: ignore[attr-defined]
        if count != 2 or not (parameter.is_leaf and parameter.requires_grad):
            return bool(count == 1)
        node = torch.autograd.graph.get_gradient_edge(parameter).node  # of a graph that has not saved its values
        return node is not None and bool(parameter._use_count() == 2)  # type: ignore[attr-defined]


def set_data(parameter: nn.Parameter, tensor: torch.Tensor) -> None:
    """Give a parameter the memory of a tensor on any device; the parameter stays the same object."""
    absence = vars(parameter).get(_KEY) if is_absent(parameter) else None
    present(parameter)
    with torch.no_grad(), torch.inference_mode(False):
        plain = not is_traceable_wrapper_subclass(tensor)  # setting `data` does not set a wrapper's inner tensors
        if plain and torch._has_compatible_shallow_copy_type(parameter, tensor):
            parameter.data = tensor
            return
        new = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
        new.__class__ = parameter.__class__
        new.__dict__.update({**parameter.__dict__, **new.__dict__})  # a wrapper's inner tensors are in its __dict__
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
