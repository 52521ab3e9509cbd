"""Places of gradients, optimizer states and activations: those of the plan, or those that the user asked for.

`Handle` makes `Places` when training begins, and hands its stores to `tiers.training`; `attach` checks the arguments
`states` and `activations` by `check_places`. Their values are public (docs/tiers.md). Tests:
tests/tiers/test_tiers_training.py.
"""

from __future__ import annotations

from typing import Literal

import torch

from toprope.errors import UsageError
from toprope.tiers.engine.runtime import Engine
from toprope.tiers.plan.model import Plan, Tier, What
from toprope.tiers.store.base import Stacked, Store
from toprope.tiers.store.host import HostStore
from toprope.tiers.store.spill import SpillStore

__all__ = ["Places", "check_places"]

Placed = Literal["auto", "host", "disk"]
"""Place of gradients and states: "auto" for the plan's choice, or one place for all of them."""

Activated = Literal["device", "host", "disk"]
"""Place of the tensors that forward saves for backward: they stay on the device, or are moved out of it."""


class Places:
    """The stores for a model's training, and the choice among them.

    Args:
        engine: the model's engine.
        host: the store in the host's memory.
        states: place of gradients and states.
        activations: place of saved activations.
    """

    def __init__(self, engine: Engine, host: HostStore, states: Placed, activations: Activated) -> None:
        self.engine, self.host, self._states, self._activations = engine, host, states, activations
        self.staged = min(2**26, max(2**22, host.capacity // 8))
        """Largest number of bytes in the host's memory that wait to be written to the disk."""
        self.disk: SpillStore | None = None
        if engine.migration.folder is not None:
            moving = engine.device if engine.device.capabilities.separate_memory else None
            folder, capacity = engine.migration.folder, engine.migration.disk
            self.disk = SpillStore(folder, capacity, engine.transfers, moving, self.staged, host.spare)
        on_disk = [] if self.disk is None else [self.disk]
        self.all = Stacked([host, *on_disk])
        """The host's memory, and the disk for tensors that have no room there."""
        self._plan: Plan | None = None
        self._tiers: dict[tuple[What, torch.Tensor], Tier] = {}

    def place(self, what: What, parameter: torch.Tensor) -> Store | None:
        """The store for a parameter's gradient or states; None if they stay on the device."""
        tier: Tier
        if what == "states" and self._states != "auto":
            tier = self._states
        else:
            tier = self._planned().get((what, parameter), "host")
        if tier == "device":
            return None
        return self.disk if tier == "disk" and self.disk is not None else self.all

    def activations(self) -> Store | None:
        """The store for activations; None if they stay on the device."""
        if self._activations == "device":
            return None
        return self.disk if self._activations == "disk" and self.disk is not None else self.all

    def _planned(self) -> dict[tuple[What, torch.Tensor], Tier]:
        """By kind and parameter, the tier in the current plan."""
        plan, model = self.engine.plan, self.engine.model
        if plan is not None and plan is not self._plan:
            self._plan, self._tiers = plan, {}
            groups = {group.name: group for group in plan.groups}
            for home in plan.homes:
                if home.what not in ("gradients", "states") or home.group not in groups:
                    continue
                for member in groups[home.group].members:
                    for weight in model.members[member.key]:
                        self._tiers.update(dict.fromkeys(((home.what, each) for each in weight.parameters), home.tier))
        return self._tiers

    def close(self) -> None:
        """Release everything but the host's memory, which the weights use too."""
        if self.disk is not None:
            self.disk.close()


def check_places(states: str, activations: str, *, disk: bool) -> None:
    """Refuse unknown places, and the disk without a folder.

    Raises:
        UsageError: a place is unknown, or the disk is asked for and no folder was given.
    """
    for name, given, known in (
        ("states", states, ("auto", "host", "disk")),
        ("activations", activations, ("device", "host", "disk")),
    ):
        if given not in known:
            raise UsageError(f"{name}={given!r} is no place.", do=f"say one of {', '.join(map(repr, known))}")
        if given == "disk" and not disk:
            raise UsageError(f'{name}="disk" needs a disk.', do="name a folder: attach(..., disk=folder)")
