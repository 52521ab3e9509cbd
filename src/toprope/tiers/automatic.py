"""A device's budget that is found out: what computing takes beside the weights is seen in the first step."""

from __future__ import annotations

from collections.abc import Callable

from toprope.device import Device
from toprope.tiers.plan_model import Budgets

__all__ = ["Automatic"]


class Automatic:
    """The budget of a device with memory of its own, where it is "auto".

    The first step has half of what is free. What it allocates beside the weights is left free from then on: by the
    device's peak, which is counted anew for that.

    Args:
        device: that computes.
        free: bytes of it before anything is moved.
        resolve: gives the budgets where computing takes so many bytes.
    """

    def __init__(self, device: Device, free: int, resolve: Callable[[int], Budgets]) -> None:
        self.device, self._resolve = device, resolve
        self.first = resolve(free // 2)
        """The budgets for the first step."""
        self.most = resolve(0)
        """The budgets if computing takes next to nothing: what does not fit into these does not fit."""
        self._base = 0

    def begin(self) -> None:
        """The weights are where they shall be; what is allocated more from now on is for computing."""
        self._base = self.device.memory_allocated()
        self.device.reset_peak_memory()

    def end(self) -> Budgets:
        """A step is over: the budgets that it leaves to the weights."""
        peak = self.device.max_memory_allocated() or 0
        self.device.empty_cache()
        return self._resolve(max(0, peak - self._base))
