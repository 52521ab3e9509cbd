"""NpuFusedAdadelta: torch.optim.Adadelta with all parameters of a dtype combined in one tensor.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_adadelta.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ._states import StatefulOptimizer, in_range, not_negative

__all__ = ["NpuFusedAdadelta"]


class NpuFusedAdadelta(StatefulOptimizer):
    """Adadelta.

    Args:
        params: parameters, or dicts that define groups of them.
        lr: factor of the step.
        rho: decay of the averages of squares.
        eps: added to the averages.
        weight_decay: share of the parameter that is added to the gradient.

    Raises:
        ValueError: an option is out of its range.
    """

    _NAMES = ("square_avg", "acc_delta")

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0
    ) -> None:
        not_negative(learning__rate=lr)
        in_range("rho value", rho, closed=True)
        not_negative(epsilon__value=eps, weight_decay__value=weight_decay)
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay})

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        rho, eps = group["rho"], group["eps"]
        if group["weight_decay"] != 0:
            grad = grad.add(param, alpha=group["weight_decay"])
        state["square_avg"].mul_(rho).addcmul_(grad, grad, value=1 - rho)
        delta = state["acc_delta"].add(eps).sqrt_() / state["square_avg"].add(eps).sqrt_() * grad
        param.add_(delta, alpha=-group["lr"])
        state["acc_delta"].mul_(rho).addcmul_(delta, delta, value=1 - rho)
