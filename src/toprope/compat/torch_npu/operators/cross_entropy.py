"""Cross entropy: npu_cross_entropy_loss, and the operators for a vocabulary that is spread over cards.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_cross_entropy.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

Sources: the pages of these operators and test_npu_cross_entropy_loss.py in Ascend/op-plugin; for the bits of the mask
and the end of the vocabulary, the kernel and the test executor of aclnnFusedLinearOnlineMaxSum in ops-nn.
"""

from __future__ import annotations

import torch

from .checks import FLOATING, refuse
from .registry import operator

__all__ = [
    "npu_cross_entropy_loss",
    "npu_cross_entropy_loss_backward",
    "npu_fused_cross_entropy_loss_with_max_sum",
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
    "npu_fused_linear_online_max_sum",
]

_REDUCTIONS = ("mean", "sum", "none")


def _check_loss(
    name: str,
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: str,
    label_smoothing: float,
    zloss: float,
) -> None:
    if input.dtype not in FLOATING or input.dim() != 2 or 0 in input.shape:
        refuse(name, f"the input is {input.dtype} {list(input.shape)}; the kernel takes floats (n, classes)")
    if target.dtype != torch.int64 or target.shape != input.shape[:1]:
        refuse(name, f"target is {target.dtype} {list(target.shape)}; the kernel takes int64 [{input.shape[0]}]")
    if weight is not None and (weight.dtype != torch.float32 or weight.shape != input.shape[1:]):
        refuse(name, f"weight is {weight.dtype} {list(weight.shape)}; the kernel takes float32 [{input.shape[1]}]")
    if reduction not in _REDUCTIONS:
        refuse(name, f"reduction is {reduction!r}; the kernel takes 'mean', 'sum' and 'none'")
    if not 0.0 <= label_smoothing < 1.0:
        refuse(name, f"label_smoothing is {label_smoothing}; the kernel takes 0 up to, without, 1")
    if zloss != 0.0:
        refuse(name, "lse_square_scale_for_zloss must be 0: the kernel does not have the second loss yet")


def _chosen(target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int) -> torch.Tensor:
    """Factor of every sample: the weight of its class, or 0 where it is ignored; float32."""
    factor = torch.ones_like(target, dtype=torch.float32)
    if weight is not None:
        factor = weight.gather(0, torch.where(target == ignore_index, 0, target))
    return factor * (target != ignore_index) if ignore_index >= 0 else factor


