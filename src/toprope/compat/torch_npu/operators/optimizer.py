"""Optimizer steps in place (npu_apply_adam, npu_apply_adam_w, npu_bert_apply_adam), and the check of gradients.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_optimizer_steps.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

The parameters, moments and gradient may have any of the kernels' dtypes; the step computes in float32 and rounds to the
dtype of each tensor. The scalars are rounded to the dtype of the parameters first: they reach the card in it.

Sources: op_plugin/ops/aclops/ApplyAdam*KernelNpu.cpp and BertApplyAdamKernelNpu.cpp of Ascend/op-plugin;
optim/apply_adam_d, apply_adam_w and apply_adam_v2 of ops-nn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse
from .evaluation import has_values
from .registry import operator

__all__ = [
    "_amp_foreach_non_finite_check",
    "npu_apply_adam",
    "npu_apply_adam_out",
    "npu_apply_adam_w",
    "npu_apply_adam_w_out",
    "npu_bert_apply_adam",
    "npu_bert_apply_adam_out",
]

_Number = bool | int | float
_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _needs_out(operator_name: str) -> NoReturn:
    raise RuntimeError(f"{operator_name} is not implemented for Tensor" + ops_error(ErrCode.PARAM))


def _three(operator_name: str, out: Sequence[torch.Tensor], grad: torch.Tensor) -> _Three:
    """Parameters and moments from the argument `out`, checked."""
    if len(out) != 3:
        refuse(operator_name, f"out must be (var, m, v), but got {len(out)} tensors")
    var, m, v = out
    floating(operator_name, var=var, m=m, v=v, grad=grad)
    for name, tensor in (("m", m), ("v", v), ("grad", grad)):
        if tensor.shape != var.shape:
            refuse(operator_name, f"{name} has shape {list(tensor.shape)}; var has {list(var.shape)}")
    return var, m, v


def _scalar(value: _Number, var: torch.Tensor) -> torch.Tensor:
    """The number in the dtype of the parameters, for arithmetic in float32."""
    return torch.full((), value, dtype=var.dtype, device=var.device).to(compute_dtype(var))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(compute_dtype(tensor))


def _moments(
    m: torch.Tensor, v: torch.Tensor, grad: torch.Tensor, beta1: torch.Tensor, beta2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Running averages of the gradient and of its square after this step, in float32."""
    return _wide(m) * beta1 + grad * (1 - beta1), _wide(v) * beta2 + grad * grad * (1 - beta2)


def _written(out: _Three, values: _Three) -> _Three:
    for tensor, value in zip(out, values, strict=True):
        tensor.copy_(value)
    return out


@operator("_amp_foreach_non_finite_check")
def _amp_foreach_non_finite_check(scaled_grads: Sequence[torch.Tensor]) -> bool:
    """Return True if a gradient is infinite or not a number.

    The card reads a flag that operators set when a value overflows, and clears it; here the gradients are read.

    Args:
        scaled_grads: gradients on the card.
    """
    return any(not bool(torch.isfinite(grad).all()) for grad in scaled_grads if has_values(grad) and grad.numel())


@operator("npu_apply_adam")
def npu_apply_adam(
    beta1_power: _Number,
    beta2_power: _Number,
    lr: _Number,
    beta1: _Number,
    beta2: _Number,
    epsilon: _Number,
    grad: torch.Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
) -> _Three:
    """Adam without `out`, which the card does not have.

    Raises:
        RuntimeError: always; give out=(var, m, v).
    """
    _needs_out("npu_apply_adam")


@operator("npu_apply_adam.out")
def npu_apply_adam_out(
    beta1_power: _Number,
    beta2_power: _Number,
    lr: _Number,
    beta1: _Number,
    beta2: _Number,
    epsilon: _Number,
    grad: torch.Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    out: Sequence[torch.Tensor],
) -> _Three:
    """One step of Adam, var - lr' * m / (epsilon + sqrt(v)) with lr' = lr * sqrt(1 - beta2_power) / (1 - beta1_power).

    Args:
        beta1_power: beta1 to the power of the number of this step.
        beta2_power: beta2 to the power of the number of this step.
        lr: learning rate.
        beta1: decay of the average of the gradient.
        beta2: decay of the average of its square.
        epsilon: added to the denominator.
        grad: gradient, of the shape of var; float16, bfloat16 or float32.
        use_locking: whether the update locks; without effect on the values.
        use_nesterov: m * beta1 + (1 - beta1) * grad takes the place of m in the update.
        out: parameters and the averages m and v, which are changed in place.

    Returns:
        the three tensors of `out`.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take.
    """
    var, m, v = _three("npu_apply_adam", out, grad)
    wide, b1, b2 = _wide(grad), _scalar(beta1, var), _scalar(beta2, var)
    m_new, v_new = _moments(m, v, wide, b1, b2)
    rate = _scalar(lr, var) * (1 - _scalar(beta2_power, var)).sqrt() / (1 - _scalar(beta1_power, var))
    step = m_new * b1 + wide * (1 - b1) if use_nesterov else m_new
    return _written((var, m, v), (_wide(var) - rate * step / (v_new.sqrt() + _scalar(epsilon, var)), m_new, v_new))


@operator("npu_apply_adam_w")
def npu_apply_adam_w(
    beta1_power: _Number,
    beta2_power: _Number,
    lr: _Number,
    weight_decay: _Number,
    beta1: _Number,
    beta2: _Number,
    epsilon: _Number,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
) -> _Three:
    """AdamW without `out`, which the card does not have.

    Raises:
        RuntimeError: always; give out=(var, m, v).
    """
    _needs_out("npu_apply_adam_w")


