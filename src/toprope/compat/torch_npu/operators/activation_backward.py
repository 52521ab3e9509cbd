"""Gradients of the activations as separate operators, which programs call in autograd functions.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_activation.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

All compute in float32 (float64 for float64 input) and return the dtype of the forward input.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, even_axis, floating, refuse
from .registry import operator

__all__ = [
    "npu_fast_gelu_backward",
    "npu_geglu_grad",
    "npu_gelu_backward",
    "npu_mish_backward",
    "npu_silu_backward",
    "npu_swiglu_backward",
    "npu_swiglu_group_quant_backward",
    "swiglu_gradients",
]

_APPROXIMATE = ("none", "tanh")


def swiglu_gradients(grad: torch.Tensor, gate: torch.Tensor, linear: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of silu(gate) * linear with respect to both."""
    sigmoid = torch.sigmoid(gate)
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    return grad * linear * slope, grad * gate * sigmoid


def _same_shape(operator: str, tensor: torch.Tensor, shape: list[int], what: str) -> None:
    if list(tensor.shape) != shape:
        refuse(operator, f"{what} has shape {list(tensor.shape)}, but {shape} is expected")


@operator("npu_swiglu_backward")
def npu_swiglu_backward(grad_output: torch.Tensor, self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Gradient of npu_swiglu.

    Args:
        grad_output: gradient of the result, of half the size of `self` along `dim`.
        self: input of npu_swiglu.
        dim: the axis that was halved.

    Returns:
        the gradient of the input, in its shape and dtype.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_swiglu_backward"
    floating(name, grad_output=grad_output, input=self)
    axis = even_axis(name, self, dim)
    half = [size // 2 if i == axis else size for i, size in enumerate(self.shape)]
    _same_shape(name, grad_output, half, "grad_output")
    wide = compute_dtype(self)
    parts = swiglu_gradients(grad_output.to(wide), *self.to(wide).chunk(2, axis))
    return torch.cat(parts, axis).to(self.dtype)


@operator("npu_geglu_grad")
def npu_geglu_grad(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    gelu: torch.Tensor,
    dim: int = -1,
    approximate: int = 1,
    activate_left: bool = False,
) -> torch.Tensor:
    """Gradient of npu_geglu.

    Args:
        grad_output: gradient of the product, of half the size of `self` along `dim`.
        self: input of npu_geglu.
        gelu: the GELU that npu_geglu returned.
        dim, approximate, activate_left: as for npu_geglu.

    Returns:
        the gradient of the input, in its shape and dtype.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_geglu_grad"
    floating(name, grad_output=grad_output, input=self, gelu=gelu)
    axis = even_axis(name, self, dim)
    if approximate not in (0, 1):
        refuse(name, f"approximate is {approximate}; the kernel takes 0 (erf) and 1 (tanh)")
    half = [size // 2 if i == axis else size for i, size in enumerate(self.shape)]
    _same_shape(name, grad_output, half, "grad_output")
    _same_shape(name, gelu, half, "gelu")
    wide = compute_dtype(self)
    grad = grad_output.to(wide)
    left, right = self.to(wide).chunk(2, axis)
    linear, gate = (right, left) if activate_left else (left, right)
    to_gate = torch.ops.aten.gelu_backward(grad * linear, gate, approximate=_APPROXIMATE[approximate])
    to_linear = grad * gelu.to(wide)
    parts = (to_gate, to_linear) if activate_left else (to_linear, to_gate)
    return torch.cat(parts, axis).to(self.dtype)


@operator("npu_gelu_backward")
def npu_gelu_backward(grad_output: torch.Tensor, self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Gradient of npu_gelu; the shapes of both tensors are broadcast and their dtypes promoted.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_gelu_backward"
    floating(name, grad_output=grad_output, input=self)
    if approximate not in _APPROXIMATE:
        refuse(name, f"approximate is {approximate!r}; the kernel takes 'none' and 'tanh'")
    wide, dtype = compute_dtype(self), torch.result_type(grad_output, self)
    x = self.to(wide)
    slope: torch.Tensor = torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate=approximate)
    return (grad_output.to(wide) * slope).to(dtype)


@operator("npu_fast_gelu_backward")
def npu_fast_gelu_backward(grad: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """Gradient of npu_fast_gelu, x * sigmoid(1.702 x).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_fast_gelu_backward", grad=grad, input=self)
    wide = self.to(compute_dtype(self))
    sigmoid = torch.sigmoid(1.702 * wide)
    return (grad.to(wide.dtype) * sigmoid * (1 + 1.702 * wide * (1 - sigmoid))).to(self.dtype)


@operator("npu_silu_backward")
def npu_silu_backward(grad_output: torch.Tensor, x0: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:
    """Gradient of npu_silu from its input and its output: grad * (sigmoid(x) + y * (1 - sigmoid(x))).

    Args:
        grad_output: gradient of the result.
        x0: input of npu_silu.
        x1: output of npu_silu.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: derivatives.yaml and SiluKernelNpu.cpp of op-plugin (the kernel SwishGrad).
    """
    floating("npu_silu_backward", grad_output=grad_output, x0=x0, x1=x1)
    wide = compute_dtype(grad_output)
    sigmoid = torch.sigmoid(x0.to(wide))
    return (grad_output.to(wide) * (sigmoid + x1.to(wide) * (1 - sigmoid))).to(grad_output.dtype)


@operator("npu_mish_backward")
def npu_mish_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Gradient of npu_mish, x * tanh(softplus(x)).

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    floating("npu_mish_backward", grad=grad, input=input)
    wide = input.to(compute_dtype(input))
    inner = torch.tanh(torch.nn.functional.softplus(wide))
    slope = inner + wide * torch.sigmoid(wide) * (1 - inner.square())
    return (grad.to(wide.dtype) * slope).to(input.dtype)


@operator("npu_swiglu_group_quant_backward")
def npu_swiglu_group_quant_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    y_origin: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    clamp_limit: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of npu_swiglu_group_quant: of silu(min(A, limit)) * clamp(B, -limit, limit) * weight.

    Args:
        grad_y: gradient of the result, with half the size of `x` along the last axis.
        x: input of the forward operator, A and B along the last axis.
        weight: factor of each row, with size 1 along the last axis.
        y_origin: the result before it was multiplied by `weight`; needed with it.
        group_index: rows of each group; the gradients of the rows behind the last group are zero.
        clamp_limit: the limit; 0 for none.

    Returns:
        (grad_x, grad_weight): grad_x like `x`; grad_weight like `weight`, empty float32 without one.

    Raises:
        RuntimeError: the last axis of x is odd, or y_origin is missing.

    Source: SwigluGroupQuantBackwardKernelNpuOpApi.cpp and its test in op-plugin.
    """
    name = "npu_swiglu_group_quant_backward"
    floating(name, grad_y=grad_y, x=x, weight=weight, y_origin=y_origin)
    if x.shape[-1] % 2:
        raise RuntimeError("x last dim size should be even" + ops_error(ErrCode.PARAM))
    if weight is not None and y_origin is None:
        refuse(name, "y_origin is needed for the gradient of weight")
    wide = compute_dtype(x)
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    beyond: torch.Tensor | None = None
    if group_index is not None:
        order = torch.arange(rows, device=x.device).reshape(*x.shape[:-1], 1)
        beyond = order >= group_index.sum()
    grad = grad_y.to(wide)
    grad_weight = torch.empty(0, dtype=torch.float32, device=x.device)
    if weight is not None and y_origin is not None:
        to_weight = (grad * y_origin.to(wide)).sum(-1, keepdim=True)
        if beyond is not None:
            to_weight = to_weight.masked_fill(beyond, 0)
        grad_weight = to_weight.reshape(weight.shape).to(weight.dtype)
        grad = grad * weight.to(wide)
    gate, linear = x.to(wide).chunk(2, -1)
    if not clamp_limit:
        to_gate, to_linear = swiglu_gradients(grad, gate, linear)
    else:
        to_gate, to_linear = swiglu_gradients(
            grad, gate.clamp(max=clamp_limit), linear.clamp(-clamp_limit, clamp_limit)
        )
        to_gate = to_gate.masked_fill(gate >= clamp_limit, 0)
        to_linear = to_linear.masked_fill(linear.abs() >= clamp_limit, 0)
    grad_x = torch.cat((to_gate, to_linear), -1)
    if beyond is not None:
        grad_x = grad_x.masked_fill(beyond, 0)
    return grad_x.to(x.dtype), grad_weight
