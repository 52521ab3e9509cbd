"""Convolutions under torch_npu's own names, with their backward passes.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_vision_pooling.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

Sources: the vendor's pages, and Conv2dKernelNpu.cpp, Conv3dKernelNpu.cpp, ConvTranspose2dKernelNpu.cpp,
ConvolutionKernelNpu.cpp and their backward passes in Ascend/op-plugin.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .checks import floating, refuse
from .registry import operator

__all__ = [
    "npu_conv2d",
    "npu_conv2d_backward",
    "npu_conv2d_out",
    "npu_conv3d",
    "npu_conv3d_backward",
    "npu_conv3d_out",
    "npu_conv_transpose2d",
    "npu_conv_transpose2d_backward",
    "npu_conv_transpose3d_backward",
    "npu_convolution",
    "npu_convolution_backward",
    "npu_convolution_transpose",
    "npu_convolution_transpose_backward",
]

_Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _check(
    name: str,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    dims: int,
    **numbers: Sequence[int],
) -> None:
    """Refuse what op-plugin refuses: too few dimensions or numbers, and strides of 0."""
    if tensor.dim() < dims + 2:
        text = f"input has to be more than {dims + 2}D, but got Tensor of dimension {tensor.dim()}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if weight.dim() < dims + 2:
        text = f"weight has to more than {dims + 2}D, but got Tensor of dimension {weight.dim()}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    for which, given in numbers.items():
        if len(given) < dims:
            text = f"{which} has to contain more than {dims} elements, but got {len(given)}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if not weight.shape[-1]:
        raise RuntimeError("4th dim of weight cannot be 0" + ops_error(ErrCode.PARAM))
    if not all(numbers["stride"][:dims]):
        raise RuntimeError("Stride cannot contain 0" + ops_error(ErrCode.PARAM))
    floating(name, input=tensor, weight=weight)


def _convolve(
    name: str,
    dims: int,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    _check(name, tensor, weight, dims, stride=stride, padding=padding, dilation=dilation)
    return torch.convolution(
        tensor, weight, bias, stride[:dims], padding[:dims], dilation[:dims], False, [0] * dims, groups
    )


def _transposed(
    name: str,
    dims: int,
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    lists = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
    _check(name, tensor, weight, dims, **lists)
    return torch.convolution(
        tensor, weight, bias, stride[:dims], padding[:dims], dilation[:dims], True, output_padding[:dims], groups
    )


def _backward(
    name: str,
    dims: int,
    tensor: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    mask: Sequence[bool],
    output_padding: Sequence[int] | None = None,
) -> _Grads:
    """Gradients of a convolution, or of a transposed one where it has an output padding.

    Those that the mask does not ask for are empty tensors: an operator cannot return an undefined tensor in Python.
    """
    _check(name, tensor, weight, dims, stride=stride, padding=padding, dilation=dilation)
    transposed = output_padding is not None
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    found = torch.ops.aten.convolution_backward(
        grad, tensor, weight, [channels], stride[:dims], padding[:dims], dilation[:dims], transposed,
        [0] * dims if output_padding is None else output_padding[:dims], groups, list(mask),
    )  # fmt: skip
    first, second, third = (grad.new_empty(0) if each is None else each for each in found)
    return first, second, third


@operator("npu_conv2d")
def npu_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """2D convolution, without a gradient.

    Args:
        input: (N, C, H, W); float16, bfloat16 or float32.
        weight: (out channels, C / groups, height, width).
        bias: (out channels,) or None.
        stride: of which the first two numbers count.
        padding: see `stride`.
        dilation: see `stride`.
        groups: groups of channels.

    Returns:
        as torch.nn.functional.conv2d.

    Raises:
        RuntimeError: too few dimensions or numbers, a stride of 0, or another dtype.
    """
    return _convolve("npu_conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@operator("npu_conv2d.out")
def npu_conv2d_out(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """npu_conv2d into a tensor, which is returned."""
    return out.copy_(_convolve("npu_conv2d", 2, input, weight, bias, stride, padding, dilation, groups))


@operator("npu_conv2d_backward")
def npu_conv2d_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Grads:
    """Gradients of npu_conv2d for the input, the weight and the bias.

    Args:
        input: as for npu_conv2d; the others too.
        grad_output: gradient of its result.
        weight: see `input`.
        stride: see `input`.
        padding: see `input`.
        dilation: see `input`.
        groups: see `input`.
        output_mask: which of the three are computed; the others are empty.

    Returns:
        the three gradients.

    Raises:
        RuntimeError: as npu_conv2d.
    """
    return _backward(
        "npu_conv2d_backward", 2, input, grad_output, weight, stride, padding, dilation, groups, output_mask
    )


@operator("npu_conv3d")
def npu_conv3d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """3D convolution, without a gradient.

    Args:
        input: (N, C, D, H, W); float16, bfloat16 or float32.
        weight: (out channels, C / groups, depth, height, width).
        bias: (out channels,) or None.
        stride: of which the first three numbers count.
        padding: see `stride`.
        dilation: see `stride`.
        groups: groups of channels.

    Returns:
        as torch.nn.functional.conv3d.

    Raises:
        RuntimeError: too few dimensions or numbers, a stride of 0, or another dtype.
    """
    return _convolve("npu_conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


@operator("npu_conv3d.out")
def npu_conv3d_out(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """npu_conv3d into a tensor, which is returned."""
    return out.copy_(_convolve("npu_conv3d", 3, input, weight, bias, stride, padding, dilation, groups))


@operator("npu_conv3d_backward")
def npu_conv3d_backward(
    input: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Grads:
    """Gradients of npu_conv3d for the input, the weight (in float32) and the bias.

    Args:
        input: as for npu_conv3d; the others too.
        grad: gradient of its result.
        weight: see `input`.
        stride: see `input`.
        padding: see `input`.
        dilation: see `input`.
        groups: see `input`.
        output_mask: which of the three are computed; the others are empty.

    Returns:
        the three gradients.

    Raises:
        RuntimeError: as npu_conv3d.
    """
    found = _backward("npu_conv3d_backward", 3, input, grad, weight, stride, padding, dilation, groups, output_mask)
    return found[0], found[1].float(), found[2]


@operator("npu_conv_transpose2d")
def npu_conv_transpose2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """2D transposed convolution, without a gradient.

    Args:
        input: (N, C, H, W); float16, bfloat16 or float32.
        weight: (C, out channels / groups, height, width).
        bias: (out channels,) or None.
        padding: of which the first two numbers count.
        output_padding: see `padding`.
        stride: see `padding`.
        dilation: see `padding`.
        groups: groups of channels.

    Returns:
        as torch.nn.functional.conv_transpose2d.

    Raises:
        RuntimeError: too few dimensions or numbers, a stride of 0, or another dtype.
    """
    return _transposed(
        "npu_conv_transpose2d", 2, input, weight, bias, padding, output_padding, stride, dilation, groups
    )


@operator("npu_conv_transpose2d_backward")
def npu_conv_transpose2d_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Grads:
    """Gradients of npu_conv_transpose2d for the input, the weight and the bias.

    Args:
        input: as for npu_conv_transpose2d; the others too.
        grad_output: gradient of its result.
        weight: see `input`.
        padding: see `input`.
        output_padding: see `input`.
        stride: see `input`.
        dilation: see `input`.
        groups: see `input`.
        output_mask: which of the three are computed; the others are empty.

    Returns:
        the three gradients.

    Raises:
        RuntimeError: as npu_conv_transpose2d.
    """
    return _backward(
        "npu_conv_transpose2d_backward", 2, input, grad_output, weight, stride, padding, dilation, groups, output_mask,
        output_padding,
    )  # fmt: skip


@operator("npu_conv_transpose3d_backward")
def npu_conv_transpose3d_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Grads:
    """Gradients of a 3D transposed convolution for the input, the weight and the bias.

    Args:
        input: as for npu_convolution_transpose; the others too.
        grad_output: gradient of its result.
        weight: see `input`.
        padding: see `input`.
        output_padding: see `input`.
        stride: see `input`.
        dilation: see `input`.
        groups: see `input`.
        output_mask: which of the three are computed; the others are empty.

    Returns:
        the three gradients.

    Raises:
        RuntimeError: as npu_convolution_transpose.
    """
    return _backward(
        "npu_conv_transpose3d_backward", 3, input, grad_output, weight, stride, padding, dilation, groups, output_mask,
        output_padding,
    )  # fmt: skip


def _dims(name: str, tensor: torch.Tensor) -> int:
    if tensor.dim() not in (4, 5):
        refuse(name, f"the input has {tensor.dim()} dimensions; the operator takes 4 and 5")
    return tensor.dim() - 2


@operator("npu_convolution")
def npu_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """2D or 3D convolution, by the dimensions of the input; with a gradient.

    Args:
        input: 4 or 5 dimensions; float16, bfloat16 or float32.
        weight: (out channels, C / groups, *kernel).
        bias: (out channels,) or None.
        stride: a number for each dimension of the kernel.
        padding: see `stride`.
        dilation: see `stride`.
        groups: groups of channels.

    Returns:
        as npu_conv2d or npu_conv3d.

    Raises:
        RuntimeError: another number of dimensions; and as those two.
    """
    dims = _dims("npu_convolution", input)
    return _convolve("npu_convolution", dims, input, weight, bias, stride, padding, dilation, groups)


@operator("npu_convolution_backward")
def npu_convolution_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Grads:
    """Gradients of npu_convolution for the input, the weight and the bias.

    Args:
        input: as for npu_convolution; the others too.
        grad_output: gradient of its result.
        weight: see `input`.
        stride: see `input`.
        padding: see `input`.
        dilation: see `input`.
        groups: see `input`.
        output_mask: which of the three are computed; the others are empty.

    Returns:
        the three gradients.

    Raises:
        RuntimeError: as npu_convolution.
    """
    dims = _dims("npu_convolution_backward", input)
    return _backward(
        "npu_convolution_backward", dims, input, grad_output, weight, stride, padding, dilation, groups, output_mask
    )


@operator("npu_convolution_transpose")
def npu_convolution_transpose(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """2D or 3D transposed convolution, by the dimensions of the input; with a gradient.

    Args:
        input: 4 or 5 dimensions; float16, bfloat16 or float32.
        weight: (C, out channels / groups, *kernel).
        bias: (out channels,) or None.
        padding: a number for each dimension of the kernel.
        output_padding: see `padding`.
        stride: see `padding`.
        dilation: see `padding`.
        groups: groups of channels.

    Returns:
        as torch.nn.functional.conv_transpose2d or conv_transpose3d.

    Raises:
        RuntimeError: another number of dimensions or dtype, too few numbers, or a stride of 0.
    """
    name = "npu_convolution_transpose"
    dims = _dims(name, input)
    return _transposed(name, dims, input, weight, bias, padding, output_padding, stride, dilation, groups)


@operator("npu_convolution_transpose_backward")
def npu_convolution_transpose_backward(
    input: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    grad_input_mask: Sequence[bool],
) -> _Grads:
    """Gradients of npu_convolution_transpose for the input, the weight and the bias.

    Args:
        input: as for npu_convolution_transpose; the others too.
        grad: gradient of its result.
        weight: see `input`.
        padding: see `input`.
        output_padding: see `input`.
        stride: see `input`.
        dilation: see `input`.
        groups: see `input`.
        grad_input_mask: which of the three are computed; the others are empty.

    Returns:
        the three gradients.

    Raises:
        RuntimeError: as npu_convolution_transpose.
    """
    dims = _dims("npu_convolution_transpose_backward", input)
    return _backward(
        "npu_convolution_transpose_backward", dims, input, grad, weight, stride, padding, dilation, groups,
        grad_input_mask, output_padding,
    )  # fmt: skip
