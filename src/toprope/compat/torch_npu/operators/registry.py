"""Registration of operators in torch.ops.npu and torch.ops.atb, with torch_npu's schemas.

An operator is one function, decorated with its name. The vendor's table decides the rest. One that has a gradient on
the card is composed of torch operators (CompositeImplicitAutograd): autograd, torch.compile, the CPU and the simulated
card see the operators that it consists of. The others compute without a gradient (CompositeExplicitAutograd), so that a
backward pass ends there with torch's warning, "an autograd kernel was not registered", as it does on the card.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from toprope.support.npu_operators import npu_operators

from .checks import refuse

__all__ = ["OPERATORS", "Operator", "operator", "register"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operator:
    """One overload of an operator.

    Attributes:
        namespace: "npu" or "atb".
        schema: what follows the name: "(Tensor self, int dim=-1) -> Tensor".
        function: computes it.
        composite: whether autograd sees what it consists of.
    """

    namespace: str
    schema: str
    function: Callable[..., Any]
    composite: bool


OPERATORS: dict[str, Operator] = {}
"""Every operator of the facade, by its name with overload ("npu_format_cast.Tensor")."""

_LIBRARY: Any = torch.library.Library  # it has no annotations
_libraries: list[torch.library.Library] = []  # an operator lives as long as the library that defined it


def operator(name: str, *, composite: bool | None = None) -> Callable[[_Function], _Function]:
    """Decorate the function that computes an operator.

    Args:
        name: of the operator in torch_npu, with its overload where it has one. Its parameters are those of the schema.
        composite: whether autograd sees what it consists of; None if it does so for operators with a gradient. True is
            for those that may return their argument.

    Raises:
        KeyError: torch_npu has no operator of this name, or it is there already.
    """
    table = npu_operators()
    namespace, schemas = ("npu", table["npu"]) if name in table["npu"] else ("atb", table["atb"])
    if name not in schemas:
        raise KeyError(f"torch_npu has no operator {name} ({table['source']})")
    if name in OPERATORS:
        raise KeyError(f"{name} is already computed by {OPERATORS[name].function}")
    visible = name in table["differentiable"] if composite is None else composite

    def keep(function: _Function) -> _Function:
        OPERATORS[name] = Operator(namespace, schemas[name], function, visible)
        return function

    return keep


def register() -> None:
    """Define the operators in torch.ops; those that are there already stay."""
    libraries = {namespace: _LIBRARY(namespace, "FRAGMENT") for namespace in ("npu", "atb")}
    there = {
        name for name, made in OPERATORS.items() if hasattr(getattr(torch.ops, made.namespace), name.partition(".")[0])
    }
    for name, made in OPERATORS.items():
        if name in there:
            continue
        key = "CompositeImplicitAutograd" if made.composite else "CompositeExplicitAutograd"
        libraries[made.namespace].define(name + made.schema)
        function = made.function if made.composite else torch.no_grad()(made.function)
        libraries[made.namespace].impl(name, _called(name, function), key)
    _libraries.extend(libraries.values())


def _family() -> str:
    from toprope.sim.npu._state import chip  # only where there is a simulated card

    return chip().family


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the dispatcher calls it: refused on chips that lack the operator, and with autocast off.

    torch_npu has no cast rule for its operators, so they see what they are given.
    """
    table, packet = npu_operators(), name.partition(".")[0]
    lacking = table["without"].get(packet, ())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kind = args[0].device.type if args and isinstance(args[0], torch.Tensor) else "cpu"
        if lacking and kind == "npu" and (family := _family()) in lacking:
            page = f"{table['pages_at']}/{table['pages'][packet]} of Ascend/op-plugin"
            refuse(packet, f"the vendor does not list {family} among the products that have it ({page})")
        if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
            return function(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return function(*args, **kwargs)

    return call
