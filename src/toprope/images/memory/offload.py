"""Offloaded modules: kept on the host, and moved to the device while they compute, whole or layer by layer.

The tensors on the host are kept meanwhile, so that going back restores the same tensors without a copy. A module whose
load fails is on the host again. `SMALL` and `MEASURED` are free.

Used by `images.memory.offload_policies` alone; the streaming itself is `toprope.tiers.attach`. Tests:
tests/images/test_images_memory.py, tests/images/simulated/test_images_memory.py.
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

__all__ = ["OffloadedModule", "StreamedModule", "WholeModule", "bytes_of"]

SMALL = 2**20
"""Tensors with fewer bytes stay on the device while their module is there, as in `toprope.tiers`."""

MEASURED = 256 * 2**20
"""Size of a module in bytes from which the links to the device are measured, once."""


def bytes_of(module: nn.Module) -> int:
    """Bytes of a module's weights and buffers; tied ones are counted once."""
    found = {id(each): each.nbytes for each in (*module.parameters(), *module.buffers())}
    return sum(found.values())


class OffloadedModule(ABC):
    """A module that can be moved to the device and back to the host.

    Args:
        module: the module, on the host.
        device: the device.
    """

    def __init__(self, module: nn.Module, device: Device) -> None:
        self.module, self.device = module, device
        self.on_device = False

    def load(self) -> None:
        """Move to the device, unless it is there. Raises if memory runs out; it is on the host then."""
        if not self.on_device:
            try:
                self._load()
            except BaseException:
                self._offload()
                raise
            self.on_device = True

    def offload(self) -> None:
        """Move back to the host, unless it is there."""
        if self.on_device:
            self.on_device = False
            self._offload()

    @abstractmethod
    def _load(self) -> None: ...

    @abstractmethod
    def _offload(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        """Facts about it for JSON."""
        return {"bytes": bytes_of(self.module)}


class WholeModule(OffloadedModule):
    """A module that is moved with all its weights and buffers at once."""

    def __init__(self, module: nn.Module, device: Device) -> None:
        super().__init__(module, device)
        self._home: list[tuple[dict[str, Any], str, torch.Tensor]] = []

    def _load(self) -> None:
        """Copy all tensors to the device and put the copies in the module; the originals are kept."""
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

    def _offload(self) -> None:
        while self._home:
            store, short, tensor = self._home.pop()
            store[short] = tensor


def _copy(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    copied = tensor.detach().to(place)
    return nn.Parameter(copied, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied


class StreamedModule(OffloadedModule):
    """A module whose weights are loaded when their layer runs.

    Args:
        module: the module, on the host.
        device: the device that computes.
        budget: returns the bytes that its weights may take on the device; None for the smallest possible number.
    """

    _links: Any = None

    def __init__(self, module: nn.Module, device: Device, budget: Callable[[], int] | None) -> None:
        super().__init__(module, device)
        self._budget = budget
        self._handle: Handle | None = None
        self._given = 0

    def _load(self) -> None:
        """Attach tiers with the given budget, or with the smallest one that can be planned."""
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
        """Attach tiers to the module with a budget on the device.

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

    def _offload(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle.detach()

    def describe(self) -> dict[str, Any]:
        """Facts for JSON: its bytes, its budget on the device, the groups that stay there, and the loaded bytes."""
        found = super().describe()
        handle = self._handle
        if handle is None:
            return found
        plan = handle.plan
        return found | {
            "budget": self._given, "groups": len(plan.groups), "resident": len(plan.resident), "slots": plan.slots,
            "host_bytes": plan.bytes_in("host"),
        }  # fmt: skip
