"""Seeds and generators: which seed was used is always known, and where the numbers are drawn too.

Used by all kinds of device, and public as `toprope.device.seed_all`. The same seed must give the same numbers in every
release: how it reaches Python, numpy and torch stays. Tests: tests/device/test_device_cpu.py.
"""

from __future__ import annotations

import random
import secrets
from functools import cache
from typing import Literal

from toprope.errors import SeedError

__all__ = ["concrete_seed", "draws_random_numbers", "seed_all"]

_LARGEST = 2**64 - 1


def concrete_seed(seed: int | Literal["random"] | None) -> int:
    """The seed to use: as given, or one that is drawn here, in [0, 2**63).

    Args:
        seed: 0 to 2**64 - 1; None, "random" or -1 draws one.

    Raises:
        SeedError: it is nothing of that.

    Example:
        >>> concrete_seed(7)
        7
        >>> 0 <= concrete_seed(None) < 2**63
        True
    """
    if seed is None or seed == "random" or (seed == -1 and isinstance(seed, int)):
        return secrets.randbits(63)
    try:
        if isinstance(seed, bool):
            raise TypeError
        number = seed.__index__()  # whole numbers of numpy too, no text and no float
    except (AttributeError, TypeError):
        number = -1
    if not 0 <= number <= _LARGEST:
        raise SeedError(
            f"{seed!r} is not a seed.",
            do="give a whole number from 0 to 2**64 - 1, or None, which draws one",
        )
    return number


@cache
def draws_random_numbers(kind: str) -> bool:
    """True if a generator can live on devices of a kind: one is made."""
    import torch

    try:
        torch.Generator(device=kind)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def seed_all(seed: int | Literal["random"] | None = None) -> int:
    """Seed everything that draws random numbers here: Python, numpy, torch on the CPU and on every device.

    It changes no switch: whether operators are deterministic is left as it is.

    Args:
        seed: 0 to 2**64 - 1; None, "random" or -1 draws one.

    Returns:
        The seed that was used.

    Raises:
        SeedError: no such seed.
    """
    import numpy
    import torch

    number = concrete_seed(seed)
    random.seed(number)
    numpy.random.seed([number & 0xFFFFFFFF, number >> 32] if number >> 32 else number)
    torch.manual_seed(number)  # the generators of every device, also of those that are not used yet
    return number
