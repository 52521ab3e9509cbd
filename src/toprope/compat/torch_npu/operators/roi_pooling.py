"""Pooling of regions of interest: ROIAlign and position-sensitive pooling, with their backward passes.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_vision_pooling.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

Both are separable: the value of a bin is a sum over rows and columns of the feature map, with weights that depend on
the region alone. Sources: the vendor's pages, RoiAlignKernelNpu.cpp and PsRoiPoolingKernelNpu.cpp of Ascend/op-plugin,
its tests test_roi_align.py, test_roi_align_backward.py and test_ps_roi_pooling.py, and the kernels dynamic/roi_align.py
and p_s_r_o_i_pooling_v2.py of CANN 8.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .._error_codes import ErrCode, ops_error
from .checks import floating, refuse
from .evaluation import has_values
from .registry import operator

__all__ = ["npu_ps_roi_pooling", "npu_ps_roi_pooling_backward", "npu_roi_align", "npu_roi_alignbk"]

_CHUNK = 16
"""Regions that are pooled at once: each takes a copy of its feature map."""


def _axis_weights(start: torch.Tensor, length: torch.Tensor, bins: int, samples: int, size: int) -> torch.Tensor:
    """Weights (K, bins, size) of the rows (or columns) of the map in each bin, by linear interpolation.

    Args:
        start: (K,), where the regions begin.
        length: (K,), their extent.
        bins: number of bins.
        samples: samples in each bin; 0 for as many as a bin has rows, rounded up.
        size: rows of the map.
    """
    extent = length / bins
    counts = torch.full_like(extent, samples) if samples > 0 else extent.ceil().clamp(min=1)
    most = samples if samples > 0 else int(counts.max()) if counts.numel() else 1
    step = extent / counts
    index = torch.arange(most, device=start.device, dtype=start.dtype)
    first = torch.arange(bins, device=start.device, dtype=start.dtype)[None, :, None] * counts[:, None, None]
    position = start[:, None, None] + step[:, None, None] * (first + index + 0.5)
    outside = (position < -1) | (position > size) | (index >= counts[:, None, None])
    clamped = position.clamp(0, size - 1)
    low = clamped.floor()
    upper = clamped - low
    share = torch.where(outside, 0.0, 1 / counts[:, None, None])
    weights = position.new_zeros(start.shape[0], bins, size)
    weights = weights.scatter_add(2, low.long(), (1 - upper) * share)
    return weights.scatter_add(2, (low + 1).clamp(max=size - 1).long(), upper * share)


def _roi_weights(
    rois: torch.Tensor, scale: float, bins: tuple[int, int], samples: int, mode: int, size: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image of each region (K,), and the weights of rows (K, bins, H) and of columns (K, bins, W)."""
    wide = rois.float()
    ends = wide[:, 1:] * scale
    if mode == 1:
        ends = ends + torch.tensor([0, 0, scale, scale], dtype=ends.dtype, device=ends.device)
    elif mode > 1:
        ends = ends - 0.5
    extent = ends[:, 2:] - ends[:, :2]
    if mode <= 1:
        extent = extent.clamp(min=1)
    rows = _axis_weights(ends[:, 1], extent[:, 1], bins[0], samples, size[0])
    columns = _axis_weights(ends[:, 0], extent[:, 0], bins[1], samples, size[1])
    return wide[:, 0].floor().long(), rows, columns


def _check_rois(name: str, rois: torch.Tensor, mode: int) -> None:
    if rois.dim() != 2 or rois.shape[1] != 5:
        refuse(name, f"rois must have shape (K, 5), the image and x0, y0, x1, y1, but got {list(rois.shape)}")
    if mode not in (0, 1, 2, 3):
        refuse(name, f"roi_end_mode is {mode}; the kernel takes 0 to 3")


