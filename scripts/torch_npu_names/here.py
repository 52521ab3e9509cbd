"""The names of `torch.npu` here, read in a process of its own that has the simulated card.

Called by `report`. The process prints JSON, in the form that `published` has for the wheel: kinds of parameters are the
descriptions of `inspect`. It runs without the variables of this process's own card, so that each run describes the
same.

Tests: tests/compat/test_compat_torch_npu.py, which compares what it reads with the wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["read_here", "read_operators"]

LOOK = """
import enum, inspect, json, sys, types
import torch

def signature(function):
    return [
        (each.name, each.kind.description, None if each.default is each.empty else repr(each.default))
        for each in inspect.signature(function).parameters.values()
    ]

def member(owner, name):
    found = inspect.getattr_static(owner, name)
    if isinstance(found, property):
        return {"kind": "property"}
    kind = type(found).__name__ if isinstance(found, (staticmethod, classmethod)) else "method"
    function = getattr(found, "__func__", found)
    if not isinstance(function, types.FunctionType):
        return {"kind": "compiled"}
    found = signature(function)
    return {"kind": kind, "signature": found if kind == "staticmethod" else found[1:]}

def describe(thing):
    if isinstance(thing, types.ModuleType):
        return {"kind": "module"}
    if not isinstance(thing, type):
        return {"kind": "function", "signature": signature(thing)} if inspect.isroutine(thing) else {"kind": "object"}
    described = {"kind": "class", "members": {name: member(thing, name) for name in dir(thing) if name[0] != "_"}}
    if issubclass(thing, enum.Enum):
        described["constants"] = {name: each.value for name, each in thing.__members__.items()}
    for each in thing.__mro__:
        made = vars(each).get("__new__") or vars(each).get("__init__")
        made = getattr(made, "__func__", made)
        if isinstance(made, types.FunctionType):
            described["signature"] = signature(made)[1:]
            break
    return described

found = {}
for name in json.load(sys.stdin):
    place, parts = torch.npu, name.split(".")
    while len(parts) > 1 and not isinstance(place, type):
        place = getattr(place, parts.pop(0))
    if isinstance(place, type):
        found[name] = member(place, parts[0]) if hasattr(place, parts[0]) else None
    else:
        found[name] = describe(getattr(place, parts[0])) if hasattr(place, parts[0]) else None
json.dump(found, sys.stdout)
"""

OPERATORS = "import json; import toprope.compat.torch_npu as torch_npu; print(json.dumps([*torch_npu.OPERATORS]))"


def read_here(names: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """Describe each name: kind, signature, members; None for one that is not there."""
    read: dict[str, dict[str, Any] | None] = json.loads(_run(LOOK, json.dumps(list(names))))
    return read


def read_operators() -> set[str]:
    """Operators of the facade of torch_npu, without their overloads."""
    return {name.partition(".")[0] for name in json.loads(_run(OPERATORS, ""))}


def _run(program: str, given: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("TOPROPE_", "ASCEND_"))}
    variables |= {"TOPROPE_SIM": "910B3"} | {k: v for k, v in os.environ.items() if k == "TOPROPE_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        env=variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"torch.npu could not be read:\n{done.stderr}")
    return done.stdout
