"""Models larger than the memory of a device: attached to it, planned, or as tensors in a stack of levels.

from toprope.tiers import Tier, TierStack

stack = TierStack([Tier.named("npu:0", 2 * 2**30), Tier.named("cpu", 8 * 2**30), Tier.named("ssd", 32 * 2**30)])
stack.put("activations", tensor)   # level 0; what has no room there goes to the host, then to a file
stack.access("activations")        # on the card again

`toprope.tiers.plan` needs no torch, and importing this imports none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.tiers.attaching import attach
    from toprope.tiers.handle import Handle
    from toprope.tiers.linear import TierLinear
    from toprope.tiers.load import skeleton
    from toprope.tiers.stack import Reservation, TierStack
    from toprope.tiers.stats import Stats
    from toprope.tiers.tier import LevelStats, StackStats, Tier, free_memory

__all__ = [
    "Handle",
    "LevelStats",
    "Reservation",
    "StackStats",
    "Stats",
    "Tier",
    "TierLinear",
    "TierStack",
    "attach",
    "free_memory",
    "skeleton",
]

_HOMES = {
    "Handle": "handle",
    "LevelStats": "tier",
    "Reservation": "stack",
    "StackStats": "tier",
    "Stats": "stats",
    "Tier": "tier",
    "TierLinear": "linear",
    "TierStack": "stack",
    "attach": "attaching",
    "free_memory": "tier",
    "skeleton": "load",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))
