"""Root mean square normalisation: the mathematics of npu_rms_norm and npu_add_rms_norm."""

from __future__ import annotations

import torch

from .checks import compute_dtype, floating, refuse
from .registry import operator

__all__ = ["npu_add_rms_norm", "npu_rms_norm", "rms_norm"]


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last gamma.dim() axes.

    Returns:
        the result in the dtype of `x`, and the reciprocal of the root in float32 (float64 for float64 input) with
        size 1 along the normalised axes.
    """
    wide = x.to(compute_dtype(x))
    axes = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(wide.square().mean(dim=axes, keepdim=True) + epsilon)
    return (wide * rstd * gamma.to(wide.dtype)).to(x.dtype), rstd


def _check(operator: str, x: torch.Tensor, gamma: torch.Tensor) -> None:
    floating(operator, input=x, gamma=gamma)
    if gamma.dtype != x.dtype and gamma.dtype != torch.float32:
        refuse(operator, f"gamma is {gamma.dtype} and the input {x.dtype}; gamma must have the same dtype or float32")
    if not 1 <= x.dim() <= 8:
        refuse(operator, f"the input has {x.dim()} dimensions; the kernel takes 1 to 8")
    if not 1 <= gamma.dim() <= x.dim() or gamma.shape != x.shape[x.dim() - gamma.dim() :]:
        refuse(operator, f"gamma of shape {list(gamma.shape)} is not the last part of the shape {list(x.shape)}")
    if not gamma.numel():
        refuse(operator, "gamma is empty")


@operator("npu_rms_norm")
def npu_rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06) -> tuple[torch.Tensor, torch.Tensor]:
    """Root mean square normalisation.

    Args:
        self: 1 to 8 dimensions; float16, bfloat16 or float32.
        gamma: scale; its shape is the last part of the shape of `self`, its dtype that of `self` or float32.
        epsilon: added to the mean square.

    Returns:
        (y, rstd): y like `self`; rstd, the reciprocal of the root mean square, in float32 with size 1 along the
        normalised axes and without a gradient.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _check("npu_rms_norm", self, gamma)
    y, rstd = rms_norm(self, gamma, epsilon)
    return y, rstd.detach()


@operator("npu_add_rms_norm")
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Root mean square normalisation of a sum.

    Args:
        x1: first addend; 1 to 8 dimensions; float16, bfloat16 or float32.
        x2: second addend, of the same shape and dtype.
        gamma: scale, as for npu_rms_norm.
        epsilon: added to the mean square.

    Returns:
        (y, rstd, x): the normalised sum, the reciprocal of the root mean square (as npu_rms_norm) and the sum.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    if x1.shape != x2.shape or x1.dtype != x2.dtype:
        first, second = f"{list(x1.shape)} {x1.dtype}", f"{list(x2.shape)} {x2.dtype}"
        refuse("npu_add_rms_norm", f"x1 ({first}) and x2 ({second}) must have one shape and dtype")
    _check("npu_add_rms_norm", x1, gamma)
    total = x1 + x2
    y, rstd = rms_norm(total, gamma, epsilon)
    return y, rstd.detach(), total
