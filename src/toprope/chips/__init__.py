"""Data on Ascend chips: memory, cores, dtypes, bandwidth; every figure with the public source it was read from.

`get("910B3")` is the call; the simulator, estimates, tiers, doctor and cli use it. Data in TOML, one file per chip
family; nothing here imports torch, and the files are read when a chip is first asked for. `python -m toprope.chips`
prints the table. A new chip is one TOML entry (docs/adding.md). Tests: tests/base/test_chips.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.chips.catalogue import get, names
    from toprope.chips.model import Chip, Figure, Source

__all__ = ["Chip", "Figure", "Source", "get", "names"]

_HOMES = {"Chip": "model", "Figure": "model", "Source": "model", "get": "catalogue", "names": "catalogue"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))
