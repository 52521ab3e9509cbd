"""Modules that lie on the host and are on the device for a while: as a whole, or layer by layer through tiers.

What was on the host stays there meanwhile: going home moves nothing, and gives the very tensors back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from toprope.errors import PlanError
from toprope.tiers import attach
from toprope.tiers.plan.links import measure

if TYPE_CHECKING:
    from toprope.device import Device
    from toprope.tiers import Handle

__all__ = ["Guest", "Streamed", "Whole", "bytes_of"]

SMALL = 2**20
"""Tensors of fewer bytes stay on the device while their module is there, as in `toprope.tiers`."""

MEASURED = 256 * 2**20
"""From so many bytes on, links to the device are measured, once."""


def bytes_of(module: nn.Module) -> int:
    """What its weights and buffers take; those with two names are counted once."""
    found = {id(each): each.nbytes for each in (*module.parameters(), *module.buffers())}
    return sum(found.values())


class Guest(ABC):
    """A module that comes to the device and goes home.

    Args:
        module: on the host.
        device: where it comes to.
    """

    def __init__(self, module: nn.Module, device: Device) -> None:
        self.module, self.device = module, device
        self.here = False

    def come(self) -> None:
        """Come, where it is not here. Raises where memory runs out; it is at home then."""
        if not self.here:
            try:
                self._come()
            except BaseException:
                self._go()
                raise
            self.here = True

    def go(self) -> None:
        """Go home, where it is here."""
        if self.here:
            self.here = False
            self._go()

    @abstractmethod
    def _come(self) -> None: ...

    @abstractmethod
    def _go(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        """What there is to say about it, ready for JSON."""
        return {"bytes": bytes_of(self.module)}


class Whole(Guest):
    """One that comes with all its weights and buffers."""

    def __init__(self, module: nn.Module, device: Device) -> None:
        super().__init__(module, device)
        self._home: list[tuple[dict[str, Any], str, torch.Tensor]] = []

    def _come(self) -> None:
        place = self.device.torch_device
        there: dict[int, torch.Tensor] = {}
        for owner in self.module.modules():
            stores: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers)
            for store in stores:
                for short, tensor in store.items():
                    if tensor is None or tensor.device == place:
                        continue
                    if id(tensor) not in there:
                        there[id(tensor)] = _copy(tensor, place)
                    self._home.append((store, short, tensor))
                    store[short] = there[id(tensor)]

    def _go(self) -> None:
        while self._home:
            store, short, tensor = self._home.pop()
            store[short] = tensor


def _copy(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    copied = tensor.detach().to(place)
    return nn.Parameter(copied, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied


class Streamed(Guest):
    """One whose weights come when their layer runs.

    Args:
        module: on the host.
        device: where it computes.
        budget: asked for the bytes that its weights may take there; None for as few as it can do with.
    """

    _links: Any = None

    def __init__(self, module: nn.Module, device: Device, budget: Callable[[], int] | None) -> None:
        super().__init__(module, device)
        self._budget = budget
        self._handle: Handle | None = None
        self._given = 0

    def _come(self) -> None:
        total = bytes_of(self.module)
        if self._links is None and total >= MEASURED:
            self._links = measure(self.device).links
        if self._budget is not None:
            self._attach(self._budget(), total)
            return
        tried = 2 * max((each.nbytes for each in self.module.parameters()), default=0) + 2**16
        while True:
            try:
                self._attach(tried, total)
                return
            except torch.OutOfMemoryError as error:
                if tried > 2 * total or not isinstance(error.__cause__, PlanError):
                    raise
            tried += tried // 4

    def _attach(self, budget: int, total: int) -> None:
        """Attach it.

        Raises:
            torch.OutOfMemoryError: the budget is too small to plan with.
        """
        self._given = budget
        try:
            self._handle = attach(
                self.module, device=budget, host=2 * total + 2**26, on=self.device, small=min(SMALL, budget // 256),
                links=self._links, progress=lambda done, of: None,
            )  # fmt: skip
        except PlanError as error:
            raise torch.OutOfMemoryError(f"{error.what} {error.do}") from error

    def _go(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.detach()

    def describe(self) -> dict[str, Any]:
        """Its bytes; those of the device that it may take, how much of it stays there, and what comes from the host."""
        found = super().describe()
        handle = self._handle
        if handle is None:
            return found
        plan = handle.plan
        return found | {
            "budget": self._given, "groups": len(plan.groups), "resident": len(plan.resident), "slots": plan.slots,
            "host_bytes": plan.bytes_in("host"),
        }  # fmt: skip
