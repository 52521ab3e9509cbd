"""Part of `torch.npu`: seeds and the state of the cards' generators.

The generators are csrc/torch/random.cpp. Tests: tests/sim/simulated/test_random.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from toprope.sim.native import native
from toprope.sim.npu._state import device_index, lazy_init

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


@cache
def default_generators() -> tuple[torch.Generator, ...]:
    """The generator of each card."""
    lazy_init()
    return tuple(torch.ops.toprope_sim.default_generator(index) for index in range(native().device_count()))


def _generator(device: Any = None) -> torch.Generator:
    return default_generators()[device_index(device)]


def get_rng_state(device: int | str | torch.device = "npu") -> torch.Tensor:
    """State of a card's generator, as a byte tensor on the host."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all cards' generators."""
    return [generator.get_state() for generator in default_generators()]


def set_rng_state(new_state: torch.Tensor, device: int | str | torch.device = "npu") -> None:
    """Set the state of a card's generator."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of all cards' generators."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _get_rng_state_offset(device: int | str | torch.device = "npu") -> int:
    """Return the offset of a card's generator, which counts what was drawn since its seed was set."""
    return _generator(device).get_offset()


def _set_rng_state_offset(offset: int, device: int | str | torch.device = "npu") -> None:
    """Set the offset of a card's generator, a multiple of 4: what it draws next depends on seed and offset alone."""
    _generator(device).set_offset(offset)


def manual_seed(seed: int) -> None:
    """Seed the generator of the current card."""
    _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cards; `torch.manual_seed` calls it. It uses no card: the seed can wait for one."""
    native().seed_generators(int(seed) % 2**64)


def seed() -> None:
    """Seed the generator of the current card from the system."""
    _generator().seed()


def seed_all() -> None:
    """Seed the generators of all cards from the system, all alike."""
    generators = default_generators()
    if generators:
        manual_seed_all(generators[0].seed())


def initial_seed() -> int:
    """The seed of the current card's generator."""
    return _generator().initial_seed()
