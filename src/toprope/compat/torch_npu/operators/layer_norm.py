"""Layer and group normalisation with what surrounds them: sums before, swish after, and their gradients.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests: tests/compat/operators/test_norm.py for
values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and the card.

All compute in float32 (float64 for float64 input).
"""

from __future__ import annotations

import math

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse
from .registry import operator

__all__ = [
    "layer_norm",
    "layer_norm_gradients",
    "npu_add_layer_norm",
    "npu_add_layer_norm_backward",
    "npu_deep_norm",
    "npu_deep_norm_backward",
    "npu_group_norm_silu",
    "npu_group_norm_swish",
    "npu_group_norm_swish_grad",
    "npu_layer_norm_eval",
    "npu_layernorm_grad",
]

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Four = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def layer_norm(x: torch.Tensor, axes: int, epsilon: float) -> Triple:
    """(x - mean) / sqrt(variance + epsilon) over the last axes.

    Args:
        x: in the dtype to compute in.
        axes: number of axes to normalise over.
        epsilon: added to the variance.

    Returns:
        the result, the mean and the reciprocal of the standard deviation, with size 1 along the axes.
    """
    over = tuple(range(x.dim() - axes, x.dim()))
    mean = x.mean(dim=over, keepdim=True)
    centred = x - mean
    rstd = torch.rsqrt(centred.square().mean(dim=over, keepdim=True) + epsilon)
    return centred * rstd, mean, rstd


def layer_norm_gradients(
    grad: torch.Tensor, normal: torch.Tensor, rstd: torch.Tensor, gamma: torch.Tensor | None, axes: int
) -> Triple:
    """Gradients of normal * gamma + beta with respect to what was normalised, to gamma and to beta.

    Args:
        grad: gradient of the result.
        normal: normalised input.
        rstd: reciprocal of the standard deviation, with size 1 along the axes.
        gamma: scale over the last axes; None for 1.
        axes: number of axes that were normalised.
    """
    leading = grad.dim() - axes
    over = tuple(range(leading, grad.dim()))
    inner = grad if gamma is None else grad * gamma
    slope = (inner * normal).mean(dim=over, keepdim=True)
    to_x = rstd * (inner - inner.mean(dim=over, keepdim=True) - normal * slope)
    to_gamma, to_beta = grad * normal, grad
    if leading:
        rows = tuple(range(leading))
        to_gamma, to_beta = to_gamma.sum(dim=rows), to_beta.sum(dim=rows)
    return to_x, to_gamma, to_beta


def _check_scale(operator: str, x: torch.Tensor, **scales: torch.Tensor) -> int:
    """Refuse scales whose shape is not the last part of the shape of `x`; gives their number of axes."""
    axes = 0
    for name, scale in scales.items():
        axes = scale.dim()
        if not 1 <= axes <= x.dim() or scale.shape != x.shape[x.dim() - axes :]:
            shapes = f"of shape {list(scale.shape)} is not the last part of the shape {list(x.shape)}"
            refuse(operator, f"{name} {shapes}")
    return axes


@operator("npu_deep_norm")
def npu_deep_norm(
    x: torch.Tensor,
    gx: torch.Tensor,
    beta: torch.Tensor,
    gamma: torch.Tensor,
    alpha: float = 0.3,
    epsilon: float = 1e-06,
) -> Triple:
    """Layer normalisation of alpha * x + gx, as in DeepNet.

    Args:
        x: residual; at least 2 dimensions; float16, bfloat16 or float32.
        gx: result of the layer, like `x`.
        beta: added to the result; its shape is the last part of the shape of `x`.
        gamma: scale, like `beta`.
        alpha: factor of `x`.
        epsilon: added to the variance.

    Returns:
        (mean, rstd, y): the mean and the reciprocal of the standard deviation in float32, with size 1 along the
        normalised axes and without a gradient, and the result like `x`.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: aclnnDeepNorm.md of ops-nn.
    """
    name = "npu_deep_norm"
    floating(name, x=x, gx=gx, beta=beta, gamma=gamma)
    if x.shape != gx.shape or x.dtype != gx.dtype:
        refuse(name, f"x {list(x.shape)} {x.dtype} and gx {list(gx.shape)} {gx.dtype} must be alike")
    axes = _check_scale(name, x, gamma=gamma, beta=beta)
    wide = compute_dtype(x)
    normal, mean, rstd = layer_norm(alpha * x.to(wide) + gx.to(wide), axes, epsilon)
    y = normal * gamma.to(wide) + beta.to(wide)
    return mean.detach(), rstd.detach(), y.to(x.dtype)


