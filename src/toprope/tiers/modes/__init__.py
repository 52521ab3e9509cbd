"""Modes: settings for a whole program that act on every model that is built, moved or called while one is enabled.

    from toprope.tiers import modes

    modes.enable("balanced", config={"device": "8GB"})  # offloads weights that do not fit; uses torch's fused attention
    modes.active().effects, modes.active().models()     # the effects of the mode, and what it did to each model
    modes.disable()                                     # restores all models

Importing this imports no torch, and changes nothing. The facade `apt_model.optimization.vb_global` calls it, too.
Tests: tests/tiers/test_tiers_modes.py, tests/project/test_without_torch.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.tiers.modes.names import MODES, Effects, asked_for
    from toprope.tiers.modes.switch import Active, active, disable, enable, optimize
    from toprope.tiers.quant.measure import Verdict, verdict

__all__ = ["MODES", "Active", "Effects", "Verdict", "active", "asked_for", "disable", "enable", "optimize", "verdict"]

_HOMES = {
    "MODES": "names",
    "Active": "switch",
    "Effects": "names",
    "Verdict": "toprope.tiers.quant.measure",
    "active": "switch",
    "asked_for": "names",
    "disable": "switch",
    "enable": "switch",
    "optimize": "switch",
    "verdict": "toprope.tiers.quant.measure",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name] if "." in _HOMES[name] else f"{__name__}.{_HOMES[name]}"
    return globals().setdefault(name, getattr(import_module(home), name))
