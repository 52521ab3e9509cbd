"""The gradient scaler with torch_npu's arguments."""

from __future__ import annotations

import torch

from toprope.sim.npu._state import not_here
from toprope.sim.npu.overflow import NO_FLAG

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("npu", ...)`.

    Args:
        init_scale: the first scale.
        growth_factor: what the scale is multiplied by after `growth_interval` steps without inf or nan.
        backoff_factor: what it is multiplied by after a step with inf or nan.
        growth_interval: steps.
        dynamic: False keeps the scale as it is.
        enabled: False makes every method a no-op.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            "npu",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        self._dynamic = dynamic

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adapts the scale after a step; with `dynamic=False` only to a scale that is given."""
        if self._dynamic or new_scale is not None:
            super().update(new_scale)
        else:
            super().update(self.get_scale())

    @staticmethod
    def get_npu_overflow_flag() -> bool:
        """Not there: whether an operator overflowed since the flag was cleared.

        Raises:
            NotImplementedError: always.
        """
        raise not_here("amp.GradScaler.get_npu_overflow_flag", NO_FLAG)

    @staticmethod
    def clear_npu_overflow_flag() -> None:
        """Not there: taking back that an operator overflowed.

        Raises:
            NotImplementedError: always.
        """
        raise not_here("amp.GradScaler.clear_npu_overflow_flag", NO_FLAG)
