"""Pooling of regions and the convolutions against loops and against torch.

Holds convolution.py, deformable_convolution.py and roi_pooling.py in src/toprope/compat/torch_npu/operators.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

OPS = torch.ops.npu


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual, expected, tolerance=1e-4):
    expected = torch.as_tensor(np.asarray(expected)).double()
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def refused(text, function, *args, **kwargs):
    with pytest.raises(RuntimeError, match=f"(?s){text}"):
        function(*args, **kwargs)


# --- ROIAlign


def interpolated(image, y, x):
    """Bilinear interpolation as ROIAlign does it: 0 more than a point outside, the edge up to there."""
    height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    above = image[top, left] * (1 - u) + image[top, right] * u
    below = image[bottom, left] * (1 - u) + image[bottom, right] * u
    return above * (1 - v) + below * v


def plain_roi_align(x, rois, scale, height, width, samples, mode):
    result = np.zeros((len(rois), x.shape[1], height, width))
    for k, (image, *ends) in enumerate(rois):
        x0, y0, x1, y1 = (end * scale for end in ends)
        if mode == 1:
            x1, y1 = x1 + scale, y1 + scale
        if mode == 2:
            x0, y0, x1, y1 = x0 - 0.5, y0 - 0.5, x1 - 0.5, y1 - 0.5
        wide, tall = x1 - x0, y1 - y0
        if mode < 2:
            wide, tall = max(wide, 1), max(tall, 1)
        across = samples or math.ceil(wide / width)
        down = samples or math.ceil(tall / height)
        for channel, row, column in itertools.product(range(x.shape[1]), range(height), range(width)):
            values = [
                interpolated(
                    x[int(image), channel],
                    y0 + (row + (i + 0.5) / down) * tall / height,
                    x0 + (column + (j + 0.5) / across) * wide / width,
                )
                for i, j in itertools.product(range(down), range(across))
            ]
            result[k, channel, row, column] = np.mean(values)
    return result


ROIS = np.array(
    [
        [0, 2, 3, 21, 17], [1, -8, -3, 4, 6], [1, 6, 6, 7, 7], [0, 0, 0, 40, 30], [1, 20, 12, 35, 29],
        [0, 5, 5, 5, 5.5],
    ],
    dtype=np.float64,
)  # fmt: skip


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("samples", [0, 2])
def test_roi_align(facade, mode, samples):
    x, rois = normal(2, 2, 9, 11), ROIS[:5] if mode == 2 else ROIS
    found = OPS.npu_roi_align(x, torch.tensor(rois).float(), 0.5, 2, 3, samples, mode)
    close(found, plain_roi_align(x.double().numpy(), rois, 0.5, 2, 3, samples, mode))


@pytest.mark.parametrize("mode", [None, 0, 2])
def test_gradient_of_roi_align(facade, mode):
    """It is the transpose of the forward pass: <forward(x), grad> == <x, backward(grad)>."""
    x, grad, rois = normal(2, 3, 9, 11), normal(6, 3, 2, 4, seed=1), torch.tensor(ROIS).float()
    forward = OPS.npu_roi_align(x, rois, 0.4, 2, 4, 2, 1 if mode is None else mode)
    backward = OPS.npu_roi_alignbk(grad, rois, x.shape, 4, 2, 0.4, 2, mode)
    assert backward.shape == x.shape
    close((forward.double() * grad).sum(), (x.double() * backward).sum())


def test_many_regions_in_half_precision_and_none(facade):
    x, rois = normal(2, 3, 9, 11), torch.tensor(ROIS).float().repeat(8, 1)
    full = OPS.npu_roi_align(x, rois, 0.4, 2, 3, 2, 0)
    half = OPS.npu_roi_align(x.half(), rois.half(), 0.4, 2, 3, 2, 0)
    assert half.dtype is torch.float16
    close(half, full, 0.02)
    assert OPS.npu_roi_align(x, rois[:0], 0.4, 2, 3, 2, 0).shape == (0, 3, 2, 3)
    assert not OPS.npu_roi_alignbk(full[:0], rois[:0], x.shape, 3, 2, 0.4, 2).any()
    refused(r"\[rois\] is less than 1.*ERR01001", OPS.npu_roi_align, x, torch.tensor(1.0), 0.4, 2, 3, 2, 0)
    refused(r"\(K, 5\)", OPS.npu_roi_align, x, rois[:, 1:], 0.4, 2, 3, 2, 0)
    refused("takes 0 to 3", OPS.npu_roi_align, x, rois, 0.4, 2, 3, 2, 4)
    refused("takes float16", OPS.npu_roi_align, x.double(), rois, 0.4, 2, 3, 2, 0)


# --- position-sensitive pooling


def plain_ps_pooling(x, rois, scale, group, channels):
    images, _, count = rois.shape
    height, width = x.shape[2:]
    result = np.zeros((images * count, channels, group, group))
    for k in range(images * count):
        image, x1, y1, x2, y2 = np.floor(rois[k // count, :, k % count])
        left, top, right, bottom = x1 * scale, y1 * scale, (x2 + 1) * scale, (y2 + 1) * scale
        wide, tall = max(right - left, 0.1) / group, max(bottom - top, 0.1) / group
        for d, row, column in itertools.product(range(channels), range(group), range(group)):
            rows, columns = (
                range(
                    *(
                        min(max(edge, 0), size)
                        for edge in (math.floor(n * step + start), math.ceil((n + 1) * step + start))
                    )
                )
                for n, step, start, size in ((row, tall, top, height), (column, wide, left, width))
            )
            points = [x[int(image), (d * group + row) * group + column, i, j] for i in rows for j in columns]
            result[k, d, row, column] = np.mean(points) if points else 0
    return result


def test_position_sensitive_pooling(facade):
    x, group, channels = normal(2, 18, 7, 8).requires_grad_(), 3, 2
    rois = np.array([[[0, 1], [1.7, 0], [2, 3], [11, 40], [9, 12.9]], [[1, 0], [30, 5], [1, 5], [40, 5], [3, 5]]])
    found = OPS.npu_ps_roi_pooling(x, torch.tensor(rois).float(), 0.5, group, channels)
    close(found.detach(), plain_ps_pooling(x.detach().double().numpy(), rois, 0.5, group, channels))
    grad = normal(*found.shape, seed=1)
    found.backward(grad)
    backward = OPS.npu_ps_roi_pooling_backward(grad, torch.tensor(rois).float(), 0.5, group, channels, [7, 8])
    close(backward, x.grad)
    close((found.detach().double() * grad).sum(), (x.detach().double() * backward).sum())


def test_position_sensitive_pooling_refuses(facade):
    x, rois = normal(1, 8, 3, 3), torch.ones(1, 5, 2)
    refused("at least 3D tensors, rois got: 2D.*ERR01001", OPS.npu_ps_roi_pooling, x, rois[0], 0.5, 2, 2)
    refused(r"\(B, 12, H, W\)", OPS.npu_ps_roi_pooling, x, rois, 0.5, 2, 3)
    refused("less than 128", OPS.npu_ps_roi_pooling, x, rois, 0.5, 128, 2)
    refused("'input_size' must be", OPS.npu_ps_roi_pooling_backward, torch.ones(2, 2, 2, 2), rois, 0.5, 2, 2, [3])
    assert OPS.npu_ps_roi_pooling(x, rois[..., :0], 0.5, 2, 2).shape == (0, 2, 2, 2)


# --- deformable convolution


def plain_samples(x, offset, kernel, stride, padding, dilation, groups, modulated):
    count, channels, height, width = x.shape
    tall, broad = kernel
    rows, columns = offset.shape[2:]
    parts = offset.reshape(count, -1, groups, tall, broad, rows, columns)
    result = np.zeros((count, channels, rows * tall, columns * broad))
    places = (range(n) for n in (count, channels, rows, tall, columns, broad))
    for n, c, row, i, column, j in itertools.product(*places):
        group = c // (channels // groups)
        px = column * stride[1] - padding[2] + j * dilation[1] + parts[n, 0, group, i, j, row, column]
        py = row * stride[0] - padding[0] + i * dilation[0] + parts[n, 1, group, i, j, row, column]
        left, top = math.floor(px), math.floor(py)
        value = 0.0
        for a, b in itertools.product((0, 1), (0, 1)):
            if 0 <= top + a < height and 0 <= left + b < width:
                value += x[n, c, top + a, left + b] * (1 - abs(py - top - a)) * (1 - abs(px - left - b))
        result[n, c, row * tall + i, column * broad + j] = value * (
            parts[n, 2, group, i, j, row, column] if modulated else 1
        )
    return result


@pytest.mark.parametrize("modulated", [True, False])
def test_deformable_convolution(facade, modulated):
    x, weight, bias = normal(2, 4, 5, 6), normal(6, 2, 2, 3, seed=1), normal(6, seed=2)
    stride, padding, dilation, parts = [1, 1, 2, 1], [1, 0, 0, 2], [1, 1, 1, 2], 3 if modulated else 2
    rows, columns = (5 + 1 - 1 - 1) // 2 + 1, (6 + 2 - 4 - 1) // 1 + 1
    offset = normal(2, 2 * 6 * parts, rows, columns, seed=3)
    arguments = ([2, 3], stride, padding, dilation, 2, 2, modulated)
    found, samples = OPS.npu_deformable_conv2d(x, weight, offset, bias, *arguments)
    plain = plain_samples(x.double().numpy(), offset.double().numpy(), (2, 3), (2, 1), padding, (1, 2), 2, modulated)
    close(samples, plain)
    close(found, F.conv2d(torch.tensor(plain), weight.double(), bias.double(), stride=(2, 3), groups=2))


def test_gradients_of_deformable_convolution(facade):
    inputs = [normal(1, 2, 4, 4), normal(3, 2, 2, 2, seed=1), 0.7 * normal(1, 12, 3, 3, seed=2), normal(3, seed=3)]
    leaves = [each.requires_grad_() for each in inputs]
    arguments = ([2, 2], [1, 1, 1, 1], [0, 0, 0, 0])
    found, samples = OPS.npu_deformable_conv2d(*leaves, *arguments)
    grad = normal(*found.shape, seed=4)
    found.backward(grad)
    assert not samples.requires_grad
    x, weight, offset, bias = (leaf.detach() for leaf in leaves)
    backward = OPS.npu_deformable_conv2dbk(x, grad, samples, weight, offset, *arguments)
    for got, want in zip(backward, (leaves[0].grad, leaves[1].grad, leaves[2].grad, leaves[3].grad), strict=True):
        close(got, want)

    def loss(offset):
        plain = plain_samples(x.double().numpy(), offset, (2, 2), (1, 1), (0, 0, 0, 0), (1, 1), 1, True)
        result = F.conv2d(torch.tensor(plain), weight.double(), bias.double(), stride=(2, 2))
        return float((result * grad).sum())

    for place in [(0, 0, 1, 1), (0, 5, 0, 2), (0, 9, 2, 0)]:  # a shift in x, one in y and a factor
        moved = [offset.double().numpy().copy() for _ in range(2)]
        moved[0][place] += 1e-6
        moved[1][place] -= 1e-6
        assert abs((loss(moved[0]) - loss(moved[1])) / 2e-6 - float(backward[2][place])) < 1e-3


def test_deformable_convolution_refuses(facade):
    x, weight, offset = normal(1, 2, 4, 4), normal(3, 2, 2, 2), normal(1, 12, 3, 3)
    conv = OPS.npu_deformable_conv2d
    ones, none = [1, 1, 1, 1], [0, 0, 0, 0]
    refused("input has to be more than 4D.*ERR01001", conv, x[0], weight, offset, None, [2, 2], ones, none)
    refused(
        "stride has to contain more than 4 elements, but got 2", conv, x, weight, offset, None, [2, 2], [1, 1], none
    )
    refused("top, bottom, left, right", conv, x, weight, offset, None, [2, 2], ones, [0, 0])
    refused("offset must have shape", conv, x, weight, offset[:, :8], None, [2, 2], ones, none)
    refused("weight must have shape", conv, x, weight[:, :1], offset, None, [2, 2], ones, none)
    refused("greater than 0", conv, x, weight, offset, None, [2, 2], [1, 1, 0, 1], none)


# --- the convolutions under names of their own


def numbers(value, dims):
    return [value] * dims


@pytest.mark.parametrize("dims", [2, 3])
def test_convolutions(facade, dims):
    x, bias = normal(2, 4, *[5] * dims), normal(6, seed=2)
    weight, turned = normal(6, 2, *[3] * dims, seed=1), normal(4, 3, *[3] * dims, seed=1)
    plain, transposed = (F.conv2d, F.conv_transpose2d) if dims == 2 else (F.conv3d, F.conv_transpose3d)
    two, one, zero = numbers(2, dims), numbers(1, dims), numbers(0, dims)
    conv = getattr(OPS, f"npu_conv{dims}d")
    expected = plain(x, weight, bias, 2, 1, 1, 2)
    torch.testing.assert_close(conv(x, weight, bias, two, one, one, 2), expected)
    out = torch.empty_like(expected)
    assert conv.out(x, weight, bias, two, one, one, 2, out=out) is out
    torch.testing.assert_close(out, expected)
    leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
    found = OPS.npu_convolution(*leaves, two, one, one, 2)
    grad = normal(*found.shape, seed=3)
    found.backward(grad)
    for name in (f"npu_conv{dims}d_backward", "npu_convolution_backward"):
        grads = getattr(OPS, name)(x, grad, weight, two, one, one, 2, [True] * 3)
        for got, leaf in zip(grads, leaves, strict=True):
            torch.testing.assert_close(got, leaf.grad)
        only = getattr(OPS, name)(x, grad, weight, two, one, one, 2, [False, True, False])
        assert [each.numel() > 0 for each in only] == [False, True, False]

    expected = transposed(x, turned, bias, 2, 1, 1, 2)
    leaves = [each.clone().requires_grad_() for each in (x, turned, bias)]
    found = OPS.npu_convolution_transpose(*leaves, one, one, two, one, 2)
    torch.testing.assert_close(found, expected)
    grad = normal(*found.shape, seed=3)
    found.backward(grad)
    for name in (f"npu_conv_transpose{dims}d_backward", "npu_convolution_transpose_backward"):
        grads = getattr(OPS, name)(x, grad, turned, one, one, two, one, 2, [True] * 3)
        for got, leaf in zip(grads, leaves, strict=True):
            torch.testing.assert_close(got, leaf.grad)
    if dims == 2:
        torch.testing.assert_close(OPS.npu_conv_transpose2d(x, turned, bias, one, one, two, one, 2), expected)
    refused("Stride cannot contain 0.*ERR01001", conv, x, weight, bias, zero, one, one, 2)
    refused(f"input has to be more than {dims + 2}D", conv, x[0], weight, bias, two, one, one, 2)
    refused(f"padding has to contain more than {dims} elements, but got 1", conv, x, weight, bias, two, [1], one, 2)
    refused("takes float16", conv, x.double(), weight.double(), None, two, one, one, 2)


def test_convolution_takes_four_or_five_dimensions(facade):
    refused("takes 4 and 5", OPS.npu_convolution, normal(1, 2, 5), normal(2, 2, 3), None, [1], [0], [1], 1)