@operator("npu_apply_adam_w.out")
def npu_apply_adam_w_out(
    beta1_power: _Number,
    beta2_power: _Number,
    lr: _Number,
    weight_decay: _Number,
    beta1: _Number,
    beta2: _Number,
    epsilon: _Number,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: Sequence[torch.Tensor],
) -> _Three:
    """One step of AdamW.

    With the corrections c1 = 1 - beta1_power * beta1 and c2 = 1 - beta2_power * beta2, the step is
    var * (1 - lr * weight_decay) - lr * (m / c1) / (sqrt(v / c2) + epsilon).

    Args:
        beta1_power: beta1 to the power of the number of the previous step (1 at the first one).
        beta2_power: beta2 to the power of the number of the previous step.
        lr: learning rate.
        weight_decay: decoupled weight decay.
        beta1: decay of the average of the gradient.
        beta2: decay of the average of its square.
        epsilon: added to the denominator.
        grad: gradient, of the shape of var; float16, bfloat16 or float32.
        max_grad_norm: largest v so far, with `amsgrad`. It is read; the kernel does not write it.
        amsgrad: the larger of `max_grad_norm` and v takes the place of v in the denominator.
        maximize: step along the gradient instead of against it.
        out: parameters and the averages m and v, which are changed in place.

    Returns:
        the three tensors of `out`.

    Raises:
        RuntimeError: `amsgrad` without `max_grad_norm`, or a dtype or shape that the kernel does not take.
    """
    var, m, v = _three("npu_apply_adam_w", out, grad)
    if amsgrad and max_grad_norm is None:
        raise RuntimeError("if amsgrad is true, max_grad_norm input must be entered" + ops_error(ErrCode.PARAM))
    wide = -_wide(grad) if maximize else _wide(grad)
    b1, b2, rate = _scalar(beta1, var), _scalar(beta2, var), _scalar(lr, var)
    m_new, v_new = _moments(m, v, wide, b1, b2)
    largest = torch.maximum(_wide(max_grad_norm), v_new) if amsgrad and max_grad_norm is not None else v_new
    denominator = (largest / (1 - _scalar(beta2_power, var) * b2)).sqrt() + _scalar(epsilon, var)
    step = rate * m_new / (1 - _scalar(beta1_power, var) * b1) / denominator
    decayed = _wide(var) * (1 - rate * _scalar(weight_decay, var))
    return _written((var, m, v), (decayed - step, m_new, v_new))


@operator("npu_bert_apply_adam")
def npu_bert_apply_adam(
    lr: _Number,
    beta1: _Number,
    beta2: _Number,
    epsilon: _Number,
    grad: torch.Tensor,
    max_grad_norm: _Number,
    global_grad_norm: _Number,
    weight_decay: _Number,
    step_size: _Number | None = None,
    adam_mode: int = 0,
) -> _Three:
    """Adam of BERT without `out`, which the card does not have.

    Raises:
        RuntimeError: always; give out=(var, m, v).
    """
    _needs_out("npu_bert_apply_adam")


@operator("npu_bert_apply_adam.out")
def npu_bert_apply_adam_out(
    lr: _Number,
    beta1: _Number,
    beta2: _Number,
    epsilon: _Number,
    grad: torch.Tensor,
    max_grad_norm: _Number,
    global_grad_norm: _Number,
    weight_decay: _Number,
    step_size: _Number | None = None,
    adam_mode: int = 0,
    *,
    out: Sequence[torch.Tensor],
) -> _Three:
    """One step of Adam without bias correction; u = m / (sqrt(v) + epsilon).

    In mode 0 var - lr * (u + weight_decay * var), where a gradient whose norm is above 1 is divided by it if
    `max_grad_norm` is above 0 (so the kernel: the value of `max_grad_norm` does not matter). In mode 1 ("mbart_adam")
    var - step_size * u - lr * weight_decay * var, without clipping.

    Args:
        lr: learning rate.
        beta1: decay of the average of the gradient.
        beta2: decay of the average of its square.
        epsilon: added to the denominator.
        grad: gradient, of the shape of var; float16, bfloat16 or float32.
        max_grad_norm: 0 or below for no clipping.
        global_grad_norm: norm of all gradients.
        weight_decay: decoupled weight decay.
        step_size: of mode 1; `lr` if it is None.
        adam_mode: 0, or any other number for mode 1.
        out: parameters and the averages m and v, which are changed in place.

    Returns:
        the three tensors of `out`.

    Raises:
        RuntimeError: a dtype or a shape that the kernel does not take.
    """
    var, m, v = _three("npu_bert_apply_adam", out, grad)
    wide, before, rate = _wide(grad), _wide(var), _scalar(lr, var)
    if adam_mode == 0 and max_grad_norm > 0 and 1 < global_grad_norm < 1e30:
        wide = wide / _scalar(global_grad_norm, var)
    m_new, v_new = _moments(m, v, wide, _scalar(beta1, var), _scalar(beta2, var))
    update = m_new / (v_new.sqrt() + _scalar(epsilon, var))
    decay = _scalar(weight_decay, var) * before
    if adam_mode == 0:
        after = before - rate * (update + decay)
    else:
        after = before - (rate if step_size is None else _scalar(step_size, var)) * update - rate * decay
    return _written((var, m, v), (after, m_new, v_new))
