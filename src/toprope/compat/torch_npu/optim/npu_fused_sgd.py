"""NpuFusedSGD: torch.optim.SGD with all parameters of a dtype combined in one tensor.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_sgd.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import required

from .._error_codes import ErrCode, pta_error
from ..utils.combine_tensors import npu_combine_tensors
from ._states import StatefulOptimizer, not_negative

__all__ = ["NpuFusedSGD"]


class NpuFusedSGD(StatefulOptimizer):
    """Stochastic gradient descent with momentum.

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        momentum: decay of the sum of gradients.
        dampening: share of the gradient that the sum leaves out.
        weight_decay: share of the parameter that is added to the gradient.
        nesterov: Nesterov momentum.

    Raises:
        ValueError: an option is out of its range, or `nesterov` without momentum or with dampening.
    """

    _NAMES = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if lr is not required:
            not_negative(learning__rate=lr)
        not_negative(momentum__value=momentum, weight_decay__value=weight_decay)
        if nesterov and (momentum <= 0 or not math.isclose(dampening, 0.0, abs_tol=1e-15)):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening" + pta_error(ErrCode.VALUE))
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        self._momentum_buffer_already_in_state = False
        super().__init__(params, {**options, "nesterov": nesterov})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; see NpuFusedOptimizerBase."""
        loss = super().step(closure)
        self._momentum_buffer_already_in_state = True
        return loss

    def _init_param_state(self, p: torch.Tensor, weight_decay: float = 0.0) -> None:
        grad, state = p.grad, self.state[p]
        assert grad is not None
        self._momentum_buffer_already_in_state = "momentum_buffer" in state
        if self._momentum_buffer_already_in_state:
            state["momentum_buffer"] = torch.zeros_like(grad).copy_(state["momentum_buffer"])
        else:
            # The first step takes the gradient for the sum.
            first = grad if weight_decay == 0 else grad.add(p, alpha=weight_decay)
            state["momentum_buffer"] = first.detach().clone()

    def _combine_group_param_states(self, group_index: int) -> None:
        group = self.param_groups[group_index]
        found = []
        for params in self.params_lists_indexed_by_group[group_index]:
            buffers = []
            for p in params if group["momentum"] != 0 else ():
                self._init_param_state(p, group["weight_decay"])
                buffers.append(self.state[p]["momentum_buffer"])
            found.append({"step": 0, "momentum_buffer": npu_combine_tensors(buffers)})
        self.combined_param_states_indexed_by_group[group_index] = found

    def _count(self, group: Mapping[str, Any]) -> None:
        """Nothing: SGD counts no steps."""

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        momentum = group["momentum"]
        if group["weight_decay"] != 0:
            grad = grad.add(param, alpha=group["weight_decay"])
        if momentum != 0:
            buffer = state["momentum_buffer"]
            if self._momentum_buffer_already_in_state:
                buffer.mul_(momentum).add_(grad, alpha=1 - group["dampening"])
            grad = grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer
        param.add_(grad, alpha=-group["lr"])
