"""NpuFusedAdamW: torch.optim.AdamW over combined tensors; transformers' Trainer has it as "adamw_torch_npu_fused".

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_adamw.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .npu_fused_adam import AdamStates

__all__ = ["NpuFusedAdamW"]


class NpuFusedAdamW(AdamStates):
    """AdamW.

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: decoupled weight decay.
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
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        param.mul_(1 - group["lr"] * group["weight_decay"])
        self._adam(group, param, grad, state)
