"""Pooling of regions by bilinear samples over npu_roi_align.

Programs import `ROIAlign` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/roi_align.py of Ascend/pytorch. Tests: tests/compat/test_torch_npu_contrib.py; the operator's
values are held by tests/compat/operators/test_vision_pooling.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.utils import _pair

from ..._error_codes import ErrCode, ops_error
from ._operators import operator

__all__ = ["ROIAlign"]


class _ROIAlign(torch.autograd.Function):
    """npu_roi_align, with npu_roi_alignbk as its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        input_tensor: torch.Tensor,
        roi: torch.Tensor,
        output_size: tuple[int, int],
        spatial_scale: float,
        sampling_ratio: int,
        aligned: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(roi)
        ctx.shape, ctx.mode = input_tensor.size(), 3 if aligned else 0
        ctx.size, ctx.options = _pair(output_size), (spatial_scale, sampling_ratio)
        result: torch.Tensor = operator("npu_roi_align")(
            input_tensor, roi, spatial_scale, output_size[0], output_size[1], sampling_ratio, ctx.mode
        )
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        (rois,) = ctx.saved_tensors
        grad = operator("npu_roi_alignbk")(
            grad_output, rois, ctx.shape, ctx.size[0], ctx.size[1], *ctx.options, ctx.mode
        )
        return grad, None, None, None, None, None


roi_align: Any = _ROIAlign.apply


class ROIAlign(nn.Module):
    """Pooling of regions by bilinear samples, in float32.

    Args:
        output_size: bins along y and x.
        spatial_scale: factor from the boxes to the features.
        sampling_ratio: samples of a bin along each axis; 0 for a dense grid.
        aligned: shift the boxes by half a pixel, as centres of pixels lie.
    """

    def __init__(
        self, output_size: tuple[int, int], spatial_scale: float, sampling_ratio: int, aligned: bool = True
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio
        self.aligned = aligned

    def forward(self, input_tensor: torch.Tensor, rois: torch.Tensor) -> torch.Tensor:
        """Pool features.

        Args:
            input_tensor: [N, C, H, W].
            rois: [boxes, 5]: the image, and x, y of two corners.

        Returns:
            [boxes, C, *output_size].

        Raises:
            ValueError: `rois` has another shape.
        """
        if rois.dim() != 2 or rois.size(1) != 5:
            raise ValueError("Expected rois.dim() == 2 and rois.size(1) == 5" + ops_error(ErrCode.VALUE))
        result: torch.Tensor = roi_align(
            input_tensor.float(), rois, self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned
        )
        return result

    def __repr__(self) -> str:
        names = ("output_size", "spatial_scale", "sampling_ratio", "aligned")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name in names)})"
