"""Softmax with scale and mask, and cross entropy of logits, with their gradients.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_dropout.py
for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

import torch

from .checks import compute_dtype, floating, refuse, same_dtype
from .registry import operator

__all__ = [
    "npu_scaled_masked_softmax",
    "npu_scaled_masked_softmax_backward",
    "npu_softmax_cross_entropy_with_logits",
    "npu_softmax_cross_entropy_with_logits_backward",
]

_MASKED = -10000.0


def _check_masked(name: str, x: torch.Tensor, mask: torch.Tensor, fixed_triu_mask: bool) -> None:
    floating(name, x=x)
    if mask.dtype != torch.bool:
        refuse(name, f"mask is {mask.dtype}; the kernel takes bool")
    if fixed_triu_mask:
        refuse(name, "fixed_triu_mask is True; the kernel takes False only")
    height, width = x.shape[-2:] if x.dim() >= 2 else (1, x.shape[-1] if x.dim() else 1)
    if any(not 32 <= side <= 4096 or side % 32 for side in (height, width)):
        refuse(name, f"x has shape {list(x.shape)}; its last two axes must be multiples of 32 from 32 to 4096")
    if x.dim() < mask.dim() or any(
        size not in (1, side) for size, side in zip(reversed(mask.shape), reversed(x.shape), strict=False)
    ):
        refuse(name, f"mask of shape {list(mask.shape)} cannot be broadcast to {list(x.shape)}")


@operator("npu_scaled_masked_softmax")
def npu_scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1, fixed_triu_mask: bool = False
) -> torch.Tensor:
    """Softmax along the last axis of x * scale, with -10000 where the mask is set.

    Args:
        x: float16, bfloat16 or float32; the last two axes are multiples of 32 from 32 to 4096.
        mask: bool, broadcast to `x`.
        scale: factor of `x`.
        fixed_triu_mask: False.

    Returns:
        a tensor like `x`.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_scaled_masked_softmax.md and the test of scaled_masked_softmax_v2 in ops-nn.
    """
    _check_masked("npu_scaled_masked_softmax", x, mask, fixed_triu_mask)
    wide = x.to(compute_dtype(x)) * scale
    return torch.softmax(wide.masked_fill(mask, _MASKED), -1).to(x.dtype)


@operator("npu_scaled_masked_softmax_backward")
def npu_scaled_masked_softmax_backward(
    y_grad: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, scale: float, fixed_triu_mask: bool
) -> torch.Tensor:
    """Gradient of npu_scaled_masked_softmax: scale * y * (grad - sum(grad * y)), 0 where the mask is set.

    Args:
        y_grad: gradient of the result.
        y: result of the forward operator.
        mask, scale, fixed_triu_mask: as there.

    Returns:
        a tensor like `y_grad`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _check_masked("npu_scaled_masked_softmax_backward", y, mask, fixed_triu_mask)
    wide = compute_dtype(y)
    softmax = y.to(wide)
    inner = y_grad.to(wide) * softmax
    result = (inner - softmax * inner.sum(-1, keepdim=True)) * scale
    return result.masked_fill(mask, 0).to(y_grad.dtype)


def _check_entropy(name: str, features: torch.Tensor, labels: torch.Tensor) -> None:
    floating(name, features=features, labels=labels)
    same_dtype(name, features=features, labels=labels)
    if not 1 <= features.dim() <= 2 or features.shape != labels.shape:
        shapes = f"features {list(features.shape)} and labels {list(labels.shape)}"
        refuse(name, f"{shapes} must have one shape with at most 2 dimensions")


@operator("npu_softmax_cross_entropy_with_logits")
def npu_softmax_cross_entropy_with_logits(self: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the softmax of each row: -sum(labels * log_softmax(self)).

    Args:
        self: logits, [rows, classes]; float16, bfloat16 or float32.
        labels: probabilities, like `self`; without a gradient.

    Returns:
        [rows]. Its gradient is softmax - labels, as on the card: the derivative of the formula where the labels of a
        row sum to 1.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: （beta）torch_npu-npu_softmax_cross_entropy_with_logits.md; the kernel follows TensorFlow's operator.
    """
    _check_entropy("npu_softmax_cross_entropy_with_logits", self, labels)
    logits = self.to(compute_dtype(self))
    weights = labels.detach().to(logits.dtype)
    loss = -(weights * torch.log_softmax(logits.detach(), -1)).sum(-1)
    if self.requires_grad:
        slope = torch.logsumexp(logits, -1) - (weights * logits).sum(-1)
        loss = loss + (slope - slope.detach())
    return loss.to(self.dtype)


@operator("npu_softmax_cross_entropy_with_logits_backward")
def npu_softmax_cross_entropy_with_logits_backward(
    grad: torch.Tensor, self: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Gradient of npu_softmax_cross_entropy_with_logits: (softmax(self) - labels) * grad.

    Args:
        grad: gradient of the result, [rows].
        self, labels: as for the forward operator.

    Returns:
        a tensor like `self`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _check_entropy("npu_softmax_cross_entropy_with_logits_backward", self, labels)
    wide = compute_dtype(self)
    slope = torch.softmax(self.to(wide), -1) - labels.to(wide)
    return (slope.to(self.dtype) * grad.unsqueeze(-1)).to(self.dtype)
