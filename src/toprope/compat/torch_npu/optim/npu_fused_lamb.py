"""NpuFusedLamb: LAMB with all parameters of a dtype combined in one tensor.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_lamb.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ._states import StatefulOptimizer, in_range, not_negative, views

__all__ = ["NpuFusedLamb"]


class NpuFusedLamb(StatefulOptimizer):
    """LAMB, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes".

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: share of the parameter that is added to the step.
        adam: trust ratio 1 for all parameters.
        use_global_grad_norm: divide the gradients by their common norm. torch_npu's own code for it needs methods of
            Apex for NPUs (get_optimizer_combined_grads) and fails without them.

    Raises:
        ValueError: an option is out of its range.
    """

    _NAMES = ("exp_avg", "exp_avg_sq")
    _INSTEAD = ", please consider SparseAdam instead."

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        adam: bool = False,
        use_global_grad_norm: bool = False,
    ) -> None:
        not_negative(learning__rate=lr)
        for index in (0, 1):
            in_range(f"beta parameter at index {index}", betas[index])
        not_negative(epsilon__value=eps)
        self.adam = adam
        self.use_global_grad_norm = use_global_grad_norm
        self.global_grad_norm: torch.Tensor = torch.ones(1, device="npu")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

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
        if self.use_global_grad_norm:
            self.global_grad_norm = self._get_global_grad_norm()
        for index in range(len(self.param_groups)):
            self._group_step(index)
        return loss

    def _get_global_grad_norm(self) -> torch.Tensor:
        apex: Any = self  # which has these two methods
        total: Any = 0
        for grad, mask in zip(
            apex.get_optimizer_combined_grads(), apex.get_optimizer_combined_grad_masks(), strict=True
        ):
            if grad is not None:
                total = total + grad.pow(2).mul_(mask).sum()
        norm: torch.Tensor = total.sqrt_()
        return norm

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        beta1, beta2 = group["betas"]
        if self.global_grad_norm.item() > 1:
            grad = grad / self.global_grad_norm
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        step = average / square.sqrt().add(group["eps"])
        if group["weight_decay"] != 0:
            step.add_(param, alpha=group["weight_decay"])
        ratio = torch.ones_like(param)
        if not self.adam:
            params = self.params_lists_indexed_by_group[index][param.dtype == torch.float16]
            for one, change, factor in zip(
                views(param, params), views(step, params), views(ratio, params), strict=True
            ):
                weight_norm, step_norm = one.pow(2).sum().sqrt().clamp(0, 10), change.pow(2).sum().sqrt()
                if weight_norm != 0 and step_norm != 0:
                    factor.fill_(weight_norm / step_norm)
        param.addcmul_(step, ratio, value=-group["lr"])
