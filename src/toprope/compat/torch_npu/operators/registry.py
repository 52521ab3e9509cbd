"""Registration of operators in torch.ops.npu and torch.ops.atb, with torch_npu's schemas.

Every operator module of this folder uses the decorator `operator`; the torch_npu facade calls `register`. An operator
is one function, decorated with its name; its schema, and whether it has a gradient, come from the vendor's table
(support/npu_operators.toml). An operator with a gradient on the card is composed of torch operators
(CompositeImplicitAutograd): autograd, torch.compile, the CPU and the simulated card see the torch operators inside. The
others compute without a gradient (CompositeExplicitAutograd), so that a backward pass ends there with torch's warning,
"an autograd kernel was not registered", as it does on the card.

The modules of this folder are searched for decorators as text (`_DECORATOR`), and imported when one of their operators
is first called: importing all of them takes half a second. Tests: tests/compat/test_torch_npu_facade.py,
tests/compat/test_vendor_names.py, tests/sim/simulated/test_npu_operators.py.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._ops import _OpNamespace
from torch.utils._python_dispatch import _disable_current_modes

from toprope.compat.missing import of_the_real_one
from toprope.support.npu_operators import npu_operators

from .checks import refuse

__all__ = ["OPERATORS", "Operator", "described", "operator", "register"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_DECORATOR = re.compile(r'^@operator\("([\w.]+)"(?:, composite=(True|False))?\)$', re.MULTILINE)
_LIBRARY: Any = torch.library.Library  # it has no annotations
_libraries: list[torch.library.Library] = []  # an operator lives as long as the library that defined it
_functions: dict[str, Callable[..., Any]] = {}


def operator(name: str, *, composite: bool | None = None) -> Callable[[_Function], _Function]:
    """Decorate the function that computes an operator. The line must be as `_DECORATOR` reads it.

    Args:
        name: of the operator in torch_npu, with its overload where it has one. Its parameters are those of the schema.
        composite: whether autograd sees what it consists of; None if it does so for operators with a gradient. True is
            for those that may return their argument.
    """

    def keep(function: _Function) -> _Function:
        _functions[name] = function
        return function

    return keep


@dataclass(frozen=True)
class Operator:
    """One overload of an operator.

    Attributes:
        name: with the overload.
        namespace: "npu" or "atb".
        schema: what follows the name: "(Tensor self, int dim=-1) -> Tensor".
        module: of this package, that has the function.
        composite: whether autograd sees what it consists of.
    """

    name: str
    namespace: str
    schema: str
    module: str
    composite: bool

    @property
    def function(self) -> Callable[..., Any]:
        """The function that computes it."""
        if self.name not in _functions:
            with _disable_current_modes():  # constants of the module are no fake tensors
                importlib.import_module(f"{__package__}.{self.module}")
        return _functions[self.name]


def _found() -> dict[str, Operator]:
    table = npu_operators()
    differentiable = {*table["differentiable"]}
    found: dict[str, Operator] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for name, composite in _DECORATOR.findall(path.read_text(encoding="utf-8")):
            namespace, schemas = ("npu", table["npu"]) if name in table["npu"] else ("atb", table["atb"])
            if name in found or name not in schemas:
                where = f"{found[name].module} has it, too" if name in found else f"it is not in {table['source']}"
                raise KeyError(f"operator {name} of {path.stem}: {where}")
            visible = composite == "True" if composite else name in differentiable
            found[name] = Operator(name, namespace, schemas[name], path.stem, visible)
    return found


OPERATORS: dict[str, Operator] = _found()
"""Every operator of the facade, by its name with overload ("npu_format_cast.Tensor")."""


def described(name: str) -> str:
    """Text of help() for an operator without overload: its schemas, and where the vendor describes it."""
    table = npu_operators()
    schemas = [f"{full}{made.schema}" for full, made in OPERATORS.items() if full.partition(".")[0] == name]
    page = table["pages"].get(name)
    where = f"page {table['pages_at']}/{page} of Ascend/op-plugin" if page else table["source"]
    return "\n".join([*schemas, "", f"Operator of torch_npu, composed of torch's own: {where}."])


_TWO_DEVICES = ("npu_fusion_attention_grad_v3",)
"""Operators with arguments on the CPU next to those on the card: a trace takes them only from a kernel of its own."""


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
        libraries[made.namespace].impl(name, _called(made), key)
    for name in _TWO_DEVICES:
        if name not in there:
            torch.library.register_fake(f"npu::{name}", _called(OPERATORS[name]), lib=libraries["npu"])
    _libraries.extend(libraries.values())
    for namespace in libraries:
        getattr(torch.ops, namespace).__class__ = _Namespace


class _Namespace(_OpNamespace):
    """`torch.ops.npu` and `torch.ops.atb`: the error of a missing operator says whether the real torch_npu has it."""

    def __getattr__(self, op_name: str) -> Any:
        try:
            return super().__getattr__(op_name)
        except AttributeError as error:
            if op_name.startswith("__"):  # Python's and TorchScript's own questions
                raise
            # not noted for the report: programs and toprope itself ask with hasattr which operators there are
            text = f"{error}: {of_the_real_one(f'torch.ops.{self.name}.{op_name}')}"
            raise AttributeError(text, name=op_name) from error


def _family() -> str:
    from toprope.sim.npu._state import chip  # only where there is a simulated card

    return chip().family


def _arguments(made: Operator) -> Any:
    packet, _, overload = made.name.partition(".")
    return getattr(getattr(getattr(torch.ops, made.namespace), packet), overload or "default")._schema.arguments


def _refuse_none(made: Operator, args: tuple[Any, ...]) -> None:
    for argument, given in zip(_arguments(made), args, strict=False):
        if given is None and str(argument.type) == "Tensor":
            refuse(made.name.partition(".")[0], f"{argument.name} is None; it must be a tensor")


def _is_recorded() -> bool:
    from toprope.sim.state import installed

    if installed() is None:
        return False
    from toprope.sim.composites import is_recorded

    return is_recorded()


def _run(made: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if made.composite:
        return made.function(*args, **kwargs)
    with torch.no_grad():
        return made.function(*args, **kwargs)


def _recorded(made: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `_run`, in the trace as one operator, which is what it is on a card."""
    from toprope.sim.composites import recorded

    schema = _arguments(made)
    given = {**dict(zip((each.name for each in schema), args, strict=False)), **kwargs}
    written = frozenset(each.name for each in schema if each.alias_info is not None and each.alias_info.is_write)
    name = f"{made.namespace}::{made.name.partition('.')[0]}"
    return recorded(name, lambda: _run(made, args, kwargs), given, written)