@operator("npu_deep_norm_backward")
def npu_deep_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    gx: torch.Tensor,
    gamma: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    alpha: float = 0.3,
) -> Four:
    """Gradient of npu_deep_norm.

    Args:
        dy: gradient of y.
        x, gx, gamma, alpha: as for npu_deep_norm.
        mean, rstd: results of npu_deep_norm.

    Returns:
        (dx, dgx, dbeta, dgamma): the first two like `x`, the last two in float32 like `gamma`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_deep_norm_backward"
    floating(name, dy=dy, x=x, gx=gx, gamma=gamma)
    axes = _check_scale(name, x, gamma=gamma)
    wide = compute_dtype(x)
    shape = (*x.shape[: x.dim() - axes], *[1] * axes)
    scale = rstd.to(wide).reshape(shape)
    normal = (alpha * x.to(wide) + gx.to(wide) - mean.to(wide).reshape(shape)) * scale
    to_sum, to_gamma, to_beta = layer_norm_gradients(dy.to(wide), normal, scale, gamma.to(wide), axes)
    return (alpha * to_sum).to(x.dtype), to_sum.to(gx.dtype), to_beta.float(), to_gamma.float()


@operator("npu_add_layer_norm")
def npu_add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-05,
    additional_output: bool = False,
) -> Four:
    """Layer normalisation of a sum.

    Args:
        x1: first addend; 1 to 8 dimensions; float16, bfloat16 or float32.
        x2: second addend, of the same shape.
        gamma: scale; its shape is the last part of the shape of `x1`.
        beta: added to the result, like `gamma`.
        epsilon: added to the variance.
        additional_output: whether the sum is returned.

    Returns:
        (y, mean, rstd, x): the result, in the dtype of the addends or float32 where they differ; the mean and the
        reciprocal of the standard deviation in float32 with size 1 as the last axis, without a gradient; and the sum,
        like the result: zeros unless it is asked for (unwritten memory on the card).

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: aclnnAddLayerNorm.md of ops-nn and AddLayerNormKernelNpuOpApi.cpp of op-plugin.
    """
    name = "npu_add_layer_norm"
    floating(name, x1=x1, x2=x2, gamma=gamma, beta=beta)
    if x1.shape != x2.shape:
        refuse(name, f"x1 {list(x1.shape)} and x2 {list(x2.shape)} must have one shape")
    axes = _check_scale(name, x1, gamma=gamma, beta=beta)
    wide = compute_dtype(x1)
    dtype = x1.dtype if x1.dtype == x2.dtype else torch.float32
    total = x1.to(wide) + x2.to(wide)
    normal, mean, rstd = layer_norm(total, axes, epsilon)
    y = (normal * gamma.to(wide) + beta.to(wide)).to(dtype)
    shape = (*x1.shape[: x1.dim() - axes], 1)
    x = total.to(dtype) if additional_output else torch.zeros_like(y)
    return y, mean.reshape(shape).detach(), rstd.reshape(shape).detach(), x


@operator("npu_add_layer_norm_backward")
def npu_add_layer_norm_backward(
    dy_opt: torch.Tensor | None,
    x1: torch.Tensor,
    x2: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor,
    gamma: torch.Tensor,
    dsum_opt: torch.Tensor | None,
) -> Four:
    """Gradient of npu_add_layer_norm.

    Args:
        dy_opt: gradient of y; None for zero.
        x1, x2, gamma: as for npu_add_layer_norm.
        rstd, mean: results of npu_add_layer_norm.
        dsum_opt: gradient of the sum; None for zero.

    Returns:
        (dx1, dx2, dgamma, dbeta): the first two are equal and like `x1`, the last two in float32 like `gamma`.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_add_layer_norm_backward"
    floating(name, dy=dy_opt, x1=x1, x2=x2, gamma=gamma, dsum=dsum_opt)
    axes = _check_scale(name, x1, gamma=gamma)
    wide = compute_dtype(x1)
    shape = (*x1.shape[: x1.dim() - axes], *[1] * axes)
    scale = rstd.to(wide).reshape(shape)
    normal = (x1.to(wide) + x2.to(wide) - mean.to(wide).reshape(shape)) * scale
    grad = torch.zeros_like(normal) if dy_opt is None else dy_opt.to(wide)
    to_sum, to_gamma, to_beta = layer_norm_gradients(grad, normal, scale, gamma.to(wide), axes)
    if dsum_opt is not None:
        to_sum = to_sum + dsum_opt.to(wide)
    dx = to_sum.to(x1.dtype)
    return dx, dx.clone(), to_gamma.float(), to_beta.float()


