"""Activations: the mathematics of npu_swiglu, npu_geglu, npu_gelu, npu_fast_gelu and npu_silu.

Every function computes in float32 (float64 for float64 input) and returns the dtype of its input. All are composed of
differentiable torch operators, so that autograd, torch.compile and every device have them.
"""

from __future__ import annotations

import torch

from .checks import compute_dtype, even_axis, floating, refuse
from .registry import operator

__all__ = ["fast_gelu", "geglu", "npu_fast_gelu", "npu_geglu", "npu_gelu", "npu_silu", "npu_swiglu", "swiglu"]

_APPROXIMATE = ("none", "tanh")


def swiglu(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Swish of the first half of `dim` times the second half: A * sigmoid(A) * B."""
    gate, up = x.to(compute_dtype(x)).chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def geglu(x: torch.Tensor, dim: int, approximate: str, activate_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One half of `dim` times the GELU of the other half, and that GELU itself."""
    left, right = x.to(compute_dtype(x)).chunk(2, dim)
    linear, gate = (right, left) if activate_left else (left, right)
    gelu = torch.nn.functional.gelu(gate, approximate=approximate)
    return (linear * gelu).to(x.dtype), gelu.to(x.dtype)


def fast_gelu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x)."""
    wide = x.to(compute_dtype(x))
    return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)


@operator("npu_swiglu")
def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """SwiGLU over the two halves of an axis.

    Args:
        self: 1 to 8 dimensions; float16, bfloat16 or float32.
        dim: the axis to halve; its size must be even.

    Returns:
        a tensor of the same dtype with half the size along `dim`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_swiglu", input=self)
    return swiglu(self, even_axis("npu_swiglu", self, dim))


@operator("npu_geglu")
def npu_geglu(
    self: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """GEGLU over the two halves of an axis.

    Args:
        self: 1 to 8 dimensions; float16, bfloat16 or float32.
        dim: the axis to halve; its size must be even.
        approximate: 0 for the erf form of GELU, 1 for the tanh form.
        activate_left: GELU goes to the first half rather than to the second.

    Returns:
        the product of the halves and the GELU of the activated half, of which only the first has a gradient.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_geglu", input=self)
    axis = even_axis("npu_geglu", self, dim)
    if approximate not in (0, 1):
        refuse("npu_geglu", f"approximate is {approximate}; the kernel takes 0 (erf) and 1 (tanh)")
    product, gelu = geglu(self, axis, _APPROXIMATE[approximate], activate_left)
    return product, gelu.detach()


@operator("npu_gelu")
def npu_gelu(self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """GELU; `approximate` is "none" (erf) or "tanh".

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_gelu", input=self)
    if approximate not in _APPROXIMATE:
        refuse("npu_gelu", f"approximate is {approximate!r}; the kernel takes 'none' and 'tanh'")
    return torch.nn.functional.gelu(self.to(compute_dtype(self)), approximate=approximate).to(self.dtype)


@operator("npu_fast_gelu")
def npu_fast_gelu(self: torch.Tensor) -> torch.Tensor:
    """The sigmoid approximation of GELU, x * sigmoid(1.702 x).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_fast_gelu", input=self)
    return fast_gelu(self)


@operator("npu_silu")
def npu_silu(self: torch.Tensor) -> torch.Tensor:
    """Swish, x * sigmoid(x).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_silu", input=self)
    return torch.nn.functional.silu(self.to(compute_dtype(self))).to(self.dtype)
