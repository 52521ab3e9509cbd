"""Deformable convolution: samples of the input at shifted points, then an ordinary convolution over them.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_vision_pooling.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

Sources: the vendor's page, DeformableConv2dKernelNpu.cpp and test_deformable_conv2d.py of Ascend/op-plugin.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .evaluation import gradients, has_values
from .registry import operator

__all__ = ["npu_deformable_conv2d", "npu_deformable_conv2dbk"]


def _sample(
    images: torch.Tensor,
    offset: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    deformable_groups: int,
    modulated: bool,
) -> torch.Tensor:
    """The samples, (N, C, rows * kernel height, columns * kernel width), by bilinear interpolation.

    The channels of `offset` are x, y and, if modulated, the factor; each (groups, kernel height, kernel width). Points
    outside the images are 0.
    """
    count, channels, height, width = images.shape
    tall, broad = kernel_size
    rows, columns = offset.shape[2:]
    parts = offset.reshape(count, 3 if modulated else 2, deformable_groups, tall, broad, rows, columns)
    parts = parts.permute(0, 1, 2, 5, 3, 6, 4)  # (N, part, group, row, kernel row, column, kernel column)

    def place(lines: int, kernel: int, step: int, start: int, spread: int) -> torch.Tensor:
        line = torch.arange(lines, device=images.device, dtype=images.dtype)[:, None] * step - start
        return line + torch.arange(kernel, device=images.device, dtype=images.dtype) * spread

    x = parts[:, 0] + place(columns, broad, stride[3], padding[2], dilation[3])
    y = parts[:, 1] + place(rows, tall, stride[2], padding[0], dilation[2])[:, :, None, None]
    left, top = x.detach().floor(), y.detach().floor()
    maps = images.reshape(count, deformable_groups, channels // deformable_groups, height * width)

    def corner(right: int, down: int) -> torch.Tensor:
        column, row = left + right, top + down
        there = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        index = row.clamp(0, height - 1).long() * width + column.clamp(0, width - 1).long()
        index = index.flatten(2)[:, :, None].expand(-1, -1, maps.shape[2], -1)
        return maps.gather(3, index) * there.flatten(2)[:, :, None]

    # from differences of the corners, so that the gradients of the offsets are sums of differences too
    across, along = (x - left).flatten(2)[:, :, None], (y - top).flatten(2)[:, :, None]
    upper, lower = corner(0, 0), corner(0, 1)
    upper = upper + (corner(1, 0) - upper) * across
    lower = lower + (corner(1, 1) - lower) * across
    samples = upper + (lower - upper) * along
    if modulated:
        samples = samples * parts[:, 2].flatten(2)[:, :, None]
    return samples.reshape(count, channels, rows * tall, columns * broad)


def _check(
    name: str,
    images: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    deformable_groups: int,
    modulated: bool,
    suffix: str,
) -> None:
    if images.dim() < 4:
        text = f"input{suffix} has to be more than 4D, but got Tensor of dimension {images.dim()}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if offset.dim() < 4:
        text = f"offset{suffix} has to more than 4D, but got Tensor of dimension {offset.dim()}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    for which, numbers in (("stride", stride), ("dilation", dilation)):
        if len(numbers) < 4:
            text = f"{which} has to contain more than 4 elements, but got {len(numbers)}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if len(padding) != 4:
        refuse(name, f"padding {list(padding)} must have 4 numbers: top, bottom, left, right")
    if any(number <= 0 for number in (*stride, *dilation, *kernel_size, groups, deformable_groups)):
        refuse(name, "stride, dilation, kernel_size, groups and deformable_groups must be greater than 0")
    if images.shape[1] % groups or images.shape[1] % deformable_groups:
        refuse(
            name, f"{images.shape[1]} channels are no multiple of {groups} groups or of {deformable_groups} of offsets"
        )
    points = kernel_size[0] * kernel_size[1] * deformable_groups * (3 if modulated else 2)
    size = [
        (length + before + after - (kernel - 1) * spread - 1) // step + 1
        for length, before, after, kernel, spread, step in zip(
            images.shape[2:], padding[::2], padding[1::2], kernel_size, dilation[2:], stride[2:], strict=True
        )
    ]
    wanted = [images.shape[0], points, *size]
    if list(offset.shape) != wanted:
        refuse(name, f"offset must have shape {wanted}, but got {list(offset.shape)}")
    if weight.dim() != 4 or list(weight.shape[1:]) != [images.shape[1] // groups, *kernel_size]:
        wanted = [images.shape[1] // groups, *kernel_size]
        refuse(name, f"weight must have shape (out channels, *{wanted}), but got {list(weight.shape)}")


@operator("npu_deformable_conv2d")
def npu_deformable_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = [1, 1, 1, 1],
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Deformable convolution of version 2, or of version 1 without `modulated`.

    Args:
        input: (N, C, H, W).
        weight: (out channels, C / groups, *kernel_size).
        offset: (N, deformable_groups * kernel points * 3, rows, columns), or 2 in place of 3 without `modulated`: the
            shifts in x of all groups and points, those in y, and the factors.
        bias: (out channels,) or None.
        kernel_size: height and width.
        stride: 4 numbers, of which the last two count: down and right.
        padding: top, bottom, left, right.
        dilation: 4 numbers, of which the last two count.
        groups: of the convolution.
        deformable_groups: groups of channels with offsets of their own.
        modulated: whether `offset` has factors.

    Returns:
        the result (N, out channels, rows, columns) and the samples (N, C, rows * kernel height, columns * kernel
        width), both float32. Only the first has a gradient.

    Raises:
        RuntimeError: arguments that do not fit.
    """
    _check(
        "npu_deformable_conv2d", input, weight, offset, kernel_size, stride, padding, dilation, groups,
        deformable_groups, modulated, "",
    )  # fmt: skip
    samples = _sample(
        input.float(), offset.float(), kernel_size, stride, padding, dilation, deformable_groups, modulated
    )
    shift = None if bias is None else bias.float()
    found = torch.nn.functional.conv2d(samples, weight.float(), shift, stride=list(kernel_size), groups=groups)
    return found, samples.detach()


