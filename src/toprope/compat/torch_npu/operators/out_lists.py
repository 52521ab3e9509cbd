"""Overloads that write into several tensors take them as one list as well: `out=[first, second]`.

torch takes the names of the schema alone; programs for the card, and torch_npu's documents, pass the list.
"""

from __future__ import annotations

from typing import Any

import torch

from .registry import OPERATORS

__all__ = ["take_out_lists"]


class _TakesList(torch._ops.OpOverload):
    """An overload whose results may be given as one list."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            names = [argument.name for argument in self._schema.arguments if argument.alias_info is not None]
            kwargs |= zip(names, kwargs.pop("out"), strict=True)
        return super().__call__(*args, **kwargs)


def take_out_lists() -> None:
    """Let the registered overloads named `out` with several results take a list."""
    for name, made in OPERATORS.items():
        packet, _, overload = name.partition(".")
        if overload != "out":
            continue
        owner = getattr(getattr(torch.ops, made.namespace), packet)
        plain = owner.out
        results = [argument for argument in plain._schema.arguments if argument.alias_info is not None]
        if len(results) > 1 and not isinstance(plain, _TakesList):
            taking = _TakesList.__new__(_TakesList)
            taking.__dict__ = plain.__dict__
            owner.out = taking
