"""Functions that the modules of the torch_npu facade share: its version, the current `torch.npu`, and what it imports.

`alias_npu` makes `torch_npu.npu` the same module as `torch.npu`. Which modules must be imported first, and the values
of TORCH_TRANSFER_TO_NPU, are torch_npu's. Tests: tests/compat/test_torch_npu_facade.py,
tests/compat/test_transfer_to_npu.py, tests/compat/test_finder.py.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

import torch

from toprope.compat import no_npu
from toprope.compat.torch_import import TRANSFER

__all__ = ["alias_npu", "current_npu", "needs_import", "transfer_is_wanted", "version"]

_NAME = "torch_npu"
_NOT_LOADED = ("_inductor", "testing")


def version() -> str:
    """The version of torch that the facade goes with, without a local part: torch_npu is numbered by it."""
    return torch.__version__.partition("+")[0]


def current_npu() -> ModuleType:
    """`torch.npu` as it is now; where there is none, the one that says that there is no card."""
    module: ModuleType = vars(torch).get("npu", no_npu)
    return module


def alias_npu(package: str) -> None:
    """Make `torch_npu.npu` and the modules in it importable: they are `torch.npu` and those in it.

    Args:
        package: name under which the facade is being imported; only as "torch_npu" does it change anything.
    """
    if package != _NAME:
        return
    no_npu.install()
    npu = current_npu()
    for name, module in list(sys.modules.items()):
        if module is npu or name.startswith(f"{npu.__name__}."):
            inside = module.__name__.removeprefix(npu.__name__)
            sys.modules[f"{_NAME}.npu{inside}"] = module


def needs_import(package: str, name: str) -> None:
    """Refuse a module of the facade that the program has not imported. The real torch_npu does not import it either.

    Args:
        package: name of the facade.
        name: what is asked for in it.

    Raises:
        AttributeError: it is one of these modules.
    """
    if name in _NOT_LOADED:
        raise AttributeError(f"module {package!r} has no attribute {name!r}: import {package}.{name} first", name=name)


def transfer_is_wanted() -> bool:
    """Read torch_npu's own switch, which asks for `contrib.transfer_to_npu` in a program that does not import it.

    Raises:
        ValueError: it is neither 0 nor 1.
    """
    text = os.environ.get(TRANSFER, "0")
    if text not in ("0", "1"):
        raise ValueError(f"{TRANSFER} is {text!r}; it can be 0 or 1.")
    return text == "1"
