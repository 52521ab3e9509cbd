"""Module `torch.npu.amp.grad_scaler`: the gradient scaler of torch_npu, which differs from torch's.

Source: Ascend/pytorch, `torch_npu/npu/amp/grad_scaler.py`. Tests: tests/sim/simulated/test_amp.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch.amp.grad_scaler import OptState

from toprope.sim.npu._state import INTERNAL, TYPE, VALUE, message, not_here
from toprope.sim.npu.overflow import NO_FLAG

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """As `torch.amp.GradScaler("npu", ...)`, but for this:

    - an infinite gradient in one optimizer leaves out the steps of all that step after it, until `update`;
    - with `dynamic=False` nothing is looked at and no step is left out;
    - the host waits for the card in every step, and prints on stdout when a step is left out or the scale changes;
    - an optimizer that handles scaling itself (`fused=True`) is given `grad_scaler=`, which torch's own do not take.

    Args:
        init_scale: the first scale.
        growth_factor: what the scale is multiplied by after `growth_interval` steps without inf or nan; above 1.
        backoff_factor: what it is multiplied by after a step with inf or nan; below 1.
        growth_interval: steps.
        dynamic: False keeps the scale as it is.
        enabled: False makes every method a no-op.

    Raises:
        ValueError: a factor out of its range.
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
        if enabled and growth_factor <= 1.0:
            raise ValueError(message("The growth factor must be > 1.0.", VALUE))
        if enabled and backoff_factor >= 1.0:
            raise ValueError(message("The backoff factor must be < 1.0.", VALUE))
        super().__init__(
            "npu",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        self._dynamic = dynamic
        self._has_overflow = False

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor of the card, or all in nested iterables, by the scale.

        Raises:
            ValueError: a tensor is not on a card.
        """
        if self._enabled and not isinstance(outputs, torch.Tensor) and isinstance(outputs, Iterable):
            each = map(self.scale, outputs)
            return type(outputs)(each) if isinstance(outputs, list | tuple) else each
        if self._enabled and isinstance(outputs, torch.Tensor) and outputs.device.type != "npu":
            raise ValueError(message("Device type of outputs should be npu.", VALUE))
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale; with `dynamic`, look for inf and nan in them.

        Raises:
            RuntimeError: a second time before `update`, or after `step`.
            TypeError: a gradient is in float16.
        """
        if not self._enabled:
            return
        scale, _ = self._check_scale_growth_tracker("unscale_")  # type: ignore[no-untyped-call, unused-ignore]
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            text = "unscale_() has already been called on this optimizer since the last update()."
            raise RuntimeError(message(text, INTERNAL))
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError(message("unscale_() is being called after step().", INTERNAL))
        grads = (each.grad for group in optimizer.param_groups for each in group["params"])
        if any(grad is not None and grad.dtype == torch.float16 for grad in grads):
            raise TypeError(message("Attempting to unscale FP16 gradients.", TYPE))
        found = self._unscale_grads_(optimizer, scale.reciprocal(), torch.zeros((), device=scale.device), False)
        if self._dynamic:
            self._has_overflow |= any(each.item() > 0 for each in found.values())
        state["found_inf_per_device"] = found
        state["stage"] = OptState.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale the gradients, where that has not been done, and step unless one of this iteration was inf or nan.

        Raises:
            RuntimeError: a second time before `update`, a closure, or no gradients.
            TypeError: the optimizer handles scaling itself and takes no `grad_scaler`, such as torch's with `fused`.
        """
        if self._enabled and getattr(optimizer, "_step_supports_amp_scaling", False):
            self._check_scale_growth_tracker("step")  # type: ignore[no-untyped-call, unused-ignore]
            state = self._per_optimizer_states[id(optimizer)]
            if state["stage"] is OptState.STEPPED:
                text = "step() has already been called since the last update()."
                raise RuntimeError(message(text, INTERNAL))
            own: Any = optimizer.step
            result: float | None = own(*args, **kwargs, grad_scaler=self)
            state["stage"] = OptState.STEPPED
            return result
        return super().step(optimizer, *args, **kwargs)

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        if self._dynamic and self._has_overflow:
            sys.stdout.write("Gradient overflow. Skipping step\n")
            return None
        return cast("float | None", optimizer.step(*args, **kwargs))

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adapt the scale after the steps of an iteration; with `dynamic=False` only to a scale that is given."""
        if not self._enabled:
            return
        scale, tracker = self._check_scale_growth_tracker("update")  # type: ignore[no-untyped-call, unused-ignore]
        if new_scale is not None:
            super().update(new_scale)
        elif self._dynamic and self._has_overflow:
            scale.mul_(self._backoff_factor)
            tracker.zero_()
            self._say("reducing", scale)
        elif self._dynamic:
            tracker.add_(1)
            if tracker.item() == self._growth_interval:
                grown = scale * self._growth_factor
                if not torch.isinf(grown):
                    scale.copy_(grown)
                tracker.zero_()
                self._say("increasing", scale)
        self._per_optimizer_states.clear()
        self._has_overflow = False

    @staticmethod
    def _say(change: str, scale: torch.Tensor) -> None:
        sys.stdout.write(f"Loss scaler {change} loss scale to {scale.item()}\n")

    def state_dict(self) -> dict[str, Any]:
        """State of torch's scaler, and `dynamic`."""
        return super().state_dict() | ({"dynamic": self._dynamic} if self._enabled else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave.

        Raises:
            KeyError: it is of torch's own scaler, which has no `dynamic`.
        """
        super().load_state_dict(state_dict)
        if self._enabled:
            self._dynamic = state_dict["dynamic"]

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
