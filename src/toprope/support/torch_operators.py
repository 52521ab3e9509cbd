"""Operators that torch's functions, methods and layers call; pure, from torch_operators.toml.

port/rules/operators.py asks it to tell which calls of a program leave the card. scripts/torch_operators.py records the
table from torch itself, for one release of torch: run it again for a new one. A name that is not in it is unknown,
never "supported". Tests: tests/port/test_port_operators.py.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

__all__ = ["Calls", "function", "is_function", "method"]


@dataclass(frozen=True)
class Calls:
    """Operators behind one name of torch.

    Attributes:
        every: those of every call, with their overload: "aten::linalg_inv_ex".
        some: those of some calls, which depends on the arguments.
    """

    every: tuple[str, ...]
    some: tuple[str, ...]


def function(name: str) -> Calls | None:
    """Return what a function or layer below torch calls ("linalg.inv", "nn.HuberLoss"); None where it is unknown."""
    return _tables()["functions"].get(name)


def method(name: str) -> Calls | None:
    """Return what a method of tensors calls; None where it is unknown."""
    return _tables()["methods"].get(name)


def is_function(name: str) -> bool:
    """Return True if torch computes with a function or layer of this name, recorded or not."""
    return name in _tables()["functions"] or name in _unrecorded()


@functools.cache
def _unrecorded() -> frozenset[str]:
    return frozenset(_data()["unrecorded"].split())


@functools.cache
def _tables() -> dict[str, dict[str, Calls]]:
    data = _data()
    return {table: {name: _calls(text) for name, text in data[table].items()} for table in ("functions", "methods")}


def _calls(text: str) -> Calls:
    every, _, some = text.partition("|")
    return Calls(*(tuple(f"aten::{name}" for name in part.split()) for part in (every, some)))


@functools.cache
def _data() -> dict[str, Any]:
    text = resources.files("toprope.support").joinpath("torch_operators.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
