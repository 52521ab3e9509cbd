"""Root mean square normalisation: the mathematics of npu_rms_norm, npu_add_rms_norm and their relatives.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_norm.py and
tests/compat/test_torch_npu_facade.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and
the card.
"""

from __future__ import annotations

import torch

from .checks import compute_dtype, floating, refuse
from .registry import operator

__all__ = [
    "npu_add_rms_norm",
    "npu_add_rms_norm_cast",
    "npu_add_rms_norm_v2",
    "npu_add_rms_norm_v2_functional",
    "npu_gemma_rms_norm",
    "npu_rms_norm",
    "npu_rms_norm_backward",
    "rms_norm",
]


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


def _check_sum(operator: str, x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor) -> None:
    if x1.shape != x2.shape or x1.dtype != x2.dtype:
        first, second = f"{list(x1.shape)} {x1.dtype}", f"{list(x2.shape)} {x2.dtype}"
        refuse(operator, f"x1 ({first}) and x2 ({second}) must have one shape and dtype")
    _check(operator, x1, gamma)


@operator("npu_rms_norm")
def npu_rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06) -> tuple[torch.Tensor, torch.Tensor]:
    """Root mean square normalisation.

    Args:
        self: 1 to 8 dimensions; float16, bfloat16 or float32.
        gamma: scale; its shape is the last part of the shape of `self`, its dtype as of `self` or float32.
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
    _check_sum("npu_add_rms_norm", x1, x2, gamma)
    total = x1 + x2
    y, rstd = rms_norm(total, gamma, epsilon)
    return y, rstd.detach(), total


@operator("npu_add_rms_norm_cast")
def npu_add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Root mean square normalisation of a sum, in float32 and in the dtype of the input.

    Args:
        x1: first addend; 1 to 8 dimensions; float16 or bfloat16.
        x2: second addend, of the same shape and dtype.
        gamma: scale, as for npu_rms_norm.
        epsilon: added to the mean square.

    Returns:
        (y1, y2, rstd, x): the normalised sum in float32 and in the dtype of `x1`, the reciprocal of the root mean
        square and the sum, which is rounded only here.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: aclnnAddRmsNormCast.md of ops-nn.
    """
    name = "npu_add_rms_norm_cast"
    _check_sum(name, x1, x2, gamma)
    if x1.dtype == torch.float32:
        refuse(name, "x1 is torch.float32; the kernel takes float16 and bfloat16")
    total = x1.float() + x2.float()
    y, rstd = rms_norm(total, gamma, epsilon)
    return y, y.to(x1.dtype), rstd, total.to(x1.dtype)


@operator("npu_add_rms_norm_v2")
def npu_add_rms_norm_v2(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> torch.Tensor:
    """Root mean square normalisation of a sum, in place.

    Args:
        x1: first addend, then the normalised sum; 1 to 8 dimensions; float16, bfloat16 or float32.
        x2: second addend, of the same shape and dtype, then the sum.
        gamma: scale, as for npu_rms_norm.
        epsilon: added to the mean square.

    Returns:
        the reciprocal of the root mean square, as npu_rms_norm.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: AddRmsNormV2KernelNpuOpApi.cpp of op-plugin and aclnnInplaceAddRmsNorm.md of ops-nn.
    """
    _check_sum("npu_add_rms_norm_v2", x1, x2, gamma)
    total = x1 + x2
    y, rstd = rms_norm(total, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(total)
    return rstd


@operator("npu_add_rms_norm_v2_functional")
def npu_add_rms_norm_v2_functional(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_add_rms_norm_v2 without writing into its arguments.

    Returns:
        (rstd, y, x): the reciprocal of the root mean square, the normalised sum and the sum.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    _check_sum("npu_add_rms_norm_v2_functional", x1, x2, gamma)
    total = x1 + x2
    y, rstd = rms_norm(total, gamma, epsilon)
    return rstd, y, total


@operator("npu_gemma_rms_norm")
def npu_gemma_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor]:
    """Root mean square normalisation with the scale 1 + gamma.

    Args:
        self: 1 to 8 dimensions; float16, bfloat16 or float32.
        gamma: as for npu_rms_norm.
        epsilon: added to the mean square.

    Returns:
        (y, rstd), as npu_rms_norm.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: aclnnGemmaRmsNorm.md of ops-nn.
    """
    _check("npu_gemma_rms_norm", self, gamma)
    return rms_norm(self, gamma.to(compute_dtype(self)) + 1, epsilon)


@operator("npu_rms_norm_backward")
def npu_rms_norm_backward(
    dy: torch.Tensor, self: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of npu_rms_norm, with n = x * rstd: rstd * (dy * gamma - n * mean(dy * gamma * n)).

    Args:
        dy: gradient of the result.
        self: input of npu_rms_norm.
        gamma: scale.
        rstd: reciprocal of the root mean square, as npu_rms_norm returns it.

    Returns:
        (dx, dgamma): dx like `self`, dgamma in float32 with the shape of `gamma`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_rms_norm_backward"
    _check(name, self, gamma)
    if dy.shape != self.shape or dy.dtype != self.dtype:
        refuse(name, f"dy {list(dy.shape)} {dy.dtype} and the input {list(self.shape)} {self.dtype} must be alike")
    wide = compute_dtype(self)
    leading = self.dim() - gamma.dim()
    axes = tuple(range(leading, self.dim()))
    grad, scale = dy.to(wide), rstd.to(wide).reshape(*self.shape[:leading], *[1] * gamma.dim())
    normal = self.to(wide) * scale
    inner = grad * gamma.to(wide)
    dx = scale * (inner - normal * (inner * normal).mean(dim=axes, keepdim=True))
    dgamma = grad * normal
    if leading:
        dgamma = dgamma.sum(dim=tuple(range(leading)))
    return dx.to(self.dtype), dgamma.float()
