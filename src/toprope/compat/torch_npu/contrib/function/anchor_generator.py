"""Anchors that are responsible for ground truth boxes.

Programs import `npu_single_level_responsible_flags` from `torch_npu.contrib.function`. Signature and errors are those
of torch_npu/contrib/function/anchor_generator.py of Ascend/pytorch; tests/compat/operators/test_vision_tensors.py
holds the shape, test_vision_boxes.py there the operator's values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["npu_single_level_responsible_flags"]


def npu_single_level_responsible_flags(
    featmap_size: Sequence[int], gt_bboxes: torch.Tensor, stride: Sequence[int], num_base_anchors: int
) -> torch.Tensor:
    """Flags of the anchors of one feature map in whose cell the centre of a ground truth box lies.

    Args:
        featmap_size: height and width of the map.
        gt_bboxes: (N, 4), xyxy; converted to float32.
        stride: size of a cell.
        num_base_anchors: anchors of each cell.

    Returns:
        (height * width * num_base_anchors,), uint8.
    """
    found: torch.Tensor = torch.ops.npu.npu_anchor_response_flags(
        gt_bboxes.float(), featmap_size, stride, num_base_anchors
    )
    return found
