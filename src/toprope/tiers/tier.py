"""What a stack is made of, and the figures it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from toprope import device as devices
from toprope.device import Device
from toprope.errors import TierCapacityError, UnsupportedError, UsageError
from toprope.sizes import gibibytes

__all__ = ["LevelStats", "StackStats", "Tier", "check_memory", "free_memory"]


@dataclass(frozen=True)
class Tier:
    """One level of a stack.

    Attributes:
        device: whose memory it is.
        capacity: the bytes that tensors may take there.
        speed: bytes a second to it, as somebody configured them; None where nobody did.
    """

    device: Device
    capacity: int
    speed: float | None = None

    @classmethod
    def named(cls, name: str | int | torch.device | Device, capacity: int, speed: float | None = None) -> Tier:
        """A level on the device of this name, in every spelling that `toprope.device.get` reads.

        Raises:
            UnsupportedError: the name is "ssd": there is no such level yet.
            UsageError: the capacity is negative.
            TopropeError: as for `toprope.device.get`.
        """
        if isinstance(name, str) and name.strip().lower().partition(":")[0] == "ssd":
            raise UnsupportedError(
                "a stack cannot have a level on an SSD yet.",
                looked_at=f"the level {name!r}; there are levels in the memory of devices and of the host (cpu)",
                do="leave the level out, and give the level cpu more room",
            )
        if capacity < 0:
            raise UsageError(f"a level of {capacity} bytes cannot be made.", do="give 0 or more")
        return cls(devices.get(name), capacity, speed)


@dataclass(frozen=True)
class LevelStats:
    """The figures of one level.

    Attributes:
        device: its device's name.
        capacity, used: bytes.
        entries: number of tensors, reserved ones counted.
        hits: requests whose tensor lay here.
        misses: requests that asked here and had to go on to the next level.
        evictions: tensors pushed out to a lower level.
        speed: bytes a second of copies to this level; None where nobody configured or measured it.
        speed_source: where the speed comes from.
    """

    device: str
    capacity: int
    used: int
    entries: int
    hits: int
    misses: int
    evictions: int
    speed: float | None
    speed_source: Literal["measured", "configured", "unknown"]


@dataclass(frozen=True)
class StackStats:
    """The figures of a stack at one moment.

    Attributes:
        levels: of each level, the fastest first.
        requests: number of requests for a tensor, those of unknown keys counted.
        promotions, demotions: moves to a faster and to a slower level.
    """

    levels: tuple[LevelStats, ...]
    requests: int
    promotions: int
    demotions: int


def free_memory(device: Device) -> int | None:
    """Bytes of a device that this process can still fill: free ones, and those its allocator holds without a use.

    None where the device tells no figure.
    """
    memory = device.memory()
    if memory.free is None:
        return None
    held = 0 if memory.reserved is None or memory.allocated is None else memory.reserved - memory.allocated
    return memory.free + max(0, held)


def check_memory(tiers: Sequence[Tier]) -> None:
    """Refuse levels that are larger than the free memory of their device."""
    for device in dict.fromkeys(tier.device for tier in tiers):
        asked = sum(tier.capacity for tier in tiers if tier.device == device)
        free = free_memory(device)
        if free is not None and asked > free:
            raise TierCapacityError(
                f"{device} has less free memory than its levels are to hold.",
                looked_at=f"{gibibytes(asked)} asked for, {gibibytes(free)} free",
                do="make the levels smaller, or free memory first",
            )