@operator("npu_roi_align")
def npu_roi_align(
    self: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int,
    roi_end_mode: int,
) -> torch.Tensor:
    """ROIAlign: the mean of samples of the feature map in each bin of each region, by bilinear interpolation.

    Args:
        self: (B, C, H, W); float16, bfloat16 or float32.
        rois: (K, 5): the image, and x0, y0, x1, y1 in the image's coordinates.
        spatial_scale: size of the map over the size of the image.
        pooled_height: rows of bins.
        pooled_width: columns of bins.
        sample_num: samples of a bin in each direction; 0 for as many as the bin has rows (or columns), rounded up.
        roi_end_mode: 0 for regions from start to end, of an extent of at least 1; 1 for an end that belongs to the
            region (end + 1); 2 or 3 for regions that begin and end half a point earlier, of any extent.

    Returns:
        (K, C, pooled_height, pooled_width), of the dtype of `self`; computed in float32.

    Raises:
        RuntimeError: another shape, dtype or mode.
    """
    if rois.dim() < 1:
        raise RuntimeError("The dim of input tensor [rois] is less than 1." + ops_error(ErrCode.PARAM))
    if self.dim() < 2:
        raise RuntimeError("The dim of input tensor [self] is less than 2." + ops_error(ErrCode.PARAM))
    if self.dim() != 4:
        refuse("npu_roi_align", f"the feature map must have 4 dimensions, but got {self.dim()}")
    floating("npu_roi_align", self=self, rois=rois)
    _check_rois("npu_roi_align", rois, roi_end_mode)
    shape = (rois.shape[0], self.shape[1], pooled_height, pooled_width)
    if not has_values(self, rois) or not rois.shape[0]:
        return self.new_zeros(shape)
    bins, size = (pooled_height, pooled_width), (self.shape[2], self.shape[3])
    image, rows, columns = _roi_weights(rois, spatial_scale, bins, sample_num, roi_end_mode, size)
    wide = self.float()
    found = [
        torch.einsum("kph,kchw,kqw->kcpq", r, wide[i], c)
        for i, r, c in zip(*(torch.split(each, _CHUNK) for each in (image, rows, columns)), strict=True)
    ]
    return torch.cat(found).to(self.dtype)


@operator("npu_roi_alignbk")
def npu_roi_alignbk(
    self: torch.Tensor,
    rois: torch.Tensor,
    xdiff_shape: Sequence[int],
    pooled_width: int,
    pooled_height: int,
    spatial_scale: float,
    sample_num: int,
    roi_end_mode: int | None = None,
) -> torch.Tensor:
    """Gradient of npu_roi_align for the feature map.

    Args:
        self: gradient of its result.
        rois: as for npu_roi_align.
        xdiff_shape: shape of the feature map.
        pooled_width: as for npu_roi_align; the others too.
        pooled_height: see `pooled_width`.
        spatial_scale: see `pooled_width`.
        sample_num: see `pooled_width`.
        roi_end_mode: see `pooled_width`; None for 1.

    Returns:
        the gradient, of the shape `xdiff_shape` and the dtype of `self`.

    Raises:
        RuntimeError: another shape, dtype or mode.
    """
    mode = 1 if roi_end_mode is None else roi_end_mode
    floating("npu_roi_alignbk", self=self, rois=rois)
    _check_rois("npu_roi_alignbk", rois, mode)
    if len(xdiff_shape) != 4:
        refuse("npu_roi_alignbk", f"xdiff_shape {list(xdiff_shape)} must have 4 numbers")
    result = self.new_zeros(tuple(xdiff_shape), dtype=torch.float32)
    if not has_values(self, rois) or not self.numel():
        return result.to(self.dtype)
    bins, size = (pooled_height, pooled_width), (xdiff_shape[2], xdiff_shape[3])
    image, rows, columns = _roi_weights(rois, spatial_scale, bins, sample_num, mode, size)
    parts = (image, self.float(), rows, columns)
    for i, grad, r, c in zip(*(torch.split(part, _CHUNK) for part in parts), strict=True):
        result = result.index_add(0, i, torch.einsum("kph,kcpq,kqw->kchw", r, grad, c))
    return result.to(self.dtype)


def _bin_masks(start: torch.Tensor, end: torch.Tensor, bins: int, size: int) -> torch.Tensor:
    """Membership of rows (or columns) of the map in each bin of each region: (K, bins, size) of 0 and 1."""
    extent = (end - start).clamp(min=0.1) / bins
    number = torch.arange(bins, device=start.device, dtype=start.dtype)
    low = (number * extent[:, None] + start[:, None]).floor().clamp(0, size)
    high = ((number + 1) * extent[:, None] + start[:, None]).ceil().clamp(0, size)
    index = torch.arange(size, device=start.device)
    return ((index >= low[..., None]) & (index < high[..., None])).float()


