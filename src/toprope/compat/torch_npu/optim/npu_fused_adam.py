"""NpuFusedAdam: torch.optim.Adam with all parameters of a dtype combined in one tensor.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_adam.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ._states import StatefulOptimizer, in_range, not_negative

__all__ = ["NpuFusedAdam"]


class AdamStates(StatefulOptimizer):
    """Common part of Adam and AdamW."""

    _NAMES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    _INSTEAD = ", please consider SparseAdam instead"

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, amsgrad: bool
    ) -> None:
        not_negative(learning__rate=lr, epsilon__value=eps)
        for index in (0, 1):
            in_range(f"beta parameter at index {index}", betas[index])
        not_negative(weight_decay__value=weight_decay)
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("amsgrad", False)

    def _wanted(self, group: Mapping[str, Any]) -> Sequence[str]:
        return self._NAMES if group["amsgrad"] else self._NAMES[:2]

    def _init_param_state(self, p: torch.Tensor, amsgrad: bool = False) -> None:
        self._init_state(p, self._wanted({"amsgrad": amsgrad}))

    def _adam(self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any]) -> None:
        (beta1, beta2), step = group["betas"], state["step"]
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if group["amsgrad"]:
            square = torch.maximum(state["max_exp_avg_sq"], square, out=state["max_exp_avg_sq"])
        denominator = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        param.addcdiv_(average, denominator, value=-group["lr"] / (1 - beta1**step))


class NpuFusedAdam(AdamStates):
    """Adam.

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: share of the parameter that is added to the gradient.
        amsgrad: use the largest average of the square so far.

    Raises:
        ValueError: an option is out of its range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        if group["weight_decay"] != 0:
            grad = grad.add(param, alpha=group["weight_decay"])
        self._adam(group, param, grad, state)