@operator("npu_layer_norm_eval")
def npu_layer_norm_eval(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-05,
) -> torch.Tensor:
    """Layer normalisation without a gradient.

    Args:
        input: float16, bfloat16 or float32.
        normalized_shape: the last part of the shape of the input.
        weight: scale of that shape; None for 1.
        bias: added to the result; None for 0.
        eps: added to the variance.

    Returns:
        a tensor like the input.

    Raises:
        RuntimeError: the shapes do not fit.

    Source: torch_npu-npu_layer_norm_eval.md.
    """
    name = "npu_layer_norm_eval"
    floating(name, input=input, weight=weight, bias=bias)
    axes = _normalized_axes(input, normalized_shape)
    wide = compute_dtype(input)
    y = layer_norm(input.to(wide), axes, eps)[0]
    if weight is not None:
        y = y * weight.to(wide).reshape(normalized_shape)
    if bias is not None:
        y = y + bias.to(wide).reshape(normalized_shape)
    return y.to(input.dtype)


def _normalized_axes(input: torch.Tensor, shape: list[int]) -> int:
    axes = len(shape)
    if input.dim() < axes or list(input.shape[input.dim() - axes :]) != list(shape):
        found = f"[*, {str(list(shape))[1:]}, but got input of size{list(input.shape)}"
        reason = f"Given normalized_shape={list(shape)}, expected input with shape {found}"
        raise RuntimeError(reason + ops_error(ErrCode.PARAM))
    return axes


@operator("npu_layernorm_grad")
def npu_layernorm_grad(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> Triple:
    """Gradient of layer normalisation.

    Args:
        grad_out: gradient of the result.
        input: what was normalised.
        normalized_shape: the last part of its shape.
        mean, rstd: mean and reciprocal of the standard deviation of each row.
        weight: scale; None for 1.
        bias: not used.

    Returns:
        (dx, dweight, dbias): dx like the input, the others with `normalized_shape` and the dtype of the weight.

    Raises:
        RuntimeError: the shapes do not fit.

    Source: LayerNormBackwardKernelNpu.cpp of op-plugin.
    """
    floating("npu_layernorm_grad", grad_out=grad_out, input=input, weight=weight)
    axes = _normalized_axes(input, normalized_shape)
    wide = compute_dtype(input)
    shape = (*input.shape[: input.dim() - axes], *[1] * axes)
    scale = rstd.to(wide).reshape(shape)
    normal = (input.to(wide) - mean.to(wide).reshape(shape)) * scale
    gamma = None if weight is None else weight.to(wide).reshape(normalized_shape)
    to_x, to_gamma, to_beta = layer_norm_gradients(grad_out.to(wide), normal, scale, gamma, axes)
    dtype = input.dtype if weight is None else weight.dtype
    return to_x.to(input.dtype), to_gamma.to(dtype), to_beta.to(dtype)


def _groups(operator: str, x: torch.Tensor, groups: int, *scales: torch.Tensor | None) -> torch.Tensor:
    """Elements of each group, [N, groups, elements], after the checks of both group normalisations."""
    if not 2 <= x.dim() <= 8:
        refuse(operator, f"the input has {x.dim()} dimensions; the kernel takes 2 to 8")
    if groups <= 0 or x.shape[1] % groups:
        refuse(operator, f"{x.shape[1]} channels cannot be divided into {groups} groups")
    for scale in scales:
        if scale is not None and list(scale.shape) != [x.shape[1]]:
            refuse(operator, f"weight and bias must have shape [{x.shape[1]}], but got {list(scale.shape)}")
    return x.to(compute_dtype(x)).reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)


