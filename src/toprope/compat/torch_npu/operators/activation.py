"""Activations: the mathematics of npu_swiglu, npu_geglu, npu_gelu, npu_fast_gelu, npu_silu, npu_mish and the like.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_activation.py and tests/compat/test_torch_npu_facade.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Every function computes in float32 (float64 for float64 input) and returns the dtype of its input. All are composed of
differentiable torch operators, so that autograd, torch.compile and every device have them.
"""

from __future__ import annotations

import math

import torch

from .checks import compute_dtype, even_axis, floating, refuse
from .registry import operator

__all__ = [
    "fast_gelu",
    "geglu",
    "npu_clipped_swiglu",
    "npu_fast_gelu",
    "npu_geglu",
    "npu_gelu",
    "npu_gelu_mul",
    "npu_mish",
    "npu_silu",
    "npu_silu_",
    "npu_swiglu",
    "old_fast_gelu",
    "swiglu",
]

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


@operator("npu_silu_")
def npu_silu_(self: torch.Tensor) -> torch.Tensor:
    """Swish in place, x * sigmoid(x).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_silu_", input=self)
    return self.copy_(torch.nn.functional.silu(self.to(compute_dtype(self))))


@operator("npu_mish")
def npu_mish(self: torch.Tensor) -> torch.Tensor:
    """Mish, x * tanh(softplus(x)).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_mish", input=self)
    return torch.nn.functional.mish(self.to(compute_dtype(self))).to(self.dtype)


@operator("fast_gelu")
def old_fast_gelu(self: torch.Tensor) -> torch.Tensor:
    """The sigmoid approximation of GELU under its older name, as npu_fast_gelu.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("fast_gelu", input=self)
    return fast_gelu(self)


@operator("npu_gelu_mul")
def npu_gelu_mul(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """GELU of the first half of the last axis times the second half.

    Args:
        input: 2 to 8 dimensions; float16, bfloat16 or float32. The last axis has an even size of at most 1024, the
            others at most 200000 rows together.
        approximate: "none" (erf) or "tanh".

    Returns:
        a tensor of the same dtype with half the size along the last axis.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_gelu_mul.md.
    """
    name = "npu_gelu_mul"
    floating(name, input=input)
    if approximate not in _APPROXIMATE:
        refuse(name, f"approximate is {approximate!r}; the kernel takes 'none' and 'tanh'")
    if not 2 <= input.dim() <= 8:
        refuse(name, f"the input has {input.dim()} dimensions; the kernel takes 2 to 8")
    last = input.shape[-1]
    if last % 2 or last > 1024:
        refuse(name, f"the last axis has {last} elements; the kernel takes an even number up to 1024")
    if math.prod(input.shape[:-1]) > 200000:
        refuse(name, f"the input has {math.prod(input.shape[:-1])} rows; the kernel takes up to 200000")
    gate, linear = input.to(compute_dtype(input)).chunk(2, -1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * linear).to(input.dtype)


@operator("npu_clipped_swiglu")
def npu_clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """SwiGLU with clipped inputs: A * sigmoid(alpha * A) * (B + bias), with A <= limit and |B| <= limit.

    Args:
        x: at least 2 dimensions; float16, bfloat16 or float32. The axes before `dim` count as rows, the others as
            elements of a row.
        group_index: int64, one dimension: tokens of each group. Rows from the sum of the groups on are not computed:
            zero here, unwritten memory on the card.
        dim: the axis to halve; its size must be even.
        alpha: factor in the sigmoid.
        limit: upper bound of A and bound of the magnitude of B.
        bias: added to B.
        interleaved: A and B are the even and the odd elements of a row rather than its halves.

    Returns:
        a tensor of the same dtype with half the size along `dim`.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_clipped_swiglu.md.
    """
    name = "npu_clipped_swiglu"
    floating(name, x=x)
    if x.dim() < 2:
        refuse(name, f"x has {x.dim()} dimensions; the kernel takes 2 and more")
    axis = even_axis(name, x, dim)
    rows = x.to(compute_dtype(x)).reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    gate, linear = (rows[:, ::2], rows[:, 1::2]) if interleaved else rows.chunk(2, -1)
    gate, linear = gate.clamp(max=limit), linear.clamp(-limit, limit)
    y = gate * torch.sigmoid(alpha * gate) * (linear + bias)
    if group_index is not None:
        if group_index.dim() != 1 or group_index.dtype != torch.int64:
            refuse(name, f"group_index is {group_index.dtype} with {group_index.dim()} dimensions, not int64 with 1")
        past = torch.arange(rows.shape[0], device=x.device) >= group_index.sum()
        y = y.masked_fill(past.unsqueeze(1), 0)
    return y.reshape(*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :]).to(x.dtype)
