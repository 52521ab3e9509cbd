"""Module `torch.npu.aclnn`: one switch of CANN's operator library (`allow_hf32`), kept and read back.

It has an effect with `numerics=card` alone. `torch.npu.conv.allow_hf32` is the same switch (npu_config.py). Tests:
tests/sim/simulated/test_npu_names.py, for the name.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from toprope.sim.npu.npu_config import conv

__all__ = ["allow_hf32", "flags", "set_flags", "version"]

_use_static_aclnn_kernel = False

allow_hf32: bool
"""The same as `torch.npu.conv.allow_hf32`."""


def version() -> None:
    """Warn that the library tells no version."""
    warnings.warn("torch.npu.aclnn.version isn't implemented!", stacklevel=2)


def set_flags(_allow_hf32: bool | None = None) -> tuple[bool]:
    """Set the switch unless the argument is None.

    Returns:
        What it was before, in a tuple.
    """
    before = bool(conv.allow_hf32)
    if _allow_hf32 is not None:
        conv.allow_hf32 = _allow_hf32
    return (before,)


@contextmanager
def flags(allow_hf32: bool = True) -> Iterator[None]:
    """Context in which the switch is set."""
    before = set_flags(allow_hf32)
    try:
        yield
    finally:
        set_flags(*before)


class _Aclnn(ModuleType):
    """This module with its switch as an attribute."""

    @property
    def allow_hf32(self) -> bool:
        return bool(conv.allow_hf32)

    @allow_hf32.setter
    def allow_hf32(self, value: bool) -> None:
        conv.allow_hf32 = value


sys.modules[__name__].__class__ = _Aclnn
