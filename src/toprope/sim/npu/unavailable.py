"""Part of `torch.npu`: names that torch_npu has and the simulated card cannot have.

Each can be looked up, and raises an error that says so when it is used. A name that the card gets leaves here;
names.toml follows. Tests: tests/sim/simulated/test_npu_names.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toprope.sim.npu._state import not_here

__all__ = ["NAMES"]

_DUMP = "CANN's dumps of operators are not simulated"
_ALLOCATOR = "its allocator cannot be replaced"
_OBFUSCATION = "CANN's obfuscation of models is not simulated"
_FORMATS = "it has no formats of its own for matrix products"

_FUNCTIONS = {
    "change_current_allocator": _ALLOCATOR,
    "finalize_dump": _DUMP,
    "get_mm_bmm_format_nd": _FORMATS,
    "init_dump": _DUMP,
    "obfuscation_calculate": _OBFUSCATION,
    "obfuscation_finalize": _OBFUSCATION,
    "obfuscation_initialize": _OBFUSCATION,
    "set_aoe": "CANN's tuning of operators is not simulated",
    "set_dump": _DUMP,
    "set_mm_bmm_format_nd": _FORMATS,
    "stress_detect": "it has no hardware to put under stress",
}

_CLASSES = {"NPUPluggableAllocator": _ALLOCATOR}


class NotHereError(NotImplementedError, AttributeError):
    """An attribute of a module that is not there; AttributeError, too, so that hasattr and getattr work."""


def _function(name: str, why: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise not_here(name, why)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Not there: {why}.\n\nRaises:\n    NotImplementedError: always.\n"
    return refuse


def _class(name: str, why: str) -> type:
    def refuse(self: object, *args: Any, **kwargs: Any) -> None:
        raise not_here(name, why)

    return type(name, (), {"__init__": refuse, "__module__": "torch.npu", "__doc__": f"Not there: {why}."})


NAMES: dict[str, Any] = {name: _function(name, why) for name, why in _FUNCTIONS.items()}
NAMES |= {name: _class(name, why) for name, why in _CLASSES.items()}
"""The functions and classes by name. A class can be named in isinstance and annotations; making one raises."""
