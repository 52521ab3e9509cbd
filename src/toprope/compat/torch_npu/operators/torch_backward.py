"""Gradients of torch's own operators that torch_npu registers as separate operators.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_torch_backward.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.
"""

from __future__ import annotations

from typing import cast

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, refuse
from .registry import operator

__all__ = [
    "conv_depthwise2d_backward",
    "fft_c2r_backward",
    "fft_r2c_backward",
    "kl_div_backward",
    "kl_div_target_backward",
    "l1_loss_backward",
    "matmul_double_backward",
    "npu_binary_cross_entropy_with_logits_backward",
    "npu_renorm_backward",
    "repeat_interleave_backward_int",
    "repeat_interleave_backward_tensor",
    "slow_conv_dilated2d_backward",
    "slow_conv_transpose2d_backward",
    "stft_backward",
]

_MEAN = 1  # at::Reduction: 0 none, 1 mean, 2 sum
_BY_ROOT = 1  # normalisation of torch._fft_*: 0 none, 1 by the root of the size, 2 by the size

_aten = torch.ops.aten


def _absent(tensor: torch.Tensor | None) -> torch.Tensor:
    """A result that is not computed: None to the caller."""
    return cast(torch.Tensor, tensor)


@operator("fft_c2r_backward")
def fft_c2r_backward(grad: torch.Tensor, dim: list[int], normalization: int) -> torch.Tensor:
    """Gradient of torch._fft_c2r.

    Args:
        grad: gradient of the result, real.
        dim: transformed axes; the last one is the one-sided one.
        normalization: 0 none, 1 by the root of the size, 2 by the size.

    Raises:
        RuntimeError: there is no axis.
    """
    if not dim:
        raise RuntimeError("dim must not be empty" + ops_error(ErrCode.PARAM))
    result: torch.Tensor = _aten._fft_r2c(grad, dim, normalization, True)
    doubled = grad.shape[dim[-1]] - result.shape[dim[-1]]
    if doubled <= 0:
        return result
    parts = (1, doubled, result.shape[dim[-1]] - 1 - doubled)
    first, middle, last = result.split_with_sizes(parts, dim[-1])
    return torch.cat((first, middle * 2, last), dim[-1])


@operator("fft_r2c_backward")
def fft_r2c_backward(
    grad: torch.Tensor, dim: list[int], normalization: int, onesided: bool, last_dim_size: int
) -> torch.Tensor:
    """Gradient of torch._fft_r2c.

    Args:
        grad: gradient of the result, complex.
        dim: transformed axes; the last one is the one-sided one.
        normalization: 0 none, 1 by the root of the size, 2 by the size.
        onesided: whether the result was one-sided.
        last_dim_size: size of the input along the last axis of `dim`.

    Returns:
        the gradient of the input, real.
    """
    if onesided:
        grad = _zeros_behind(grad, dim[-1], last_dim_size)
    return torch.real(_aten._fft_c2c(grad, dim, normalization, False)).clone()


