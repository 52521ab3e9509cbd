"""The operators of nn.SyncBatchNorm for cards: torch has no kernels for the CPU that a card could run.

kernels.py registers them. Composed of torch operators; for half precision they compute in float32, as torch's CUDA
kernels do. Tests: tests/sim/test_distributed.py, with cases of tests/helpers/distributed_training.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["register"]


def register(library: Any) -> None:
    """Put the kernels in place.

    Args:
        library: torch's library of kernels of aten for cards.
    """
    for kernel in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        library.impl(kernel.__name__, kernel)


def _exact(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _others(tensor: Tensor) -> list[int]:
    """All dimensions but the channels."""
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _along(channels: Tensor, tensor: Tensor) -> Tensor:
    """One number for each channel, in the shape that goes with the tensor's."""
    return channels.view(1, -1, *[1] * (tensor.dim() - 2))


def batch_norm_stats(tensor: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation of each channel."""
    variance, mean = torch.var_mean(_exact(tensor), _others(tensor), correction=0)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
    tensor: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation over all processes, from those of each and their numbers of elements."""
    weights = counts.to(mean.dtype).view(-1, 1)
    total = weights.sum()
    whole = (mean * weights).sum(0) / total
    variance = ((invstd.square().reciprocal() - eps + (mean - whole).square()) * weights).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * total / (total - 1)).to(running_var.dtype), momentum)
    return whole, torch.rsqrt(variance + eps)


def batch_norm_elemt(
    tensor: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """The normalised input."""
    result = (_exact(tensor) - _along(mean, tensor)) * _along(invstd, tensor)
    if weight is not None:
        result = result * _along(weight, tensor)
    if bias is not None:
        result = result + _along(bias, tensor)
    return result.to(tensor.dtype)


def batch_norm_backward_reduce(
    grad_out: Tensor,
    tensor: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The sums over this process's batch that the gradients are made of, and those of weight and bias."""
    gradient = _exact(grad_out)
    sums = gradient.sum(_others(tensor))
    products = (gradient * (_exact(tensor) - _along(mean, tensor))).sum(_others(tensor))
    kind = sums.dtype if weight is None else weight.dtype
    return (
        sums if input_g else None,
        products if input_g else None,
        (products * invstd).to(kind) if weight_g else None,
        sums.to(kind) if bias_g else None,
    )


def batch_norm_backward_elemt(
    grad_out: Tensor,
    tensor: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the input, from the sums over all processes."""
    total = count.sum()
    centred = (_exact(tensor) - _along(mean, tensor)) * _along(invstd.square() * sum_dy_xmu / total, tensor)
    factor = invstd if weight is None else invstd * weight
    result = (_exact(grad_out) - _along(sum_dy / total, tensor) - centred) * _along(factor, tensor)
    return result.to(tensor.dtype)
