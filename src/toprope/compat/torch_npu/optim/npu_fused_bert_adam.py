"""NpuFusedBertAdam: Adam of BERT, without bias correction and with a schedule of its own, over combined tensors.

Programs import it from `torch_npu.optim`. Arguments and errors are those of torch_npu/optim/npu_fused_bert_adam.py of
Ascend/pytorch; tests/compat/test_torch_npu_optim.py holds the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import required

from .._error_codes import ErrCode, pta_error
from ._states import StatefulOptimizer, in_range, not_negative

__all__ = ["NpuFusedBertAdam"]

_WARMUP = 0.002


def _warmup_cosine(x: Any, warmup: float = _WARMUP) -> Any:
    # torch.cos takes no number, so that this schedule fails after the warm-up, as it does in torch_npu.
    return x / warmup if x < warmup else 0.5 * (1.0 + torch.cos(math.pi * x))


def _warmup_constant(x: float, warmup: float = _WARMUP) -> float:
    return x / warmup if x < warmup else 1.0


def _warmup_linear(x: float, warmup: float = _WARMUP) -> float:
    return x / warmup if x < warmup else max((x - 1.0) / (warmup - 1.0), 0.0)


def _warmup_poly(x: float, warmup: float = _WARMUP, degree: float = 0.5) -> float:
    return x / warmup if x < warmup else float((1.0 - x) ** degree)


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "warmup_cosine": _warmup_cosine,
    "warmup_constant": _warmup_constant,
    "warmup_linear": _warmup_linear,
    "warmup_poly": _warmup_poly,
}
"""Factor of the learning rate, from the shares of all steps that are done and that are the warm-up."""


class NpuFusedBertAdam(StatefulOptimizer):
    """Adam of BERT: lr * schedule * (m / (sqrt(v) + e) + weight_decay * parameter).

    Args:
        params: parameters, or dicts that define groups of them.
        lr: learning rate.
        warmup: share of `t_total` in which the learning rate grows; -1 for none.
        t_total: number of all steps; -1 for a constant learning rate.
        schedule: "warmup_linear", "warmup_constant", "warmup_cosine" or "warmup_poly".
        b1: decay of the average of the gradient.
        b2: decay of the average of its square.
        e: added to the denominator.
        weight_decay: decoupled weight decay.
        max_grad_norm: largest norm of the gradients of a group and dtype; 0 or below for no clipping.

    Raises:
        ValueError: an option is out of its range.
    """

    _NAMES = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        warmup: float = -1,
        t_total: int = -1,
        schedule: str = "warmup_linear",
        b1: float = 0.9,
        b2: float = 0.999,
        e: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
    ) -> None:
        if lr is not required:
            not_negative(learning__rate=lr)
        if (warmup < 0.0 and warmup != -1) or warmup >= 1.0:
            raise ValueError(f"Invalid warmup: {warmup}" + pta_error(ErrCode.VALUE))
        if schedule not in SCHEDULES:
            raise ValueError(f"Invalid schedule parameter: {schedule}" + pta_error(ErrCode.VALUE))
        in_range("b1 parameter", b1)
        in_range("b2 parameter", b2)
        not_negative(epsilon__value=e)
        options = {"lr": lr, "schedule": schedule, "warmup": warmup, "t_total": t_total, "b1": b1, "b2": b2, "e": e}
        self.max_grad_norm = max_grad_norm
        super().__init__(params, {**options, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm})

    def _count(self, group: Mapping[str, Any]) -> None:
        """Nothing: torch_npu counts only the steps of the combined states."""

    def _refuse_sparse(self, grad: torch.Tensor) -> None:
        """Nothing: torch_npu does not check it."""

    def _update(
        self, group: Mapping[str, Any], param: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], index: int
    ) -> None:
        if self.max_grad_norm > 0:
            factor = self.max_grad_norm / (grad.float().pow(2).sum().sqrt() + 1e-6)
            if factor < 1:
                grad.mul_(factor)
        average, square = state["exp_avg"], state["exp_avg_sq"]
        average.mul_(group["b1"]).add_(grad, alpha=1 - group["b1"])
        square.mul_(group["b2"]).addcmul_(grad, grad, value=1 - group["b2"])
        update = average / (square.sqrt() + group["e"])
        if group["weight_decay"] > 0.0:
            update += group["weight_decay"] * param
        rate, done = group["lr"], state["step"] - 1
        if group["t_total"] != -1:
            rate = rate * SCHEDULES[group["schedule"]](done / group["t_total"], group["warmup"])
        param.add_(-(rate * update))
