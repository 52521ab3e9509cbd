"""Run models larger than the memory of a device: attach a model, plan it, or keep tensors in a stack of levels.

    from toprope.tiers import Tier, TierStack

    stack = TierStack([Tier.named("npu:0", 2 * 2**30), Tier.named("cpu", 8 * 2**30), Tier.named("ssd", 32 * 2**30)])
    stack.put("activations", tensor)   # level 0; tensors without room there go to the host, then to a file
    stack.access("activations")        # on the card again

`toprope.tiers.plan` needs no torch, and importing this imports none. Only the public names are here. Tests:
tests/base/test_import.py, tests/project/test_without_torch.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.tiers.engine.attach import attach
    from toprope.tiers.engine.handle import Handle
    from toprope.tiers.engine.model.weight_files import skeleton
    from toprope.tiers.engine.stats import Stats
    from toprope.tiers.stack.linear import TierLinear
    from toprope.tiers.stack.stack import Reservation, TierStack
    from toprope.tiers.stack.tier import LevelStats, StackStats, Tier
    from toprope.tiers.store.memory import free_memory

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
    "Handle": "engine.handle",
    "LevelStats": "stack.tier",
    "Reservation": "stack.stack",
    "StackStats": "stack.tier",
    "Stats": "engine.stats",
    "Tier": "stack.tier",
    "TierLinear": "stack.linear",
    "TierStack": "stack.stack",
    "attach": "engine.attach",
    "free_memory": "store.memory",
    "skeleton": "engine.model.weight_files",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        from toprope.extras import explained

        raise explained(error, __name__) from None
    return globals().setdefault(name, getattr(home, name))