def _ps_weights(
    rois: torch.Tensor, scale: float, group: int, size: tuple[int, int], images: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image of each region (K,), and the weights of rows (K, group, H) and columns (K, group, W), whose product is the
    share of a point in the mean of its bin; a bin without points has none."""
    flat = rois.float().transpose(1, 2).reshape(-1, 5).floor()
    ends = (flat[:, 1:] + torch.tensor([0, 0, 1, 1], dtype=flat.dtype, device=flat.device)) * scale
    rows = _bin_masks(ends[:, 1], ends[:, 3], group, size[0])
    columns = _bin_masks(ends[:, 0], ends[:, 2], group, size[1])
    rows = rows / rows.sum(dim=2, keepdim=True).clamp(min=1)
    columns = columns / columns.sum(dim=2, keepdim=True).clamp(min=1)
    return flat[:, 0].long().clamp(0, images - 1), rows, columns


def _check_ps(name: str, tensor: torch.Tensor, rois: torch.Tensor, group: int, output_dim: int) -> None:
    floating(name, x=tensor, rois=rois)
    if rois.dim() < 3:
        text = f"rois only supports at least 3D tensors, rois got: {rois.dim()}D"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if rois.dim() != 3 or rois.shape[1] != 5:
        refuse(name, f"rois must have shape (batch, 5, n), but got {list(rois.shape)}")
    if not 0 < group < 128:
        refuse(name, f"group_size is {group}; it must be greater than 0 and less than 128")
    if output_dim <= 0:
        refuse(name, f"output_dim is {output_dim}; it must be greater than 0")


@operator("npu_ps_roi_pooling")
def npu_ps_roi_pooling(
    self: torch.Tensor, rois: torch.Tensor, spatial_scale: float, group_size: int, output_dim: int
) -> torch.Tensor:
    """Position-sensitive pooling: the mean of the points in each bin, of a channel of its own for each bin.

    A region from floor(x1) to floor(x2) + 1, times the scale, at least 0.1 long, is cut into group_size bins; each has
    the points from its start rounded down to its end rounded up. A bin without points is 0.

    Args:
        self: (B, output_dim * group_size^2, H, W); float16, bfloat16 or float32.
        rois: (B, 5, n): the image, x1, y1, x2, y2, none negative. An image that is not there counts as the last.
        spatial_scale: size of the map over the size of the image.
        group_size: bins in each direction, 1 to 127.
        output_dim: channels of the result.

    Returns:
        (B * n, output_dim, group_size, group_size), of the dtype of `self`; computed in float32. Only `self` has a
        gradient.

    Raises:
        RuntimeError: another shape or dtype.
    """
    _check_ps("npu_ps_roi_pooling", self, rois, group_size, output_dim)
    channels = output_dim * group_size**2
    if self.dim() != 4 or self.shape[1] != channels:
        refuse("npu_ps_roi_pooling", f"x must have shape (B, {channels}, H, W), but got {list(self.shape)}")
    if not self.shape[0] or not rois.shape[0] * rois.shape[2]:
        return self.new_zeros(rois.shape[0] * rois.shape[2], output_dim, group_size, group_size)
    size = (self.shape[2], self.shape[3])
    image, rows, columns = _ps_weights(rois.detach(), spatial_scale, group_size, size, self.shape[0])
    maps = self.float().reshape(self.shape[0], output_dim, group_size, group_size, *size)
    found = [
        torch.einsum("kph,kdpqhw,kqw->kdpq", r, maps[i], c)
        for i, r, c in zip(*(torch.split(each, _CHUNK) for each in (image, rows, columns)), strict=True)
    ]
    return torch.cat(found).to(self.dtype)


@operator("npu_ps_roi_pooling_backward")
def npu_ps_roi_pooling_backward(
    output_grad: torch.Tensor,
    rois: torch.Tensor,
    spatial_scale: float,
    group_size: int,
    output_dim: int,
    input_size: Sequence[int],
) -> torch.Tensor:
    """Gradient of npu_ps_roi_pooling for the feature map.

    Args:
        output_grad: of the shape of its result.
        rois: as for npu_ps_roi_pooling; the others too.
        spatial_scale: see `rois`.
        group_size: see `rois`.
        output_dim: see `rois`.
        input_size: height and width of the map.

    Returns:
        (B, output_dim * group_size^2, H, W), of the dtype of `output_grad`.

    Raises:
        RuntimeError: another shape or dtype.
    """
    if len(input_size) < 2:
        text = "The length of param 'input_size' must be greater than or equal to 2."
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    _check_ps("npu_ps_roi_pooling_backward", output_grad, rois, group_size, output_dim)
    height, width = input_size[0], input_size[1]
    images = rois.shape[0]
    shape = (images, output_dim, group_size, group_size, height, width)
    result = output_grad.new_zeros(shape, dtype=torch.float32)
    if output_grad.numel():
        image, rows, columns = _ps_weights(rois, spatial_scale, group_size, (height, width), images)
        parts = (image, output_grad.float(), rows, columns)
        for i, grad, r, c in zip(*(torch.split(part, _CHUNK) for part in parts), strict=True):
            result = result.index_add(0, i, torch.einsum("kph,kdpq,kqw->kdpqhw", r, grad, c))
    return result.flatten(1, 3).to(output_grad.dtype)