@operator("npu_deformable_conv2dbk")
def npu_deformable_conv2dbk(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    offset_out: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = [1, 1, 1, 1],
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of npu_deformable_conv2d.

    Args:
        input: as for npu_deformable_conv2d; the others too.
        grad_output: gradient of its first result.
        offset_out: its second result.
        weight: see `input`.
        offset: see `input`.
        kernel_size: see `input`.
        stride: see `input`.
        padding: see `input`.
        dilation: see `input`.
        groups: see `input`.
        deformable_groups: see `input`.
        modulated: see `input`.

    Returns:
        those of `input`, `weight`, `offset` and the bias, in float32.

    Raises:
        RuntimeError: arguments that do not fit.
    """
    _check(
        "npu_deformable_conv2dbk", input, weight, offset, kernel_size, stride, padding, dilation, groups,
        deformable_groups, modulated, "_ori",
    )  # fmt: skip
    grad, samples, kernel = grad_output.float(), offset_out.float(), weight.float()
    of_samples, of_weight, of_bias = torch.ops.aten.convolution_backward(
        grad, samples, kernel, [weight.shape[0]], list(kernel_size), [0, 0], [1, 1], False, [0, 0], groups, [True] * 3
    )
    if not has_values(input, grad_output, offset_out, weight, offset):
        of_input, of_offset = torch.empty_like(input.float()), torch.empty_like(offset.float())
    else:
        of_input, of_offset = gradients(
            lambda x, o: _sample(x, o, kernel_size, stride, padding, dilation, deformable_groups, modulated),
            of_samples,
            input.float(),
            offset.float(),
        )
    return of_input, of_weight, of_offset, of_bias
