"""Position-sensitive pooling of regions over npu_ps_roi_pooling.

Programs import `PSROIPool` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/ps_roi_pooling.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the values.
"""

from __future__ import annotations

import torch
from torch import nn

from ..._error_codes import ErrCode, ops_error
from ._operators import operator

__all__ = ["PSROIPool"]


class PSROIPool(nn.Module):
    """Position-sensitive pooling of regions.

    Args:
        pooled_height: equal to `group_size`.
        pooled_width: equal to `group_size`.
        spatial_scale: factor from the boxes to the features.
        group_size: number of bins along each axis.
        output_dim: channels of the result.

    Raises:
        ValueError: the three sizes differ.
    """

    def __init__(
        self,
        pooled_height: int = 7,
        pooled_width: int = 7,
        spatial_scale: float = 1 / 16.0,
        group_size: int = 7,
        output_dim: int = 22,
    ) -> None:
        super().__init__()
        if not pooled_height == pooled_width == group_size:
            raise ValueError("only pooled_height == pooled_width == group_size supported." + ops_error(ErrCode.VALUE))
        self.group_size = group_size
        self.spatial_scale = spatial_scale
        self.output_dim = output_dim

    def forward(self, features: torch.Tensor, rois: torch.Tensor) -> torch.Tensor:
        """Pool features [N, output_dim * group_size^2, H, W] in boxes [N, 5, boxes]."""
        result: torch.Tensor = operator("npu_ps_roi_pooling")(
            features, rois, self.spatial_scale, self.group_size, self.output_dim
        )
        return result
