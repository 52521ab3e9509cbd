"""Look-up of the facade's operators when a layer of this folder runs: a layer can be made without its operator.

Used by the modules next to it. Also the deprecation warning that torch_npu gives for some layers, in its words and at
the line of the program that makes one. Tests: tests/compat/test_torch_npu_contrib.py.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

__all__ = ["deprecated", "npu", "operator"]

_FACADE = __name__.rpartition(".contrib.")[0]


def operator(name: str) -> Any:
    """The operator `torch_npu.<name>`.

    Raises:
        AttributeError: the facade does not have it.
    """
    return getattr(importlib.import_module(_FACADE), name)


def npu() -> Any:
    """`torch.npu`."""
    return operator("npu")


def deprecated(name: str, instead: str = "") -> None:
    """Warn that a layer is deprecated, at the line that makes one."""
    hint = f"Please use {instead} as a replacement." if instead else "Please check the documentation for a replacement."
    warnings.warn(f"torch_npu.contrib.{name} is deprecated. {hint}", FutureWarning, stacklevel=3)