def _devices(made: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The tensors of a call with their devices: "query npu:0, key cpu"."""
    names = [argument.name for argument in _arguments(made)]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = {name: value[0] if isinstance(value, list | tuple) and value else value for name, value in given.items()}
    return ", ".join(f"{name} {value.device}" for name, value in found.items() if isinstance(value, torch.Tensor))


def _called(made: Operator) -> Callable[..., Any]:
    """The function as the dispatcher calls it: refused on chips that lack the operator, and with autocast off.

    torch_npu has no cast rule for its operators, so they see what they are given.
    """
    table, packet = npu_operators(), made.name.partition(".")[0]
    lacking = table["without"].get(packet, ())

    def compute(*args: Any, **kwargs: Any) -> Any:
        if any(arg is None for arg in args):
            _refuse_none(made, args)
        try:
            return _recorded(made, args, kwargs) if _is_recorded() else _run(made, args, kwargs)
        except RuntimeError as error:
            if "Expected all tensors to be on the same device" not in str(error):
                raise
            devices = _devices(made, args, kwargs)
            raise RuntimeError(f"{packet}: its tensors are on several devices: {devices}") from error

    def call(*args: Any, **kwargs: Any) -> Any:
        kind = args[0].device.type if args and isinstance(args[0], torch.Tensor) else "cpu"
        if lacking and kind == "npu" and (family := _family()) in lacking:
            page = f"{table['pages_at']}/{table['pages'][packet]} of Ascend/op-plugin"
            refuse(packet, f"the vendor does not list {family} among the products that have it ({page})")
        if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
            return compute(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return compute(*args, **kwargs)

    return call
