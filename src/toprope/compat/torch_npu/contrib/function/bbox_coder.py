"""Encoding and decoding of boxes, for mmdetection's coders. Boxes are converted to float32, as torch_npu does.

Programs import its names from `torch_npu.contrib.function`. Signature and errors are those of
torch_npu/contrib/function/bbox_coder.py of Ascend/pytorch; tests/compat/operators/test_vision_tensors.py holds the
values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..._error_codes import ErrCode, ops_error

__all__ = ["npu_bbox_coder_decode_xywh2xyxy", "npu_bbox_coder_encode_xyxy2xywh", "npu_bbox_coder_encode_yolo"]

_NO_LIMIT = (9999, 9999)


def _check(bboxes: torch.Tensor, others: torch.Tensor, name: str) -> None:
    if bboxes.size(0) != others.size(0):
        raise ValueError(f"Expected bboxes.size(0) == {name}.size(0)" + ops_error(ErrCode.VALUE))
    if not bboxes.size(-1) == others.size(-1) == 4:
        raise ValueError(f"Expected bboxes.size(-1) == {name}.size(-1) == 4" + ops_error(ErrCode.VALUE))


def npu_bbox_coder_encode_yolo(bboxes: torch.Tensor, gt_bboxes: torch.Tensor, stride: torch.Tensor) -> torch.Tensor:
    """Offsets from anchors to ground truth boxes, as YOLO learns them: npu_yolo_boxes_encode.

    Args:
        bboxes: anchors (N, 4).
        gt_bboxes: ground truth boxes (N, 4).
        stride: (N,), converted to int32.

    Returns:
        (N, 4).

    Raises:
        ValueError: shapes that do not fit.
    """
    _check(bboxes, gt_bboxes, "gt_bboxes")
    found: torch.Tensor = torch.ops.npu.npu_yolo_boxes_encode(
        bboxes.float(), gt_bboxes.float(), stride.int(), performance_mode=False
    )
    return found


def npu_bbox_coder_encode_xyxy2xywh(
    bboxes: torch.Tensor,
    gt_bboxes: torch.Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    is_normalized: bool = False,
    normalized_scale: float = 10000.0,
) -> torch.Tensor:
    """Offsets from boxes to ground truth boxes: npu_bounding_box_encode.

    Args:
        bboxes: (N, 4), xyxy.
        gt_bboxes: (N, 4), xyxy.
        means: of the four offsets; None for 0.
        stds: their standard deviations; None for 1.
        is_normalized: the coordinates are fractions, and are multiplied by `normalized_scale` first.
        normalized_scale: see `is_normalized`.

    Returns:
        (N, 4).

    Raises:
        ValueError: shapes that do not fit.
    """
    _check(bboxes, gt_bboxes, "gt_bboxes")
    scale = normalized_scale if is_normalized else 1.0
    found: torch.Tensor = torch.ops.npu.npu_bounding_box_encode(
        bboxes.float() * scale, gt_bboxes.float() * scale, *(means or (0.0,) * 4)[:4], *(stds or (1.0,) * 4)[:4]
    )
    return found


def npu_bbox_coder_decode_xywh2xyxy(
    bboxes: torch.Tensor,
    pred_bboxes: torch.Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    max_shape: Sequence[int] | None = None,
    wh_ratio_clip: float = 16 / 1000,
) -> torch.Tensor:
    """Boxes from boxes and offsets: npu_bounding_box_decode.

    Args:
        bboxes: (N, 4), xyxy.
        pred_bboxes: offsets (N, 4).
        means: of the four offsets; None for 0.
        stds: their standard deviations; None for 1.
        max_shape: height and width of the image; None for 9999 each.
        wh_ratio_clip: limit of the ratio of the sizes.

    Returns:
        (N, 4), xyxy.

    Raises:
        ValueError: shapes that do not fit.
    """
    _check(bboxes, pred_bboxes, "pred_bboxes")
    numbers = (*(means or (0.0,) * 4)[:4], *(stds or (1.0,) * 4)[:4])
    limit = list(_NO_LIMIT if max_shape is None else max_shape)
    found: torch.Tensor = torch.ops.npu.npu_bounding_box_decode(
        bboxes.float(), pred_bboxes.float(), *numbers, limit, wh_ratio_clip
    )
    return found