def _smoothed(
    log_prob: torch.Tensor, weight: torch.Tensor | None, target: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    every = -(log_prob if weight is None else log_prob * weight).sum(-1)
    return every * (target != ignore_index) if ignore_index >= 0 else every


@operator("npu_cross_entropy_loss")
def npu_cross_entropy_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cross entropy of logits and labels.

    With p = log_softmax(input) in float32, l = -weight[target] * p[target], and s = -sum(weight * p) over the classes:
    (1 - label_smoothing) * l + label_smoothing * s / classes, summed, or divided by the sum of weight[target].

    Args:
        input: (n, classes), float16, bfloat16 or float32.
        target: (n,), int64.
        weight: (classes,), float32.
        reduction: "mean", "sum" or "none".
        ignore_index: label of samples that do not count; below 0 for none.
        label_smoothing: from 0, below 1. With a gradient it must be 0; with "mean", `weight` and `ignore_index` must
            be left at their defaults, too.
        lse_square_scale_for_zloss: 0.
        return_zloss: False.

    Returns:
        (loss, log_prob, zloss, lse_for_zloss): (1,), or (n,) with "none"; (n, classes); and two that hold nothing (0
        here), of the shape of the loss and (n,). All in the dtype of the input; only the loss has a gradient.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_cross_entropy_loss"
    _check_loss(name, input, target, weight, reduction, label_smoothing, lse_square_scale_for_zloss)
    if return_zloss:
        refuse(name, "return_zloss must be False: the kernel does not have the second loss yet")
    if torch.is_grad_enabled() and input.requires_grad:
        if label_smoothing != 0.0:
            refuse(name, "label_smoothing must be 0 where the input has a gradient")
        if reduction == "mean" and (weight is not None or ignore_index != -100):
            refuse(name, "weight and ignore_index must be left at their defaults with 'mean' and a gradient")
    log_prob = torch.log_softmax(input.to(torch.float32), dim=-1)
    factor = _chosen(target, weight, ignore_index)
    places = torch.where(target == ignore_index, 0, target) if ignore_index >= 0 else target
    loss = -log_prob.gather(1, places.unsqueeze(-1)).squeeze(-1) * factor
    smooth = _smoothed(log_prob, weight, target, ignore_index) if label_smoothing else None
    if reduction != "none":
        total = factor.sum() if reduction == "mean" else 1.0
        loss = (loss.sum() / total).reshape(1)
        smooth = None if smooth is None else (smooth.sum() / total).reshape(1)
    if smooth is not None:
        loss = (1 - label_smoothing) * loss + smooth * label_smoothing / input.shape[1]
    loss = loss.to(input.dtype)
    empty = input.detach()
    unused = empty.new_zeros(loss.shape), empty.new_zeros(input.shape[:1])
    return loss, log_prob.to(input.dtype).detach(), *unused


@operator("npu_cross_entropy_loss_backward")
def npu_cross_entropy_loss_backward(
    grad_loss: torch.Tensor,
    log_prob: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    grad_zloss: torch.Tensor | None = None,
    lse_for_zloss: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> torch.Tensor:
    """Gradient of npu_cross_entropy_loss for its input: (exp(log_prob) - one_hot(target)) * weight[target] * grad_loss.

    Args:
        grad_loss: (1,), or (n,) with "none".
        log_prob: (n, classes).
        target: (n,), int64.
        weight: (classes,), float32.
        grad_zloss: None.
        lse_for_zloss: None.
        reduction: "mean", "sum" or "none".
        ignore_index: as for the loss.
        label_smoothing: 0.
        lse_square_scale_for_zloss: 0.

    Returns:
        a tensor like `log_prob`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_cross_entropy_loss_backward"
    _check_loss(name, log_prob, target, weight, reduction, label_smoothing, lse_square_scale_for_zloss)
    if label_smoothing != 0.0 or grad_zloss is not None:
        refuse(name, "label_smoothing must be 0 and grad_zloss None")
    factor = _chosen(target, weight, ignore_index)
    grad = grad_loss.to(torch.float32).reshape(-1) * factor
    if reduction == "mean":
        grad = grad / factor.sum()
    places = torch.where(target == ignore_index, 0, target) if ignore_index >= 0 else target
    classes = torch.arange(log_prob.shape[1], device=log_prob.device)
    ones = (classes == places.unsqueeze(-1)).to(torch.float32)
    return ((log_prob.to(torch.float32).exp() - ones) * grad.unsqueeze(-1)).to(log_prob.dtype)


def _packed(mask: torch.Tensor) -> torch.Tensor:
    """Booleans as bits of uint8: the first of eight is the lowest bit, and bits behind the last are 1."""
    count = -mask.shape[0] % 8
    bits = torch.cat([mask.to(torch.int32), mask.new_ones((count,), dtype=torch.int32)]).reshape(-1, 8)
    return (bits << torch.arange(8, dtype=torch.int32, device=mask.device)).sum(-1).to(torch.uint8)


def _unpacked(mask: torch.Tensor, count: int) -> torch.Tensor:
    bits = mask.to(torch.int32).unsqueeze(-1) >> torch.arange(8, dtype=torch.int32, device=mask.device)
    return (bits & 1).reshape(-1)[:count].to(torch.bool)


@operator("npu_fused_linear_online_max_sum")
def npu_fused_linear_online_max_sum(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Logits of a part of the vocabulary, and what the other parts need of them.

    logits = input @ weight^T; rows whose target is not in [vocab_start_index, vocab_end_index) are masked.

    Args:
        input: (n, hidden), float16 or bfloat16.
        weight: (part of the vocabulary, hidden), of the same dtype.
        target: (n,), int32 or int64.
        vocab_start_index: first token of the part.
        vocab_end_index: token behind its last one. (The page says that the last one counts; the kernel does not.)
        return_logits: whether to return the logits.

    Returns:
        (logits_max, sum_exp_logits, predicted_logits, target_mask, masked_target, logits): the maximum of each row; the
        sum of exp(logits - maximum); logits - maximum at the target, 0 where masked; the mask as bits of uint8, the
        first row in the lowest bit; the target in this part, 0 where masked; the logits, or None.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_fused_linear_online_max_sum"
    if input.dtype not in (torch.float16, torch.bfloat16) or weight.dtype != input.dtype:
        refuse(name, f"the input is {input.dtype} and weight {weight.dtype}; the kernel takes float16 or bfloat16")
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1]:
        refuse(name, f"the input {list(input.shape)} and weight {list(weight.shape)} must be [n, h] and [v, h]")
    if target.dtype not in (torch.int32, torch.int64) or target.shape != input.shape[:1]:
        refuse(name, f"target is {target.dtype} {list(target.shape)}; it must be int32 or int64 [{input.shape[0]}]")
    if vocab_end_index < vocab_start_index:
        refuse(name, f"vocab_end_index {vocab_end_index} is below vocab_start_index {vocab_start_index}")
    logits = input.to(torch.float32) @ weight.to(torch.float32).t()
    largest = logits.amax(dim=-1)
    difference = logits - largest.unsqueeze(-1)
    mask = (target < vocab_start_index) | (target >= vocab_end_index)
    place = torch.where(mask, 0, target - vocab_start_index)
    predicted = difference.gather(1, place.to(torch.int64).unsqueeze(-1)).squeeze(-1)
    return (
        largest,
        difference.exp().sum(-1),
        torch.where(mask, 0.0, predicted),
        _packed(mask),
        place.to(target.dtype),
        logits.to(input.dtype) if return_logits else None,
    )


@operator("npu_fused_cross_entropy_loss_with_max_sum")
def npu_fused_cross_entropy_loss_with_max_sum(
    logits_max: torch.Tensor,
    sum_exp_logits: torch.Tensor,
    predicted_logits: torch.Tensor,
    *,
    label_smoothing: float | None = 0.0,
    input: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    vocab_parallel_logits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Loss log(sum_exp_logits) - predicted_logits, and the softmax of the logits of this part of the vocabulary.

    Args:
        logits_max: (n,), float32, over all parts.
        sum_exp_logits: (n,), float32, over all parts.
        predicted_logits: (n,), float32, over all parts.
        label_smoothing: 0.
        input: None.
        weight: None.
        vocab_parallel_logits: (n, part of the vocabulary), float16, bfloat16 or float32.

    Returns:
        (loss, softmax), float32; softmax is None without `vocab_parallel_logits`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_fused_cross_entropy_loss_with_max_sum"
    if label_smoothing:
        refuse(name, f"label_smoothing is {label_smoothing}; the kernel takes 0")
    if input is not None or weight is not None:
        refuse(name, "input and weight must be None")
    for label, tensor in (
        ("logits_max", logits_max),
        ("sum_exp_logits", sum_exp_logits),
        ("predicted_logits", predicted_logits),
    ):
        if tensor.dtype != torch.float32 or tensor.dim() != 1 or tensor.shape != logits_max.shape:
            refuse(name, f"{label} is {tensor.dtype} {list(tensor.shape)}; the kernel takes float32 (n,)")
    loss = sum_exp_logits.log() - predicted_logits
    logits = vocab_parallel_logits
    if logits is None:
        return loss, None
    if logits.dtype not in FLOATING or logits.dim() != 2 or logits.shape[0] != logits_max.shape[0]:
        refuse(name, f"vocab_parallel_logits is {logits.dtype} {list(logits.shape)}; the kernel takes floats (n, v)")
    difference = logits.to(torch.float32) - logits_max.unsqueeze(-1)
    return loss, difference.exp() / sum_exp_logits.unsqueeze(-1)


@operator("npu_fused_linear_cross_entropy_loss_with_max_sum_backward")
def npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    target_mask: torch.Tensor,
    masked_target: torch.Tensor,
    label_smoothing: float = 0.0,
    logits_max: torch.Tensor | None = None,
    sum_exp_logits: torch.Tensor | None = None,
    softmax: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the loss over a part of the vocabulary, for the input and the weight of the last layer.

    g = (softmax - one_hot(masked_target), without the ones of masked rows) * grad, rounded to the dtype of the input;
    the gradients are g @ weight and g^T @ input.

    Args:
        grad: (n,), float32.
        input: (n, hidden), float16 or bfloat16.
        weight: (part of the vocabulary, hidden), of the same dtype.
        target_mask: bits of uint8, as npu_fused_linear_online_max_sum returns them.
        masked_target: (n,), int32 or int64.
        label_smoothing: 0.
        logits_max: (n,), float32; with sum_exp_logits, instead of softmax.
        sum_exp_logits: (n,), float32.
        softmax: (n, part of the vocabulary), float32.

    Returns:
        tensors like `input` and `weight`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_fused_linear_cross_entropy_loss_with_max_sum_backward"
    if label_smoothing:
        refuse(name, f"label_smoothing is {label_smoothing}; the kernel takes 0")
    if input.dtype not in (torch.float16, torch.bfloat16) or weight.dtype != input.dtype:
        refuse(name, f"the input is {input.dtype} and weight {weight.dtype}; the kernel takes float16 or bfloat16")
    count = input.shape[0]
    if grad.dtype != torch.float32 or grad.shape != (count,) or masked_target.shape != (count,):
        refuse(name, f"grad {grad.dtype} {list(grad.shape)} must be float32 [{count}], like masked_target")
    if target_mask.dtype != torch.uint8 or target_mask.shape[0] * 8 < count:
        refuse(name, f"target_mask is {target_mask.dtype} {list(target_mask.shape)}; it must have {count} bits")
    if softmax is None:
        if logits_max is None or sum_exp_logits is None:
            refuse(name, "softmax, or logits_max and sum_exp_logits, are needed")
        logits = input.to(torch.float32) @ weight.to(torch.float32).t()
        softmax = (logits - logits_max.unsqueeze(-1)).exp() / sum_exp_logits.unsqueeze(-1)
    classes = torch.arange(weight.shape[0], device=input.device)
    ones = (classes == masked_target.unsqueeze(-1)) & ~_unpacked(target_mask, count).unsqueeze(-1)
    rows = ((softmax - ones.to(torch.float32)) * grad.unsqueeze(-1)).to(input.dtype).to(torch.float32)
    by_input = rows @ weight.to(torch.float32)
    by_weight = rows.t() @ input.to(torch.float32)
    return by_input.to(input.dtype), by_weight.to(input.dtype)
