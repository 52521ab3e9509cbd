"""NpuFusedRMSprop: torch.optim.RMSprop with all parameters of a dtype combined in one tensor.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_rmsprop.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._states import StatefulOptimizer, not_negative

__all__ = ["NpuFusedRMSprop"]


class RmsPropStates(StatefulOptimizer):
    """Common part of both forms of RMSprop: options and states."""

    _NAMES = ("square_avg", "momentum_buffer", "grad_avg")

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        alpha: float,
        eps: float,
        weight_decay: float,
        momentum: float,
        centered: bool,
        **others: Any,
    ) -> None:
        not_negative(learning__rate=lr, epsilon__value=eps, momentum__value=momentum)
        not_negative(weight_decay__value=weight_decay, alpha__value=alpha)
        options = {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered}
        super().__init__(params, {**options, "weight_decay": weight_decay, **others})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("momentum", 0)
            group.setdefault("centered", False)

    def _wanted(self, group: Mapping[str, Any]) -> Sequence[str]:
        momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return "square_avg", *momentum, *(("grad_avg",) if group["centered"] else ())

    def _init_param_state(self, p: torch.Tensor, momentum: float = 0, centered: bool = False) -> None:
        self._init_state(p, self._wanted({"momentum": momentum, "centered": centered}))


class NpuFusedRMSprop(RmsPropStates):
    """RMSprop, with eps outside the root.

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        alpha: decay of the average of the square.
        eps: added to the root of that average.
        weight_decay: share of the parameter that is added to the gradient.
        momentum: decay of the sum of steps.
        centered: divide by the deviation of the gradient rather than by its size.

    Raises:
        ValueError: an option is below 0.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        alpha, square = group["alpha"], state["square_avg"]
        if group["weight_decay"] != 0:
            grad = grad.add(param, alpha=group["weight_decay"])
        square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
        if group["centered"]:
            average = state["grad_avg"].mul_(alpha).add_(grad, alpha=1 - alpha)
            square = square.addcmul(average, average, value=-1)
        root = square.sqrt().add_(group["eps"])
        if group["momentum"] > 0:
            buffer = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(grad, root)
            param.add_(buffer, alpha=-group["lr"])
        else:
            param.addcdiv_(grad, root, value=-group["lr"])
