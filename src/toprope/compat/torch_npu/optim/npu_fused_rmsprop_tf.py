"""NpuFusedRMSpropTF: RMSprop as TensorFlow has it, with all parameters of a dtype combined in one tensor.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_rmsprop_tf.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .npu_fused_rmsprop import RmsPropStates

__all__ = ["NpuFusedRMSpropTF"]


class NpuFusedRMSpropTF(RmsPropStates):
    """RMSprop with eps inside the root, averages that begin with 1, and the learning rate in the momentum.

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        alpha: decay of the average of the square.
        eps: added to that average.
        weight_decay: share of the parameter that is added to the gradient, or taken from it with `decoupled_decay`.
        momentum: decay of the sum of steps.
        centered: divide by the deviation of the gradient rather than by its size.
        decoupled_decay: whether the weight decay goes to the parameter itself; the learning rate does not scale it.
        lr_in_momentum: whether the learning rate scales what is summed rather than the step.

    Raises:
        ValueError: an option is below 0.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0,
        momentum: float = 0.0,
        centered: bool = False,
        decoupled_decay: bool = False,
        lr_in_momentum: bool = True,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered,
            decoupled_decay=decoupled_decay, lr_in_momentum=lr_in_momentum,
        )  # fmt: skip

    def _first_value(self, name: str) -> float:
        return 1.0 if name == "square_avg" else 0.0

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        rest, square, lr = 1.0 - group["alpha"], state["square_avg"], group["lr"]
        if group["weight_decay"] != 0:
            if group.get("decoupled_decay"):
                param.add_(param, alpha=-group["weight_decay"])
            else:
                grad = grad.add(param, alpha=group["weight_decay"])
        square.add_(grad.pow(2) - square, alpha=rest)
        if group["centered"]:
            average = state["grad_avg"]
            average.add_(grad - average, alpha=rest)
            square = square.addcmul(average, average, value=-1)
        root = square.add(group["eps"]).sqrt_()
        if group["momentum"] <= 0:
            param.addcdiv_(grad, root, value=-lr)
            return
        buffer, inside = state["momentum_buffer"], bool(group.get("lr_in_momentum"))
        buffer.mul_(group["momentum"]).addcdiv_(grad, root, value=lr if inside else 1)
        param.add_(buffer, alpha=-1 if inside else -lr)