def _channels(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """One value for each channel, for broadcasting over `x` [N, C, ...]."""
    return scale.to(compute_dtype(x)).reshape(-1, *[1] * (x.dim() - 2))


@operator("npu_group_norm_silu")
def npu_group_norm_silu(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    group: int,
    eps: float = 0.00001,
) -> Triple:
    """Group normalisation and then y * sigmoid(y).

    Args:
        input: [N, C, ...] with 2 to 8 dimensions, none of them empty; float16, bfloat16 or float32.
        weight: scale, [C], of the dtype of the input or a wider one; None for 1.
        bias: added to the normalised input, like `weight`; None for 0.
        group: number of groups; C is a multiple of it.
        eps: added to the variance, above 0.

    Returns:
        (y, mean, rstd): y like the input; the mean and the reciprocal of the standard deviation, [N, group], in its
        dtype.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_group_norm_silu.md.
    """
    name = "npu_group_norm_silu"
    floating(name, input=input, weight=weight, bias=bias)
    parts = _groups(name, input, group, weight, bias)
    if not input.numel():
        refuse(name, f"the input of shape {list(input.shape)} is empty")
    if eps <= 0:
        refuse(name, f"eps is {eps}; it must be above 0")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        refuse(name, f"weight {weight.dtype} and bias {bias.dtype} must have one dtype")
    normal, mean, rstd = layer_norm(parts, 1, eps)
    y = normal.reshape(input.shape)
    if weight is not None:
        y = y * _channels(input, weight)
    if bias is not None:
        y = y + _channels(input, bias)
    y = torch.nn.functional.silu(y)
    return y.to(input.dtype), mean.squeeze(-1).to(input.dtype), rstd.squeeze(-1).to(input.dtype)


@operator("npu_group_norm_swish")
def npu_group_norm_swish(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> Triple:
    """Group normalisation and then y * sigmoid(swish_scale * y).

    Args:
        input: [N, C, ...] with 2 to 8 dimensions; float16, bfloat16 or float32.
        num_groups: number of groups; C is a multiple of it.
        weight: scale, [C], in the dtype of the input.
        bias: added to the normalised input, like `weight`.
        eps: added to the variance; None for 1e-5.
        swish_scale: factor in the sigmoid; None for 1.

    Returns:
        (y, mean, rstd): y like the input; the mean and the reciprocal of the standard deviation, [N, num_groups],
        without a gradient.

    Raises:
        RuntimeError: the kernel would not take the input.

    Source: torch_npu-npu_group_norm_swish.md.
    """
    name = "npu_group_norm_swish"
    floating(name, input=input, weight=weight, bias=bias)
    if not input.dtype == weight.dtype == bias.dtype:
        refuse(name, f"input {input.dtype}, weight {weight.dtype} and bias {bias.dtype} must have one dtype")
    parts = _groups(name, input, num_groups, weight, bias)
    normal, mean, rstd = layer_norm(parts, 1, 1e-5 if eps is None else eps)
    y = normal.reshape(input.shape) * _channels(input, weight) + _channels(input, bias)
    y = y * torch.sigmoid((1.0 if swish_scale is None else swish_scale) * y)
    return y.to(input.dtype), mean.squeeze(-1).to(weight.dtype).detach(), rstd.squeeze(-1).to(weight.dtype).detach()


@operator("npu_group_norm_swish_grad")
def npu_group_norm_swish_grad(
    grad: torch.Tensor,
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    grad_input_mask: list[bool],
    swish_scale: float | None = 1.0,
) -> Triple:
    """Gradient of npu_group_norm_swish.

    Args:
        grad: gradient of y.
        input, num_groups, weight, bias, swish_scale: as for npu_group_norm_swish.
        mean, rstd: results of npu_group_norm_swish.
        grad_input_mask: which of the gradients are wanted; those of weight and bias are zero otherwise (unwritten
            memory on the card).

    Returns:
        (dx, dweight, dbias), like the input, the weight and the bias.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    name = "npu_group_norm_swish_grad"
    floating(name, grad=grad, input=input, weight=weight, bias=bias)
    parts = _groups(name, input, num_groups, weight, bias)
    wide = parts.dtype
    scale = rstd.to(wide).reshape(*parts.shape[:2], 1)
    normal = ((parts - mean.to(wide).reshape(*parts.shape[:2], 1)) * scale).reshape(input.shape)
    gamma, beta = _channels(input, weight), _channels(input, bias)
    factor = 1.0 if swish_scale is None else swish_scale
    y = normal * gamma + beta
    sigmoid = torch.sigmoid(factor * y)
    to_y = grad.to(wide) * sigmoid * (1 + factor * y * (1 - sigmoid))
    rows = (0, *range(2, input.dim()))
    to_x = layer_norm_gradients((to_y * gamma).reshape(parts.shape), normal.reshape(parts.shape), scale, None, 1)[0]
    to_weight = (to_y * normal).sum(dim=rows) if grad_input_mask[1] else torch.zeros_like(weight)
    to_bias = to_y.sum(dim=rows) if grad_input_mask[2] else torch.zeros_like(bias)
    return to_x.reshape(input.shape).to(input.dtype), to_weight.to(weight.dtype), to_bias.to(bias.dtype)
