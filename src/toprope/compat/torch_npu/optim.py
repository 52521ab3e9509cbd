"""Optimizers of torch_npu.optim: NpuFusedAdamW, which transformers' Trainer uses for "adamw_torch_npu_fused".

The real ones lay all parameters, gradients and states of one dtype together; this one has the same arithmetic and the
same methods over torch's own multi-tensor kernels, and leaves the tensors where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from toprope.compat.missing import missing_from

__all__ = ["NpuFusedAdamW"]


class NpuFusedAdamW(torch.optim.AdamW):
    """AdamW with torch_npu's arguments.

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        betas: decay of the averages of the gradient and of its square.
        eps: added to the denominator.
        weight_decay: decoupled weight decay.
        amsgrad: use the largest average of the square so far.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=True)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set the gradients to zero. They stay allocated, as the real optimizer's must.

        Raises:
            ValueError: `set_to_none` is true; torch_npu's fused optimizers do not take it.
        """
        if set_to_none:
            raise ValueError("set_to_none is not supported in fused optimizers")
        super().zero_grad(set_to_none=False)

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scale all gradients so that their common norm is at most `max_norm`.

        Returns:
            the norm before.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


__getattr__ = missing_from(__name__)