def _zeros_behind(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """The tensor with zeros behind it along an axis, up to a size."""
    missing = size - x.shape[dim]
    if missing <= 0:
        return x
    shape = [missing if i == dim % x.dim() else extent for i, extent in enumerate(x.shape)]
    return torch.cat((x, x.new_zeros(shape)), dim)


@operator("stft_backward")
def stft_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> torch.Tensor:
    """Gradient of torch.stft without centring.

    Args:
        grad_output: gradient of the result, complex, or real with a last axis of 2.
        self: input, [samples] or [batch, samples].
        n_fft, hop_length, win_length, window, normalized, onesided, return_complex: as for torch.stft.

    Returns:
        the gradient of the input, like it.

    Raises:
        RuntimeError: the hop is not positive.
    """
    hop = n_fft // 4 if hop_length is None else hop_length
    if hop <= 0:
        raise RuntimeError("expected: hop_length > 0" + ops_error(ErrCode.VALUE))
    width = n_fft if win_length is None else win_length
    weights = window
    if width < n_fft:
        left = (n_fft - width) // 2
        inner = torch.ones(width, dtype=self.dtype, device=self.device) if window is None else window
        weights = torch.nn.functional.pad(inner, (left, n_fft - width - left))
    complex_window = window is not None and window.is_complex()
    as_complex = self.is_complex() or complex_window if return_complex is None else return_complex
    grad = grad_output if as_complex else torch.view_as_complex(grad_output.contiguous())
    grad = (grad if self.dim() == 2 else grad.unsqueeze(0)).transpose(1, 2)
    complex_fft = self.is_complex() or complex_window
    if not complex_fft and (True if onesided is None else onesided):
        grad = _zeros_behind(grad, 2, n_fft)
    frames = _aten._fft_c2c(grad.contiguous(), [2], _BY_ROOT if normalized else 0, False)
    if not complex_fft:
        frames = torch.real(frames)
    if weights is not None:
        frames = frames * weights.conj()
    if not self.is_complex() and frames.is_complex():
        frames = torch.real(frames)
    rows = self if self.dim() == 2 else self.unsqueeze(0)
    result = torch.zeros(rows.shape, dtype=frames.dtype, device=self.device)
    for i in range(frames.shape[1]):  # the card adds at an index in few dtypes, slices in all
        result[:, i * hop : i * hop + n_fft] += frames[:, i]
    return result.reshape(self.shape).to(self.dtype)


@operator("kl_div_backward")
def kl_div_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int = _MEAN,
    *,
    log_target: bool = False,
) -> torch.Tensor:
    """Gradient of torch.nn.functional.kl_div with respect to its input.

    Args:
        grad_output: gradient of the result.
        self: log probabilities.
        target: probabilities, or their logarithms.
        reduction: 0 none, 1 mean over all elements, 2 sum.
        log_target: whether `target` holds logarithms.

    Returns:
        a tensor like `self`: -target * grad where the target is above 0 (-exp(target) * grad for logarithms).
    """
    wide = compute_dtype(self)
    goal, grad = target.to(wide), grad_output.to(wide)
    result = -torch.exp(goal) * grad if log_target else torch.where(goal > 0, -goal * grad, 0)
    return _reduced(result, reduction, self).to(self.dtype)


def _reduced(result: torch.Tensor, reduction: int, like: torch.Tensor) -> torch.Tensor:
    result = result.expand(like.shape)
    return result / like.numel() if reduction == _MEAN and like.numel() else result


@operator("kl_div_target_backward")
def kl_div_target_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int = _MEAN,
    *,
    log_target: bool = False,
) -> torch.Tensor:
    """Gradient of torch.nn.functional.kl_div with respect to its target.

    Returns:
        a tensor like `target`: grad * (log(target) + 1 - self), 0 where the target is 0; for logarithms
        grad * exp(target) * (target + 1 - self).
    """
    wide = compute_dtype(target)
    goal, grad, logs = target.to(wide), grad_output.to(wide), self.to(wide)
    if log_target:
        result = grad * torch.exp(goal) * (goal + 1 - logs)
    else:
        result = torch.where(goal > 0, grad * (torch.log(goal) + 1 - logs), 0)
    return _reduced(result, reduction, target).to(target.dtype)


@operator("l1_loss_backward")
def l1_loss_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """Gradient of torch.nn.functional.l1_loss with respect to its input: sign(self - target) * grad.

    Args:
        grad_output: gradient of the result, broadcast to `self`.
        self: input.
        target: broadcast to `self`.
        reduction: 0 none, 1 mean over all elements, 2 sum.
    """
    wide = compute_dtype(self)
    result = torch.sign(self.to(wide) - target.to(wide)) * grad_output.to(wide)
    return _reduced(result, reduction, self).to(self.dtype)


@operator("npu_binary_cross_entropy_with_logits_backward")
def npu_binary_cross_entropy_with_logits_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight_opt: torch.Tensor | None,
    pos_weight_opt: torch.Tensor | None,
    reduction: int,
) -> torch.Tensor:
    """Gradient of torch.nn.functional.binary_cross_entropy_with_logits with respect to its input.

    Args:
        grad_output: gradient of the result, broadcast to `self`.
        self: logits.
        target: probabilities.
        weight_opt: factor of each element; None for 1.
        pos_weight_opt: factor of the positive part; None for 1.
        reduction: 0 none, 1 mean over all elements, 2 sum.

    Returns:
        a tensor like `self`: weight * grad * ((1 - t + p t) * sigmoid(x) - p t) for targets t and weights p.
    """
    wide = compute_dtype(self)
    goal = target.to(wide)
    positive = goal if pos_weight_opt is None else goal * pos_weight_opt.to(wide)
    result = ((1 - goal + positive) * torch.sigmoid(self.to(wide)) - positive) * grad_output.to(wide)
    if weight_opt is not None:
        result = result * weight_opt.to(wide)
    return _reduced(result, reduction, self).to(self.dtype)


