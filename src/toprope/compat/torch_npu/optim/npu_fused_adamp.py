"""NpuFusedAdamP: AdamP with all parameters of a dtype combined in one tensor.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_adamp.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._states import StatefulOptimizer, views

__all__ = ["NpuFusedAdamP"]


class NpuFusedAdamP(StatefulOptimizer):
    """AdamP, "Slowing Down the Weight Norm Increase in Momentum-based Optimizers".

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: decoupled weight decay.
        delta: cosine below which the step is projected.
        wd_ratio: factor of the weight decay where it is.
        nesterov: Nesterov momentum.
    """

    _NAMES = ("exp_avg", "exp_avg_sq")
    _INSTEAD = ", please consider SparseAdam instead"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "delta": delta}
        super().__init__(params, {**options, "wd_ratio": wd_ratio, "nesterov": nesterov})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient.

        Args:
            closure: gives the loss; it runs with gradients.

        Returns:
            the loss; None without a closure.
        """
        self._combine_all()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index in range(len(self.param_groups)):
            self._group_step(index)
        return loss

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        (beta1, beta2), step = group["betas"], state["step"]
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        denominator = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        perturb = (beta1 * average + (1 - beta1) * grad if group["nesterov"] else average) / denominator
        decay = torch.ones_like(param)
        params = self.params_lists_indexed_by_group[index][param.dtype == torch.float16]
        parts = (views(each, params) for each in (param, grad, perturb, decay))
        for one, slope, change, share in zip(*parts, strict=True):
            if one.dim() > 1 and self._project(one, slope, change, group["delta"], group["eps"]):
                share.fill_(group["wd_ratio"])
        if group["weight_decay"] > 0:
            param.mul_(1 - group["lr"] * group["weight_decay"] * decay)
        param.add_(perturb, alpha=-group["lr"] / (1 - beta1**step))

    @staticmethod
    def _project(p: torch.Tensor, grad: torch.Tensor, perturb: torch.Tensor, delta: float, eps: float) -> bool:
        """Take the share along the parameter out of a step, by rows or as a whole, where the gradient is across it.

        Returns:
            whether it was.
        """
        for rows in (p.shape[0], 1):
            flat, slope, change = (each.view(rows, -1) for each in (p, grad, perturb))
            norms = (slope.norm(dim=1) + eps) * (flat.norm(dim=1) + eps)
            cosine = (slope * flat).sum(1).abs() / norms
            if cosine.max() < delta / math.sqrt(flat.shape[1]):
                unit = flat / (flat.norm(dim=1, keepdim=True) + eps)
                change.sub_(unit * (unit * change).sum(1, keepdim=True))
                return True
        return False
