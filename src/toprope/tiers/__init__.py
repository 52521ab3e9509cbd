"""Models larger than the memory of a device. So far: a stack of memory levels, on devices and on the host.

from toprope.tiers import Tier, TierStack

stack = TierStack([Tier.named("npu:0", 2 * 2**30), Tier.named("cpu", 8 * 2**30)])
stack.put("activations", tensor)   # level 0; what has no room there goes to the host, nothing is dropped
stack.access("activations")        # on the card again
"""

from toprope.tiers.linear import TierLinear
from toprope.tiers.stack import Reservation, TierStack
from toprope.tiers.tier import LevelStats, StackStats, Tier, free_memory

__all__ = ["LevelStats", "Reservation", "StackStats", "Tier", "TierLinear", "TierStack", "free_memory"]