@operator("repeat_interleave_backward_int")
def repeat_interleave_backward_int(
    grad: torch.Tensor, self: torch.Tensor, repeats: int, dim: int | None = None
) -> torch.Tensor:
    """Gradient of torch.repeat_interleave with one number of repeats: sums of neighbours.

    Args:
        grad: gradient of the result.
        self: input.
        repeats: number of repeats.
        dim: axis; None for the flat input.

    Raises:
        RuntimeError: there are no repeats.
    """
    if repeats == 0:
        raise RuntimeError("repeats must be not zero" + ops_error(ErrCode.VALUE))
    axis = (-1 if dim is None else dim) % max(grad.dim(), 1)
    shape = (*grad.shape[:axis], grad.shape[axis] // repeats, repeats, *grad.shape[axis + 1 :])
    return grad.reshape(shape).to(compute_dtype(grad)).sum(axis + 1).reshape(self.shape).to(grad.dtype)


@operator("repeat_interleave_backward_tensor")
def repeat_interleave_backward_tensor(
    grad: torch.Tensor, self: torch.Tensor, repeats: torch.Tensor, dim: int | None = None
) -> torch.Tensor:
    """Gradient of torch.repeat_interleave with a number of repeats for each element: sums of neighbours.

    Args:
        grad: gradient of the result.
        self: input.
        repeats: numbers of repeats, one or one for each element along the axis.
        dim: axis; None for the flat input.
    """
    axis = (-1 if dim is None else dim) % max(grad.dim(), 1)
    count = self.numel() if dim is None else self.shape[axis]
    ends = repeats.expand(count).cumsum(0)
    owner = torch.searchsorted(ends, torch.arange(grad.shape[axis], device=grad.device), right=True)
    shape = (*grad.shape[:axis], count, *grad.shape[axis + 1 :])
    wide = torch.zeros(shape, dtype=compute_dtype(grad), device=grad.device)
    return wide.index_add(axis, owner, grad.to(wide.dtype)).reshape(self.shape).to(grad.dtype)


@operator("npu_renorm_backward")
def npu_renorm_backward(grad: torch.Tensor, self: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    """Gradient of torch.renorm.

    Args:
        grad: gradient of the result.
        self: input.
        p: order of the norm.
        dim: axis whose slices have the norms.
        maxnorm: largest norm that is kept.

    Returns:
        `grad` for slices with at most the largest norm, else maxnorm / n * (grad - (x . grad) / n * dn/dx).
    """
    if p == 0:
        refuse("npu_renorm_backward", "p is 0, for which the norm has no gradient")
    axes = [axis for axis in range(self.dim()) if axis != dim % self.dim()]
    wide = compute_dtype(self)
    x, to = self.to(wide), grad.to(wide)
    norm = torch.linalg.vector_norm(x, p, axes, keepdim=True)
    total = (x * to).sum(axes, keepdim=True)
    inverse = 1 / (norm + 1e-7)
    if p == float("inf"):
        largest = (x.abs() == norm) | x.isnan()
        slope = x.sgn() * largest / largest.sum(axes, keepdim=True)
    else:
        slope = x.sgn() * (x.abs() / norm) ** (p - 1)
        slope = torch.where((norm == 0) | ((x == 0) & (p < 1)), 0, slope)
    scaled = maxnorm * inverse * (to - inverse * total * slope)
    return torch.where(norm > maxnorm, scaled, to).to(grad.dtype)


@operator("matmul_double_backward")
def matmul_double_backward(
    grad_self: torch.Tensor | None,
    grad_other: torch.Tensor | None,
    grad_out: torch.Tensor,
    self: torch.Tensor,
    other: torch.Tensor,
    mask: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradient of the gradient of torch.matmul.

    Args:
        grad_self: gradient of the gradient of `self`; None for zero.
        grad_other: gradient of the gradient of `other`; None for zero.
        grad_out: gradient of the product.
        self, other: factors of the product.
        mask: which results are wanted.

    Returns:
        the gradients of `grad_out`, `self` and `other`; None for those that are not wanted or zero.
    """
    if grad_self is not None and grad_self.dim() == self.dim() + 1:
        grad_self = grad_self[0]
    if grad_other is not None and grad_other.dim() == other.dim() + 1:
        grad_other = grad_other[0]
    to_grad: torch.Tensor | None = None
    if mask[0] and (grad_self is not None or grad_other is not None):
        to_grad = torch.zeros_like(grad_out)
        if grad_self is not None:
            to_grad = to_grad + torch.matmul(grad_self, other)
        if grad_other is not None:
            to_grad = to_grad + torch.matmul(self, grad_other)
    to_self: torch.Tensor | None = None
    if mask[1] and grad_other is not None:
        to_self = _product_gradients(grad_out, self, grad_other)[0]
    to_other: torch.Tensor | None = None
    if mask[2] and grad_self is not None:
        to_other = _product_gradients(grad_out, grad_self, other)[1]
    return _absent(to_grad), _absent(to_self), _absent(to_other)


def _product_gradients(
    grad: torch.Tensor, left: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of matmul(left, right) with respect to its factors, in their shapes."""
    a = left.unsqueeze(0) if left.dim() == 1 else left
    b = right.unsqueeze(1) if right.dim() == 1 else right
    if right.dim() == 1:
        grad = grad.unsqueeze(-1)
    if left.dim() == 1:
        grad = grad.unsqueeze(-2)
    to_left, to_right = torch.matmul(grad, b.mT), torch.matmul(a.mT, grad)
    return to_left.sum_to_size(a.shape).reshape(left.shape), to_right.sum_to_size(b.shape).reshape(right.shape)


def _convolution(
    grad_output: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    geometry: tuple[list[int], list[int], list[int]],
    output_padding: list[int] | None,
    groups: int,
    mask: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a convolution (transposed if there is an output padding), computed in float32.

    Args:
        geometry: stride, padding, dilation.
    """
    wide = compute_dtype(x)
    results = _aten.convolution_backward(
        grad_output.to(wide), x.to(wide), weight.to(wide), [grad_output.shape[1]], *geometry,
        output_padding is not None, output_padding or [0, 0], groups, mask,
    )  # fmt: skip
    dtypes = (x.dtype, weight.dtype, grad_output.dtype)
    first, second, third = (
        _absent(result if result is None else result.to(dtype)) for result, dtype in zip(results, dtypes, strict=True)
    )
    return first, second, third


@operator("slow_conv_transpose2d_backward")
def slow_conv_transpose2d_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    dilation: list[int],
    output_mask: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a transposed convolution with respect to input, weight and bias, those that are asked for.

    Args:
        grad_output: gradient of the result, [N, O, H, W].
        self: input, [N, C, H, W].
        weight: [C, O, kernel, kernel].
        kernel_size, stride, padding, output_padding, dilation: of the convolution, two values each.
        output_mask: which results are wanted; the others are None.
    """
    geometry = (list(stride), list(padding), list(dilation))
    return _convolution(grad_output, self, weight, geometry, list(output_padding), 1, list(output_mask))


@operator("slow_conv_dilated2d_backward")
def slow_conv_dilated2d_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_mask: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a dilated convolution with respect to input, weight and bias, those that are asked for.

    Args:
        grad_output: gradient of the result, [N, O, H, W].
        self: input, [N, C, H, W].
        weight: [O, C, kernel, kernel].
        kernel_size, stride, padding, dilation: of the convolution, two values each.
        output_mask: which results are wanted; the others are None.
    """
    geometry = (list(stride), list(padding), list(dilation))
    return _convolution(grad_output, self, weight, geometry, None, 1, list(output_mask))


@operator("_conv_depthwise2d_backward")
def conv_depthwise2d_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_mask: list[bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a depthwise convolution with respect to input and weight, those that are asked for.

    Args:
        grad_output: gradient of the result, [N, C * multiplier, H, W].
        self: input, [N, C, H, W].
        weight: [C * multiplier, 1, kernel, kernel].
        kernel_size, stride, padding, dilation: of the convolution, two values each.
        output_mask: which results are wanted; the others are None.
    """
    geometry = (list(stride), list(padding), list(dilation))
    results = _convolution(grad_output, self, weight, geometry, None, self.shape[1], [*output_mask, False])
    return results[0], results[1]
